package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/dtype"
)

// smallest are a number that is denormal in a dtype, one whose square its sums do not hold, and the
// sum of four of those squares.
var smallest = map[dtype.DType]struct{ denormal, vanishing, sum float64 }{
	dtype.Float32:  {0x1p-140, 0x1p-75, 0x1p-148},
	dtype.Float64:  {0x1p-1060, 0x1p-538, 0x1p-1074},
	dtype.BFloat16: {0x1p-130, 0, 0},
}

// forEachLifting visits the engines as on a processor that is slow with denormal numbers, and as on
// another.
func forEachLifting(t *testing.T, visit func(t *testing.T, b *cpu.Backend, slow bool)) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		for _, slow := range []bool{true, false} {
			b.BeSlowWithDenormals(slow)
			visit(t, b, slow)
		}
	})
}

// Denormal numbers count for what they are, beside numbers of any size: where those leave room
// operands are lifted, and elsewhere not.
func TestProductsOfDenormalNumbers(t *testing.T) {
	forEachLifting(t, func(t *testing.T, b *cpu.Backend, _ bool) {
		random := rand.New(rand.NewPCG(55, 89))
		for dt, is := range smallest {
			// What a float64 can check: products that are no denormal numbers themselves, with room
			// for lifting and without.
			for turn, other := range []float64{1 / math.Sqrt(is.denormal), math.Sqrt(largest[dt])} {
				m, n, k := 3+random.Int64N(40), 1+random.Int64N(120), 1+random.Int64N(300)
				small := matrixOf(dt, m, k, turn == 1, 0).fill(func() float64 { return is.denormal * float64(random.IntN(9)-4) })
				large := matrixOf(dt, k, n, turn == 0, 1).fill(func() float64 { return other * random.NormFloat64() })
				check(t, small, large, multiply(t, b, small, large, 1+turn))
				large.put(0, 0, largest[dt]/8)
				check(t, small, large, multiply(t, b, small, large, 1+turn))
			}
			// A number that would itself be too large when lifted, beside one that needs it; the
			// product is neither.
			left := matrixOf(dt, 9, 20, false, 0).fill(func() float64 { return is.denormal })
			left.put(4, 0, largest[dt]/4)
			right := matrixOf(dt, 20, 30, true, 1).fill(func() float64 { return math.Sqrt(is.denormal) })
			out := multiply(t, b, left, right, 1)
			for j := range int64(30) {
				require.InEpsilon(t, largest[dt]/4*right.at(0, j), out.at(4, j), 4*units[dt], "%v", dt)
			}
			// The sum of many products that are each as large as leaves room for them.
			edge := math.Sqrt(largest[dt]) * 0x1p-36
			if dt == dtype.Float64 {
				edge = math.Sqrt(largest[dt]) * 0x1p-64
			}
			left = matrixOf(dt, 9, 2000, false, 0).fill(func() float64 { return edge })
			right = matrixOf(dt, 2000, 30, true, 1).fill(func() float64 { return edge })
			left.put(8, 7, is.denormal)
			right.put(8, 7, is.denormal)
			out = multiply(t, b, left, right, 1)
			require.InEpsilon(t, 2000*left.at(3, 3)*right.at(3, 3), out.at(3, 3), 2000*units[dt.Accumulator()]+units[dt], "%v", dt)
		}
	})
}

// Whether operands are lifted is decided for all that is packed together; but what has nothing to
// do with small numbers has the same bits. Blocks share operands, which are lifted for some of them
// only, and deep sums are formed in several passes.
func TestLiftingOperandsChangesNoOtherBits(t *testing.T) {
	sizes := [][3]int64{{20, 2100, 700}, {20, 70, 4400}, {1150, 50, 33}}
	if testing.Short() {
		sizes = sizes[1:2]
	}
	forEachLifting(t, func(t *testing.T, b *cpu.Backend, slow bool) {
		random := rand.New(rand.NewPCG(144, 233))
		for dt, is := range smallest {
			for turn, size := range sizes {
				m, n, k := size[0], size[1], size[2]
				left := matrixOf(dt, m, k, turn%2 == 1, 0).fill(random.NormFloat64)
				right := matrixOf(dt, k, n, turn%2 == 0, 1).fill(random.NormFloat64)
				same := func(want, got *numbers, row, column int64) {
					for i := range m {
						for j := range n {
							if i != row && j != column && want.at(i, j) != got.at(i, j) {
								t.Fatalf("%v %v, slow %t: %d, %d: %v, want %v", dt, size, slow, i, j, got.at(i, j), want.at(i, j))
							}
						}
					}
				}
				want := multiply(t, b, left, right, 2)
				onRight, onLeft := right.clone(), left.clone()
				onRight.put(k-1, 3, is.denormal)
				onRight.put(k/2, 3, -is.denormal)
				same(want, multiply(t, b, left, onRight, 2), -1, 3)
				onLeft.put(2, k-1, is.denormal)
				same(want, multiply(t, b, onLeft, right, 2), 2, -1)
				same(want, multiply(t, b, onLeft, onRight, 2), 2, 3)
				// Without room, in the first block or in the last one, for what is lifted, or for
				// what earlier passes have summed.
				for _, column := range []int64{7, n - 1} {
					huge := right.clone()
					huge.put(0, column, 0x1p-60*largest[dt])
					same(multiply(t, b, left, huge, 2), multiply(t, b, onLeft, huge, 2), 2, -1)
				}
			}
		}
	})
}

// In a batch-invariant call a row has the bits that it has alone, beside rows of denormal numbers
// too, and if its own sums are denormal.
func TestRowsOfDenormalNumbersHaveTheirBitsAlone(t *testing.T) {
	forEachLifting(t, func(t *testing.T, b *cpu.Backend, slow bool) {
		random := rand.New(rand.NewPCG(233, 377))
		for dt, is := range smallest {
			for _, size := range [][3]int64{{5, 13, 3}, {40, 70, 300}} {
				m, n, k := size[0], size[1], size[2]
				tiny := func() float64 { return is.denormal * float64(random.IntN(9)-4) * 0x1p40 }
				right := matrixOf(dt, k, n, true, 1).fill(func() float64 { return 0x1p-42 * random.NormFloat64() })
				all, row := matrixOf(dt, m, k, false, 0).fill(tiny), matrixOf(dt, 1, k, false, 0)
				all.put(m-1, 0, is.denormal)
				for j := range k {
					row.put(0, j, all.at(1, j))
				}
				want, got := multiplyInvariantly(t, b, all, right), multiplyInvariantly(t, b, row, right)
				for j := range n {
					require.Equal(t, want.at(1, j), got.at(0, j), "%v %v, slow %t: column %d", dt, size, slow, j)
				}
			}
		}
	})
}

var largest = map[dtype.DType]float64{dtype.Float32: math.MaxFloat32, dtype.Float64: math.MaxFloat64, dtype.BFloat16: 0x1.fep127}

// A sum of products that are each too small for a float is right where operands are lifted: it
// shows that they are, by any member of a crew, on any layout, and whatever was packed before.
func TestLiftedOperandsLoseNothing(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		if b.EngineName() == "go" {
			return // gonum's products
		}
		b.BeSlowWithDenormals(true)
		for dt, is := range smallest {
			if is.vanishing == 0 {
				continue
			}
			for turn, size := range [][3]int64{{9, 50, 8}, {70, 9, 40}, {300, 300, 300}} {
				m, n, k := size[0], size[1], size[2]
				dirty := matrixOf(dt, m, n+40, false, 0).fill(func() float64 { return math.Inf(1) })
				multiply(t, b, matrixOf(dt, m, m, false, 1).fill(func() float64 { return math.Inf(1) }), dirty, 2)
				left := matrixOf(dt, m, k, turn == 1, 0).fill(func() float64 { return 0 })
				right := matrixOf(dt, k, n, turn == 2, 1).fill(func() float64 { return 0 })
				for l := range int64(4) {
					left.put(1, l, is.vanishing)
					right.put(l, n-1, is.vanishing)
				}
				left.put(m-1, k-1, is.denormal)
				out := multiply(t, b, left, right, 2)
				require.Equal(t, is.sum, out.at(1, n-1), "%v %v", dt, size)
				require.Zero(t, out.at(0, 0))
			}
		}
	})
}

// What instructions for bfloat16 would take for zeros is there, whichever operand it is in,
// whatever the other one's size.
func TestTinyNumbersOfBFloat16Count(t *testing.T) {
	forEachLifting(t, func(t *testing.T, b *cpu.Backend, _ bool) {
		for turn, tiny := range []float64{0x1p-133, 0x1p-130, 0x1p-127, 0x1p-126, 0x1p-120} {
			for _, other := range []float64{1, 2, 0x1p30, 0x1p90} {
				left := matrixOf(dtype.BFloat16, 19, 64, turn%2 == 0, 0).fill(func() float64 { return 0 })
				right := matrixOf(dtype.BFloat16, 64, 70, turn%2 == 1, 1).fill(func() float64 { return other })
				left.put(3, 5, tiny)
				left.put(17, 9, -tiny)
				out := multiply(t, b, left, right, 1)
				back := multiply(t, b, transposed(right, 0), transposed(left, 1), 1)
				for j := range int64(70) {
					require.Equal(t, []float64{0, tiny * other, -tiny * other}, []float64{out.at(2, j), out.at(3, j), out.at(17, j)}, "%v by %v", tiny, other)
					require.Equal(t, []float64{0, tiny * other, -tiny * other}, []float64{back.at(j, 2), back.at(j, 3), back.at(j, 17)}, "%v by %v", tiny, other)
				}
			}
		}
	})
}

// transposed is the same memory, seen the other way, as another operand.
func transposed(n *numbers, operand int) *numbers {
	view := n.view
	view.Operand = operand
	view.Shape, view.Strides = []int64{view.Shape[1], view.Shape[0]}, []int64{view.Strides[1], view.Strides[0]}
	return &numbers{dt: n.dt, memory: n.memory, view: view}
}
