package op

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// A gated linear layer has a weight for values and one for gates:
//
//	value = input weight_valueᵀ + bias_value
//	gate  = input weight_gateᵀ + bias_gate
//	out   = value act(gate)
//
//	input [..., k],  weights [h, k],  biases [h],  out [..., h]
//
// The preactivation is [..., 2h]: values, then gates.
//
//	grad_value, grad_gate = those of gated_product
//	grad_input            = grad_value weight_value + grad_gate weight_gate
//	grad_weight_value     = grad_valueᵀ input
//	grad_bias_value       = column sums of grad_value, before it is rounded
//
// and likewise for the gate. grad_input is stored after its first product, to which the second is
// added.
var (
	gatedLinear = operation{
		Signature: gatedLinearSignature,
		kinds:     gatedKinds, defaultKind: "swiglu", multiplies: true,
		shapes: func(c *Call) ([][]int64, error) {
			out, pre, err := gatedLinearShapes("gated_linear", c.Inputs)
			return [][]int64{out, pre}, err
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			value, gate := columnHalves(c.output(1), GateSecond)
			return &backend.GatedLinear{
				Header: h, Input: c.input(0),
				WeightValue: c.input(1), WeightGate: c.input(2), BiasValue: c.input(3), BiasGate: c.input(4),
				Out: c.output(0), Value: value, Gate: gate,
			}
		},
	}
	gatedLinearBackward = operation{
		Signature: gatedLinearSignature.backward("preactivation"),
		kinds:     gatedKinds, defaultKind: "swiglu", multiplies: true, accumulates: true,
		shapes: func(c *Call) ([][]int64, error) {
			const name = "gated_linear_backward"
			out, pre, err := gatedLinearShapes(name, c.Inputs[1:])
			if err != nil {
				return nil, err
			}
			if err := check.Shape(name, "grad_output", c.input(0).Shape, out, "the output's"); err != nil {
				return nil, err
			}
			if given := c.input(6); given != nil {
				if err := check.Shape(name, "preactivation", given.Shape, pre, "[..., 2h]"); err != nil {
					return nil, err
				}
			}
			shapes := make([][]int64, len(gatedLinearSignature.Inputs))
			for i := range shapes {
				if v := c.input(1 + i); v != nil {
					shapes[i] = v.Shape
				}
			}
			return shapes, nil
		},
		steps: gatedLinearBackwardSteps,
	}
)

// gatedLayer is a gated linear layer with one weight [2h, k] and bias [2h] for both halves: what
// gated_mlp begins with.
var gatedLayer = operation{
	Signature: Signature{"gated_layer", arguments("input", "weight", "bias?"), arguments("out", "preactivation")},
	kinds:     gatedKinds, halves: true, multiplies: true,
	shapes: func(c *Call) ([][]int64, error) {
		out, pre := gatedLayerShapes(c)
		return [][]int64{out, pre}, nil
	},
	problem: func(c *Call, h backend.Header) backend.Problem {
		p := &backend.GatedLinear{Header: h, Input: c.input(0), Out: c.output(0)}
		p.WeightValue, p.WeightGate = halves(c.input(1), 0, c.Gate)
		p.BiasValue, p.BiasGate = columnHalves(c.input(2), c.Gate)
		p.Value, p.Gate = columnHalves(c.output(1), c.Gate)
		return p
	},
	steps: func(c *Call, dt dtype.DType, device tensor.Device) []Call {
		w := &region{dt: dt, device: device}
		pre := c.output(1)
		if pre == nil {
			_, shape := gatedLayerShapes(c)
			pre = w.view(shape)
		}
		gated := w.between(c, "gated_activation", []*tensor.View{pre}, c.output(0))
		gated.Dim, gated.Gate = -1, c.Gate
		return []Call{w.linear(c, "none", nil, c.input(0), c.input(1), c.input(2), pre, nil), gated}
	},
}

func gatedLayerShapes(c *Call) (out, pre []int64) {
	input, rows := c.input(0), c.input(1).Shape[0]
	outer := input.Shape[:input.Rank()-1]
	return append(slices.Clone(outer), rows/2), append(slices.Clone(outer), rows)
}

var gatedLinearSignature = Signature{
	"gated_linear",
	arguments("input [..., K]", "weight_value [H, K]", "weight_gate [H, K]", "bias_value? [H] = None", "bias_gate? [H] = None"),
	arguments("out [..., H]", "preactivation [..., 2H]"),
}

// gatedLinearShapes applies the rules of linear to both products. inputs begin with the layer's
// own.
func gatedLinearShapes(op string, inputs []*tensor.View) (out, pre []int64, err error) {
	weight := at(inputs, 1)
	for i, name := range [2]string{"value", "gate"} {
		s := gemmSpelling{a: "input", b: "weight_" + name, bias: "bias_" + name, transposed: true}
		g, err := s.resolve(op, at(inputs, 0), at(inputs, 1+i), at(inputs, 3+i))
		if err != nil {
			return nil, nil, err
		}
		out = g.out
	}
	if err := check.Shape(op, "weight_gate", at(inputs, 2).Shape, weight.Shape, "weight_value's"); err != nil {
		return nil, nil, err
	}
	last := len(out) - 1
	pre = slices.Clone(out)
	pre[last] *= 2
	if _, err := tensor.New(nil, 0, weight.DType, weight.Device, pre, nil, 0); err != nil {
		return nil, nil, check.Wrap(op, "preactivation", err)
	}
	return out, pre, nil
}

// columnHalves is halves of the last dimension; nil of nil.
func columnHalves(v *tensor.View, place Gate) (value, gate *tensor.View) {
	if v == nil {
		return nil, nil
	}
	return halves(v, v.Rank()-1, place)
}

// between is the call of what comes between or after products: it has the whole call's kind.
func (w *region) between(c *Call, op string, inputs []*tensor.View, outputs ...*tensor.View) Call {
	return Call{Op: op, Kind: c.Kind, Parameters: c.Parameters, Backend: c.Backend, Inputs: inputs, Outputs: outputs}
}

// gatedPreactivation is the calls of both products. inputs begin with the layer's own.
func (w *region) gatedPreactivation(c *Call, inputs []*tensor.View, pre *tensor.View) []Call {
	value, gate := columnHalves(pre, GateSecond)
	return []Call{
		w.linear(c, "none", nil, at(inputs, 0), at(inputs, 1), at(inputs, 3), value, nil),
		w.linear(c, "none", nil, at(inputs, 0), at(inputs, 2), at(inputs, 4), gate, nil),
	}
}

func gatedLinearBackwardSteps(c *Call, dt dtype.DType, device tensor.Device) []Call {
	w := &region{dt: dt, device: device}
	input, weights := c.input(1), [2]*tensor.View{c.input(2), c.input(3)}
	gradInput, gradWeights, gradBiases := c.output(0), [2]*tensor.View{c.output(1), c.output(2)}, [2]*tensor.View{c.output(3), c.output(4)}
	out, shape, _ := gatedLinearShapes(c.Op, c.Inputs[1:]) // which are valid
	var calls []Call
	pre := c.input(6)
	if pre == nil {
		pre = w.view(shape)
		calls = w.gatedPreactivation(c, c.Inputs[1:], pre)
	}
	var grads [2]*tensor.View // to values and gates
	for i := range grads {
		if gradInput != nil || gradWeights[i] != nil {
			grads[i] = w.view(out)
		}
	}
	value, gate := columnHalves(pre, GateSecond)
	calls = append(calls, w.between(c, "gated_product_backward", []*tensor.View{c.input(0), value, gate}, grads[0], grads[1], gradBiases[0], gradBiases[1]))
	for i, grad := range grads {
		if gradInput != nil {
			product := w.linearBackward(c, grad, input, weights[i], nil, gradInput, nil, nil)
			product.adds = i > 0
			calls = append(calls, product)
		}
		if gradWeights[i] != nil {
			calls = append(calls, w.linearBackward(c, grad, input, weights[i], nil, nil, gradWeights[i], nil))
		}
	}
	return calls
}
