package epigrad

import "github.com/epigrad/epigrad/go/op"

// Saved is a tensor of forward that backward may reuse: the preactivation, or the output for relu,
// sigmoid and tanh. With neither, the preactivation is formed again from the inputs.
type Saved[T Element] struct {
	Preactivation, Output *Tensor[T]
}

// Linear is act(input weightᵀ + bias), with input [..., k], weight [n, k], bias [n] or nil, and
// output [..., n].
//
// Sums are kept in float64 for float64 and in float32 for the other elements.
type Linear[T Element] struct {
	Input, Weight, Bias *Tensor[T]
	// Adapter updates Weight.
	Adapter LowRank[T]
	// Activation is one of Activations; "" is "none".
	Activation string
	// Parameters are the activation's; nil is their defaults.
	Parameters []float64
	Options    Options
}

// LinearGradients are the outputs of Linear.Backward, each of its tensor's shape; those that are
// nil are not computed.
type LinearGradients[T Element] struct {
	Input *Tensor[T]
	// Weight and Bias are of T, or of float32 beside half types.
	Weight, Bias Operand
	Adapter      LowRankGradients
	// Accumulate adds into all but Input in place of overwriting them.
	Accumulate bool
}

// Forward writes the output and the preactivation; either may be nil.
func (p Linear[T]) Forward(out, preactivation *Tensor[T]) error {
	return run(op.Call{Op: "linear", Kind: p.Activation, Parameters: p.Parameters}, p.Options,
		[]Operand{p.Input, p.Weight, p.Bias, p.Adapter.A, p.Adapter.B}, []Operand{out, preactivation})
}

// Backward writes the gradients for gradOutput, the gradient to the output: with g = gradOutput
// act'(pre), g weight to the input, gᵀ input to the weight and the sum of g's rows to the bias.
func (p Linear[T]) Backward(gradOutput *Tensor[T], saved Saved[T], gradients LinearGradients[T]) error {
	return run(op.Call{Op: "linear_backward", Kind: p.Activation, Parameters: p.Parameters, Accumulate: gradients.Accumulate}, p.Options,
		[]Operand{gradOutput, p.Input, p.Weight, p.Bias, saved.Preactivation, saved.Output, p.Adapter.A, p.Adapter.B},
		[]Operand{gradients.Input, gradients.Weight, gradients.Bias, gradients.Adapter.A, gradients.Adapter.B})
}

// Matmul is act(a b + bias):
//
//	a     [..., m, k] or [k]
//	b     [..., k, n], [k, n] or [k]
//	bias  [n], a scalar where b is a vector, or nil
//
// Batch dimensions broadcast; a gradient is summed over those that did.
type Matmul[T Element] struct {
	A, B, Bias *Tensor[T]
	// Activation is one of Activations; "" is "none".
	Activation string
	// Parameters are the activation's; nil is their defaults.
	Parameters []float64
	Options    Options
}

// MatmulGradients are the outputs of Matmul.Backward, each of its tensor's shape; those that are
// nil are not computed.
type MatmulGradients[T Element] struct {
	A *Tensor[T]
	// B and Bias are of T, or of float32 beside half types.
	B, Bias Operand
	// Accumulate adds into B and Bias in place of overwriting them.
	Accumulate bool
}

// Forward writes the output and the preactivation; either may be nil.
func (p Matmul[T]) Forward(out, preactivation *Tensor[T]) error {
	return run(op.Call{Op: "matmul_bias_activation", Kind: p.Activation, Parameters: p.Parameters}, p.Options,
		[]Operand{p.A, p.B, p.Bias}, []Operand{out, preactivation})
}

// Backward writes the gradients for gradOutput: with g = gradOutput act'(pre), g bᵀ to a, aᵀ g to b
// and the sum of g's rows to the bias.
func (p Matmul[T]) Backward(gradOutput *Tensor[T], saved Saved[T], gradients MatmulGradients[T]) error {
	return run(op.Call{Op: "matmul_bias_activation_backward", Kind: p.Activation, Parameters: p.Parameters, Accumulate: gradients.Accumulate}, p.Options,
		[]Operand{gradOutput, p.A, p.B, p.Bias, saved.Preactivation, saved.Output},
		[]Operand{gradients.A, gradients.B, gradients.Bias})
}
