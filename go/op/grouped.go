package op

import (
	"math"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// A grouped linear layer has a weight for each group of its input's rows:
//
//	preactivation[t] = input[t] weight[e]ᵀ + bias[e]  of the rows t of group e
//	out[t]           = act(preactivation[t])
//
//	input [T, K],  weight [E, N, K],  bias [E, N],  offsets [E],  out [T, N]
//
// Group e has the rows from offsets[e-1] to offsets[e]. Rows from the last offset on have output 0
// and gradient 0, and are not read. A group without rows has gradients 0.
//
//	grad_preactivation = grad_output act'(preactivation)
//	grad_input[t]      = grad_preactivation[t] weight[e]
//	grad_weight[e]     = grad_preactivationᵀ input  of the group's rows
//	grad_bias[e]       = the sum of grad_preactivation over them
var (
	groupedLinear = operation{
		Signature: groupedSignature,
		kinds:     activations, defaultKind: "none", multiplies: true,
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			out, err := groupedShape(c.Op, inputs)
			return [][]int64{out, out}, err
		},
		problems: func(c *Call, h backend.Header, w *region) []backend.Problem {
			ends := w.typed(dtype.Int32, c.input(3).Shape)
			return append(
				[]backend.Problem{&backend.GroupEnds{Header: h, Offsets: c.input(3), Rows: c.input(0).Shape[0], Ends: ends}},
				groupedProblems(c.adapter(4), &backend.GroupedLayer{
					Header: grouped(h, ends), Input: c.input(0), Weight: c.input(1), Bias: c.input(2),
					Out: c.output(0), Preactivation: c.output(1), Rest: []*tensor.View{c.output(0), c.output(1)},
				}, w)...)
		},
	}
	groupedLinearBackward = groupedLinear.backward(operation{
		problems: func(c *Call, h backend.Header, w *region) []backend.Problem {
			ends := w.typed(dtype.Int32, c.input(4).Shape)
			return append(
				[]backend.Problem{&backend.GroupEnds{Header: h, Offsets: c.input(4), Rows: c.input(1).Shape[0], Ends: ends}},
				groupedGradients(c, grouped(h, ends), w)...)
		},
	}, "preactivation")
)

// groupedProblems is a layer and, before it, the product of its adapter.
func groupedProblems(u adapter, p *backend.GroupedLayer, w *region) []backend.Problem {
	if !u.given() {
		return []backend.Problem{p}
	}
	product, narrow := u.timesA(p.Header.Plain(p.Op), w, p.Input)
	p.More = []backend.Pair{{A: narrow, B: exchanged(u.b)}}
	return []backend.Problem{product, p}
}

func groupedGradients(c *Call, h backend.Header, w *region) (problems []backend.Problem) {
	t := &term{grad: c.input(0), weight: c.input(2), adapter: c.adapter(6), gradA: c.output(3), gradB: c.output(4)}
	input, bias, pre, gradInput, gradWeight, gradBias := c.input(1), c.input(3), c.input(5), c.output(0), c.output(1), c.output(2)
	if !t.adapter.given() {
		return []backend.Problem{&backend.GroupedLayerBackward{
			Header: h, GradOutput: t.grad, Input: input, Weight: t.weight, Bias: bias,
			Preactivation: pre, GradInput: gradInput, GradWeight: gradWeight, GradBias: gradBias, Rest: true,
		}}
	}
	plain := h.Plain(h.Op)
	if h.Formula != "none" {
		if pre == nil {
			pre = w.view(t.grad.Shape)
			problems = groupedProblems(t.adapter, &backend.GroupedLayer{Header: plain, Input: input, Weight: t.weight, Bias: bias, Preactivation: pre}, w)
		}
		gradPre := w.view(t.grad.Shape)
		problems = append(problems, &backend.ActivationBackward{Header: h, GradOutput: t.grad, Input: pre, GradInput: gradPre, GradBias: gradBias})
		t.grad, gradBias = gradPre, nil
	}
	if gradInput != nil {
		problems = append(problems, toInput([]*term{t}, plain, w, gradInput)...)
		problems = append(problems, &backend.ZeroRows{Header: h, Outputs: []*tensor.View{gradInput}})
	}
	if gradWeight != nil || gradBias != nil {
		problems = append(problems, &backend.GroupedLayerBackward{
			Header: plain, GradOutput: t.grad, Input: input, Weight: t.weight, Bias: bias, GradWeight: gradWeight, GradBias: gradBias,
		})
	}
	return append(problems, t.gradients(plain, w, input)...)
}

var groupedSignature = Signature{
	"grouped_linear",
	typed(check.Offsets, arguments(
		"input [T, K]", "weight [E, N, K]", "bias? [E, N]", "offsets [E]", "adapter.a? [E, R, K] = None", "adapter.b? [E, N, R] = None",
	), "offsets"),
	arguments("out [T, N]", "preactivation [T, N]"),
}

// grouped is a header of what has rows of groups, whose ends are these.
func grouped(h backend.Header, ends *tensor.View) backend.Header {
	h.Groups = ends
	return h
}

// groupedShape is a layer's output. inputs begin with the layer's own.
func groupedShape(op string, inputs []*tensor.View) ([]int64, error) {
	input, weight, bias, offsets := at(inputs, 0), at(inputs, 1), at(inputs, 2), at(inputs, 3)
	if err := hasRows(op, input, "[T, K]"); err != nil {
		return nil, err
	}
	groups, n, err := matrices(op, "weight", "[E, N, K]", weight, input.Shape[1], "K")
	if err != nil {
		return nil, err
	}
	if err := vectors(op, "bias", bias, groups, n, "[E, N]"); err != nil {
		return nil, err
	}
	if err := check.Shape(op, "offsets", offsets.Shape, []int64{groups}, "[E]"); err != nil {
		return nil, err
	}
	out := []int64{input.Shape[0], n}
	return out, exists(op, "out", input, out)
}

// hasRows asks for an input of two dimensions, and rows that an int32 can count.
func hasRows(op string, input *tensor.View, want string) error {
	if input.Rank() != 2 {
		return check.Invalid(op, "input", "shape %s, want %s", check.Sizes(input.Shape), want)
	}
	return countable(op, "input", input.Shape[0])
}

// countable asks for rows that an int32 can count.
func countable(op, argument string, rows int64) error {
	if rows > math.MaxInt32 {
		return check.Invalid(op, argument, "%d rows, want at most %d", rows, math.MaxInt32)
	}
	return nil
}

// matrices asks for a matrix for each group, whose last size is known by a name, and returns how
// many there are and their rows.
func matrices(op, argument, form string, weight *tensor.View, columns int64, name string) (groups, rows int64, err error) {
	if weight.Rank() != 3 {
		return 0, 0, check.Invalid(op, argument, "shape %s, want %s: a matrix for each group", check.Sizes(weight.Shape), form)
	}
	if got := weight.Shape[2]; got != columns {
		return 0, 0, check.Invalid(op, argument, "shape %s, want %s with %s = %d", check.Sizes(weight.Shape), form, name, columns)
	}
	return weight.Shape[0], weight.Shape[1], countable(op, argument, weight.Shape[0])
}

// vectors asks for a vector for each group, if there are any.
func vectors(op, argument string, bias *tensor.View, groups, n int64, form string) error {
	if bias == nil {
		return nil
	}
	return check.Shape(op, argument, bias.Shape, []int64{groups, n}, form)
}

// exists asks for a shape that a tensor like another can have.
func exists(op, argument string, like *tensor.View, shape []int64) error {
	if _, err := tensor.New(nil, 0, like.DType, like.Device, shape, nil, 0); err != nil {
		return check.Wrap(op, argument, err)
	}
	return nil
}
