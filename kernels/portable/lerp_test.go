package portable_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/epigrad/epigrad/kernels/portable"
)

// exactLerp is base + factor*(end-start), the difference rounded to float64 and the rest once, in
// arbitrary precision.
func exactLerp(base, factor, start, end float64) float64 {
	product := new(big.Float).SetPrec(2000).Mul(big.NewFloat(factor), big.NewFloat(end-start))
	result, _ := product.Add(product, big.NewFloat(base)).Float64()
	return result
}

func TestLerp(t *testing.T) {
	out := make([]float64, 1)
	for _, w := range []float64{-2, -0.6, -0.5, -0.3, 0, 0.1, 0.3, math.Nextafter(0.5, 0), 0.5, 0.7, 0.9, 1, 1.7} {
		for _, ends := range [][2]float64{{1, 2}, {0.1, -0.7}, {3.3, 1e-9}, {-5, -5}, {1e300, 1e-300}} {
			start, end := ends[0], ends[1]
			portable.Lerp(out, ends[:1], ends[1:], []float64{w})
			want := exactLerp(start, w, start, end)
			if math.Abs(w) >= 0.5 {
				want = exactLerp(end, w-1, start, end)
			}
			assert.Equal(t, want, out[0], "lerp(%g, %g, %g)", start, end, w)
		}
	}
}

func TestLerpIsExactAtBothEnds(t *testing.T) {
	out := make([]float64, 2)
	portable.Lerp(out, []float64{0.1, 0.1}, []float64{1e20, 1e20}, []float64{0, 1})
	assert.Equal(t, []float64{0.1, 1e20}, out)
}

func TestLerpPassesNonFiniteOn(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	out := make([]float64, 1)
	for _, c := range []struct{ start, end, weight, want float64 }{
		{inf, 1, 0.25, nan}, // inf + 0.25 (-inf)
		{1, inf, 0.25, inf},
		{1, inf, 0, nan}, // 0 inf
		{nan, 1, 1, nan},
		{1, 2, nan, nan},
	} {
		portable.Lerp(out, []float64{c.start}, []float64{c.end}, []float64{c.weight})
		assertSame(t, c.want, out[0], "lerp(%g, %g, %g)", c.start, c.end, c.weight)
	}
}

func TestLerpBackward(t *testing.T) {
	gradOutput, start, end, weight := []float64{2, -3}, []float64{1, 5}, []float64{4, 5.5}, []float64{0.25, 2}
	gradStart, gradEnd, gradWeight := make([]float64, 2), make([]float64, 2), make([]float64, 2)
	portable.LerpBackward(gradStart, gradEnd, gradWeight, gradOutput, start, end, weight)
	assert.Equal(t, []float64{1.5, 3}, gradStart)
	assert.Equal(t, []float64{0.5, -6}, gradEnd)
	assert.Equal(t, []float64{6, -1.5}, gradWeight)
}

func TestLerpBackwardNeedsOnlyWhatItUses(t *testing.T) {
	gradOutput, weight, got := []float64{2}, []float64{0.25}, make([]float64, 1)
	portable.LerpBackward(got, nil, nil, gradOutput, nil, nil, weight)
	assert.Equal(t, []float64{1.5}, got)
	portable.LerpBackward(nil, got, nil, gradOutput, nil, nil, weight)
	assert.Equal(t, []float64{0.5}, got)
	portable.LerpBackward(nil, nil, got, gradOutput, []float64{1}, []float64{4}, nil)
	assert.Equal(t, []float64{6}, got)
}
