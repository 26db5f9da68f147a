package cpu_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/kernels/cpu"
)

// definitions are a smooth activation and the terms of its slope in float64, by Go's own functions.
// Their numbers are those of runKernel.
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
	"swish": func(x float64) (float64, []float64) {
		v := 1.702 * x
		return x * logistic(v), []float64{logistic(v), v * logistic(v) * logistic(-v)}
	},
	"elu": func(x float64) (float64, []float64) {
		if x > 0 {
			return 0.95 * x, []float64{0.95}
		}
		return 1.758 * math.Expm1(x/0.7), []float64{1.758 / 0.7 * math.Exp(x/0.7)}
	},
	"softplus": func(x float64) (float64, []float64) {
		if 2*x > 20 {
			return x, []float64{1}
		}
		return logSum(2*x) / 2, []float64{logistic(2 * x)}
	},
	"mish": func(x float64) (float64, []float64) {
		t := math.Tanh(logSum(x))
		// 1 - t^2 is (1-t) (1+t), and 1-t is 2/(1 + (1+e^x)^2).
		return x * t, []float64{t, x * logistic(x) * (1 + t) * 2 / (1 + math.Pow(1+math.Exp(x), 2))}
	},
	"softcap": func(x float64) (float64, []float64) {
		return 3 * math.Tanh(x/3), []float64{4 * logistic(2*x/3) * logistic(-2*x/3)}
	},
	"hardswish": func(x float64) (float64, []float64) {
		switch {
		case x <= -3:
			return 0, []float64{0}
		case x >= 3:
			return x, []float64{1}
		default:
			return x * (x + 3) / 6, []float64{(2*x + 3) / 6}
		}
	},
	"hardsigmoid": func(x float64) (float64, []float64) {
		if x <= -3 || x >= 3 {
			return max(0, math.Copysign(1, x)), []float64{0}
		}
		return (x + 3) / 6, []float64{1. / 6}
	},
	"hardtanh": func(x float64) (float64, []float64) {
		if x <= -1 || x >= 1.5 {
			return min(max(x, -1), 1.5), []float64{0}
		}
		return x, []float64{1}
	},
}

// logSum is log(1 + e^x).
func logSum(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

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
			values := runKernel(t, e, "activation_"+name+"_f32", dtype.Float32, 1, [][]float64{x}, 1, n)[0]
			slopes := runKernel(t, e, "activation_backward_"+name+"_f32", dtype.Float32, 1, [][]float64{ones, x}, 1, n)[0]
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

// A kind's numbers may be of any size: beyond those that float formulas hold for, and denormal. The
// slope of all rows at 0 is known, and so is the value far out.
func TestNumbersOfAnySize(t *testing.T) {
	sizes := []float64{5e-324, 1e-300, 1e-40, 1e-20, 1, 1e20, 1e38, 1e300, math.MaxFloat64}
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for _, dt := range dtype.All() {
			slope := func(formula string, x float64, numbers cpu.Parameters) float64 {
				return runKernelOf(t, e, "activation_backward_"+formula+"_"+dt.Short(), numbers, dt, 1, [][]float64{{1}, {x}}, 1, 1)[0][0]
			}
			value := func(formula string, x float64, numbers cpu.Parameters) float64 {
				return runKernelOf(t, e, "activation_"+formula+"_"+dt.Short(), numbers, dt, 1, [][]float64{{x}}, 1, 1)[0][0]
			}
			for _, size := range sizes {
				for _, number := range []float64{size, -size} {
					require.Equal(t, 0.5, slope("swish", 0, cpu.Parameters{number}), "%v: swish(%v)", dt, number)
					require.Equal(t, 0., value("swish", 0, cpu.Parameters{number}), "%v: swish(%v)", dt, number)
					require.Equal(t, 1., slope("elu", 0, cpu.Parameters{1, number, number}), "%v: elu(%v)", dt, number)
					require.Equal(t, 0., value("elu", 0, cpu.Parameters{1, number, number}), "%v: elu(%v)", dt, number)
				}
				require.Equal(t, 0., value("elu", math.Inf(-1), cpu.Parameters{1, 0, size}), "%v: elu(0, %v)", dt, size)
				require.Equal(t, 1., slope("softcap", 0, cpu.Parameters{size}), "%v: softcap(%v)", dt, size)
				require.Equal(t, 0.5, slope("softplus", 0, cpu.Parameters{size, 20}), "%v: softplus(%v)", dt, size)
				require.Equal(t, 0., value("softplus", math.Inf(-1), cpu.Parameters{size, 20}), "%v: softplus(%v)", dt, size)
			}
			// x where x/cap is denormal.
			require.Equal(t, 1., value("softcap", 1, cpu.Parameters{math.MaxFloat64}), dt)
			require.Equal(t, -1., value("elu", -1, cpu.Parameters{1, math.MaxFloat64, math.MaxFloat64}), dt)
		}
	})
}

// Limits clamp the gate from above, the value on both sides, and the gate's activation from above;
// what is clamped, at the bound too, has gradient 0, also of an infinite gradient.
func TestLimitsOfGatedKinds(t *testing.T) {
	inf, nan, none := math.Inf(1), math.NaN(), math.Copysign(0, -1)
	for _, c := range []struct {
		limits                   cpu.Parameters // limit, limit_after, offset
		g, value, gate           float64
		out, gradValue, gradGate float64
	}{
		{cpu.Parameters{nan, nan, none}, 2, -0., 3, 0, 6, 0},
		{cpu.Parameters{nan, nan, 1}, 2, 4, 3, 15, 6, 10},
		{cpu.Parameters{7, nan, 1}, 2, 4, 3, 15, 6, 10},
		{cpu.Parameters{7, nan, none}, 2, 8, 9, 49, 0, 0},
		{cpu.Parameters{7, nan, none}, inf, -7, 7, -49, 0, 0},
		{cpu.Parameters{7, nan, none}, 2, -8, -9, 63, 0, -14},
		{cpu.Parameters{nan, 7, none}, 2, -8, 9, -49, 0, 0},
		{cpu.Parameters{7, 5, 1}, 2, 6, 6, 30, 0, 0},
		{cpu.Parameters{5, 7, 1}, 2, 6, 4, 24, 0, 12},
		{cpu.Parameters{5, 7, 1}, 2, nan, 4, nan, 8, nan},
		{cpu.Parameters{5, 7, 1}, 2, 1, nan, nan, nan, 4},
	} {
		forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
			for _, dt := range dtype.All() {
				got := runKernelOf(t, e, "gated_none_"+dt.Short(), c.limits, dt, 1, [][]float64{{c.value}, {c.gate}}, 1, 1)
				got = append(got, runKernelOf(t, e, "gated_backward_none_"+dt.Short(), c.limits, dt, 2, [][]float64{{c.g}, {c.value}, {c.gate}}, 1, 1)...)
				for i, want := range []float64{c.out, c.gradValue, c.gradGate} {
					if !(got[i][0] == want || math.IsNaN(want) && math.IsNaN(got[i][0])) {
						t.Fatalf("%v: %+v: result %d is %v", dt, c, i, got[i][0])
					}
				}
			}
		})
	}
}
