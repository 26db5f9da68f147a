package epigrad

import "github.com/epigrad/epigrad/go/op"

// GatedLinear is a gated activation of two layers of one input:
//
//	value  = input weightValueᵀ + biasValue
//	gate   = input weightGateᵀ + biasGate
//	output = value act(gate)
//
//	input [..., k],  weights [h, k],  biases [h],  output [..., h]
//
// A bias may be nil. The preactivation is [..., 2h]: values, then gates.
type GatedLinear[T Element] struct {
	Input, WeightValue, WeightGate, BiasValue, BiasGate *Tensor[T]
	// AdapterValue and AdapterGate update the weights.
	AdapterValue, AdapterGate LowRank[T]
	// Kind is one of GatedKinds.
	Kind string
	// Parameters are the kind's; nil is their defaults.
	Parameters []float64
	Options    Options
}

// GatedLinearGradients are the outputs of GatedLinear.Backward, each of its tensor's shape; those
// that are nil are not computed.
type GatedLinearGradients[T Element] struct {
	Input *Tensor[T]
	// WeightValue, WeightGate, BiasValue and BiasGate are of T, or of float32 beside half types.
	WeightValue, WeightGate, BiasValue, BiasGate Operand
	AdapterValue, AdapterGate                    LowRankGradients
	// Accumulate adds into all but Input in place of overwriting them.
	Accumulate bool
}

// Forward writes the output and the preactivation; either may be nil.
func (p GatedLinear[T]) Forward(out, preactivation *Tensor[T]) error {
	return run(op.Call{Op: "gated_linear", Kind: p.Kind, Parameters: p.Parameters}, p.Options,
		[]Operand{p.Input, p.WeightValue, p.WeightGate, p.BiasValue, p.BiasGate, p.AdapterValue.A, p.AdapterValue.B, p.AdapterGate.A, p.AdapterGate.B}, []Operand{out, preactivation})
}

// Backward writes the gradients for gradOutput, the gradient to the output; a nil preactivation is
// formed again.
func (p GatedLinear[T]) Backward(gradOutput, preactivation *Tensor[T], g GatedLinearGradients[T]) error {
	return run(op.Call{Op: "gated_linear_backward", Kind: p.Kind, Parameters: p.Parameters, Accumulate: g.Accumulate}, p.Options,
		[]Operand{gradOutput, p.Input, p.WeightValue, p.WeightGate, p.BiasValue, p.BiasGate, preactivation, p.AdapterValue.A, p.AdapterValue.B, p.AdapterGate.A, p.AdapterGate.B},
		[]Operand{g.Input, g.WeightValue, g.WeightGate, g.BiasValue, g.BiasGate, g.AdapterValue.A, g.AdapterValue.B, g.AdapterGate.A, g.AdapterGate.B})
}

// MLP is a feed-forward block:
//
//	preactivation = input weight1ᵀ + bias1
//	output        = act(preactivation) weight2ᵀ + bias2
//
//	input [..., k],  weight1 [h, k],  bias1 [h],  weight2 [n, h],  bias2 [n],  output [..., n]
//
// A bias may be nil. The hidden activation is never stored: Backward forms it again from the
// preactivation, whose shape is [..., h].
type MLP[T Element] struct {
	Input, Weight1, Bias1, Weight2, Bias2 *Tensor[T]
	// Adapter1 and Adapter2 update the weights.
	Adapter1, Adapter2 LowRank[T]
	// Activation is one of Activations; "" is "none".
	Activation string
	// Parameters are the activation's; nil is their defaults.
	Parameters []float64
	Options    Options
}

// MLPGradients are the outputs of MLP.Backward, each of its tensor's shape; those that are nil are
// not computed.
type MLPGradients[T Element] struct {
	Input *Tensor[T]
	// Weight1, Bias1, Weight2 and Bias2 are of T, or of float32 beside half types.
	Weight1, Bias1, Weight2, Bias2 Operand
	Adapter1, Adapter2             LowRankGradients
	// Accumulate adds into all but Input in place of overwriting them.
	Accumulate bool
}

// Forward writes the output and the preactivation; either may be nil.
func (p MLP[T]) Forward(out, preactivation *Tensor[T]) error {
	return run(op.Call{Op: "mlp", Kind: p.Activation, Parameters: p.Parameters}, p.Options,
		[]Operand{p.Input, p.Weight1, p.Bias1, p.Weight2, p.Bias2, p.Adapter1.A, p.Adapter1.B, p.Adapter2.A, p.Adapter2.B}, []Operand{out, preactivation})
}

// Backward writes the gradients for gradOutput, the gradient to the output; a nil preactivation is
// formed again.
func (p MLP[T]) Backward(gradOutput, preactivation *Tensor[T], g MLPGradients[T]) error {
	return run(op.Call{Op: "mlp_backward", Kind: p.Activation, Parameters: p.Parameters, Accumulate: g.Accumulate}, p.Options,
		[]Operand{gradOutput, p.Input, p.Weight1, p.Bias1, p.Weight2, p.Bias2, preactivation, p.Adapter1.A, p.Adapter1.B, p.Adapter2.A, p.Adapter2.B},
		[]Operand{g.Input, g.Weight1, g.Bias1, g.Weight2, g.Bias2, g.Adapter1.A, g.Adapter1.B, g.Adapter2.A, g.Adapter2.B})
}

// GatedMLP is a feed-forward block with a gated activation:
//
//	preactivation = input weightInᵀ + biasIn
//	output        = gated(preactivation) weightOutᵀ + biasOut
//
//	input [..., k],  weightIn [2h, k],  biasIn [2h],  weightOut [n, h],  biasOut [n],  output [..., n]
//
// A bias may be nil. The hidden activation is never stored: Backward forms it again from the
// preactivation, whose shape is [..., 2h].
type GatedMLP[T Element] struct {
	Input, WeightIn, BiasIn, WeightOut, BiasOut *Tensor[T]
	// AdapterIn and AdapterOut update the weights.
	AdapterIn, AdapterOut LowRank[T]
	// Kind is one of GatedKinds.
	Kind string
	// Parameters are the kind's; nil is their defaults.
	Parameters []float64
	// Gate is where the gates' rows of WeightIn are: "second", which "" is too, or "first", of two
	// halves, or at "odd" or "even" places.
	Gate    string
	Options Options
}

// GatedMLPGradients are the outputs of GatedMLP.Backward, each of its tensor's shape; those that
// are nil are not computed.
type GatedMLPGradients[T Element] struct {
	Input *Tensor[T]
	// WeightIn, BiasIn, WeightOut and BiasOut are of T, or of float32 beside half types.
	WeightIn, BiasIn, WeightOut, BiasOut Operand
	AdapterIn, AdapterOut                LowRankGradients
	// Accumulate adds into all but Input in place of overwriting them.
	Accumulate bool
}

// Forward writes the output and the preactivation; either may be nil.
func (p GatedMLP[T]) Forward(out, preactivation *Tensor[T]) error {
	return p.run(op.Call{Op: "gated_mlp"},
		[]Operand{p.Input, p.WeightIn, p.BiasIn, p.WeightOut, p.BiasOut, p.AdapterIn.A, p.AdapterIn.B, p.AdapterOut.A, p.AdapterOut.B}, []Operand{out, preactivation})
}

// Backward writes the gradients for gradOutput, the gradient to the output; a nil preactivation is
// formed again.
func (p GatedMLP[T]) Backward(gradOutput, preactivation *Tensor[T], g GatedMLPGradients[T]) error {
	return p.run(op.Call{Op: "gated_mlp_backward", Accumulate: g.Accumulate},
		[]Operand{gradOutput, p.Input, p.WeightIn, p.BiasIn, p.WeightOut, p.BiasOut, preactivation, p.AdapterIn.A, p.AdapterIn.B, p.AdapterOut.A, p.AdapterOut.B},
		[]Operand{g.Input, g.WeightIn, g.BiasIn, g.WeightOut, g.BiasOut, g.AdapterIn.A, g.AdapterIn.B, g.AdapterOut.A, g.AdapterOut.B})
}

func (p GatedMLP[T]) run(c op.Call, inputs, outputs []Operand) (err error) {
	if c.Gate, err = op.ParseGate(c.Op, p.Gate); err != nil {
		return err
	}
	c.Kind, c.Parameters = p.Kind, p.Parameters
	return run(c, p.Options, inputs, outputs)
}
