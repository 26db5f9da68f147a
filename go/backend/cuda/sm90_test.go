//go:build cgo

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// Hopper's instructions are in no processor before or after it.
func TestHopperAlone(t *testing.T) {
	for _, c := range []struct{ major, minor int }{{8, 0}, {8, 6}, {8, 9}, {10, 0}, {10, 3}, {12, 0}} {
		require.False(t, isHopper(c.major, c.minor), "%d.%d", c.major, c.minor)
	}
	require.True(t, isHopper(9, 0))
}

// A program that there is not is refused by its name, before a GPU is looked for.
func TestUnknownProgram(t *testing.T) {
	t.Setenv("EPIGRAD_CUDA_PROGRAM", "sm70")
	_, err := New().Select(&backend.Activation{Header: backend.Header{DType: dtype.Float32}})
	require.EqualError(t, err, `cuda: EPIGRAD_CUDA_PROGRAM: got "sm70", want "sm80", or unset it`)
}

// The tile whose last round leaves fewer processors idle is taken; the wider one where they are
// alike.
func TestTileRows(t *testing.T) {
	for _, c := range []struct{ rows, columns, want int64 }{
		{8192, 14336, 192}, {4096, 4096, 128}, {2048, 3072, 192}, {128, 128, 128}, {128, 192, 128},
	} {
		o := onePass{rows: c.rows, columns: c.columns}
		require.Equal(t, c.want, o.fewestIdle(132), "%d x %d", c.rows, c.columns)
	}
}

// BLAS has products that are deep, or that have too few tiles (docs/results: ...-ways, and the rows
// of linear in the record of all operations).
func TestWorthwhile(t *testing.T) {
	for _, c := range []struct {
		rows, depth, columns int64
		want                 bool
	}{
		{8192, 4096, 14336, true},
		{512, 768, 3072, true},
		{512, 4096, 4096, true},
		{2048, 768, 3072, true},
		{8192, 14336, 4096, false},
		{64, 768, 3072, false},
		{64, 768, 14336, false},
		{64, 4096, 14336, false},
		{512, 4096, 3072, false},
	} {
		o := onePass{rows: c.rows, depth: c.depth, columns: c.columns}
		require.Equal(t, c.want, o.worthwhile(132), "%+v", c)
	}
}

// What the copy engine cannot reach is no matrix of boxes.
func TestBoxed(t *testing.T) {
	for _, c := range []struct {
		m    matrix
		want bool
	}{
		{matrix{3, 16, 16, 1}, true},
		{matrix{3, 24, 16, 1}, true},
		{matrix{1, 1, 13, 1}, true},
		{matrix{3, 13, 13, 1}, false},       // rows do not start at multiples of 16 bytes
		{matrix{3, 8, 16, 1}, false},        // rows overlap
		{matrix{3, 16, 16, 2}, false},       // columns are apart
		{matrix{3, 0, 16, 1}, false},        // one row for all
		{matrix{1 << 31, 16, 16, 1}, false}, // 32 bits
		{matrix{2, 1 << 40, 16, 1}, false},
	} {
		require.Equal(t, c.want, c.m.boxable(), "%+v", c.m)
	}
}

// Two pairs are one kernel if their weights lie alike.
func TestPairsInOneKernel(t *testing.T) {
	const rows, depth, columns, rank = 4096, 1024, 2048, 16
	at := func(operand int, shape ...int64) *tensor.View {
		return &tensor.View{Operand: operand, DType: dtype.BFloat16, Shape: shape, Strides: tensor.ContiguousStrides(shape)}
	}
	narrow, weight := at(3, rows, rank), tensor.Exchanged(at(1, columns, depth), 0, 1)
	pairs := map[bool]backend.Pair{
		true:  {A: narrow, B: tensor.Exchanged(at(4, columns, rank), 0, 1)},
		false: {A: narrow, B: at(4, rank, columns)},
	}
	for alike, pair := range pairs {
		h := backend.Header{Op: "linear", Formula: "gelu", DType: dtype.BFloat16}
		p := &backend.GemmEpilogue{Header: h, A: at(0, rows, depth), B: weight, Out: at(2, rows, columns), More: []backend.Pair{pair}}
		b := (&Backend{}).builder(&device{processors: 132, boxes: true, compiled: func(string) bool { return true }}, p)
		b.plan(p)
		first, ok := b.program[0].(conditional)
		require.Equal(t, alike, ok)
		if alike {
			launch := first.operation.(step).general
			require.Equal(t, "linear_sm90_gelu_bf16_nt_128", launch.function)
			require.Len(t, launch.params, sm90Parameters)
			require.Len(t, launch.maps, 5)
		}
	}
}
