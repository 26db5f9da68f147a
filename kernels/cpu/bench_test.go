package cpu_test

import (
	"testing"
	"time"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/kernels/cpu"
)

// What packing costs, in cache: of a matrix whose rows (N) or columns (T) lie in memory.
func BenchmarkPack(b *testing.B) {
	const n = 256
	forEachForm(func(e *cpu.Engine, form cpu.Form, dt dtype.DType) {
		left, right := e.Widths(form)
		for side, width := range []int64{right, left} {
			for layout, label := range []string{"N", "T"} {
				b.Run(e.Name+"/"+form.String()+"/"+[]string{"right", "left"}[side]+label, func(b *testing.B) {
					o := cpu.Operand{
						Rows: axisOf(n, n*dt.Size()), Columns: axisOf(n, dt.Size()), Form: form, Width: width, Left: int64(side), Count: n, Depth: n,
					}
					// the left operand is [rows, depth], the right one [depth, rows]
					if layout == side^1 {
						o.Rows, o.Columns = o.Columns, o.Rows
					}
					panels := (n + width - 1) / width
					from, smallest := exactly(n*n*dt.Size()), make([]int16, panels)
					to := exactly(panels * width * form.Words(n) * dt.Accumulator().Size())
					b.SetBytes(n * n) // so that this is elements a second
					for b.Loop() {
						packInto(e, cpu.Alone(), &cpu.Packing{Operand: operands{&o}, From: addresses{at(from)}, To: at(to), Smallest: smallest}, nil)
					}
				})
			}
		}
	})
}

// forEachForm visits the forms that there are of every engine that can be opened here.
func forEachForm(visit func(e *cpu.Engine, form cpu.Form, dt dtype.DType)) {
	for _, name := range cpu.Names() {
		e, err := cpu.Open(name)
		if err != nil {
			continue
		}
		for i, dt := range packedTypes {
			if left, _ := e.Widths(cpu.Form(i)); left > 0 {
				visit(e, cpu.Form(i), dt)
			}
		}
	}
}

// What tiles cost whose operands are packed: a product of n x n on one thread, cut and kept as
// go/backend/cpu does it, in GFLOP/s. "sums" are left where they are formed, "result" is written as
// a matrix. packed is the share of that time that it takes to pack both operands, row by row (N N).
func BenchmarkMultiply(b *testing.B) {
	const n = 1024
	forEachForm(func(e *cpu.Engine, form cpu.Form, dt dtype.DType) {
		leftWidth, rightWidth := e.Widths(form)
		size, sumSize, units := dt.Size(), dt.Accumulator().Size(), form.Words(n)
		height, width := form.Tile()
		from := exactly(n * n * size)
		for j := range int64(n * n) {
			optest.Put(dt, at(from[j*size:]), float64(j*7919%97)/97-0.5)
		}
		pack := func(left, width int64, rows, columns cpu.Axis) *cpu.Packing {
			panels := (n + width - 1) / width
			o := &cpu.Operand{Rows: rows, Columns: columns, Form: form, Width: width, Left: left, Count: n, Depth: n}
			return &cpu.Packing{Operand: operands{o}, From: addresses{at(from)}, To: at(exactly(panels * width * units * sumSize)), Smallest: make([]int16, panels)}
		}
		left := pack(1, leftWidth, axisOf(n, n*size), axisOf(n, size))
		right := pack(0, rightWidth, axisOf(n, size), axisOf(n, n*size))
		store, _ := e.Kernel("epilogue_none_" + dt.Short())
		cut := &cpu.Cut{
			Down: (n + height - 1) / height, Across: (n + width - 1) / width, RowUnit: leftWidth, ColumnUnit: width, Scratch: height * width * sumSize,
		}
		sums, out := exactly(cut.Scratch), exactly(n*n*size)
		for last, label := range []string{"sums", "result"} {
			b.Run(e.Name+"/"+form.String()+"/"+label, func(b *testing.B) {
				block := &cpu.Tile{
					Form: form, Units: units, Rows: n, Columns: n, Stride: width, First: 1, Last: int64(last), Size: size, SumSize: sumSize, Store: store, Value: store,
				}
				if size == sumSize {
					block.Plain = 1
				}
				block.Out = cpu.Result{Rows: axisOf(n, n*size), ColumnStride: size}
				var packing time.Duration
				for b.Loop() {
					b.StopTimer()
					start := time.Now()
					packInto(e, cpu.Alone(), left, right)
					packing += time.Since(start)
					b.StartTimer()
					e.Product(cpu.Alone(), packed(left), packed(right), block, cut, at(sums), at(out), nil, nil)
				}
				b.ReportMetric(2*n*n*n*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
				b.ReportMetric(float64(packing)/float64(b.Elapsed()), "packed")
			})
		}
	})
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
			for _, kernel := range []string{"activation_gelu", "activation_backward_gelu", "activation_gelu_tanh", "activation_silu", "activation_backward_silu", "activation_swish", "activation_elu", "activation_softplus", "gated_silu", "gated_swish", "lerp_backward"} {
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
								optest.Put(dt, at(memory[j*dt.Size():]), float64(j%64)/16-2)
							}
							operands[i], l.Strides[i][0] = at(memory), dt.Size()
						}
					}
					b.SetBytes(n) // so that this is elements a second
					parameters := numbersOf(kernel + "_" + dt.Short())
					for b.Loop() {
						e.Elementwise(cpu.Alone(), k, &l, 0, n, n, &parameters, &operands)
					}
				})
			}
		}
	}
}
