//go:build cgo

package webgpu

import (
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// TestProductsDoNotDependOnTheirTiles: in tiles of both sizes, with the steps written out or in a
// loop, read along k or not, the bits are the same, however the operands lie.
func TestProductsDoNotDependOnTheirTiles(t *testing.T) {
	d, err := theDevice()
	if err != nil {
		t.Skip(err)
	}
	defer func() { op.ClearCache(); backend.Register(New()) }()
	for _, size := range [][3]int64{{132, 136, 84}, {65, 131, 150}} {
		for name, transposed := range map[string][2]bool{"ab": {false, false}, "abᵀ": {false, true}, "aᵀb": {true, false}} {
			var want []float32
			for i, tiling := range []tiling{{1, false}, {1, false}, {1, true}, {2, true}} {
				if tiling.bytes() > d.limits.groupBytes || tiling.parts > 1 && !d.writesOut {
					// lavapipe compiles large tiles for seconds: the suite on narrow limits has
					// them
					continue
				}
				op.ClearCache()
				backend.Register(&Backend{tiling: &tiling, readsAlongK: i > 0})
				got := productOf(t, size, transposed)
				if want == nil {
					want = got
					require.False(t, slices.ContainsFunc(want, func(x float32) bool { return math.IsNaN(float64(x)) }))
				}
				require.Equal(t, want, got, "%s of %v in %+v", name, size, tiling)
			}
		}
	}
}

// productOf is a b of [m, k] and [k, n], each as it is or as the transposed view of what lies the
// other way.
func productOf(t *testing.T, size [3]int64, transposed [2]bool) []float32 {
	t.Helper()
	m, n, k := size[0], size[1], size[2]
	operand := func(rows, columns int64, transposed bool, at func(i int) float64) (*tensor.View, []float32) {
		memory := make([]float32, rows*columns)
		for i := range memory {
			memory[i] = float32(at(i))
		}
		strides := []int64{columns, 1}
		if transposed {
			strides = []int64{1, rows}
		}
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, []int64{rows, columns}, strides, 0)
		require.NoError(t, err)
		return &v, memory
	}
	a, _ := operand(m, k, transposed[0], func(i int) float64 { return math.Sin(float64(3 * i)) })
	b, _ := operand(k, n, transposed[1], func(i int) float64 { return math.Cos(float64(5 * i)) })
	out, product := operand(m, n, false, func(int) float64 { return math.NaN() })
	require.NoError(t, op.Run(&op.Call{
		Op: "matmul_bias_activation", Kind: "none", Backend: backendName, Inputs: []*tensor.View{a, b, nil}, Outputs: []*tensor.View{out},
	}))
	return product
}
