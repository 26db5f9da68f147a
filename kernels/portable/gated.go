package portable

// Gated writes value * act(gate). Slices have one length.
func Gated(f *Formula, out, value, gate []float64) {
	for i := range out {
		out[i] = value[i] * f.Value(gate[i])
	}
}

// GatedBackward writes
//
//	grad_value = grad_output * act(gate)
//	grad_gate  = (grad_output * value) * act'(gate)
//
// in the order of operations that PyTorch's autograd has, so that infinities meet zeros in the same
// places. A nil gradient is not computed.
func GatedBackward(f *Formula, gradValue, gradGate, gradOutput, value, gate []float64) {
	if gradValue != nil {
		for i, g := range gradOutput {
			gradValue[i] = g * f.Value(gate[i])
		}
	}
	if gradGate != nil {
		for i, g := range gradOutput {
			gradGate[i] = f.Gradient(g*value[i], gate[i])
		}
	}
}
