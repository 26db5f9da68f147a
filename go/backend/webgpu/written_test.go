//go:build cgo

package webgpu

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// TestResultsDoNotDependOnHowKernelsAreWritten: written out as for GPUs, or with nothing that an
// adapter may lack, kernels give the same bits, of any number of elements.
func TestResultsDoNotDependOnHowKernelsAreWritten(t *testing.T) {
	if _, err := theDevice(); err != nil {
		t.Skip(err)
	}
	defer func() { op.ClearCache(); backend.Register(New()) }()
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16} {
		for _, shape := range [][]int64{{3}, {2055}, {5, 300}} {
			var want [][]uint16
			for _, b := range []*Backend{{}, {writesOut: true}, {portable: true}, {writesOut: true, portable: true}} {
				op.ClearCache()
				backend.Register(b)
				got := resultsOf(t, dt, shape)
				if want == nil {
					want = got
				}
				require.Equal(t, want, got, "%v of %v, %+v", shape, dt, b)
			}
		}
	}
}

// resultsOf are the bits of both gradients of swiglu, and of a lerp by a weight for each column.
func resultsOf(t *testing.T, dt dtype.DType, shape []int64) [][]uint16 {
	t.Helper()
	views, memory := make([]*tensor.View, 6), make([][]uint16, 6)
	for i := range views {
		memory[i] = make([]uint16, tensor.Elements(shape)*dt.Size()/2)
		for j := range memory[i] {
			x := math.Float32bits(float32(8 * math.Sin(float64(1000*i+j))))
			memory[i][j] = uint16(x >> 16) // a bfloat16, and the half of a float32 that matters
			if dt == dtype.Float16 {
				memory[i][j] = uint16(x>>13) & 0xcfff // among them denormals, and no infinity
			}
		}
		v, err := tensor.New(unsafe.Pointer(&memory[i][0]), 0, dt, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
		require.NoError(t, err)
		views[i] = &v
	}
	weight := *views[2]
	weight.Shape = shape[len(shape)-1:]
	weight.Strides = []int64{1}
	for _, call := range []*op.Call{
		{Op: "gated_product_backward", Kind: "swiglu", Inputs: views[:3], Outputs: views[3:5]},
		{Op: "lerp", Inputs: []*tensor.View{views[0], views[1], &weight}, Outputs: views[5:]},
	} {
		call.Backend = backendName
		require.NoError(t, op.Run(call))
	}
	return memory[3:]
}
