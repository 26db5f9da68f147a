package epigrad

import "github.com/epigrad/epigrad/go/op"

// Activation is act(input), elementwise.
type Activation[T Element] struct {
	Input *Tensor[T]
	// Activation is one of Activations; "" is "none".
	Activation string
	// Parameters are the activation's; nil is their defaults.
	Parameters []float64
	Options    Options
}

// Forward writes the output, of the input's shape.
func (p Activation[T]) Forward(out *Tensor[T]) error {
	return run(op.Call{Op: "activation", Kind: p.Activation, Parameters: p.Parameters}, p.Options, []Operand{p.Input}, []Operand{out})
}

// Backward writes gradOutput act'(input). gradInput may be gradOutput.
func (p Activation[T]) Backward(gradOutput, gradInput *Tensor[T]) error {
	return run(op.Call{Op: "activation_backward", Kind: p.Activation, Parameters: p.Parameters}, p.Options,
		[]Operand{gradOutput, p.Input}, []Operand{gradInput})
}

// GatedActivation is value act(gate), where value and gate are the halves of the input along a
// dimension, or take turns along it. Its size is even.
type GatedActivation[T Element] struct {
	Input *Tensor[T]
	// Kind is one of GatedKinds.
	Kind string
	// Dim is the dimension that is split; a negative one counts from the end.
	Dim int
	// Gate is where the gates are: "second", which "" is too, or "first" of two halves, or at "odd"
	// or "even" places.
	Gate string
	// Parameters are the kind's; nil is their defaults.
	Parameters []float64
	Options    Options
}

// Forward writes the output, which has half the input's size along Dim.
func (p GatedActivation[T]) Forward(out *Tensor[T]) error {
	return p.run("gated_activation", []Operand{p.Input}, []Operand{out})
}

// Backward writes the gradient to the input: gradOutput act(gate) in the value's place and
// gradOutput value act'(gate) in the gate's.
func (p GatedActivation[T]) Backward(gradOutput, gradInput *Tensor[T]) error {
	return p.run("gated_activation_backward", []Operand{gradOutput, p.Input}, []Operand{gradInput})
}

func (p GatedActivation[T]) run(name string, inputs, outputs []Operand) error {
	gate, err := op.ParseGate(name, p.Gate)
	if err != nil {
		return err
	}
	return run(op.Call{Op: name, Kind: p.Kind, Parameters: p.Parameters, Dim: p.Dim, Gate: gate}, p.Options, inputs, outputs)
}

// GatedProduct is value act(gate) of two tensors of one shape.
type GatedProduct[T Element] struct {
	Value, Gate *Tensor[T]
	// Kind is one of GatedKinds.
	Kind string
	// Parameters are the kind's; nil is their defaults.
	Parameters []float64
	Options    Options
}

// Forward writes the output.
func (p GatedProduct[T]) Forward(out *Tensor[T]) error {
	return run(op.Call{Op: "gated_product", Kind: p.Kind, Parameters: p.Parameters}, p.Options, []Operand{p.Value, p.Gate}, []Operand{out})
}

// Backward writes the gradients; one that is nil is not computed.
func (p GatedProduct[T]) Backward(gradOutput, gradValue, gradGate *Tensor[T]) error {
	return run(op.Call{Op: "gated_product_backward", Kind: p.Kind, Parameters: p.Parameters}, p.Options,
		[]Operand{gradOutput, p.Value, p.Gate}, []Operand{gradValue, gradGate})
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
	return run(p.call("lerp"), p.Options, []Operand{p.Start, p.End, p.Weight}, []Operand{out})
}

// Backward writes the gradients, each summed to its tensor's shape; those that are nil are not
// computed. Start and End may be nil unless gradWeight is wanted.
func (p Lerp[T]) Backward(gradOutput, gradStart, gradEnd, gradWeight *Tensor[T]) error {
	return run(p.call("lerp_backward"), p.Options,
		[]Operand{gradOutput, p.Start, p.End, p.Weight}, []Operand{gradStart, gradEnd, gradWeight})
}

func (p Lerp[T]) call(name string) op.Call {
	if p.Weight != nil {
		return op.Call{Op: name}
	}
	return op.Call{Op: name, Parameters: []float64{p.Factor}}
}
