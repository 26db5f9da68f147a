package portable

import "math"

// Curvatures: h act''(x), for gradients of gradients. h is a gradient times a gradient. A kink has
// the curvature of the side whose slope it has. Where a slope is NaN for an infinite x, so is the
// curvature. With e = e^-|v|, the logistic function has
//
//	sigmoid'(v)  = e/(1+e)^2
//	sigmoid''(v) = -sigmoid'(v) tanh(v/2),  tanh(|v|/2) = (1-e)/(1+e)

// Curvatures sets dst[i] to v[i] g[i] times the second derivative at x[i]. The slices have one
// length.
func (f *Formula) Curvatures(dst, v, g, x []float64) { curvatures(f.Curvature, dst, v, g, x) }

// CurvaturesFromOutput sets dst[i] to the same times the derivative at y[i] of what the slope is as
// a function of the output.
func (f *Formula) CurvaturesFromOutput(dst, v, g, y []float64) {
	curvatures(f.CurvatureFromOutput, dst, v, g, y)
}

func curvatures(curvature func(h, x float64) float64, dst, v, g, x []float64) {
	for i := range dst {
		dst[i] = 0
		if curvature != nil {
			dst[i] = curvature(v[i]*g[i], x[i])
		}
	}
}

// curvature is Curvature, 0 where there is none.
func (f *Formula) curvature(h, x float64) float64 {
	if f.Curvature == nil {
		return 0
	}
	return f.Curvature(h, x)
}

// Curvatures sets the gradients of Gradients' results, to which u and v are the gradients: to
// gradOutput, to value and to gate. A nil one is not computed.
func (f *GatedFormula) Curvatures(toGradOutput, toValue, toGate, u, v, gradOutput, value, gate []float64) {
	for i, g := range gradOutput {
		of := f.curvatures(u[i], v[i], g, value[i], gate[i])
		for j, dst := range [3][]float64{toGradOutput, toValue, toGate} {
			if dst != nil {
				dst[i] = of[j]
			}
		}
	}
}

// curvatures of limits: what is clamped is constant, and so is the gradient 0 that it has.
func (l *limits) curvatures(u, v, g, value, gate float64) [3]float64 {
	x, gateIsClamped := below(gate, l.limit)
	act, after := below(l.act.Value(x), l.after)
	clipped, valueIsClamped := l.ofValue(value)
	var toGradOutput, toValue, toGate float64
	gateIsClamped = gateIsClamped || after
	if !valueIsClamped {
		toGradOutput = u * act
	}
	if !gateIsClamped {
		toGradOutput += l.act.Gradient(v*clipped, x)
		toGate = l.act.curvature(v*g*clipped, x)
	}
	if !gateIsClamped && !valueIsClamped {
		toValue = l.act.Gradient(v*g, x)
		toGate += l.act.Gradient(u*g, x)
	}
	return [3]float64{toGradOutput, toValue, toGate}
}

// situCurvature is that of phi in situ, s(x) (y” + s(-x) (2y' - y tanh(x/2))), y = cap tanh(x/cap).
func situCurvature(h, x, bound float64) float64 {
	y, d := softcap(x, bound), pair{high: x}.decay()
	falling := sigmoidTimes(2*softcapSlope(x, bound)-math.Abs(y)*d.rest(), -x)
	return sigmoidTimes(h*(softcapCurvature(x, bound)+falling), x)
}

// relu2Curvature is 2h where x > 0 or x is NaN, else 0.
func relu2Curvature(h, x float64) float64 { return reluGradient(2*h, x) }

// hardswishCurvature is h/3 between the kinks, else 0, as for a NaN.
func hardswishCurvature(h, x float64) float64 {
	if x > -3 && x < 3 {
		return h / 3
	}
	return 0
}

// sigmoidCurvature is that of sigmoid.
func sigmoidCurvature(x float64) float64 {
	d := decayOf(math.Abs(x), 0)
	return scale(-d.m*tanh(x/2)/squareOf1Plus(d.e), d.k)
}

// tanhCurvature is 8 times that of sigmoid at 2x, as tanh(x) is 2 sigmoid(2x) - 1.
func tanhCurvature(x float64) float64 {
	d := decayOf(2*math.Abs(x), 0)
	return scale(-8*d.m*tanh(x)/squareOf1Plus(d.e), d.k)
}

// softcapCurvature is that of tanh, over cap.
func softcapCurvature(x, bound float64) float64 {
	v := quotient(x, bound)
	d, t := pair{2 * v.high, 2 * v.low}.decay(), v.tanh()
	return math.Ldexp(-8*d.m*(t.high+t.low)/squareOf1Plus(d.e)/bound, d.k)
}

// rest is tanh(|v|/2), which cancels near 0.
func (d decay) rest() float64 { return (1 - d.e) / (1 + d.e) }

// siluCurvature is sigmoid'(x) (2 - x tanh(x/2)).
func siluCurvature(x float64) float64 {
	d := decayOf(math.Abs(x), 0)
	return scale(d.m*math.FMA(-math.Abs(x), d.rest(), 2)/squareOf1Plus(d.e), d.k)
}

// swishCurvature is beta sigmoid'(v) (2 - v tanh(v/2)), v = beta x.
func swishCurvature(x, beta float64) float64 {
	v := product(beta, x)
	d := v.decay()
	bend := math.FMA(-math.Abs(v.high), d.rest(), 2)
	if d.m == 0 {
		bend = x // finite where x is: v may have overflowed
	}
	return scaledBy(beta, d.m*bend/squareOf1Plus(d.e), d.k)
}

// scaledBy is factor m 2^k, where neither a product overflows nor a denormal is multiplied.
func scaledBy(factor, m float64, k int) float64 {
	fraction, exponent := math.Frexp(factor)
	return math.Ldexp(fraction*m, k+exponent)
}

// geluTanhCurvature is
//
//	sigmoid'(v) (2v' + x v'' - x v'^2 tanh(v/2)),  v' = c1 + 3 c3 x^2,  v'' = 6 c3 x
func geluTanhCurvature(x float64) float64 {
	d := geluTanhDecay(x)
	if d.m == 0 {
		return 0 * x
	}
	square := x * x
	vSlope := math.FMA(3*geluTanhC3, square, geluTanhC1)
	bend := math.FMA(-math.Abs(x)*vSlope*vSlope, d.rest(), math.FMA(12*geluTanhC3, square, 2*geluTanhC1))
	return scale(d.m*bend/squareOf1Plus(d.e), d.k)
}

// geluCurvature is phi(x) (2 - x^2), phi being the normal density.
func geluCurvature(x float64) float64 {
	if math.Abs(x) > normalUnderflow {
		return 0 * x
	}
	m, k := normalExp(x)
	return scale(m*invSqrt2Pi*math.FMA(-x, x, 2), k)
}

func (f *eluFormula) curvature(h, x float64) float64 {
	if x <= 0 {
		p, k := quotient(x, f.a).exp()
		return h * math.Ldexp(f.slope/f.a*(p.high+p.low), k)
	}
	return 0
}

// curvature is beta sigmoid'(v), and 0 beyond the threshold.
func (f *softplusFormula) curvature(h, x float64) float64 {
	v := product(f.beta, x)
	if v.high > f.threshold {
		return 0
	}
	d := v.decay()
	return h * scaledBy(f.beta, d.m/squareOf1Plus(d.e), d.k)
}

// mishCurvature is, with w, n, d and t = tanh(softplus(x)) as in mish,
//
//	8e ((1+e) + x (1/2 - e t))/(w + 2)^2   for x < 0,   t = w/(w + 2)
//	8e^2 ((1+e) + x (e/2 - t))/d^2         for x >= 0,  t = n/d
func mishCurvature(x float64) float64 {
	d := decayOf(math.Abs(x), 0)
	if x < 0 {
		w := d.e * (2 + d.e)
		bend := math.FMA(x, 0.5-d.e*w/(w+2), 1+d.e)
		return scale(8*d.m*bend/((w+2)*(w+2)), d.k)
	}
	n := 1 + 2*d.e
	denominator := n + 2*d.e*d.e
	bend := math.FMA(x, d.e/2-n/denominator, 1+d.e)
	return math.Ldexp(8*d.m*d.m*bend/(denominator*denominator), 2*d.k)
}
