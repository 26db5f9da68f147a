package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/dtype"
)

// many is the rows of a product whose operands are packed.
const many = 40

// firstRows are a matrix's first rows.
func firstRows(n *numbers, rows int64) *numbers {
	few := *n
	few.view.Shape = []int64{rows, n.view.Shape[1]}
	return &few
}

// requireSameRows compares the first rows of a product with those of a product of many rows.
func requireSameRows(t *testing.T, b *cpu.Backend, left, right *numbers, rows int64, threads int) {
	t.Helper()
	want, got := multiply(t, b, left, right, 1), multiply(t, b, firstRows(left, rows), right, threads)
	for i := range rows {
		for j := range right.view.Shape[1] {
			w, g := want.at(i, j), got.at(i, j)
			if math.Float64bits(w) != math.Float64bits(g) && !(math.IsNaN(w) && math.IsNaN(g)) {
				t.Fatalf("%v %v by %v, strides %v %v: element %d, %d of %d rows: %v, of many %v", left.dt, left.view.Shape, right.view.Shape,
					left.view.Strides, right.view.Strides, i, j, rows, g, w)
			}
		}
	}
}

// The right operand of few rows is read where it lies. Every sum is formed in the order of packed
// operands, in parts of the same length, and in the same parts of what is packed at a time.
func TestFewRowsHaveTheBitsOfMany(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		if b.EngineName() == "go" {
			return // gonum's sums follow the tile
		}
		random := rand.New(rand.NewPCG(13, 21))
		for turn, size := range [][2]int64{{1, 1}, {2, 5}, {16, 16}, {31, 33}, {33, 64}, {70, 97}, {257, 40}, {600, 1030}, {2049, 35}, {4100, 17}, {8200, 3}} {
			for _, dt := range dtype.All() {
				for layouts := range 4 {
					left := matrixOf(dt, many, size[0], layouts%2 == 1, 0).fill(random.NormFloat64)
					right := matrixOf(dt, size[0], size[1], layouts/2 == 1, 1).fill(random.NormFloat64)
					requireSameRows(t, b, left, right, []int64{1, 2, 3, 5, 8, 13, 16}[(turn+layouts)%7], 1+turn%3)
				}
			}
		}
	})
}

// Where numbers need another way, few rows take it too: tiny ones, infinities, and no numbers.
func TestFewRowsOfExtremeNumbers(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(34, 55))
		scaled := func(scale float64) func() float64 { return func() float64 { return scale * random.NormFloat64() } }
		for _, dt := range dtype.All() {
			for _, transposed := range []bool{false, true} {
				for _, scales := range tinyScales[dt] {
					left := matrixOf(dt, 3, 70, false, 0).fill(scaled(scales[0]))
					right := matrixOf(dt, 70, 40, transposed, 1).fill(scaled(scales[1]))
					check(t, left, right, multiply(t, b, left, right, 1))
				}
				if b.EngineName() == "go" {
					continue // gonum's sums follow the tile
				}
				for _, special := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
					for _, inLeft := range []bool{false, true} {
						left, right := matrixOf(dt, many, 70, false, 0).fill(random.NormFloat64), matrixOf(dt, 70, 40, transposed, 1).fill(random.NormFloat64)
						if inLeft {
							left.put(1, 33, special)
						} else {
							right.put(33, 7, special)
						}
						requireSameRows(t, b, left, right, 4, 1)
					}
				}
			}
		}
	})
}

// tinyScales are scales of operands at the lower end of a dtype's numbers.
var tinyScales = map[dtype.DType][][2]float64{
	dtype.Float32:  {{0x1p-130, 0x1p20}, {0x1p20, 0x1p-130}},
	dtype.Float64:  {{0x1p-1026, 0x1p20}, {0x1p20, 0x1p-1026}},
	dtype.BFloat16: {{0x1p-130, 0x1p100}, {0x1p100, 0x1p-130}, {0x1p-64, 0x1p-64}, {0x1p-20, 0x1p-110}},
	dtype.Float16:  {{0x1p-21, 1}, {1, 0x1p-24}, {0x1p-12, 0x1p-12}},
}
