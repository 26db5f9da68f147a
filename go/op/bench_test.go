package op_test

import (
	"fmt"
	"testing"
	"unsafe"

	_ "github.com/epigrad/epigrad/go/backend/builtin"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// array is a contiguous tensor on Go memory.
func array(tb testing.TB, dt dtype.DType, shape ...int64) *tensor.View {
	tb.Helper()
	v, err := tensor.New(nil, 0, dt, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
	if err != nil {
		tb.Fatal(err)
	}
	v.Base = unsafe.Pointer(unsafe.SliceData(make([]uint64, v.Numel()*dt.Size()/8+1)))
	return &v
}

// BenchmarkLinearGELU measures the core alone, with the buffers of a call at hand.
func BenchmarkLinearGELU(b *testing.B) {
	for _, size := range [][3]int64{{32, 64, 64}, {1024, 1024, 4096}} {
		m, k, n := size[0], size[1], size[2]
		for _, dt := range dtype.All() {
			input, weight, bias := array(b, dt, m, k), array(b, dt, n, k), array(b, dt, n)
			out, pre, grad := array(b, dt, m, n), array(b, dt, m, n), array(b, dt, m, n)
			scratch := array(b, dt, m, n)
			forward := &op.Call{
				Op: "linear", Kind: "gelu", Inputs: []*tensor.View{input, weight, bias}, Outputs: []*tensor.View{out, pre},
			}
			backward := &op.Call{
				Op: "linear_backward", Kind: "gelu", Inputs: []*tensor.View{grad, input, weight, bias, pre},
				Outputs:   []*tensor.View{array(b, dt, m, k), array(b, dt, n, k), array(b, dt, n)},
				Workspace: scratch.Base, WorkspaceBytes: m * n * dt.Size(),
			}
			for name, call := range map[string]*op.Call{"forward": forward, "backward": backward} {
				b.Run(fmt.Sprintf("%s/%dx%dx%d/%v", name, m, k, n, dt), func(b *testing.B) {
					for b.Loop() {
						if err := op.Run(call); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
