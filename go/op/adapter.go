package op

import (
	"strings"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/tensor"
)

// adapter is a low-rank update of a weight (LoRA, https://arxiv.org/abs/2106.09685). The layer is
// that of weight + b a, a matrix that is never formed:
//
//	input (weight + b a)ᵀ = input weightᵀ + (input aᵀ) bᵀ
//
//	a [r, k],  b [n, r];  of groups a [e, r, k],  b [e, n, r]
//
// Both terms are one sum, and input aᵀ is rounded once. With g, the gradient of the layer's
// preactivation:
//
//	grad_input = g weight + (g b) a
//	grad_a     = (g b)ᵀ input
//	grad_b     = gᵀ (input aᵀ)
//
// A scale is the caller's to multiply with a, and with grad_a. Without a and b there is no update.
type adapter struct{ a, b *tensor.View }

// adapterAt is the adapter of the input i and the one behind it.
func adapterAt(inputs []*tensor.View, i int) adapter { return adapter{at(inputs, i), at(inputs, i+1)} }

func (c *Call) adapter(i int) adapter { return adapterAt(c.Inputs, i) }

// given reports whether there is an update: one of rank 0 adds nothing.
func (u adapter) given() bool { return u.a != nil && u.a.Shape[u.a.Rank()-2] > 0 }

// check validates the shapes of an adapter with a name: of the weight [n, k], or [e, n, k].
func (u adapter) check(op, name string, weight *tensor.View) error {
	switch {
	case u.a == nil && u.b == nil:
		return nil
	case u.a == nil:
		return check.Invalid(op, name+".a", "missing, want a tensor beside %s.b", name)
	case u.b == nil:
		return check.Invalid(op, name+".b", "missing, want a tensor beside %s.a", name)
	}
	rank := weight.Rank()
	if form := map[int]string{2: "[r, k]", 3: "[e, r, k]"}[rank]; u.a.Rank() != rank {
		return check.Invalid(op, name+".a", "shape %s, want %s", check.Sizes(u.a.Shape), form)
	}
	groups, n, k, r := weight.Shape[:rank-2], weight.Shape[rank-2], weight.Shape[rank-1], u.a.Shape[rank-2]
	a := append(append([]int64{}, groups...), r, k)
	b := append(append([]int64{}, groups...), n, r)
	if err := check.Shape(op, name+".a", u.a.Shape, a, "for the weight "+check.Sizes(weight.Shape)); err != nil {
		return err
	}
	return check.Shape(op, name+".b", u.b.Shape, b, "for the weight and "+name+".a")
}

// IsPart reports whether an argument is a part of an adapter: "adapter.a".
func (a Argument) IsPart() bool { return strings.Contains(a.Name, ".") }

// layer is the problems of out = act(input weightᵀ + bias) with an adapter of the weight.
func (u adapter) layer(h backend.Header, w *region, input, weight, bias, out, pre *tensor.View) []backend.Problem {
	whole := layer(h, input, weight, bias, out, pre)
	if !u.given() {
		return []backend.Problem{whole}
	}
	thin, narrow := u.narrow(h, w, rows(input))
	whole.More = []backend.Pair{{A: narrow, B: tensor.Exchanged(u.b, 0, 1)}}
	return []backend.Problem{thin, whole}
}

// narrow is input aᵀ, of an input of rows.
func (u adapter) narrow(h backend.Header, w *region, input *tensor.View) (backend.Problem, *tensor.View) {
	out := w.view(append(append([]int64{}, input.Shape[:input.Rank()-1]...), u.a.Shape[0]))
	return layer(h.Plain("linear"), input, u.a, nil, out, nil), out
}

// through is g b, of gradients to a layer's rows.
func (u adapter) through(h backend.Header, w *region, grad *tensor.View) (backend.Problem, *tensor.View) {
	out := w.view(append(append([]int64{}, grad.Shape[:grad.Rank()-1]...), u.b.Shape[1]))
	return &backend.GemmEpilogue{Header: h.Plain("linear"), A: grad, B: u.b, Out: out}, out
}

// backward is the problems of the gradients of such a layer without an activation. Those of the
// adapter are gradA and gradB.
func (u adapter) backward(h backend.Header, w *region, grad, input, weight, bias, gradInput, gradWeight, gradBias, gradA, gradB *tensor.View) (problems []backend.Problem) {
	if !u.given() {
		return []backend.Problem{layerBackward(h, grad, input, weight, bias, gradInput, gradWeight, gradBias)}
	}
	if gradWeight != nil || gradBias != nil {
		problems = append(problems, layerBackward(h, grad, input, weight, bias, nil, gradWeight, gradBias))
	}
	return append(problems, backwardOf([]term{{grad, weight, u, gradA, gradB}}, h, w, input, gradInput)...)
}

// between is the problems of p, a HiddenBackward or a GatedHiddenBackward, with an adapter of its
// weight: the first of its parts is the gradient through the weight.
func (u adapter) between(p backend.Problem, w *region) []backend.Problem {
	if !u.given() {
		return []backend.Problem{p}
	}
	parts := lower.Parts(p, w.part)
	through := parts[0].(*backend.GemmEpilogueBackward)
	of := term{grad: through.GradOutput, weight: tensor.Exchanged(through.B, 0, 1), adapter: u}
	return append(backwardOf([]term{of}, through.Header, w, through.A, through.GradA), parts[1:]...)
}

// term is one of a layer's products, with what backward has of it: the gradient to its output, and
// the gradients that are wanted of its adapter.
type term struct {
	grad, weight *tensor.View
	adapter      adapter
	gradA, gradB *tensor.View
}

// backwardOf is the problems of the gradients to an input that the terms share, and to their
// adapters.
func backwardOf(terms []term, h backend.Header, w *region, input, gradInput *tensor.View) (problems []backend.Problem) {
	var pairs []backend.Pair
	for _, t := range terms {
		grad, u := rows(t.grad), t.adapter
		if gradInput != nil {
			pairs = append(pairs, backend.Pair{A: grad, B: t.weight})
		}
		if !u.given() {
			continue
		}
		if gradInput != nil || t.gradA != nil {
			thin, through := u.through(h, w, grad)
			problems = append(problems, thin)
			if gradInput != nil {
				pairs = append(pairs, backend.Pair{A: through, B: u.a})
			}
			if t.gradA != nil {
				problems = append(problems, layerBackward(h, through, input, u.a, nil, nil, t.gradA, nil))
			}
		}
		if t.gradB != nil {
			thin, narrow := u.narrow(h, w, rows(input))
			problems = append(problems, thin, layerBackward(h, grad, narrow, u.b, nil, nil, t.gradB, nil))
		}
	}
	if gradInput != nil {
		problems = append(problems, &backend.GemmEpilogue{
			Header: h.Plain("linear_backward"), A: pairs[0].A, B: pairs[0].B, More: pairs[1:], Out: rows(gradInput),
		})
	}
	return problems
}

// Of groups, whose header h has Groups: the same for the rows of each.

// ofGroups is the problems of a layer of groups with an adapter of its weight.
func (u adapter) ofGroups(p *backend.GroupedLayer, w *region) []backend.Problem {
	if !u.given() {
		return []backend.Problem{p}
	}
	thin, narrow := u.narrowRows(p.Header, w, p.Input)
	parts := lower.Parts(p, w.part)
	parts[0].(*backend.GemmEpilogue).More = []backend.Pair{{A: narrow, B: tensor.Exchanged(u.b, 1, 2)}}
	return append([]backend.Problem{thin}, parts...)
}

// narrowRows is input aᵀ, and throughRows g b.
func (u adapter) narrowRows(h backend.Header, w *region, input *tensor.View) (backend.Problem, *tensor.View) {
	out := w.view([]int64{input.Shape[0], u.a.Shape[1]})
	return &backend.GroupedLayer{Header: h.Plain(h.Op), Input: input, Weight: u.a, Out: out}, out
}

func (u adapter) throughRows(h backend.Header, w *region, grad *tensor.View) (backend.Problem, *tensor.View) {
	out := w.view([]int64{grad.Shape[0], u.b.Shape[2]})
	return &backend.GemmEpilogue{Header: h.Plain(h.Op), A: grad, B: u.b, Out: out}, out
}

// inputOfGroups is the problems of the gradient to the rows of such a layer's input, of that to the
// layer's rows. It gives throughRows, also where only the gradient of a is wanted.
func (u adapter) inputOfGroups(h backend.Header, w *region, grad, weight, gradInput, gradA *tensor.View) (problems []backend.Problem, through *tensor.View) {
	h = h.Plain(h.Op)
	switch {
	case gradInput == nil && gradA == nil:
		return nil, nil
	case !u.given():
		return []backend.Problem{&backend.GroupedLayerBackward{Header: h, GradOutput: grad, Weight: weight, GradInput: gradInput}}, nil
	}
	thin, through := u.throughRows(h, w, grad)
	problems = append(problems, thin)
	if gradInput != nil {
		pair := backend.Pair{A: through, B: u.a}
		problems = append(problems, &backend.GemmEpilogue{Header: h, A: grad, B: weight, More: []backend.Pair{pair}, Out: gradInput})
	}
	return problems, through
}

// gradientsOfGroups is the problems of the adapter's gradients.
func (u adapter) gradientsOfGroups(h backend.Header, w *region, grad, through, input, gradA, gradB *tensor.View) (problems []backend.Problem) {
	h = h.Plain(h.Op)
	if u.given() && gradA != nil {
		problems = append(problems, &backend.GroupedLayerBackward{Header: h, GradOutput: through, Input: input, Weight: u.a, GradWeight: gradA})
	}
	if u.given() && gradB != nil {
		thin, narrow := u.narrowRows(h, w, input)
		problems = append(problems, thin, &backend.GroupedLayerBackward{Header: h, GradOutput: grad, Input: narrow, Weight: u.b, GradWeight: gradB})
	}
	return problems
}

// hiddenOfGroups is the problems of p with an adapter of its weight, and throughRows: the first of
// its parts may be the gradient through the weight.
func (u adapter) hiddenOfGroups(p *backend.GroupedHiddenBackward, w *region, gradA *tensor.View) (problems []backend.Problem, through *tensor.View) {
	if !u.given() {
		return []backend.Problem{p}, nil
	}
	parts := lower.Parts(p, w.part)
	product, is := parts[0].(*backend.GemmEpilogue)
	if !is && gradA == nil {
		return parts, nil
	}
	thin, through := u.throughRows(p.Header, w, p.GradOutput)
	if is {
		product.More = []backend.Pair{{A: through, B: u.a}}
	}
	return append([]backend.Problem{thin}, parts...), through
}
