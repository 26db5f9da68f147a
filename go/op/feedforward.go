package op

import (
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// A feed-forward block is two linear layers with an activation between them, or a gated activation,
// which halves the last dimension:
//
//	preactivation = input weight1ᵀ + bias1
//	hidden        = act(preactivation)
//	out           = hidden weight2ᵀ + bias2
//
//	input [..., k],  weight1 [h, k] (gated: [2h, k]),  weight2 [n, h],  out [..., n]
//
// A bias has as many elements as its weight has rows.
//
// The hidden activation is never an operand: backward forms it again, and the preactivation too
// where it is not given. A block is made of calls of other operations (steps), whose tensors
// between them lie in the workspace.
var (
	plainBlock = blockSpelling{
		signature: Signature{
			"mlp", arguments("input [..., K]", "weight1 [H, K]", "bias1? [H]", "weight2 [N, H]", "bias2? [N]"),
			arguments("out [..., N]", "preactivation [..., H]"),
		},
		op: "mlp", kinds: activations, defaultKind: "gelu_tanh", names: [5]string{"input", "weight1", "bias1", "weight2", "bias2"},
	}
	gatedBlock = blockSpelling{
		signature: Signature{
			"gated_mlp", arguments("input [..., K]", "weight_in [2H, K]", "bias_in? [2H]", "weight_out [N, H]", "bias_out? [N]"),
			arguments("out [..., N]", "preactivation [..., 2H]"),
		},
		op: "gated_mlp", kinds: gatedKinds, defaultKind: "swiglu", gated: true, names: [5]string{"input", "weight_in", "bias_in", "weight_out", "bias_out"},
	}

	mlp, mlpBackward           = plainBlock.forward(), plainBlock.backward()
	gatedMLP, gatedMLPBackward = gatedBlock.forward(), gatedBlock.backward()
)

// blockSpelling is how a block's operands are named: input, and weight and bias of both layers.
type blockSpelling struct {
	signature   Signature
	op          string
	kinds       *kinds
	defaultKind string
	gated       bool
	names       [5]string
}

func (s blockSpelling) forward() operation {
	return operation{
		Signature: s.signature,
		kinds:     s.kinds, defaultKind: s.defaultKind, halves: s.gated, multiplies: true,
		shapes: func(c *Call) ([][]int64, error) {
			b, err := s.resolve(s.op, c.Inputs)
			if err != nil {
				return nil, err
			}
			return [][]int64{b.out, b.pre}, nil
		},
		steps: s.forwardSteps,
	}
}

func (s blockSpelling) backward() operation {
	name := s.op + "_backward"
	return operation{
		Signature: s.signature.backward("preactivation"),
		kinds:     s.kinds, defaultKind: s.defaultKind, halves: s.gated, multiplies: true, accumulates: true,
		shapes: func(c *Call) ([][]int64, error) {
			b, err := s.resolve(name, c.Inputs[1:])
			if err != nil {
				return nil, err
			}
			if err := check.Shape(name, "grad_output", c.input(0).Shape, b.out, "the output's"); err != nil {
				return nil, err
			}
			if pre := c.input(6); pre != nil {
				if err := check.Shape(name, "preactivation", pre.Shape, b.pre, "the first layer's"); err != nil {
					return nil, err
				}
			}
			shapes := make([][]int64, len(s.names))
			for i := range shapes {
				if v := c.input(1 + i); v != nil {
					shapes[i] = v.Shape
				}
			}
			return shapes, nil
		},
		steps: s.backwardSteps,
	}
}

// block is the shapes between a block's tensors.
type block struct{ pre, hidden, out []int64 }

// resolve applies the rules of linear to both layers. inputs begin with the block's own.
func (s *blockSpelling) resolve(op string, inputs []*tensor.View) (*block, error) {
	first := gemmSpelling{a: s.names[0], b: s.names[1], bias: s.names[2], transposed: true}
	one, err := first.resolve(op, at(inputs, 0), at(inputs, 1), at(inputs, 2))
	if err != nil {
		return nil, err
	}
	hidden := append([]int64{}, one.out...)
	if last := len(hidden) - 1; s.gated {
		if hidden[last]%2 != 0 {
			return nil, check.Invalid(op, s.names[1], "got %d rows, want [2*h, k]: h value rows and h gate rows", hidden[last])
		}
		hidden[last] /= 2
	}
	input := at(inputs, 0)
	between, err := tensor.New(nil, 0, input.DType, input.Device, hidden, nil, 0)
	if err != nil {
		return nil, check.Wrap(op, "the hidden activation", err)
	}
	second := gemmSpelling{a: "the hidden activation", b: s.names[3], bias: s.names[4], transposed: true}
	two, err := second.resolve(op, &between, at(inputs, 3), at(inputs, 4))
	if err != nil {
		return nil, err
	}
	return &block{pre: one.out, hidden: hidden, out: two.out}, nil
}

func (s *blockSpelling) forwardSteps(c *Call, dt dtype.DType, device tensor.Device) []Call {
	b, _ := s.resolve(s.op, c.Inputs) // whose shapes are valid
	w := &region{dt: dt, device: device}
	input, weight1, bias1, weight2, bias2 := c.input(0), c.input(1), c.input(2), c.input(3), c.input(4)
	out, pre := c.output(0), c.output(1)
	if out == nil {
		return []Call{w.linear(c, "none", nil, input, weight1, bias1, nil, pre)}
	}
	hidden := w.view(b.hidden)
	first := w.linear(c, c.Kind, c.Parameters, input, weight1, bias1, hidden, pre)
	if s.gated {
		first.Op, first.Gate = gatedLayer.Name, c.Gate
	}
	return []Call{first, w.linear(c, "none", nil, hidden, weight2, bias2, out, nil)}
}

func (s *blockSpelling) backwardSteps(c *Call, dt dtype.DType, device tensor.Device) []Call {
	b, _ := s.resolve(s.op, c.Inputs[1:])
	w := &region{dt: dt, device: device}
	grad, input, weight1, bias1, weight2, bias2, pre := c.input(0), c.input(1), c.input(2), c.input(3), c.input(4), c.input(5), c.input(6)
	gradInput, gradWeight1, gradBias1, gradWeight2, gradBias2 := c.output(0), c.output(1), c.output(2), c.output(3), c.output(4)
	first := gradInput != nil || gradWeight1 != nil || gradBias1 != nil
	sloped := s.gated || c.Kind != "none"
	var calls []Call
	if pre == nil && (gradWeight2 != nil || first && sloped) {
		pre = w.view(b.pre)
		calls = append(calls, w.linear(c, "none", nil, input, weight1, bias1, pre, nil))
	}
	hidden, gradPre := pre, (*tensor.View)(nil)
	if gradWeight2 != nil && sloped {
		hidden = w.view(b.hidden)
	}
	formed := gradWeight2 != nil && sloped
	if first {
		gradPre = w.view(b.pre)
	}
	prefix, dim := "", 0
	if s.gated {
		prefix, dim = "gated_", -1
	}
	switch {
	case first && sloped:
		between := w.between(c, prefix+"hidden_backward", []*tensor.View{grad, weight2, pre}, gradPre, nil, gradBias1)
		between.AllowTF32, between.BatchInvariant = c.AllowTF32, c.BatchInvariant
		if s.gated {
			between.Inputs, between.Gate = append(between.Inputs, bias1), c.Gate
		}
		if formed {
			between.Outputs[1] = hidden
		}
		calls = append(calls, between)
	case first:
		calls = append(calls, w.linearBackward(c, grad, w.standIn(b.hidden), weight2, bias2, gradPre, nil, nil))
	case formed:
		between := w.between(c, prefix+"activation", []*tensor.View{pre}, hidden)
		between.Dim, between.Gate = dim, c.Gate
		calls = append(calls, between)
	}
	if gradWeight2 != nil || gradBias2 != nil {
		activated := hidden
		if gradWeight2 == nil {
			activated = w.standIn(b.hidden)
		}
		calls = append(calls, w.linearBackward(c, grad, activated, weight2, bias2, nil, gradWeight2, gradBias2))
	}
	if sloped {
		gradBias1 = nil // the pass between the layers has summed it
	}
	if gradInput != nil || gradWeight1 != nil || gradBias1 != nil {
		calls = append(calls, w.linearBackward(c, gradPre, input, weight1, bias1, gradInput, gradWeight1, gradBias1))
	}
	return calls
}
