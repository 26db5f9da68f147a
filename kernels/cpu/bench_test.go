package cpu_test

import (
	"testing"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/kernels/cpu"
)

// What packing costs, in cache: of a matrix whose rows (N) or columns (T) lie in memory.
func BenchmarkPack(b *testing.B) {
	const n = 256
	for _, name := range cpu.Names() {
		e, err := cpu.Open(name)
		if err != nil {
			continue
		}
		for i, dt := range packedTypes {
			form := cpu.Form(i)
			left, right := e.Widths(form)
			for side, width := range []int64{right, left} {
				for layout, label := range []string{"N", "T"} {
					if width == 0 {
						continue
					}
					b.Run(name+"/"+form.String()+"/"+[]string{"right", "left"}[side]+label, func(b *testing.B) {
						o := cpu.Operand{
							Rows: axisOf(n, n*dt.Size()), Columns: axisOf(n, dt.Size()), Form: form, Width: width, Left: int64(side), Count: n, Depth: n,
						}
						if layout == side^1 { // the left operand is [rows, depth], the right one [depth, rows]
							o.Rows, o.Columns = o.Columns, o.Rows
						}
						panels := (n + width - 1) / width
						from, smallest := exactly(n*n*dt.Size()), make([]int16, panels)
						to := exactly(panels * width * form.Words(n) * dt.Accumulator().Size())
						b.SetBytes(n * n) // so that this is elements a second
						for b.Loop() {
							e.Pack(cpu.Alone(), &cpu.Packing{Operand: &o, From: at(from), To: at(to), Smallest: smallest}, nil)
						}
					})
				}
			}
		}
	}
}

// What formulas cost, in cache.
func BenchmarkFormulas(b *testing.B) {
	const n = 2048
	for _, name := range cpu.Names() {
		e, err := cpu.Open(name)
		if err != nil {
			continue
		}
		for _, dt := range dtype.All() {
			for _, kernel := range []string{"activation_gelu", "activation_backward_gelu", "activation_gelu_tanh", "activation_silu", "activation_backward_silu", "lerp_backward"} {
				b.Run(name+"/"+kernel+"/"+dt.String(), func(b *testing.B) {
					k, ok := e.Kernel(kernel + "_" + dt.Short())
					if !ok {
						b.Fatal(kernel)
					}
					l := cpu.Loops{ElementSize: dt.Size(), Rank: 1}
					l.Shape[0] = n
					var operands cpu.Addresses
					for i := range operands {
						if i == 0 || i >= cpu.Outputs {
							memory := exactly(n * dt.Size())
							for j := range int64(n) {
								put(dt, at(memory[j*dt.Size():]), float64(j%64)/16-2)
							}
							operands[i], l.Strides[i][0] = at(memory), dt.Size()
						}
					}
					b.SetBytes(n) // so that this is elements a second
					for b.Loop() {
						e.Elementwise(cpu.Alone(), k, &l, 0, n, n, &cpu.Numbers{}, &operands)
					}
				})
			}
		}
	}
}
