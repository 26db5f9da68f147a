package op

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/check"
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
// where it is not given.
var (
	plainBlock = blockSpelling{
		signature: Signature{
			"mlp", arguments(
				"input [..., K]", "weight1 [H, K]", "bias1? [H]", "weight2 [N, H]", "bias2? [N]",
				"adapter1.a? [R, K] = None", "adapter1.b? [H, R] = None", "adapter2.a? [S, H] = None", "adapter2.b? [N, S] = None",
			),
			arguments("out [..., N]", "preactivation [..., H]"),
		},
		kinds: activations, defaultKind: "gelu_tanh",
	}
	gatedBlock = blockSpelling{
		signature: Signature{
			"gated_mlp", arguments(
				"input [..., K]", "weight_in [2H, K]", "bias_in? [2H]", "weight_out [N, H]", "bias_out? [N]",
				"adapter_in.a? [R, K] = None", "adapter_in.b? [2H, R] = None", "adapter_out.a? [S, H] = None", "adapter_out.b? [N, S] = None",
			),
			arguments("out [..., N]", "preactivation [..., 2H]"),
		},
		kinds: gatedKinds, defaultKind: "swiglu", gated: true,
	}

	mlp, gatedMLP    = plainBlock.forward(), gatedBlock.forward()
	mlpBackward      = mlp.backward(operation{problems: plainBlock.backwardProblems}, "preactivation")
	gatedMLPBackward = gatedMLP.backward(operation{problems: gatedBlock.backwardProblems}, "preactivation")
)

// blockSpelling is a block whose inputs are an input, weight and bias of both layers, and their
// adapters.
type blockSpelling struct {
	signature   Signature
	kinds       *kinds
	defaultKind string
	gated       bool
}

func (s blockSpelling) forward() operation {
	return operation{
		Signature: s.signature,
		kinds:     s.kinds, defaultKind: s.defaultKind, halves: s.gated, multiplies: true,
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			b, err := s.resolve(c.Op, inputs)
			if err != nil {
				return nil, err
			}
			return [][]int64{b.out, b.pre}, nil
		},
		problems: s.forwardProblems,
	}
}

// block is the shapes between a block's tensors.
type block struct{ pre, hidden, out []int64 }

// resolve applies the rules of linear to both layers. inputs begin with the block's own.
func (s *blockSpelling) resolve(op string, inputs []*tensor.View) (*block, error) {
	names := s.signature.Inputs
	first := gemmSpelling{a: names[0].Name, b: names[1].Name, bias: names[2].Name, transposed: true}
	one, err := first.resolve(op, at(inputs, 0), at(inputs, 1), at(inputs, 2))
	if err != nil {
		return nil, err
	}
	hidden := append([]int64{}, one.out...)
	if last := len(hidden) - 1; s.gated {
		if hidden[last]%2 != 0 {
			return nil, check.Invalid(op, names[1].Name, "got %d rows, want [2*h, k]: h value rows and h gate rows", hidden[last])
		}
		hidden[last] /= 2
	}
	input := at(inputs, 0)
	between, err := tensor.New(nil, 0, input.DType, input.Device, hidden, nil, 0)
	if err != nil {
		return nil, check.Wrap(op, "the hidden activation", err)
	}
	second := gemmSpelling{a: "the hidden activation", b: names[3].Name, bias: names[4].Name, transposed: true}
	two, err := second.resolve(op, &between, at(inputs, 3), at(inputs, 4))
	if err != nil {
		return nil, err
	}
	return &block{pre: one.out, hidden: hidden, out: two.out}, nil
}

func (s *blockSpelling) forwardProblems(c *Call, h backend.Header, w *region) []backend.Problem {
	b, _ := s.resolve(c.Op, c.Inputs) // whose shapes are valid
	input, weight1, bias1, weight2, bias2 := c.input(0), c.input(1), c.input(2), c.input(3), c.input(4)
	out, pre, one, two := c.output(0), c.output(1), c.adapter(5), c.adapter(7)
	if out == nil {
		return adapted([]backend.Problem{layer(h.Plain("linear"), input, weight1, bias1, nil, pre)}, w, one)
	}
	hidden := w.view(b.hidden)
	second := adapted([]backend.Problem{layer(h.Plain("linear"), hidden, weight2, bias2, out, nil)}, w, two)
	if !s.gated {
		return append(adapted([]backend.Problem{layer(h.As("linear"), input, weight1, bias1, hidden, pre)}, w, one), second...)
	}
	first := &backend.GatedLinear{Header: h.As("gated_layer"), Input: input, Out: hidden}
	first.WeightValue, first.WeightGate = halves(weight1, 0, c.Gate)
	first.BiasValue, first.BiasGate = columnHalves(bias1, c.Gate)
	first.Value, first.Gate = columnHalves(pre, c.Gate)
	first.Both = layer(h.Plain("linear"), input, weight1, bias1, pre, nil)
	first.Halves = func(v *tensor.View) (value, gate *tensor.View) { return columnHalves(v, c.Gate) }
	if one.given() {
		return append(adapted(lower.Parts(first, w.part), w, one), second...)
	}
	return append([]backend.Problem{first}, second...)
}

func (s *blockSpelling) backwardProblems(c *Call, h backend.Header, w *region) (problems []backend.Problem) {
	b, _ := s.resolve(c.Op, c.Inputs[1:])
	grad, input, weight1, bias1, weight2, bias2, pre := c.input(0), c.input(1), c.input(2), c.input(3), c.input(4), c.input(5), c.input(6)
	gradInput, gradWeight1, gradBias1, gradWeight2, gradBias2 := c.output(0), c.output(1), c.output(2), c.output(3), c.output(4)
	one := &term{weight: weight1, adapter: c.adapter(7), gradA: c.output(5), gradB: c.output(6)}
	two := &term{grad: rows(grad), weight: weight2, adapter: c.adapter(9), gradA: c.output(7), gradB: c.output(8)}
	ofProducts := gradInput != nil || gradWeight1 != nil || one.gradA != nil || one.gradB != nil
	first := ofProducts || gradBias1 != nil
	ofHidden := gradWeight2 != nil || two.gradA != nil || two.gradB != nil
	sloped := s.gated || c.Kind != "none"
	add := func(p ...backend.Problem) { problems = append(problems, p...) }
	if pre == nil && (ofHidden || first && sloped) {
		pre = w.view(b.pre)
		add(adapted([]backend.Problem{layer(h.Plain("linear"), input, weight1, bias1, nil, pre)}, w, one.adapter)...)
	}
	hidden, gradPre := pre, (*tensor.View)(nil)
	formed := ofHidden && sloped
	if formed {
		hidden = w.view(b.hidden)
	}
	if first {
		gradPre = w.view(b.pre)
	}
	switch {
	case first && sloped:
		var out *tensor.View
		if formed {
			out = hidden
		}
		add(s.hiddenBackward(c, h, w, two, gradPre, pre, out)...)
	case first && two.adapter.given():
		add(toInput([]*term{two}, h.Plain("linear_backward"), w, rows(gradPre))...)
	case first:
		add(layerBackward(h, grad, gradPre, weight2, bias2, gradPre, nil, nil))
	case formed && s.gated:
		value, gate := columnHalves(pre, c.Gate)
		add(&backend.Gated{Header: pass(h, "gated_activation"), Value: value, Gate: gate, Out: hidden})
	case formed:
		add(&backend.Activation{Header: pass(h, "activation"), Input: pre, Out: hidden})
	}
	if ofHidden || gradBias2 != nil {
		activated := hidden
		if !ofHidden {
			activated = standIn(grad, b.hidden)
		}
		add(layerGradients(two, h, w, activated, bias2, nil, gradWeight2, gradBias2)...)
	}
	if sloped {
		gradBias1 = nil // the pass between the layers has summed it
	}
	if ofProducts || gradBias1 != nil {
		one.grad = rows(gradPre)
		add(layerGradients(one, h, w, input, bias1, gradInput, gradWeight1, gradBias1)...)
	}
	return problems
}

// hiddenBackward is what comes between the layers: grad_preactivation, and the hidden activation in
// out where there is one. An adapter of the second layer makes it several problems.
func (s *blockSpelling) hiddenBackward(c *Call, h backend.Header, w *region, two *term, gradPre, pre, out *tensor.View) []backend.Problem {
	gradBias := tensor.Aligned(c.output(2), pre.Rank())
	if !s.gated {
		p := &backend.HiddenBackward{
			Header: h.As("hidden_backward"), GradOutput: c.input(0), Weight: c.input(4), Preactivation: pre,
			GradPreactivation: gradPre, Out: out, GradBias: gradBias,
		}
		return two.hiddenBackward(p, w)
	}
	p := &backend.GatedHiddenBackward{
		Header: h.As("gated_hidden_backward"), GradOutput: c.input(0), Weight: c.input(4), Out: out, Biased: c.input(3) != nil,
	}
	p.Value, p.Gate = columnHalves(pre, c.Gate)
	p.GradValue, p.GradGate = columnHalves(gradPre, c.Gate)
	p.GradBiasValue, p.GradBiasGate = columnHalves(gradBias, c.Gate)
	return two.hiddenBackward(p, w)
}

// pass is the header of an operation without a product.
func pass(h backend.Header, op string) backend.Header {
	h.Op, h.AllowTF32, h.BatchInvariant = op, false, false
	return h
}

// layer is the problem of out = act(input weightᵀ + bias).
func layer(h backend.Header, input, weight, bias, out, pre *tensor.View) *backend.GemmEpilogue {
	return &backend.GemmEpilogue{Header: h, A: rows(input), B: tensor.Exchanged(weight, 0, 1), Bias: bias, Out: rows(out), Preactivation: rows(pre)}
}

// layerBackward is that of the gradients of a layer without an activation.
func layerBackward(h backend.Header, grad, input, weight, bias, gradInput, gradWeight, gradBias *tensor.View) backend.Problem {
	return &backend.GemmEpilogueBackward{
		Header: h.Plain("linear_backward"), GradOutput: rows(grad), A: rows(input), B: tensor.Exchanged(weight, 0, 1), Bias: bias,
		GradA: rows(gradInput), GradB: tensor.Exchanged(gradWeight, 0, 1), GradBias: gradBias,
	}
}

// layerGradients is that of a layer whose output's gradient and weight a term has, with the
// gradients of its adapter.
func layerGradients(t *term, h backend.Header, w *region, input, bias, gradInput, gradWeight, gradBias *tensor.View) (problems []backend.Problem) {
	if !t.adapter.given() {
		return []backend.Problem{layerBackward(h, t.grad, input, t.weight, bias, gradInput, gradWeight, gradBias)}
	}
	if gradInput != nil {
		problems = toInput([]*term{t}, h.Plain("linear_backward"), w, rows(gradInput))
	}
	if gradWeight != nil || gradBias != nil {
		problems = append(problems, layerBackward(h, t.grad, input, t.weight, bias, nil, gradWeight, gradBias))
	}
	return append(problems, t.gradients(h.Plain("linear_backward"), w, rows(input))...)
}

// rows is a tensor as rows: a vector is one.
func rows(v *tensor.View) *tensor.View { return tensor.Aligned(v, 2) }
