//go:build cgo

package cuda

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/dtype"
)

// runSlots runs a problem in the emulator, and on the CPU with other outputs.
func runSlots(t *testing.T, p backend.Problem, inputs, emulated, wanted []unsafe.Pointer) {
	t.Helper()
	runProblem(t, p, append(inputs, emulated...)...)
	k, err := cpu.New().Select(p)
	require.NoError(t, err)
	require.NoError(t, k.Run(&backend.Run{Bases: append(inputs, wanted...), Threads: 1}))
}

// TestSlots counts rows for processes, numbers them, and sends their slots: with few tokens and
// many blocks of a part, more ranks than are side by side, and parts that have no tokens.
func TestSlots(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	for _, c := range []struct{ tokens, each, ranks, local int64 }{
		{0, 2, 2, 2}, {1, 1, 1, 1}, {5, 4, 3, 2}, {37, 9, 8, 1}, {100, 8, 40, 3}, {70001, 3, 2, 4}, {9000, 2, 300, 1}, {20, 2, 3, 0},
	} {
		index, scale := make([]int64, c.tokens*c.each), make([]uint16, c.tokens*c.each)
		for i := range index {
			index[i], scale[i] = random.Int64N(c.ranks*c.local+2)-1, uint16(random.IntN(0x4000))
			if i%11 == 0 {
				index[i] = []int64{math.MaxInt64, math.MinInt64, 1 << 32}[random.IntN(3)]
			}
		}
		experts, parts, facts := make([]int64, c.ranks+1), []int64{0, 5, 10, 16}, []int64{-4, 1 << 40}
		for rank := range experts {
			experts[rank] = int64(rank) * c.local
		}
		const width = 2*16 + 3
		header := backend.Header{DType: dtype.BFloat16}
		var counts [2][]int64
		var places [2][]int32
		for i := range counts {
			counts[i], places[i] = make([]int64, c.ranks*width), make([]int32, c.tokens*c.ranks)
		}
		is, indexBase := operand(0, dtype.Int64, index, c.tokens, c.each)
		es, expertsBase := operand(1, dtype.Int64, experts, c.ranks+1)
		bs, partsBase := operand(2, dtype.Int64, parts, 4)
		fs, factsBase := operand(3, dtype.Int64, facts, 2)
		cs, countsBase := operand(4, dtype.Int64, counts[0], c.ranks, width)
		ps, placesBase := operand(5, dtype.Int32, places[0], c.tokens, c.ranks)
		runSlots(t, &backend.CountRows{Header: header, Index: is, Experts: es, Parts: bs, Facts: fs, Counts: cs, Places: ps},
			[]unsafe.Pointer{indexBase, expertsBase, partsBase, factsBase}, []unsafe.Pointer{countsBase, placesBase},
			[]unsafe.Pointer{unsafe.Pointer(unsafe.SliceData(counts[1])), unsafe.Pointer(unsafe.SliceData(places[1]))})
		require.Equal(t, counts[1], counts[0], "%v", c)
		require.Equal(t, places[1], places[0], "%v", c)
		if c.tokens > 100 { // whose chunks have the same places
			continue
		}
		rows := c.tokens * c.ranks
		var indices [2][]int64
		var scales [2][]float32
		for i := range indices {
			indices[i], scales[i] = make([]int64, rows*c.each), make([]float32, rows*c.each)
		}
		for i := range places[0] { // of one chunk
			places[0][i] = int32(i)*3%7 - 1
			if i > 6 {
				places[0][i] = int32(i)
			}
		}
		ss, scaleBase := operand(1, dtype.BFloat16, scale, c.tokens, c.each)
		es.Operand, ps.Operand = 2, 3
		ri, indicesBase := operand(4, dtype.Int64, indices[0], rows, c.each)
		rs, scalesBase := operand(5, dtype.Float32, scales[0], rows, c.each)
		runSlots(t, &backend.ScatterSlots{Header: header, Index: is, Scale: ss, Experts: es, Places: ps, RowsIndex: ri, RowsScale: rs},
			[]unsafe.Pointer{indexBase, scaleBase, expertsBase, placesBase}, []unsafe.Pointer{indicesBase, scalesBase},
			[]unsafe.Pointer{unsafe.Pointer(unsafe.SliceData(indices[1])), unsafe.Pointer(unsafe.SliceData(scales[1]))})
		require.Equal(t, indices[1], indices[0], "%v", c)
		require.Equal(t, scales[1], scales[0], "%v", c)
	}
}

func TestTooManyProcesses(t *testing.T) {
	index, _ := operand(0, dtype.Int64, []int64(nil), 2, 2)
	experts, _ := operand(1, dtype.Int64, []int64(nil), mostRouted+2)
	parts, _ := operand(2, dtype.Int64, []int64(nil), 2)
	facts, _ := operand(3, dtype.Int64, []int64(nil), 0)
	counts, _ := operand(4, dtype.Int64, []int64(nil), mostRouted+1, 3)
	places, _ := operand(5, dtype.Int32, []int32(nil), 2, mostRouted+1)
	header := backend.Header{Op: "count_rows", DType: dtype.Int64}
	_, err := newEmulated(t).Select(&backend.CountRows{Header: header, Index: index, Experts: experts, Parts: parts, Facts: facts, Counts: counts, Places: places})
	require.EqualError(t, err, "count_rows: experts: got 8193 processes, want at most 8192 on the cuda backend")
}
