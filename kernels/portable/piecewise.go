package portable

// hardswish is x min(max(x + 3, 0), 6) / 6. At -inf it is inf*0 = NaN, as in PyTorch.
func hardswish(x float64) float64 {
	switch {
	case x <= -3:
		return x * 0
	case x >= 3:
		return x
	}
	return x * (x + 3) / 6
}

// hardswishGradient is g (2x + 3)/6 between the kinks, else 0 or g. A NaN x counts as large.
func hardswishGradient(g, x float64) float64 {
	switch {
	case x <= -3:
		return 0
	case x < 3:
		return g * ((2*x + 3) / 6)
	}
	return g
}

// hardsigmoid is min(max(x + 3, 0), 6) / 6.
func hardsigmoid(x float64) float64 { return clip(x+3, 0, 6) / 6 }

// hardsigmoidGradient is g/6 between the kinks, else 0, as for a NaN.
func hardsigmoidGradient(g, x float64) float64 {
	if x > -3 && x < 3 {
		return g / 6
	}
	return 0
}

// clip is min(max(x, low), high); NaN passes.
func clip(x, low, high float64) float64 {
	switch {
	case x < low:
		return low
	case x > high:
		return high
	}
	return x
}

// clipGradient is g where x lies between the bounds or is NaN, else 0.
func clipGradient(g, x, low, high float64) float64 {
	if x <= low || x >= high {
		return 0
	}
	return g
}
