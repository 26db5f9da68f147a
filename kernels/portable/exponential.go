package portable

import "math"

// The activations that have an exponential and parameters. A parameter may make an exponent out of
// a large and a small number, so that no bound on the exponent says more than that the result is
// zero or infinite: exponents reach further here than decayOf's.

// exponentReach is where e^x times any float64 overflows, and e^-x times any is zero.
const exponentReach = 1500

// product is a b without error. Where it overflows, low is NaN.
func product(a, b float64) pair {
	high := float64(a * b)
	return pair{high, math.FMA(a, b, -high)}
}

// quotient is a/b to twice the precision. Where it overflows, low is NaN.
func quotient(a, b float64) pair {
	high := a / b
	return pair{high, math.FMA(-high, b, a) / b}
}

// decay returns e^-|v|; 0 beyond exponentReach. k may be less than scale takes: results are scaled
// by math.Ldexp.
func (v pair) decay() decay {
	t, low := v.high, v.low
	if t < 0 {
		t, low = -t, -low
	}
	if t > exponentReach {
		return decay{}
	}
	m, k := expParts(-t, -low)
	return decay{m, math.Ldexp(m, k), k}
}

// exp returns e^v = m 2^k, of which only the sum in m is rounded.
func (v pair) exp() (m pair, k int) {
	if math.Abs(v.high) > exponentReach {
		v = pair{high: math.Copysign(exponentReach, v.high)}
	}
	return expPair(v.high, v.low)
}

// logistic returns 1/(1 + e^-v).
func (v pair) logistic() float64 {
	d := v.decay()
	if v.high < 0 {
		return math.Ldexp(d.m/(1+d.e), d.k)
	}
	return 1 / (1 + d.e)
}

// swish is x sigmoid(v), v = beta x.
func swish(x, beta float64) float64 {
	v := product(beta, x)
	d := v.decay()
	if v.high < 0 {
		return math.Ldexp(x*d.m/(1+d.e), d.k)
	}
	return x / (1 + d.e)
}

// swishSlope is sigmoid(v) (1 + v sigmoid(-v)), over one denominator as in sigmoidProductSlope.
func swishSlope(x, beta float64) float64 {
	v := product(beta, x)
	d := v.decay()
	numerator := 1 + v.high + v.low
	if d.m == 0 {
		numerator = math.Copysign(x, v.high) // finite where x is: v may have overflowed
	}
	if v.high < 0 {
		return math.Ldexp(d.m*(numerator+d.e)/squareOf1Plus(d.e), d.k)
	}
	return math.FMA(d.e, numerator, 1) / squareOf1Plus(d.e)
}

// eluFormula is scale x for x >= 0, else c (e^(x/a) - 1). The slope for x <= 0 is slope e^(x/a).
type eluFormula struct{ scale, c, a, slope float64 }

func (f *eluFormula) value(x float64) float64 {
	// where e^v - 1 rounds to v
	const linear = 0x1p-55
	if x >= 0 {
		return f.scale * x
	}
	v := quotient(x, f.a)
	if !(math.Abs(v.high) >= linear) {
		return f.slope * x // not c v: v may be denormal; or NaN
	}
	p, k := v.exp()
	switch {
	case k < -60:
		return -f.c
	case k <= 0:
		// Near 0 the difference is exact, and k is 0.
		return f.c * math.Ldexp((p.high-powerOfTwo(-k))+p.low, k)
	default:
		return math.Ldexp(f.c*((p.high-math.Ldexp(1, -k))+p.low), k)
	}
}

func (f *eluFormula) gradient(g, x float64) float64 {
	if x <= 0 {
		p, k := quotient(x, f.a).exp()
		return g * math.Ldexp(f.slope*(p.high+p.low), k)
	}
	return g * f.scale
}

// softplusFormula is x where beta x > threshold, else log(1 + e^(beta x))/beta.
type softplusFormula struct{ beta, threshold float64 }

func (f *softplusFormula) value(x float64) float64 {
	v := product(f.beta, x)
	d := v.decay()
	switch {
	case v.high > f.threshold:
		return x
	case v.high > 0:
		return x + math.Log1p(d.e)/f.beta
	case d.e < 0x1p-55:
		return math.Ldexp(d.m/f.beta, d.k) // log(1 + e) rounds to e
	}
	return math.Log1p(d.e) / f.beta
}

func (f *softplusFormula) gradient(g, x float64) float64 {
	v := product(f.beta, x)
	if v.high > f.threshold {
		return g
	}
	return g * v.logistic()
}

// mish is x tanh(softplus(x)) = x ((1 + e^x)^2 - 1)/((1 + e^x)^2 + 1). With e = e^-|x| it is
//
//	x w/(w + 2),  w = e (2 + e)           for x < 0
//	x n/d,        n = 1 + 2e, d = n + 2e^2   for x >= 0
func mish(x float64) float64 {
	d := decayOf(math.Abs(x), 0)
	if x < 0 {
		return scale(x*(d.m*(2+d.e)/(d.e*(2+d.e)+2)), d.k)
	}
	n := 1 + 2*d.e
	return x * (n / (n + 2*d.e*d.e))
}

// mishSlope is that of mish,
//
//	e ((2 + e) (w + 2) + 4x (1 + e))/(w + 2)^2   for x < 0
//	(n d + 4x e^2 (1 + e))/d^2                   for x >= 0
func mishSlope(x float64) float64 {
	d := decayOf(math.Abs(x), 0)
	if x < 0 {
		denominator := d.e*(2+d.e) + 2
		return scale(4*d.m*((2+d.e)*denominator/4+x*(1+d.e))/(denominator*denominator), d.k)
	}
	n := 1 + 2*d.e
	denominator := n + 2*d.e*d.e
	return (n*denominator + 4*d.e*d.e*(1+d.e)*x) / (denominator * denominator)
}

// softcap is cap tanh(x/cap).
func softcap(x, bound float64) float64 {
	// where tanh(v) rounds to v
	const linear = 0x1p-28
	v := quotient(x, bound)
	if math.Abs(v.high) < linear {
		return x // not cap v: v may be denormal
	}
	t := v.tanh()
	return math.FMA(bound, t.high, bound*t.low)
}

// softcapSlope is 1 - tanh(x/cap)^2.
func softcapSlope(x, bound float64) float64 {
	v := quotient(x, bound)
	d := pair{2 * v.high, 2 * v.low}.decay()
	return math.Ldexp(4*d.m/squareOf1Plus(d.e), d.k)
}
