package portable_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestTailsOfParameters has 60-digit numbers by mpmath, where a rounded exponent would cost as many
// units in the last place as the exponent is large, and where x/a is denormal or beta x cancels
// against a large x.
func TestTailsOfParameters(t *testing.T) {
	for _, c := range []struct {
		name            string
		parameters      []float64
		x, value, slope float64
	}{
		{"swish", []float64{2.3}, -13.7, -2.832053428804109e-13, -6.307003657869454e-13},
		{"swish", []float64{2.3}, -300.1, -5.178282640261588e-298, -1.1892794882197581e-297},
		{"swish", []float64{2.3}, 200.3, 200.3, 1.0},
		{"swish", []float64{-0.7}, 900.3, 1.8099301303224898e-271, -1.264940727868726e-271},
		{"swish", []float64{-0.7}, -31.7, -31.69999999268752, 1.0000000048880586},
		{"swish", []float64{1e-300}, -1.1e+303, -2.0771248025047292e-175, 0.0},
		{"elu", []float64{0.3}, -0.001, -0.00029985004998750247, 0.2997001499500125},
		{"elu", []float64{0.3}, -20.3, -0.2999999995419179, 4.5808204773798256e-10},
		{"celu", []float64{0.3}, -5e-324, -5e-324, 1.0},
		{"celu", []float64{0.3}, -0.3, -0.1896361676485673, 0.36787944117144233},
		{"celu", []float64{0.3}, -200.7, -0.3, 2.864122616676477e-291},
		{"celu", []float64{13.7}, -3e-323, -3e-323, 1.0},
		{"celu", []float64{13.7}, -9000.3, -13.7, 4.870186425417568e-286},
		{"celu", []float64{-0.7}, -300.3, -1.4369140011008112e+186, 2.0527342872868733e+186},
		{"softplus", []float64{0.3, 5}, -2400.7, 5.49098090876e-313, 1.64729427263e-313},
		{"softplus", []float64{0.3, 5}, 16.6, 16.62283514635692, 0.9931728675778618},
		{"softplus", []float64{0.3, 5}, 16.7, 16.7, 1.0},
		{"softplus", []float64{3.7, 800}, -190.3, 4.372306746815525e-307, 1.6177534963217445e-306},
		{"softplus", []float64{3.7, 800}, 150.1, 150.1, 1.0},
		{"softplus", nil, 20, 20.000000002061153620, 0.99999999793884638}, // the threshold itself
		{"softcap", []float64{0.7}, 200.3, 0.7, 1.1522114985671516e-248},
		{"softcap", []float64{0.7}, 0.7, 0.5331159091690354, 0.4199743416140261},
		{"softcap", []float64{1000}, 1014.33, 767.5470134369111, 0.41087158216407815},
		{"softcap", []float64{1000}, -300000.7, -1000.0, 1.0586754376027898e-260},
	} {
		f := formula(t, c.name, c.parameters...)
		value, slope := f.Value(c.x), f.Gradient(1, c.x)
		assert.LessOrEqual(t, ulps(value, c.value, c.value), float64(maxULP), "%v: %g", c, value)
		assert.LessOrEqual(t, ulps(slope, c.slope, c.slope), float64(maxULP), "%v: %g", c, slope)
	}
}

// TestParametersScale: a parameter that is a power of two gives the bits of one that is 1.
func TestParametersScale(t *testing.T) {
	for i := range 2000 {
		x := math.Ldexp(1+float64(i%97)/97, i/97-10) * float64(1-2*(i%2))
		for _, size := range []float64{0.25, 8} {
			for _, c := range []struct {
				name     string
				one      []float64
				scaled   []float64
				argument float64 // of one, for x of scaled; values differ by size
			}{
				{"swish", []float64{1.25}, []float64{1.25 / size}, x / size},
				{"celu", []float64{1.25}, []float64{1.25 * size}, x / size},
				{"celu", []float64{-1.25}, []float64{-1.25 * size}, x / size},
				{"softplus", []float64{1.25, 15}, []float64{1.25 / size, 15}, x / size},
				{"softcap", []float64{1.25}, []float64{1.25 * size}, x / size},
			} {
				one, scaled := formula(t, c.name, c.one...), formula(t, c.name, c.scaled...)
				assert.Equal(t, size*one.Value(c.argument), scaled.Value(x), "%s(%g)", c.name, x)
				assert.Equal(t, one.Gradient(1, c.argument), scaled.Gradient(1, x), "%s'(%g)", c.name, x)
			}
		}
	}
}
