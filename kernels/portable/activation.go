// Package portable holds the formulas of epigrad's operations in Go, on blocks of float64, with
// neither cgo nor assembly.
//
// Every dtype computes elementwise through these: the caller loads a block, converts it, calls a
// formula and rounds once to storage. The same file names in the other directories of kernels hold
// the same formulas in other languages.
package portable

import (
	"maps"
	"math"
	"slices"
)

// Formula is one activation in float64. All functions accept every float64; NaN gives NaN.
//
// Infinities follow PyTorch: where its CPU kernels agree on NaN for every dtype and tensor length
// (inf*0 in the formula), so do these; where they disagree among themselves, the limit is given.
// That makes, besides the limits everywhere else,
//
//	gelu(-inf) = gelu_tanh(-inf) = silu(-inf) = mish(-inf) = hardswish(-inf) = NaN,
//	the slopes of the first four at both infinities NaN.
//
// swish is NaN where beta x = -inf, and its slope where x is infinite.
type Formula struct {
	// Value returns act(x).
	Value func(x float64) float64
	// Gradient returns g act'(x): a product, or a selection where the activation is piecewise
	// linear, so that relu'(x) = 0 also stops an infinite or NaN g.
	Gradient func(g, x float64) float64
	// Curvature returns h act''(x), likewise; it is nil where that is 0 everywhere.
	Curvature func(h, x float64) float64
	// GradientFromOutput returns Gradient from y = act(x). It is nil where the derivative is no
	// function of y.
	GradientFromOutput func(g, y float64) float64
	// CurvatureFromOutput returns h times the derivative of that function of y; it is nil where
	// that is 0 everywhere.
	CurvatureFromOutput func(h, y float64) float64
}

var formulas = map[string]Make{
	"none":      always(&Formula{Value: identity, Gradient: identityGradient}),
	"relu":      always(&Formula{Value: relu, Gradient: reluGradient, GradientFromOutput: reluGradient}),
	"gelu":      always(smooth(gelu, geluSlope, geluCurvature)),
	"gelu_tanh": always(smooth(geluTanh, geluTanhSlope, geluTanhCurvature)),
	"silu":      always(smooth(silu, siluSlope, siluCurvature)),
	"sigmoid": always(&Formula{
		Value:               sigmoid,
		Gradient:            func(g, x float64) float64 { return g * sigmoidSlope(x) },
		Curvature:           func(h, x float64) float64 { return h * sigmoidCurvature(x) },
		GradientFromOutput:  func(g, y float64) float64 { return g * (y * (1 - y)) },
		CurvatureFromOutput: func(h, y float64) float64 { return h * (1 - 2*y) },
	}),
	"tanh": always(&Formula{
		Value:               tanh,
		Gradient:            func(g, x float64) float64 { return g * tanhSlope(x) },
		Curvature:           func(h, x float64) float64 { return h * tanhCurvature(x) },
		GradientFromOutput:  func(g, y float64) float64 { return g * ((1 - y) * (1 + y)) },
		CurvatureFromOutput: func(h, y float64) float64 { return h * (-2 * y) },
	}),
	"leaky_relu": func(p []float64) *Formula {
		slope := p[0]
		return &Formula{
			Value:    func(x float64) float64 { return leakyReluGradient(x, x, slope) },
			Gradient: func(g, x float64) float64 { return leakyReluGradient(g, x, slope) },
		}
	},
	"relu2": always(&Formula{
		Value:    func(x float64) float64 { return relu(x) * relu(x) },
		Gradient: func(g, x float64) float64 { return reluGradient(g*(2*x), x) }, Curvature: relu2Curvature,
	}),
	"swish": func(p []float64) *Formula {
		return smooth(with(swish, p[0]), with(swishSlope, p[0]), with(swishCurvature, p[0]))
	},
	"elu": func(p []float64) *Formula {
		f := &eluFormula{scale: p[0], c: p[1], a: p[2], slope: p[1] / p[2]}
		return &Formula{Value: f.value, Gradient: f.gradient, Curvature: f.curvature}
	},
	"softplus": func(p []float64) *Formula {
		f := &softplusFormula{beta: p[0], threshold: p[1]}
		return &Formula{Value: f.value, Gradient: f.gradient, Curvature: f.curvature}
	},
	"mish":        always(smooth(mish, mishSlope, mishCurvature)),
	"hardswish":   always(&Formula{Value: hardswish, Gradient: hardswishGradient, Curvature: hardswishCurvature}),
	"hardsigmoid": always(&Formula{Value: hardsigmoid, Gradient: hardsigmoidGradient}),
	"hardtanh": func(p []float64) *Formula {
		low, high := p[0], p[1]
		return &Formula{
			Value:    func(x float64) float64 { return clip(x, low, high) },
			Gradient: func(g, x float64) float64 { return clipGradient(g, x, low, high) },
		}
	},
	"softcap": func(p []float64) *Formula {
		return smooth(with(softcap, p[0]), with(softcapSlope, p[0]), with(softcapCurvature, p[0]))
	},
}

// Make makes a formula of its numbers (go/activation).
type Make func(parameters []float64) *Formula

// always is the Make of a formula without numbers.
func always(f *Formula) Make { return func([]float64) *Formula { return f } }

// smooth is an activation by its value, its slope and its curvature.
func smooth(value, slope, curvature func(x float64) float64) *Formula {
	return &Formula{
		Value: value, Gradient: func(g, x float64) float64 { return g * slope(x) }, Curvature: func(h, x float64) float64 { return h * curvature(x) },
	}
}

// with is a function of x with a number.
func with(f func(x, number float64) float64, number float64) func(x float64) float64 {
	return func(x float64) float64 { return f(x, number) }
}

// Lookup returns what makes the formula of a name, and whether there is one.
func Lookup(name string) (Make, bool) {
	f, ok := formulas[name]
	return f, ok
}

// Names lists the formulas, in no order.
func Names() []string { return slices.Collect(maps.Keys(formulas)) }

// Values sets dst[i] = act(x[i]). The slices have one length; dst may be x.
func (f *Formula) Values(dst, x []float64) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] = f.Value(x[i])
	}
}

// Gradients sets dst[i] = g[i] act'(x[i]). The slices have one length; dst may be g or x.
func (f *Formula) Gradients(dst, g, x []float64) {
	g, x = g[:len(dst)], x[:len(dst)]
	for i := range dst {
		dst[i] = f.Gradient(g[i], x[i])
	}
}

// GradientsFromOutput sets dst[i] = g[i] act'(x[i]) from y[i] = act(x[i]). The slices have one
// length; dst may be g or y.
func (f *Formula) GradientsFromOutput(dst, g, y []float64) {
	g, y = g[:len(dst)], y[:len(dst)]
	for i := range dst {
		dst[i] = f.GradientFromOutput(g[i], y[i])
	}
}

func identity(x float64) float64 { return x }

func identityGradient(g, _ float64) float64 { return g }

// relu is max(x, 0); -0 and NaN pass.
func relu(x float64) float64 {
	if x < 0 {
		return 0
	}
	return x
}

// reluGradient is g where x > 0 or x is NaN, else 0. The output serves as x equally well.
func reluGradient(g, x float64) float64 {
	if x <= 0 {
		return 0
	}
	return g
}

// leakyReluGradient is g where x > 0, else slope g, as for a NaN; of x itself it is leaky_relu.
func leakyReluGradient(g, x, slope float64) float64 {
	if x > 0 {
		return g
	}
	return slope * g
}

// decay is e^-|v| = m 2^k, and its value e = m 2^k after rounding. A result that falls towards zero
// with e is formed from m and scaled by 2^k last, so that it is rounded once where it is denormal.
// With e, sigmoid(|v|) = 1/(1+e) and sigmoid(-|v|) = e/(1+e), which is 1 - sigmoid(|v|) without its
// cancellation.
type decay struct {
	m, e float64
	k    int
}

// decayOf returns e^-(t+low) for t >= 0 and |low| <= ulp(t).
func decayOf(t, low float64) decay {
	if t > expUnderflow {
		return decay{}
	}
	m, k := expParts(-t, -low)
	return decay{m, scale(m, k), k}
}

// squareOf1Plus returns (1+e)^2 = 1 + e (2+e), rounded twice.
func squareOf1Plus(e float64) float64 { return math.FMA(e, 2+e, 1) }

// sigmoid is 1/(1 + e^-x).
func sigmoid(x float64) float64 {
	d := decayOf(math.Abs(x), 0)
	if x < 0 {
		return scale(d.m/(1+d.e), d.k)
	}
	return 1 / (1 + d.e)
}

// sigmoidSlope is sigmoid(x) sigmoid(-x).
func sigmoidSlope(x float64) float64 {
	d := decayOf(math.Abs(x), 0)
	return scale(d.m/squareOf1Plus(d.e), d.k)
}

// silu is x sigmoid(x).
func silu(x float64) float64 { return sigmoidProduct(x, decayOf(math.Abs(x), 0)) }

// siluSlope is sigmoid(x) (1 + x sigmoid(-x)).
func siluSlope(x float64) float64 { return sigmoidProductSlope(x, 1, decayOf(math.Abs(x), 0)) }

// sigmoidProduct is x sigmoid(v) for a v with the sign of x.
func sigmoidProduct(x float64, d decay) float64 {
	if x < 0 {
		return scale(x*d.m/(1+d.e), d.k)
	}
	return x / (1 + d.e)
}

// sigmoidProductSlope is the derivative of x sigmoid(v(x)) for an odd v that grows with x,
//
//	sigmoid(v) (1 + x v' sigmoid(-v)),
//
// over one denominator, given v' and e^-|v|. At infinities it is NaN: x e = inf*0.
func sigmoidProductSlope(x, vSlope float64, d decay) float64 {
	numerator := math.FMA(x, vSlope, 1)
	if x < 0 {
		return scale(d.m*(numerator+d.e)/squareOf1Plus(d.e), d.k)
	}
	return math.FMA(d.e, numerator, 1) / squareOf1Plus(d.e)
}

// tanh is (1-e)/(1+e), e = e^(-2|x|), with the sign of x.
func tanh(x float64) float64 {
	t := pair{high: x}.tanh()
	return t.high + t.low
}

// tanh is that of the sum, in two parts. The quotient is corrected by what is left of the division
// and by what both sums and e itself have lost in rounding. Near 0, where 1 - e cancels, the
// exponential gives e - 1 itself.
func (v pair) tanh() pair {
	const one = 20 // from here on tanh rounds to 1
	t, low := math.Abs(v.high), v.low
	if math.Signbit(v.high) {
		low = -low
	}
	if t >= one {
		return pair{high: math.Copysign(1, v.high)}
	}
	p, k := expPair(-2*t, -2*low)
	above, below := pair{high: -p.low}, quickSum(2, p.low)
	if k != 0 || p.high != 1 {
		p = quickSum(p.high, p.low)
		e := pair{scale(p.high, k), scale(p.low, k)}
		above, below = quickSum(1, -e.high), quickSum(1, e.high)
		above.low -= e.low
		below.low += e.low
	}
	q := above.high / below.high
	rest := math.FMA(-q, below.high, above.high) + above.low - q*below.low
	return pair{math.Copysign(q, v.high), math.Copysign(1, v.high) * (rest / below.high)}
}

// tanhSlope is 4e/(1+e)^2, e = e^(-2|x|): 1 - tanh^2 cancels.
func tanhSlope(x float64) float64 {
	d := decayOf(2*math.Abs(x), 0)
	return scale(4*d.m/squareOf1Plus(d.e), d.k)
}

// gelu is x Phi(x).
func gelu(x float64) float64 {
	t := math.Abs(x)
	switch {
	case t > normalUnderflow && x > 0:
		return x
	case t > normalUnderflow:
		return x * 0
	case t < normalCentral:
		return x * (0.5 + x*normalCentre(x*x))
	}
	m, k := normalExp(x)
	tail := m * normalTail(t)
	if x < 0 {
		return scale(x*tail, k)
	}
	return x * (1 - scale(tail, k))
}

// geluSlope is Phi(x) + x phi(x): in the tails, for t = |x|, it is e^(-t^2/2) (W(t) - t/sqrt(2 pi))
// on the left and 1 minus that on the right.
func geluSlope(x float64) float64 {
	t := math.Abs(x)
	switch {
	case t > normalUnderflow && x > 0:
		return 1 + x*0
	case t > normalUnderflow:
		return 0 + x*0
	}
	m, k := normalExp(x)
	if t < normalCentral {
		return 0.5 + x*(normalCentre(x*x)+invSqrt2Pi*scale(m, k))
	}
	tail := m * (normalTail(t) - float64(t*invSqrt2Pi))
	if x < 0 {
		return scale(tail, k)
	}
	return 1 - scale(tail, k)
}

// normalExp returns e^(-x^2/2) = m 2^k. The square is taken in two parts: its rounding alone would
// cost x^2/4 units in the last place.
func normalExp(x float64) (m float64, k int) {
	square := float64(x * x)
	return expParts(-square/2, -math.FMA(x, x, -square)/2)
}

// The tanh form of gelu, x (1 + tanh(u))/2, is x sigmoid(v) with v = 2u = x (c1 + c3 x^2).
const (
	// c1 = 2 sqrt(2/pi) and c3 = 0.044715 c1, each in two parts.
	geluTanhC1     = 1.59576912160573071175978423973752747390
	geluTanhC1High = 0x1.9884533d43651p+0
	geluTanhC1Low  = geluTanhC1 - geluTanhC1High
	geluTanhC3     = 0.044715 * geluTanhC1
	geluTanhC3High = 0x1.2444f2a4d8b4bp-4
	geluTanhC3Low  = geluTanhC3 - geluTanhC3High
)

// geluTanh is x sigmoid(v).
func geluTanh(x float64) float64 { return sigmoidProduct(x, geluTanhDecay(x)) }

// geluTanhSlope is sigmoid(v) (1 + x v' sigmoid(-v)), v' = c1 + 3 c3 x^2.
func geluTanhSlope(x float64) float64 {
	d := geluTanhDecay(x)
	if d.m == 0 {
		// The limits, and NaN at infinities; the cube of a large x would overflow to an infinity of
		// its own.
		return sigmoidProductSlope(x, 1, d)
	}
	return sigmoidProductSlope(x, math.FMA(3*geluTanhC3, x*x, geluTanhC1), d)
}

// geluTanhDecay returns e^-|v|. v is formed in two parts: one rounding of it would cost |v| units
// in the last place.
func geluTanhDecay(x float64) decay {
	const underflow = 24 // v(24) = 1024
	t := math.Abs(x)
	if t > underflow {
		return decay{}
	}
	square := t * t
	squareLow := math.FMA(t, t, -square)
	cubic := float64(geluTanhC3High * square) // rounded, not fused with the sum below: see quickSum
	cubicLow := math.FMA(geluTanhC3High, square, -cubic) + (geluTanhC3High*squareLow + geluTanhC3Low*square)
	// Either of the two may be the larger: a sum in two parts that holds for both (Knuth, The Art
	// of Computer Programming 2, 4.2.2).
	sum := geluTanhC1High + cubic
	rest := sum - geluTanhC1High
	sumLow := (geluTanhC1High - (sum - rest)) + (cubic - rest) + (cubicLow + geluTanhC1Low)
	v := float64(t * sum)
	return decayOf(v, math.FMA(t, sum, -v)+t*sumLow)
}
