package portable

// The standard normal distribution's tail, which gelu is made of:
//
//	W(t) = erfc(t/sqrt2) e^(t^2/2) / 2,   Phi(-t) = e^(-t^2/2) W(t)   for t >= 0
//
// W falls smoothly from 1/2 like 1/t, so that one polynomial holds from 0 to where e^(-t^2/2) is zero, and both Phi and the density
// share one exponential. 1 + erf is never formed: it cancels in the tail.

const (
	// invSqrt2Pi is 1/sqrt(2 pi), the normal density at 0.
	invSqrt2Pi = 0.39894228040143267793994605993438186847585863116493
	// normalUnderflow is where t e^(-t^2/2) is zero after rounding.
	normalUnderflow = 39
)

// normalTail returns W(t) for t in [0, normalUnderflow], as a polynomial in y = (t-c)/(t+c) divided by t+c. Even and odd powers are
// summed apart: half the waiting.
func normalTail(t float64) float64 {
	inverse := 1 / (t + normalTailCentre)
	y := 1 - 2*normalTailCentre*inverse
	square := y * y
	last := len(normalTailCoefficients) - 1
	odd, even := normalTailCoefficients[last], normalTailCoefficients[last-1]
	for i := last - 3; i >= 0; i -= 2 {
		odd = odd*square + normalTailCoefficients[i+1]
		even = even*square + normalTailCoefficients[i]
	}
	return (even + y*odd) * inverse
}
