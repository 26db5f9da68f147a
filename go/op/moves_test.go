package op_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// matrix is a tensor of two dimensions, whose rows may be longer than it.
func matrix[T any](dt dtype.DType, values []T, rows, columns, step int64) *tensor.View {
	return &tensor.View{Base: unsafe.Pointer(unsafe.SliceData(values)), DType: dt, Device: tensor.Device{Type: tensor.CPU}, Shape: []int64{rows, columns}, Strides: []int64{step, 1}}
}

// TestMoves scatters rows into a buffer with other columns beside them, and adds them up again.
func TestMoves(t *testing.T) {
	rows, buffer := []float32{1, 2, 3, 4, 5, 6}, make([]float32, 12)
	for i := range buffer {
		buffer[i] = -1
	}
	places := matrix(dtype.Int32, []int32{1, -1, 0, 3, 4, 2}, 3, 2, 2) // 4 is no row
	into := matrix(dtype.Float32, buffer, 4, 2, 3)
	require.NoError(t, op.Run(&op.Call{
		Op: "scatter_rows", Inputs: []*tensor.View{matrix(dtype.Float32, rows, 3, 2, 2), places}, Outputs: []*tensor.View{into},
	}))
	require.Equal(t, []float32{3, 4, -1, 1, 2, -1, 5, 6, -1, 3, 4, -1}, buffer)
	sums := make([]float32, 6)
	c := &op.Call{Op: "combine_rows", Inputs: []*tensor.View{into, places}}
	shapes, _, err := op.Infer(c, nil)
	require.NoError(t, err)
	require.Equal(t, [][]int64{{3, 2}}, shapes)
	c.Outputs = []*tensor.View{matrix(dtype.Float32, sums, 3, 2, 2)}
	require.NoError(t, op.Run(c))
	require.Equal(t, []float32{1, 2, 6, 8, 5, 6}, sums)
}

func TestErrorsOfMoves(t *testing.T) {
	rows, buffer := matrix(dtype.Float32, make([]float32, 6), 3, 2, 2), matrix(dtype.Float32, make([]float32, 8), 4, 2, 2)
	places := matrix(dtype.Int32, make([]int32, 6), 3, 2, 2)
	for message, c := range map[string]*op.Call{
		"scatter_rows: out: missing, want the tensor whose rows are written": {Op: "scatter_rows", Inputs: []*tensor.View{rows, places}},
		"scatter_rows: out: shape [3, 1], want [S, K] with K = 2": {
			Op: "scatter_rows", Inputs: []*tensor.View{rows, places}, Outputs: []*tensor.View{matrix(dtype.Float32, make([]float32, 3), 3, 1, 1)},
		},
		"scatter_rows: places: shape [3], want [T] = [4]": {Op: "scatter_rows", Inputs: []*tensor.View{buffer, places}, Outputs: []*tensor.View{rows}},
		"combine_rows: places: dtype int64, want int32":   {Op: "combine_rows", Inputs: []*tensor.View{buffer, matrix(dtype.Int64, make([]int64, 6), 3, 2, 2)}},
		"combine_rows: places: strides [3, 1], want contiguous ones": {
			Op: "combine_rows", Inputs: []*tensor.View{buffer, matrix(dtype.Int32, make([]int32, 9), 3, 2, 3)},
		},
	} {
		require.EqualError(t, op.Validate(c), message)
	}
}
