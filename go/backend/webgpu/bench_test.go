//go:build cgo

package webgpu

import (
	_ "embed"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// resident is a contiguous tensor on the adapter.
func resident(b *testing.B, dt dtype.DType, shape ...int64) *tensor.View {
	b.Helper()
	v, err := tensor.New(nil, 0, dt, tensor.Device{Type: tensor.WebGPU}, shape, nil, 0)
	require.NoError(b, err)
	address, err := Allocate(v.Numel() * dt.Size())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, Free(address)) })
	*(*uintptr)(unsafe.Pointer(&v.Base)) = address
	return &v
}

// measure runs a call until the benchmark's time is up and waits for the adapter at the end.
func measure(b *testing.B, c *op.Call) {
	b.Helper()
	wait := func() {
		require.NoError(b, Read(uintptr(c.Outputs[0].Base), unsafe.Pointer(new([4]byte)), 4))
	}
	require.NoError(b, op.Run(c))
	wait()
	b.ResetTimer()
	for range b.N {
		require.NoError(b, op.Run(c))
	}
	wait() // while the clock runs: a call returns before its work is done
}

func BenchmarkGemmEpilogue(b *testing.B) {
	if _, err := theDevice(); err != nil {
		b.Skip(err)
	}
	backend.Register(New())
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		for _, n := range []int64{512, 4096} {
			b.Run(fmt.Sprintf("%v/%d", dt, n), func(b *testing.B) {
				square := func() *tensor.View { return resident(b, dt, n, n) }
				measure(b, &op.Call{
					Op: "matmul_bias_activation", Kind: "gelu",
					Inputs: []*tensor.View{square(), square(), resident(b, dt, n)}, Outputs: []*tensor.View{square()},
				})
				b.ReportMetric(2*float64(n*n*n)*float64(b.N)/b.Elapsed().Seconds()/1e12, "TFLOP/s")
			})
		}
	}
	b.Run("backward/float32/4096", func(b *testing.B) {
		const n = 4096
		square := func() *tensor.View { return resident(b, dtype.Float32, n, n) }
		a, right, bias, grad, pre := square(), square(), resident(b, dtype.Float32, n), square(), square()
		measure(b, &op.Call{
			Op: "matmul_bias_activation_backward", Kind: "gelu", Inputs: []*tensor.View{grad, a, right, bias, pre},
			Outputs: []*tensor.View{square(), square(), resident(b, dtype.Float32, n)},
		})
		b.ReportMetric(4*float64(n)*n*n*float64(b.N)/b.Elapsed().Seconds()/1e12, "TFLOP/s")
	})
}

//go:embed testdata/tile16.wgsl
var plainTile string

// BenchmarkPlainTile is what a plain tile of 16 x 16 comes to, with a thread to an element.
func BenchmarkPlainTile(b *testing.B) {
	d, err := theDevice()
	if err != nil {
		b.Skip(err)
	}
	const n = 4096
	d.mutex.Lock()
	pipeline, err := d.compile(plainTile)
	d.mutex.Unlock()
	require.NoError(b, err)
	k := &kernel{device: d}
	s := &step{template: &template{}, pipeline: pipeline, groups: [3]uint32{n / 16, n / 16, 1}}
	run := &backend.Run{}
	for i, shape := range [][]int64{{n, n}, {n, n}, {n, n}, {n}} {
		v := resident(b, dtype.Float32, shape...)
		v.Operand = i
		run.Bases = append(run.Bases, v.Base)
		k.slots = append(k.slots, slot{kind: onDevice, view: v})
		s.bindings = append(s.bindings, binding{slot: i, to: v.Numel() * 4, size: 4, written: i == 0})
	}
	p := newParams(nil, make([][]int64, len(s.bindings)))
	for i := range 3 {
		p.set(32+4*i, n)
	}
	s.params = p.bytes
	k.steps = []*step{s}
	wait := func() { require.NoError(b, Read(uintptr(run.Bases[0]), unsafe.Pointer(new([4]byte)), 4)) }
	require.NoError(b, k.Run(run))
	wait()
	b.ResetTimer()
	for range b.N {
		require.NoError(b, k.Run(run))
	}
	wait()
	b.ReportMetric(2*float64(n)*n*n*float64(b.N)/b.Elapsed().Seconds()/1e12, "TFLOP/s")
}

func BenchmarkElementwise(b *testing.B) {
	if _, err := theDevice(); err != nil {
		b.Skip(err)
	}
	backend.Register(New())
	const rows, columns = 16384, 8192
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		for kind, operands := range map[string]int64{"none": 2, "gelu": 2} {
			b.Run(fmt.Sprintf("%s/%v", kind, dt), func(b *testing.B) {
				in, out := resident(b, dt, rows, columns), resident(b, dt, rows, columns)
				measure(b, &op.Call{Op: "activation", Kind: kind, Inputs: []*tensor.View{in}, Outputs: []*tensor.View{out}})
				b.ReportMetric(float64(operands*rows*columns*dt.Size())*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
			})
		}
	}
}
