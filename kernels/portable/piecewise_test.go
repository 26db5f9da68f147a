package portable_test

import (
	"math"
	"testing"
)

// TestGradientsSelect: where a slope is a constant 0 or 1, infinities and NaN from above are
// stopped or pass.
func TestGradientsSelect(t *testing.T) {
	below := math.Nextafter(-3, math.Inf(-1))
	for _, c := range []struct {
		name   string
		x      float64
		passes bool
	}{
		{"hardswish", below, false},
		{"hardswish", -3, false},
		{"hardswish", 3, true},
		{"hardsigmoid", -3, false},
		{"hardsigmoid", 3, false},
		{"hardsigmoid", math.NaN(), false},
		{"relu6", 0, false},
		{"relu6", 6, false},
		{"relu6", math.NaN(), true},
		{"hardtanh", -1, false},
		{"hardtanh", 0.5, true},
		{"hardtanh", 1, false},
		{"softplus", 21, true},
	} {
		f := formula(t, c.name)
		for _, g := range []float64{math.Inf(1), math.NaN(), -2} {
			want := 0.0
			if c.passes {
				want = g
			}
			assertSame(t, want, f.Gradient(g, c.x), "%s'(%g) of %g", c.name, c.x, g)
		}
	}
}
