package portable

import "math"

// Pointwise is a formula of several inputs. Slices have one length; a nil gradient is not computed,
// and inputs that only it needs may be nil. The parameter is xielu's beta.
type Pointwise struct {
	Value     func(out []float64, inputs [][]float64, parameter float64)
	Gradients func(gradients [][]float64, gradOutput []float64, inputs [][]float64, parameter float64)
	// Cheap: a few products, sums and selections. Cancels: terms may, so that float32 does not
	// suffice for the results of float32.
	Cheap, Cancels bool
}

// LookupPointwise returns a formula by its name and whether there is one.
func LookupPointwise(formula string) (Pointwise, bool) {
	p, ok := pointwise[formula]
	return p, ok
}

var pointwise = map[string]Pointwise{
	"lerp": {
		Value: func(out []float64, in [][]float64, _ float64) { Lerp(out, in[0], in[1], in[2]) },
		Gradients: func(gradients [][]float64, g []float64, in [][]float64, _ float64) {
			LerpBackward(gradients[0], gradients[1], gradients[2], g, in[0], in[1], in[2])
		},
		Cheap: true, Cancels: true,
	},
	"prelu": {
		Value:     func(out []float64, in [][]float64, _ float64) { preluGradient(out, in[0], in[0], in[1]) },
		Gradients: preluGradients,
		Cheap:     true,
	},
	"xielu": {Value: xielu, Gradients: xieluGradients},
}

// preluGradient writes g where x > 0, else weight g.
func preluGradient(out, g, x, weight []float64) {
	for i, value := range x {
		if out[i] = g[i]; !(value > 0) {
			out[i] = weight[i] * g[i]
		}
	}
}

func preluGradients(gradients [][]float64, g []float64, in [][]float64, _ float64) {
	x := in[0]
	if gradients[0] != nil {
		preluGradient(gradients[0], g, x, in[1])
	}
	if gradWeight := gradients[1]; gradWeight != nil {
		for i, value := range x {
			if gradWeight[i] = g[i] * value; value > 0 {
				gradWeight[i] = 0
			}
		}
	}
}

// xielu: Huang and Schlag 2024, https://arxiv.org/abs/2411.13010. With a_p = softplus(alpha_p) and
// a_n = beta + softplus(alpha_n) it is
//
//	x > 0   a_p x^2 + beta x
//	else    a_n (e^x - 1 - x) + beta x
func xielu(out []float64, in [][]float64, beta float64) {
	for i, x := range in[0] {
		if x > 0 {
			out[i] = x * (softplus(in[1][i])*x + beta)
		} else {
			out[i] = (beta+softplus(in[2][i]))*expm1Rest(x) + beta*x
		}
	}
}

// xieluGradients: the slopes of softplus are the logistic function of its argument.
func xieluGradients(gradients [][]float64, g []float64, in [][]float64, beta float64) {
	for i, x := range in[0] {
		positive := x > 0
		if gradX := gradients[0]; gradX != nil {
			if gradX[i] = g[i] * ((beta+softplus(in[2][i]))*expm1(x) + beta); positive {
				gradX[i] = g[i] * (2*softplus(in[1][i])*x + beta)
			}
		}
		if gradP := gradients[1]; gradP != nil {
			if gradP[i] = 0; positive {
				gradP[i] = g[i] * (x * x) * logistic(in[1][i])
			}
		}
		if gradN := gradients[2]; gradN != nil {
			if gradN[i] = 0; !positive {
				gradN[i] = g[i] * expm1Rest(x) * logistic(in[2][i])
			}
		}
	}
}

// What xielu is made of, by other formulas.
var (
	plainSoftplus = softplusFormula{beta: 1, threshold: math.Inf(1)}
	plainElu      = eluFormula{scale: 1, c: 1, a: 1, slope: 1}
)

func softplus(x float64) float64 { return plainSoftplus.value(x) }

func logistic(x float64) float64 { return pair{high: x}.logistic() }

// expm1 is e^x - 1 for x <= 0 and NaN.
func expm1(x float64) float64 { return plainElu.value(x) }

// expm1Rest is e^x - 1 - x for x <= 0 and NaN, by its series where that cancels.
func expm1Rest(x float64) float64 {
	if x < -0.5 {
		return expm1(x) - x
	}
	sum, term := 0.0, x*x/2
	for n := 3.0; n < 20; n++ {
		sum += term
		term *= x / n
	}
	return sum
}
