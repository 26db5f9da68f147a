package op

import (
	"slices"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// A mixture of experts has a feed-forward block for each of E experts, k of which see a token:
//
//	out[t] = sum over j of scale[t, j] (hidden weight_out[e]ᵀ + bias_out[e]),  e = index[t, j]
//	hidden = act(preactivation), or value act(gate) of the halves of
//	preactivation = input[t] weight_in[e]ᵀ + bias_in[e]
//
//	input [T, K],  index and scale [T, k],  weight_in [E, 2H, K] (without a gate [E, H, K]),
//	bias_in [E, 2H],  weight_out [E, K, H],  bias_out [E, K],  out [T, K]
//
// The sum is formed in the order of j. An index that is no expert's selects nothing. The rows of
// the preactivation, [T k, 2H], are sorted by expert, then by token, then by j; slots that select
// nothing come last. A preactivation may have fewer rows, since the caller knows that no more slots
// select something: those that would have a later row then select nothing.
//
// Backward has the gradient of the scaled hidden activation without its output: with g =
// grad_output[t] weight_out[e],
//
//	grad_scale[t, j]   = <hidden, g> + <bias_out[e], grad_output[t]>
//	grad_preactivation = the gradient of hidden for (scale g)
//	grad_weight_out[e] = grad_outputᵀ (scale hidden)  of the expert's rows
//
// and so on, as for a gated_mlp of each expert.
var (
	experts = operation{
		Signature: expertsSignature,
		kinds:     eitherKinds, defaultKind: "swiglu", halves: true, multiplies: true,
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			m, err := mixtureOf(c, inputs)
			if err != nil {
				return nil, err
			}
			return [][]int64{m.out, m.pre}, nil
		},
		problems: func(c *Call, h backend.Header, w *region) []backend.Problem {
			m, _ := mixtureOf(c, c.Inputs) // which is valid
			r := m.routed(h, w, c.adapter(7), c.adapter(9))
			pre, hidden := c.output(1), (*tensor.View)(nil)
			if c.output(0) != nil {
				hidden = w.view(m.hidden)
			}
			var rows *tensor.View
			if r.in.given() || r.out.given() { // there is more than one product of them
				rows = w.view(m.rows())
			}
			problems := slices.Concat(r.route(), r.form(w, pre, hidden, rows, pre))
			if hidden == nil {
				return problems
			}
			return append(problems, r.combine(w, hidden, rows, c.output(0))...)
		},
	}
	expertsBackward = experts.backward(operation{problems: expertsBackwardProblems}, "preactivation")
)

var expertsSignature = Signature{
	"experts",
	typed(check.Indices, typed(check.OrWider, arguments(
		"input [T, K]", "index [T, J]", "scale [T, J]", "weight_in [E, 2H, K]", "bias_in? [E, 2H]", "weight_out [E, K, H]", "bias_out? [E, K]",
		"adapter_in.a? [E, R, K] = None", "adapter_in.b? [E, 2H, R] = None", "adapter_out.a? [E, S, H] = None", "adapter_out.b? [E, K, S] = None",
	), "scale"), "index"),
	arguments("out [T, K]", "preactivation [T*J, 2H]"),
}

// mixture is a mixture's operands, and the shapes between them.
type mixture struct {
	input, index, scale, weightIn, biasIn, weightOut, biasOut *tensor.View

	out, pre, hidden []int64
	// halves is nil without a gate
	halves func(v *tensor.View) (value, gate *tensor.View)
}

// rows is the shape of what has the preactivation's rows, and the input's columns.
func (m *mixture) rows() []int64 { return []int64{m.pre[0], m.input.Shape[1]} }

// mixtureOf validates a call's operands; inputs begin with the mixture's own.
func mixtureOf(c *Call, inputs []*tensor.View) (*mixture, error) {
	op := c.Op
	m := &mixture{
		input: at(inputs, 0), index: at(inputs, 1), scale: at(inputs, 2),
		weightIn: at(inputs, 3), biasIn: at(inputs, 4), weightOut: at(inputs, 5), biasOut: at(inputs, 6),
	}
	if err := hasRows(op, m.input, "[T, K], a row for each token"); err != nil {
		return nil, err
	}
	t, n := m.input.Shape[0], m.input.Shape[1]
	if m.index.Rank() != 2 || m.index.Shape[0] != t {
		return nil, check.Invalid(op, "index", "shape %s, want [T, k] with T = %d: the experts of each token", check.Sizes(m.index.Shape), t)
	}
	if err := check.Shape(op, "scale", m.scale.Shape, m.index.Shape, "the index's"); err != nil {
		return nil, err
	}
	gated, rowsIn := isGated(c.Kind), "[E, H, K]"
	if gated {
		rowsIn = "[E, 2H, K]"
	}
	groups, columns, err := matrices(op, "weight_in", rowsIn, m.weightIn, n, "K")
	if err != nil {
		return nil, err
	}
	features := columns
	if gated {
		if columns%2 != 0 {
			return nil, check.Invalid(op, "weight_in", "got %d rows, want [E, 2H, K]: H value rows and H gate rows of each expert", columns)
		}
		features = columns / 2
		place := c.Gate
		m.halves = func(v *tensor.View) (value, gate *tensor.View) { return columnHalves(v, place) }
	} else if c.Gate != GateSecond {
		return nil, check.Invalid(op, "gate", "got %q, want the default: %s has no gate", gateNames[c.Gate], c.Kind)
	}
	if err := vectors(op, "bias_in", m.biasIn, groups, columns, "[E, rows of weight_in]"); err != nil {
		return nil, err
	}
	if err := check.Shape(op, "weight_out", m.weightOut.Shape, []int64{groups, n, features}, "[E, K, H]"); err != nil {
		return nil, err
	}
	if err := vectors(op, "bias_out", m.biasOut, groups, n, "[E, K]"); err != nil {
		return nil, err
	}
	// without elements the product of the sizes may be beyond 64 bits
	if err := exists(op, "index", m.index, m.index.Shape); err != nil {
		return nil, err
	}
	slots := tensor.Elements(m.index.Shape)
	if err := countable(op, "index", slots); err != nil {
		return nil, err
	}
	if given := keptBy(c); given != nil && given.Rank() == 2 {
		slots = min(slots, given.Shape[0])
	}
	m.out, m.pre, m.hidden = []int64{t, n}, []int64{slots, columns}, []int64{slots, features}
	if err := exists(op, "preactivation", m.input, m.pre); err != nil {
		return nil, err
	}
	return m, exists(op, "gathered rows", m.input, m.rows())
}

// keptBy is the preactivation of a call: an output of forward, and an input of backward. It may
// have fewer rows than there are slots.
func keptBy(c *Call) *tensor.View {
	if c.Op == expertsSignature.Name {
		return c.output(1)
	}
	return c.input(8)
}

// isGated reports whether a kind is a gated one, and no activation.
func isGated(kind string) bool {
	_, gated := activation.LookupGated(kind)
	return gated
}

// routing is a mixture's rows: where each expert's end, and each slot's place; and the adapters of
// both layers.
type routing struct {
	*mixture
	header, grouped backend.Header // without Groups, and with them
	ends, places    *tensor.View
	in, out         adapter
}

func (m *mixture) routed(h backend.Header, w *region, in, out adapter) *routing {
	ends := w.typed(dtype.Int32, m.weightIn.Shape[:1])
	return &routing{m, h, grouped(h, ends), ends, w.typed(dtype.Int32, m.index.Shape), in, out}
}

func (r *routing) route() []backend.Problem {
	return []backend.Problem{&backend.Route{Header: r.header, Index: r.index, Rows: r.pre[0], Ends: r.ends, Places: r.places}}
}

// form makes the preactivation or the hidden activation. It copies the input's rows to `rows`
// first, unless that is nil. In the tensors of rest, rows of no group become 0, so that a caller's
// results have the same bits in every run.
func (r *routing) form(w *region, pre, hidden, rows *tensor.View, rest ...*tensor.View) []backend.Problem {
	h := r.grouped
	if hidden == nil {
		h = h.Plain(h.Op)
	}
	layer := &backend.GroupedLayer{
		Header: h, Input: rows, Weight: r.weightIn, Bias: r.biasIn, Out: hidden, Preactivation: pre, Halves: r.halves, Rest: rest,
	}
	if rows == nil {
		layer.Input, layer.Places = r.input, r.places
		return []backend.Problem{layer}
	}
	return append([]backend.Problem{&backend.ScatterRows{Header: r.header, Input: r.input, Places: r.places, Out: rows}}, groupedProblems(r.in, layer, w)...)
}

// combine makes the output of the hidden activation. The second layer's rows go to `rows` first,
// unless that is nil.
func (r *routing) combine(w *region, hidden, rows, out *tensor.View) []backend.Problem {
	h := r.grouped.Plain(r.grouped.Op)
	if rows == nil {
		return []backend.Problem{&backend.CombinedLayer{
			Header: h, Input: hidden, Weight: r.weightOut, Bias: r.biasOut, Places: r.places, Scale: r.scale, Out: out,
			Lean: w.readsTokens(h, r.hidden[1], false),
		}}
	}
	layer := &backend.GroupedLayer{Header: h, Input: hidden, Weight: r.weightOut, Bias: r.biasOut, Out: rows}
	return append(groupedProblems(r.out, layer, w), &backend.CombineRows{Header: r.header, Input: rows, Places: r.places, Scale: r.scale, Out: out})
}

// spare is the memory of an output that is written later. Tensors lie there until then, as long as
// there is room, and else in the region.
type spare struct {
	output *tensor.View // nil where there is none
	used   int64        // bytes
	region *region
}

func (s *spare) view(shape []int64) *tensor.View {
	v := s.within(shape)
	if v == nil {
		return s.region.view(shape)
	}
	s.used += aligned256(v.Numel() * v.DType.Size())
	return v
}

// within is a contiguous tensor in the output; nil where that has gaps, or too little room.
func (s *spare) within(shape []int64) *tensor.View {
	if s.output == nil {
		return nil
	}
	low, high, err := s.output.Extent()
	bytes := s.output.Numel() * s.output.DType.Size()
	if err != nil || low != 0 || high != bytes || s.used+tensor.Elements(shape)*s.region.dt.Size() > bytes {
		return nil
	}
	return &tensor.View{
		Operand: s.output.Operand, DType: s.region.dt, Device: s.output.Device, Offset: s.output.Offset + s.used,
		Shape: shape, Strides: tensor.ContiguousStrides(shape),
	}
}

// slots gives an operand by rows of slots; or, where those are nil, by rows of tokens and their
// places.
func (r *routing) slots(rows, tokens *tensor.View) (operand, places *tensor.View) {
	if rows != nil {
		return rows, nil
	}
	return tokens, r.places
}

// ofLayerIn makes the first layer's gradients from that of the preactivation. `rows`, if not nil,
// is memory for the gradient to the input by slots, and then for the input by slots. The latter
// needs rows in the region: other rows may lie in the gradient of the weight.
func (r *routing) ofLayerIn(w *region, t *term, rows, gradInput, gradWeight *tensor.View) (problems []backend.Problem) {
	h := r.grouped.Plain(r.grouped.Op)
	add := func(p ...backend.Problem) { problems = append(problems, p...) }
	switch {
	case gradInput == nil:
	case rows == nil:
		add(&backend.CombinedLayer{Header: h, Input: t.grad, Weight: exchanged(t.weight), Places: r.places, Out: gradInput, Lean: true})
	default:
		if t.adapter.given() {
			add(toInput([]*term{t}, h, w, rows)...)
		} else {
			add(&backend.GroupedLayerBackward{Header: h, GradOutput: t.grad, Weight: t.weight, GradInput: rows})
		}
		add(&backend.CombineRows{Header: r.header, Input: rows, Places: r.places, Out: gradInput})
	}
	if !w.holds(rows) {
		rows = nil
	} else if gradWeight != nil || t.gradA != nil || t.gradB != nil {
		add(&backend.ScatterRows{Header: r.header, Input: r.input, Places: r.places, Out: rows})
	}
	if gradWeight != nil {
		input, places := r.slots(rows, r.input)
		add(&backend.GroupedLayerBackward{Header: h, GradOutput: t.grad, Input: input, Places: places, Weight: t.weight, GradWeight: gradWeight})
	}
	return append(problems, t.gradients(h, w, rows)...)
}

// ofLayerOut makes the gradients of the second layer's weight and bias, from grad_output and the
// scaled hidden activation.
func (r *routing) ofLayerOut(w *region, t *term, grad, hidden, scales, gradWeight, gradBias *tensor.View) (problems []backend.Problem) {
	h := r.grouped.Plain(r.grouped.Op)
	if gradWeight != nil || gradBias != nil {
		gradOutput, places := r.slots(t.grad, grad)
		problems = append(problems, &backend.GroupedLayerBackward{
			Header: h, GradOutput: gradOutput, GradPlaces: places, Input: hidden, Weight: t.weight, Scales: scales, GradWeight: gradWeight, GradBias: gradBias,
		})
	}
	return append(problems, t.gradients(h, w, hidden)...)
}

// expertsBackwardProblems are in an order in which one tensor has the rows of all slots in turns:
// of grad_output, of the gradient to the input, and of the input. There is none where the backend
// reads tokens where they lie. It is the region's where there are adapters, and else lies in the
// gradient of weight_in.
//
// The weight's gradient that is formed last has in its memory what only the other one needs: the
// hidden activation in the gradient of weight_in, or the preactivation's gradient in that of
// weight_out. The latter saves twice as much where there are gates. The rows of grad_output are
// then copied a second time, which is worth it where they are no longer than a hidden row. A
// preactivation that is formed again lies in the memory of the gradient that is formed first.
func expertsBackwardProblems(c *Call, h backend.Header, w *region) []backend.Problem {
	m, _ := mixtureOf(c, c.Inputs[1:]) // which is valid
	r := m.routed(h, w, c.adapter(9), c.adapter(11))
	grad, pre := c.input(0), c.input(8)
	gradInput, gradScale, gradWeightIn, gradBiasIn, gradWeightOut, gradBiasOut := c.output(0), c.output(1), c.output(2), c.output(3), c.output(4), c.output(5)
	in := &term{weight: m.weightIn, adapter: r.in, gradA: c.output(6), gradB: c.output(7)}
	out := &term{weight: m.weightOut, adapter: r.out, gradA: c.output(8), gradB: c.output(9)}
	problems := r.route()
	add := func(p ...backend.Problem) { problems = append(problems, p...) }
	products := gradInput != nil || gradWeightIn != nil || in.gradA != nil || in.gradB != nil
	ofHidden := gradWeightOut != nil || out.gradA != nil || out.gradB != nil
	through := products || gradBiasIn != nil || gradScale != nil || ofHidden
	untilIn, untilOut := &spare{region: w}, &spare{region: w}
	if !c.Accumulate {
		untilIn.output, untilOut.output = gradWeightIn, gradWeightOut
	}
	outLast := products && m.halves != nil && m.hidden[1] >= m.rows()[1] && untilOut.within(m.pre) != nil
	var rows *tensor.View
	switch {
	case r.in.given() || r.out.given():
		rows = w.view(m.rows())
	case !w.readsTokens(h, m.hidden[1], true):
		rows = untilIn.view(m.rows())
	}
	out.grad = rows
	if pre == nil && through {
		if outLast {
			pre = untilIn.view(m.pre)
		} else {
			pre = untilOut.view(m.pre)
		}
		add(r.form(w, pre, nil, rows)...)
	}
	scales := w.typed(h.DType.Accumulator(), m.pre[:1])
	scatter := &backend.ScatterRows{Header: h, Places: r.places, Scale: m.scale, Scales: scales}
	if rows != nil {
		scatter.Input, scatter.Out = grad, rows
	}
	add(scatter)
	var gradPre, hidden, sums *tensor.View
	if through {
		switch {
		case outLast:
			gradPre, hidden = untilOut.view(m.pre), w.view(m.hidden)
		case products:
			gradPre = w.view(m.pre)
		}
		if ofHidden && !outLast {
			hidden = untilIn.view(m.hidden)
		}
		if gradScale != nil {
			sums = w.typed(h.DType.Accumulator(), m.pre[:1])
		}
		gradOutput, places := r.slots(rows, grad)
		add(out.hiddenBackward(&backend.GroupedHiddenBackward{
			Header: r.grouped, GradOutput: gradOutput, Places: places, Weight: m.weightOut, Preactivation: pre, Scales: scales, Halves: m.halves,
			GradPreactivation: gradPre, Out: hidden, Sums: sums, GradBias: gradBiasIn,
		}, w)...)
	}
	in.grad = gradPre
	if gradScale != nil {
		scale := &backend.ScaleGradient{Header: h, Sums: sums, Places: r.places, Index: m.index, GradScale: gradScale}
		if m.biasOut != nil {
			scale.GradOutput, scale.Bias = grad, m.biasOut
		}
		add(scale)
	}
	if outLast {
		add(r.ofLayerIn(w, in, rows, gradInput, gradWeightIn)...)
		if w.holds(rows) {
			add(&backend.ScatterRows{Header: h, Input: grad, Places: r.places, Out: rows})
		} else {
			out.grad = nil // which is written over
		}
	}
	add(r.ofLayerOut(w, out, grad, hidden, scales, gradWeightOut, gradBiasOut)...)
	if !outLast {
		add(r.ofLayerIn(w, in, rows, gradInput, gradWeightIn)...)
	}
	return problems
}
