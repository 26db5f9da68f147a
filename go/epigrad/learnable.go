package epigrad

import "github.com/epigrad/epigrad/go/op"

// PReLU is input where input > 0, else weight input (He et al. 2015,
// https://arxiv.org/abs/1502.01852).
type PReLU[T Element] struct {
	Input *Tensor[T]
	// Weight has one element, or one for each index of the input's second dimension.
	Weight  *Tensor[T]
	Options Options
}

// Forward writes the output, of the input's shape.
func (p PReLU[T]) Forward(out *Tensor[T]) error {
	return run(op.Call{Op: "prelu"}, p.Options, []Operand{p.Input, p.Weight}, []Operand{out})
}

// Backward writes the gradients; those that are nil are not computed.
func (p PReLU[T]) Backward(gradOutput, gradInput, gradWeight *Tensor[T]) error {
	return run(op.Call{Op: "prelu_backward"}, p.Options, []Operand{gradOutput, p.Input, p.Weight}, []Operand{gradInput, gradWeight})
}

// XIELU is softplus(alphaP) input² + beta input where input > 0, else (exp(input) - 1 - input)
// (beta + softplus(alphaN)) + beta input (Huang and Schlag 2024, https://arxiv.org/abs/2411.13010).
type XIELU[T Element] struct {
	Input *Tensor[T]
	// AlphaP and AlphaN have one element each.
	AlphaP, AlphaN *Tensor[T]
	// Beta is 0.5 in Apertus.
	Beta    float64
	Options Options
}

// Forward writes the output, of the input's shape.
func (p XIELU[T]) Forward(out *Tensor[T]) error {
	return run(p.call("xielu"), p.Options, []Operand{p.Input, p.AlphaP, p.AlphaN}, []Operand{out})
}

// Backward writes the gradients; those that are nil are not computed.
func (p XIELU[T]) Backward(gradOutput, gradInput, gradAlphaP, gradAlphaN *Tensor[T]) error {
	return run(p.call("xielu_backward"), p.Options,
		[]Operand{gradOutput, p.Input, p.AlphaP, p.AlphaN}, []Operand{gradInput, gradAlphaP, gradAlphaN})
}

func (p XIELU[T]) call(name string) op.Call {
	return op.Call{Op: name, Parameters: []float64{p.Beta}}
}
