package portable

import "math"

// The standard normal distribution's tail, which gelu is made of:
//
//	W(t) = erfc(t/sqrt2) e^(t^2/2) / 2,   Phi(-t) = e^(-t^2/2) W(t)   for t >= 0
//
// W falls smoothly from 1/2 like 1/t, and Phi and the density share one exponential. 1 + erf is
// never formed: it cancels in the tail.

const (
	// invSqrt2Pi is 1/sqrt(2 pi), the normal density at 0.
	invSqrt2Pi = 0.39894228040143267793994605993438186847585863116493
	// normalUnderflow is where t e^(-t^2/2) is zero after rounding.
	normalUnderflow = 39
	// normalCentral is where the power series about 0 gives way to the tail's polynomial, which
	// there would amplify the rounding of y.
	normalCentral = 0.5
)

// normalCentre returns (Phi(x) - 1/2)/x for |x| <= normalCentral from square = x^2: the Taylor
// series 1/sqrt(2 pi) sum (-x^2/2)^n / (n! (2n+1)), whose next term is below 2^-60 of it.
func normalCentre(square float64) float64 {
	h := -square / 2
	series := 0.0
	for i := len(normalCentreCoefficients) - 1; i >= 0; i-- {
		series = series*h + normalCentreCoefficients[i]
	}
	return series * invSqrt2Pi
}

// normalCentreCoefficients are 1/(n! (2n+1)).
var normalCentreCoefficients = [...]float64{
	1, 1.0 / 3, 1.0 / 10, 1.0 / 42, 1.0 / 216, 1.0 / 1320, 1.0 / 9360, 1.0 / 75600, 1.0 / 685440, 1.0 / 6894720, 1.0 / 76204800,
}

// normalTail returns W(t) for t in [normalCentral, normalUnderflow]. Both forms divide out the
// decay like 1/t, so that their polynomials are nearly constant and hardly feel the rounding of
// their variable.
func normalTail(t float64) float64 {
	const centre, far = 2, 5
	if t >= far {
		return evenOdd(normalTailFar[:], normalTailFarLow, 1/(t*t)) / t
	}
	return evenOdd(normalTailMiddle[:], normalTailMiddleLow, (t-centre)/(t+centre)) / (t + centre)
}

// evenOdd evaluates a polynomial with an even number of ascending coefficients, the first of which
// has the part low besides. Even and odd powers are summed apart, which halves the waiting, and the
// first coefficient is added last, so that only this sum rounds visibly.
func evenOdd(coefficients []float64, low, x float64) float64 {
	square := x * x
	var even, odd float64
	for i := len(coefficients) - 2; i > 0; i -= 2 {
		even = math.FMA(even, square, coefficients[i])
		odd = math.FMA(odd, square, coefficients[i+1])
	}
	odd = math.FMA(odd, square, coefficients[1])
	return coefficients[0] + math.FMA(x, odd, math.FMA(even, square, low))
}
