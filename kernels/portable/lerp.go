package portable

import "math"

// Lerp writes start + weight * (end - start), from the nearer end: torch.lerp's formula, exact at
// both ends, the product unrounded as in torch's vector kernels. Slices have one length.
func Lerp(out, start, end, weight []float64) {
	for i, w := range weight {
		difference := end[i] - start[i]
		if w < 0.5 && w > -0.5 {
			out[i] = math.FMA(w, difference, start[i])
		} else {
			out[i] = math.FMA(w-1, difference, end[i])
		}
	}
}

// LerpBackward writes grad_start = (1 - weight) * grad_output, grad_end = weight * grad_output and
// grad_weight = grad_output * (end - start). A nil gradient is not computed, and what only it needs
// may be nil.
func LerpBackward(gradStart, gradEnd, gradWeight, gradOutput, start, end, weight []float64) {
	if gradStart != nil {
		for i, g := range gradOutput {
			gradStart[i] = (1 - weight[i]) * g
		}
	}
	if gradEnd != nil {
		for i, g := range gradOutput {
			gradEnd[i] = weight[i] * g
		}
	}
	if gradWeight != nil {
		for i, g := range gradOutput {
			gradWeight[i] = g * (end[i] - start[i])
		}
	}
}
