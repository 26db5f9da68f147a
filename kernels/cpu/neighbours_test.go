package cpu_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/kernels/cpu"
)

// A sum has the same bits whatever numbers lie beside its row and its column in their panels,
// though some send those another way: what instructions for bfloat16 take for zero, and infinities,
// which float16's tiles cannot multiply. Scales reach down to where products are lost in bfloat16,
// and to float16's smallest numbers.
func TestSumsDoNotDependOnNeighboursNumbers(t *testing.T) {
	const columns, depth = 51, 600 // two panels of any form at least, and more parts than one
	allRows := []int64{1, 2, 5, 9, 15, 16, 17, 32, 33}
	nonFinite := []float64{math.Inf(1), math.Inf(-1), math.NaN()}
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		random := rand.New(rand.NewPCG(89, 144))
		// One binade: what a scale says holds for every product.
		matrix := func(rows int64, scale float64) []float64 {
			values := make([]float64, rows*depth)
			for i := range values {
				values[i] = math.Copysign(1+float64(random.IntN(2048))/2048, random.NormFloat64()) * scale
			}
			return values
		}
		for i, dt := range packedTypes {
			form := cpu.Form(i)
			if width, _ := e.Widths(form); width == 0 {
				continue
			}
			exponents := []int{0, -20, -49, -50, -51, -57, -60, -62, -63, -64, -66}
			if dt == dtype.Float16 {
				exponents = []int{0, -5, -12, -14, -20}
			}
			for turn := range 2 * len(allRows) {
				rows, exchanged := allRows[turn/2], int64(turn%2)
				scale := math.Ldexp(1, exponents[turn%len(exponents)])
				left, right := matrix(rows, scale), matrix(columns, scale)
				packedLeft, packedRight := pack(e, form, dt, rows, depth, 0, 1, left), pack(e, form, dt, columns, depth, 0, 0, right)
				want := sums(e, form, rows, columns, depth, exchanged, packedLeft, packedRight)
				with := func(special float64, values []float64) []float64 {
					values = slices.Clone(values)
					values[random.IntN(depth)] = special
					return values
				}
				for _, special := range []float64{0x1p-130, nonFinite[turn%3]} {
					got := sums(e, form, rows, columns, depth, exchanged, pack(e, form, dt, rows, depth, 0, 1, with(special, left)), packedRight)
					require.Equal(t, want[1:], got[1:], "%v, scale %v: %d rows, %v in the first", form, scale, rows, special)
					got = sums(e, form, rows, columns, depth, exchanged, packedLeft, pack(e, form, dt, columns, depth, 0, 0, with(special, right)))
					for row := range rows {
						require.Equal(t, want[row][1:], got[row][1:], "%v, scale %v: row %d of %d beside %v", form, scale, row, rows, special)
					}
				}
			}
		}
	})
}

// sums are the bits of a product's, by row and column.
func sums(e *cpu.Engine, form cpu.Form, rows, columns, depth, exchanged int64, left, right panels) [][]uint64 {
	const stride = 64
	dt := packedTypes[form]
	size := dt.Accumulator().Size()
	width, _ := e.Widths(form)
	tile := cpu.Tile{
		Form: form, Units: form.Words(depth), Rows: rows, Columns: columns, Stride: stride, First: 1, Size: dt.Size(), SumSize: size, Exchanged: exchanged,
	}
	memory := exactly((rows + width) / width * width * stride * size)
	e.Product(cpu.Alone(), left.packing(), right.packing(), &tile, &whole, at(memory), nil, nil, nil)
	found := make([][]uint64, rows)
	for row := range rows {
		for column := range columns {
			place := unsafe.Add(at(memory), (row*stride+column)*size)
			bits := uint64(*(*uint32)(place))
			if size == 8 {
				bits = *(*uint64)(place)
			}
			found[row] = append(found[row], bits)
		}
	}
	return found
}

// A function has the same bits beside any others, though some send a register another way: far out,
// where results become denormal and then nothing, times gradients of any size.
func TestElementsDoNotDependOnTheirNeighbours(t *testing.T) {
	const n = 1 << 10
	kernels := map[string]int{} // and outputs
	for _, act := range activation.Kernels() {
		kernels["activation_"+act], kernels["activation_backward_"+act] = 1, 2
	}
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		random := rand.New(rand.NewPCG(21, 34))
		for _, dt := range dtype.All() {
			for name, outputs := range kernels {
				inputs := make([][]float64, outputs)
				alike := make([][]float64, outputs)
				for range n {
					// Between nothing and twice the farthest tail of any; half of them about 1.
					x, g := random.NormFloat64()*math.Exp2(float64(random.IntN(8))*float64(random.IntN(2))), random.NormFloat64()*math.Ldexp(1, random.IntN(240)-120)
					for i, value := range []float64{g, x}[2-outputs:] {
						inputs[i] = append(inputs[i], value)
						alike[i] = append(alike[i], slices.Repeat([]float64{value}, cpu.Group)...)
					}
				}
				got := runKernel(t, e, name+"_"+dt.Short(), dt, outputs, inputs, 1, n)
				want := runKernel(t, e, name+"_"+dt.Short(), dt, outputs, alike, 1, n*cpu.Group)
				for output := range got {
					for i, y := range got[output] {
						if alone := want[output][i*cpu.Group]; math.Float64bits(y) != math.Float64bits(alone) {
							t.Fatalf("%s_%s of %v: %v among others, %v among itself", name, dt.Short(), []float64{inputs[0][i], inputs[outputs-1][i]}, y, alone)
						}
					}
				}
			}
		}
	})
}
