package epigrad

import "github.com/epigrad/epigrad/go/op"

// GatedActivation is value act(gate), where value and gate are the halves of the input along a dimension, whose size is even.
type GatedActivation[T Element] struct {
	Input *Tensor[T]
	// Kind is one of GatedKinds.
	Kind string
	// Dim is the dimension that is split; a negative one counts from the end.
	Dim int
	// GateFirst tells that the gate is the first half, not the second.
	GateFirst bool
	Options   Options
}

// Forward writes the output, which has half the input's size along Dim.
func (p GatedActivation[T]) Forward(out *Tensor[T]) error {
	return run(op.Call{Op: "gated_activation", Kind: p.Kind, Dim: p.Dim, GateFirst: p.GateFirst}, p.Options,
		[]*Tensor[T]{p.Input}, []*Tensor[T]{out})
}

// Backward writes the gradient to the input: gradOutput act(gate) in the value's place and gradOutput value act'(gate) in the gate's.
func (p GatedActivation[T]) Backward(gradOutput, gradInput *Tensor[T]) error {
	return run(op.Call{Op: "gated_activation_backward", Kind: p.Kind, Dim: p.Dim, GateFirst: p.GateFirst}, p.Options,
		[]*Tensor[T]{gradOutput, p.Input}, []*Tensor[T]{gradInput})
}

// GatedProduct is value act(gate) of two tensors of one shape.
type GatedProduct[T Element] struct {
	Value, Gate *Tensor[T]
	// Kind is one of GatedKinds.
	Kind    string
	Options Options
}

// Forward writes the output.
func (p GatedProduct[T]) Forward(out *Tensor[T]) error {
	return run(op.Call{Op: "gated_product", Kind: p.Kind}, p.Options, []*Tensor[T]{p.Value, p.Gate}, []*Tensor[T]{out})
}

// Backward writes the gradients; one that is nil is not computed.
func (p GatedProduct[T]) Backward(gradOutput, gradValue, gradGate *Tensor[T]) error {
	return run(op.Call{Op: "gated_product_backward", Kind: p.Kind}, p.Options,
		[]*Tensor[T]{gradOutput, p.Value, p.Gate}, []*Tensor[T]{gradValue, gradGate})
}

// Lerp is start + weight (end - start); all three broadcast.
type Lerp[T Element] struct {
	Start, End *Tensor[T]
	// Weight is the weight as a tensor; where it is nil, Factor is the weight.
	Weight  *Tensor[T]
	Factor  float64
	Options Options
}

// Forward writes the output, of the shape that the inputs broadcast to.
func (p Lerp[T]) Forward(out *Tensor[T]) error {
	return run(p.call("lerp"), p.Options, []*Tensor[T]{p.Start, p.End, p.Weight}, []*Tensor[T]{out})
}

// Backward writes the gradients, each summed to its tensor's shape; those that are nil are not computed. Start and End may be nil unless
// gradWeight is asked for.
func (p Lerp[T]) Backward(gradOutput, gradStart, gradEnd, gradWeight *Tensor[T]) error {
	return run(p.call("lerp_backward"), p.Options,
		[]*Tensor[T]{gradOutput, p.Start, p.End, p.Weight}, []*Tensor[T]{gradStart, gradEnd, gradWeight})
}

func (p Lerp[T]) call(name string) op.Call {
	return op.Call{Op: name, Weight: p.Factor, HasWeight: p.Weight == nil}
}
