package epigrad

import (
	"slices"

	"github.com/epigrad/epigrad/go/op"
)

// GroupedLinear is a linear layer with a weight for each group of the input's rows:
//
//	preactivation = input weight[e]ᵀ + bias[e]  of the rows of group e
//	output        = act(preactivation)
//
//	input [T, K],  weight [E, N, K],  bias [E, N],  offsets [E],  output [T, N]
//
// Group e has the rows from Offsets[e-1] to Offsets[e]. Rows behind the last group are not read;
// their output and their gradients are 0. A group may have no rows: then its gradients are 0. Bias
// may be nil.
type GroupedLinear[T Element] struct {
	Input, Weight, Bias *Tensor[T]
	// Adapter updates Weight.
	Adapter LowRank[T]
	// Offsets, of int32 or int64, are where the groups' rows end. They rise, from 0 or more to at
	// most T.
	Offsets Operand
	// Activation is one of Activations; "" is "none".
	Activation string
	// Parameters are the activation's; nil is their defaults.
	Parameters []float64
	Options    Options
}

// GroupedLinearGradients are the outputs of GroupedLinear.Backward, each of its tensor's shape;
// those that are nil are not computed.
type GroupedLinearGradients[T Element] struct {
	Input *Tensor[T]
	// Weight and Bias are of T, or of float32 beside half types.
	Weight, Bias Operand
	Adapter      LowRankGradients
	// Accumulate adds into all but Input in place of overwriting them.
	Accumulate bool
}

// Forward writes the output and the preactivation, [T, N]; either may be nil.
func (p GroupedLinear[T]) Forward(out, preactivation *Tensor[T]) error {
	return run(op.Call{Op: "grouped_linear", Kind: p.Activation, Parameters: p.Parameters}, p.Options,
		[]Operand{p.Input, p.Weight, p.Bias, p.Offsets, p.Adapter.A, p.Adapter.B}, []Operand{out, preactivation})
}

// Backward writes the gradients for gradOutput, the gradient to the output; a nil preactivation is
// formed again.
func (p GroupedLinear[T]) Backward(gradOutput, preactivation *Tensor[T], g GroupedLinearGradients[T]) error {
	return run(op.Call{Op: "grouped_linear_backward", Kind: p.Activation, Parameters: p.Parameters, Accumulate: g.Accumulate}, p.Options,
		[]Operand{gradOutput, p.Input, p.Weight, p.Bias, p.Offsets, preactivation, p.Adapter.A, p.Adapter.B},
		[]Operand{g.Input, g.Weight, g.Bias, g.Adapter.A, g.Adapter.B})
}

// Experts is a mixture of feed-forward blocks, k of which see a token:
//
//	preactivation = input[t] weightIn[e]ᵀ + biasIn[e],  e = index[t, j]
//	hidden        = act(preactivation), or value act(gate) of its halves
//	output[t]     = sum over j of scale[t, j] (hidden weightOut[e]ᵀ + biasOut[e])
//
//	input [T, K],  index and scale [T, k],  weightIn [E, 2H, K],  biasIn [E, 2H],
//	weightOut [E, K, H],  biasOut [E, K],  output [T, K]
//
// WeightIn is [E, H, K] and BiasIn [E, H] if Kind is an activation. An index that is no expert's
// selects nothing. Biases may be nil.
type Experts[T Element] struct {
	Input *Tensor[T]
	Index *Tensor[int64]
	// Scale is of T, or of float32 beside half types.
	Scale Operand

	WeightIn, BiasIn, WeightOut, BiasOut *Tensor[T]
	// AdapterIn and AdapterOut update the weights.
	AdapterIn, AdapterOut LowRank[T]
	// Kind is one of GatedKinds or of Activations; "" is "none".
	Kind string
	// Parameters are the kind's; nil is their defaults.
	Parameters []float64
	// Gate is where the gates' rows of WeightIn are: "second", which "" is too, or "first", of two
	// halves, or at "odd" or "even" places.
	Gate    string
	Options Options
}

// ExpertsGradients are the outputs of Experts.Backward, each of its tensor's shape; those that are
// nil are not computed.
type ExpertsGradients[T Element] struct {
	Input *Tensor[T]
	// Scale has the elements of the mixture's Scale.
	Scale Operand
	// WeightIn, BiasIn, WeightOut and BiasOut are of T, or of float32 beside half types.
	WeightIn, BiasIn, WeightOut, BiasOut Operand
	AdapterIn, AdapterOut                LowRankGradients
	// Accumulate adds into all but Input and Scale in place of overwriting them.
	Accumulate bool
}

// Forward writes the output and the preactivation; either may be nil. The preactivation is
// [T k, rows of weightIn], its rows sorted by expert, then by token, then by j. It may have fewer
// rows: slots that would have a later one then select nothing, and less memory is used.
func (p Experts[T]) Forward(out, preactivation *Tensor[T]) error {
	return p.run(op.Call{Op: "experts"}, append(p.tensors(), p.adapters()...), []Operand{out, preactivation})
}

// Backward writes the gradients for gradOutput, the gradient to the output; a nil preactivation is
// formed again.
func (p Experts[T]) Backward(gradOutput, preactivation *Tensor[T], g ExpertsGradients[T]) error {
	inputs := slices.Concat([]Operand{gradOutput}, p.tensors(), []Operand{preactivation}, p.adapters())
	return p.run(op.Call{Op: "experts_backward", Accumulate: g.Accumulate}, inputs,
		[]Operand{g.Input, g.Scale, g.WeightIn, g.BiasIn, g.WeightOut, g.BiasOut, g.AdapterIn.A, g.AdapterIn.B, g.AdapterOut.A, g.AdapterOut.B})
}

func (p Experts[T]) tensors() []Operand {
	return []Operand{p.Input, p.Index, p.Scale, p.WeightIn, p.BiasIn, p.WeightOut, p.BiasOut}
}

func (p Experts[T]) adapters() []Operand {
	return []Operand{p.AdapterIn.A, p.AdapterIn.B, p.AdapterOut.A, p.AdapterOut.B}
}

func (p Experts[T]) run(c op.Call, inputs, outputs []Operand) (err error) {
	if c.Gate, err = op.ParseGate(c.Op, p.Gate); err != nil {
		return err
	}
	c.Kind, c.Parameters = p.Kind, p.Parameters
	return run(c, p.Options, inputs, outputs)
}
