package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/dtype"
)

// smallest are a number that is denormal in a dtype, and half of what its sums cannot hold at all.
var smallest = map[dtype.DType]struct{ denormal, vanishing float64 }{
	dtype.Float32:  {0x1p-140, 0x1p-75},
	dtype.Float64:  {0x1p-1060, 0x1p-538},
	dtype.BFloat16: {0x1p-130, 0},
}

// Denormal numbers count for what they are, beside numbers of any size: where those leave room operands are lifted, and elsewhere not.
func TestProductsOfDenormalNumbers(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(55, 89))
		for dt, is := range smallest {
			// What a float64 can check: products that are no denormal numbers themselves, with room for lifting and without.
			for turn, other := range []float64{1 / math.Sqrt(is.denormal), math.Sqrt(largest[dt])} {
				m, n, k := 3+random.Int64N(40), 1+random.Int64N(120), 1+random.Int64N(300)
				small := matrixOf(dt, m, k, turn == 1, 0).fill(func() float64 { return is.denormal * float64(random.IntN(9)-4) })
				large := matrixOf(dt, k, n, turn == 0, 1).fill(func() float64 { return other * random.NormFloat64() })
				check(t, small, large, multiply(t, b, small, large, 1+turn))
				large.put(0, 0, largest[dt]/8)
				check(t, small, large, multiply(t, b, small, large, 1+turn))
			}
		}
	})
}

// Whether operands are lifted is decided for all that is packed together; but what has nothing to do with small numbers has the same bits. Blocks share operands, which are lifted for
// some of them only, and deep sums are formed in several passes.
func TestLiftingOperandsChangesNoOtherBits(t *testing.T) {
	sizes := [][3]int64{{20, 2100, 700}, {20, 70, 4400}, {1150, 50, 33}}
	if testing.Short() {
		sizes = sizes[1:2]
	}
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(144, 233))
		for dt, is := range smallest {
			for turn, size := range sizes {
				m, n, k := size[0], size[1], size[2]
				left := matrixOf(dt, m, k, turn%2 == 1, 0).fill(random.NormFloat64)
				right := matrixOf(dt, k, n, turn%2 == 0, 1).fill(random.NormFloat64)
				want := multiply(t, b, left, right, 2)
				same := func(got *numbers, row, column int64) {
					for i := range m {
						for j := range n {
							if i != row && j != column {
								require.Equal(t, want.at(i, j), got.at(i, j), "%v %v: %d, %d", dt, size, i, j)
							}
						}
					}
				}
				with := right.clone()
				with.put(k-1, 3, is.denormal)
				with.put(k/2, 3, -is.denormal)
				same(multiply(t, b, left, with, 2), -1, 3)
				with = left.clone()
				with.put(2, k-1, is.denormal)
				same(multiply(t, b, with, right, 2), 2, -1)
				// With room for neither the numbers nor what earlier passes have summed.
				huge := right.clone()
				huge.put(0, 7, 0x1p-60*largest[dt])
				alone := multiply(t, b, left, huge, 2)
				both := multiply(t, b, with, huge, 2)
				for i := range m {
					for j := range n {
						if i != 2 {
							require.Equal(t, alone.at(i, j), both.at(i, j), "%v %v: %d, %d beside a large number", dt, size, i, j)
						}
					}
				}
			}
		}
	})
}

var largest = map[dtype.DType]float64{dtype.Float32: math.MaxFloat32, dtype.Float64: math.MaxFloat64, dtype.BFloat16: math.MaxFloat32}

// A sum of products that are each too small for a float is right where operands are lifted: it shows that they are, by any member of a crew, on any layout.
func TestLiftedOperandsLoseNothing(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		if b.EngineName() == "go" {
			return // gonum's products
		}
		for dt, is := range smallest {
			if is.vanishing == 0 {
				continue
			}
			for turn, size := range [][3]int64{{9, 50, 8}, {70, 9, 40}, {300, 300, 300}} {
				m, n, k := size[0], size[1], size[2]
				left := matrixOf(dt, m, k, turn == 1, 0).fill(func() float64 { return 0 })
				right := matrixOf(dt, k, n, turn == 2, 1).fill(func() float64 { return 0 })
				for l := range int64(4) {
					left.put(1, l, is.vanishing)
					right.put(l, n-1, is.vanishing)
				}
				left.put(m-1, k-1, is.denormal)
				out := multiply(t, b, left, right, 2)
				want := 4 * is.vanishing * is.vanishing
				if dt == dtype.Float64 {
					want = 0x1p-1074
				}
				require.Equal(t, want, out.at(1, n-1), "%v %v", dt, size)
				require.Zero(t, out.at(0, 0))
			}
		}
	})
}
