package op

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/check"
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
// and likewise for the gate. grad_input is one sum of two products, which CUDA may round after
// each.
var (
	gatedLinear = operation{
		Signature: gatedLinearSignature,
		kinds:     gatedKinds, defaultKind: "swiglu", multiplies: true,
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			out, pre, err := gatedLinearShapes(c.Op, inputs)
			return [][]int64{out, pre}, err
		},
		problem: func(c *Call, h backend.Header) backend.Problem { return gatedLayer(c, h) },
		problems: func(c *Call, h backend.Header, w *region) []backend.Problem {
			if value, gate := c.adapter(5), c.adapter(7); value.given() || gate.given() {
				return adapted(lower.Parts(gatedLayer(c, h), w.part), w, value, gate)
			}
			return nil
		},
	}
	gatedLinearBackward = gatedLinear.backward(operation{problems: gatedLinearBackwardProblems}, "preactivation")
)

var gatedLinearSignature = Signature{
	"gated_linear",
	arguments(
		"input [..., K]", "weight_value [H, K]", "weight_gate [H, K]", "bias_value? [H] = None", "bias_gate? [H] = None",
		"adapter_value.a? [R, K] = None", "adapter_value.b? [H, R] = None", "adapter_gate.a? [S, K] = None", "adapter_gate.b? [H, S] = None",
	),
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

// columnHalves is halves of the last dimension.
func columnHalves(v *tensor.View, place Gate) (value, gate *tensor.View) { return halves(v, -1, place) }

func gatedLayer(c *Call, h backend.Header) backend.Problem {
	value, gate := columnHalves(c.output(1), GateSecond)
	return &backend.GatedLinear{
		Header: h, Input: c.input(0),
		WeightValue: c.input(1), WeightGate: c.input(2), BiasValue: c.input(3), BiasGate: c.input(4),
		Out: c.output(0), Value: value, Gate: gate,
	}
}

func gatedLinearBackwardProblems(c *Call, h backend.Header, w *region) (problems []backend.Problem) {
	input, gradInput := c.input(1), c.output(0)
	out, shape, _ := gatedLinearShapes(c.Op, c.Inputs[1:]) // which are valid
	value, gate := columnHalves(c.input(6), GateSecond)
	terms := []*term{ // of values and gates
		{weight: c.input(2), adapter: c.adapter(7), gradA: c.output(5), gradB: c.output(6)},
		{weight: c.input(3), adapter: c.adapter(9), gradA: c.output(7), gradB: c.output(8)},
	}
	if value == nil {
		value, gate = columnHalves(w.view(shape), GateSecond)
		for i, half := range [2]*tensor.View{value, gate} {
			product := layer(h.Plain("linear"), input, terms[i].weight, c.input(4+i), half, nil)
			problems = append(problems, adapted([]backend.Problem{product}, w, terms[i].adapter)...)
		}
	}
	var grads [2]*tensor.View
	for i, t := range terms {
		if gradInput != nil || c.output(1+i) != nil || t.gradA != nil || t.gradB != nil {
			grads[i] = w.view(out)
			t.grad = rows(grads[i])
		}
	}
	problems = append(problems, &backend.GatedBackward{
		Header: pass(h, "gated_product_backward"), GradOutput: c.input(0), Value: value, Gate: gate, GradValue: grads[0], GradGate: grads[1],
		GradBiasValue: tensor.Aligned(c.output(3), len(out)), GradBiasGate: tensor.Aligned(c.output(4), len(out)),
	})
	if gradInput != nil {
		problems = append(problems, toInput(terms, h.Plain("linear_backward"), w, rows(gradInput))...)
	}
	for i, t := range terms {
		if gradWeight := c.output(1 + i); gradWeight != nil {
			problems = append(problems, layerBackward(h, t.grad, input, t.weight, nil, nil, gradWeight, nil))
		}
		problems = append(problems, t.gradients(h.Plain("linear_backward"), w, rows(input))...)
	}
	return problems
}
