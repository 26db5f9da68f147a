package cpu_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/kernels/cpu"
)

// definitions are a smooth activation and the terms of its slope in float64, by Go's own functions.
var definitions = map[string]func(x float64) (value float64, slope []float64){
	"gelu": func(x float64) (float64, []float64) {
		phi := 0.5 * math.Erfc(-x/math.Sqrt2)
		return x * phi, []float64{phi, x * math.Exp(-0.5*x*x) / math.Sqrt(2*math.Pi)}
	},
	"gelu_tanh": func(x float64) (float64, []float64) {
		c := 2 * math.Sqrt(2/math.Pi)
		v := c * (x + 0.044715*x*x*x)
		return x * logistic(v), []float64{logistic(v), x * logistic(v) * logistic(-v) * c * (1 + 3*0.044715*x*x)}
	},
	"silu": func(x float64) (float64, []float64) {
		return x * logistic(x), []float64{logistic(x), x * logistic(x) * logistic(-x)}
	},
	"sigmoid": func(x float64) (float64, []float64) { return logistic(x), []float64{logistic(x) * logistic(-x)} },
	"tanh": func(x float64) (float64, []float64) {
		return math.Tanh(x), []float64{4 * logistic(2*x) * logistic(-2*x)}
	},
}

func logistic(x float64) float64 {
	e := math.Exp(-math.Abs(x))
	if x < 0 {
		return e / (1 + e)
	}
	return 1 / (1 + e)
}

// ulp is the distance between float32's neighbours at a magnitude.
func ulp(x float64) float64 {
	_, exponent := math.Frexp(x)
	return math.Ldexp(1, max(exponent-24, -149))
}

// Float32's formulas are within 2 ULP, over all exponents. Where the terms of a slope cancel, the
// unit is that of the larger one.
func TestFloat32FormulasOverTheWholeRange(t *testing.T) {
	var x []float64
	add := func(low, high float32, step uint32) { // between neighbours, as integers
		for bits := math.Float32bits(low); bits < math.Float32bits(high); bits += step {
			magnitude := float64(math.Float32frombits(bits))
			x = append(x, magnitude, -magnitude)
		}
	}
	add(0, math.MaxFloat32, 19937)
	add(0.25, 256, 997)
	n := int64(len(x))
	ones := make([]float64, n)
	for i := range ones {
		ones[i] = 1
	}
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for name, definition := range definitions {
			forward, _ := e.Kernel("activation_" + name + "_f32")
			backward, _ := e.Kernel("activation_backward_" + name + "_f32")
			values := runKernel(e, forward, dtype.Float32, 1, [][]float64{x}, 1, n)[0]
			slopes := runKernel(e, backward, dtype.Float32, 1, [][]float64{ones, x}, 1, n)[0]
			worst, at := 0., 0.
			for i := range x {
				value, terms := definition(x[i])
				slope, largest := 0., 0.
				for _, term := range terms {
					slope += term
					largest = max(largest, math.Abs(term))
				}
				ulps := max(math.Abs(values[i]-value)/ulp(value), math.Abs(slopes[i]-slope)/ulp(max(largest, math.Abs(slope))))
				if !(ulps <= worst) {
					worst, at = ulps, x[i]
				}
			}
			require.LessOrEqual(t, worst, 2., "%s at %v", name, at)
		}
	})
}
