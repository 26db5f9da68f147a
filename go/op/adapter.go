package op

import (
	"slices"
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
// Both terms are one sum, which CUDA may round after each in half types, and input aᵀ is rounded
// once.
// With g, the gradient of the layer's preactivation:
//
//	grad_input = g weight + (g b) a
//	grad_a     = (g b)ᵀ input
//	grad_b     = gᵀ (input aᵀ)
//
// A scale is the caller's to multiply with a, and with grad_a. Without a and b there is no update.
type adapter struct{ a, b *tensor.View }

// adapter returns the inputs i and i+1 as an adapter.
func (c *Call) adapter(i int) adapter { return adapter{c.input(i), c.input(i + 1)} }

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
	rank, formA, formB := weight.Rank(), "[r, k]", "[n, r]"
	if rank > 2 {
		formA, formB = "[e, r, k]", "[e, n, r]"
	}
	if u.a.Rank() != rank {
		return check.Invalid(op, name+".a", "shape %s, want %s", check.Sizes(u.a.Shape), formA)
	}
	groups, n, k, r := weight.Shape[:rank-2], weight.Shape[rank-2], weight.Shape[rank-1], u.a.Shape[rank-2]
	if err := check.Shape(op, name+".a", u.a.Shape, slices.Concat(groups, []int64{r, k}), formA); err != nil {
		return err
	}
	return check.Shape(op, name+".b", u.b.Shape, slices.Concat(groups, []int64{n, r}), formB)
}

// checkAdapters validates the shapes of a call's adapters, beside valid weights: adapter1 is that
// of weight1.
func (s Signature) checkAdapters(inputs []*tensor.View) error {
	for i := s.ownInputs(); i < len(s.Inputs); i += 2 {
		name, _, _ := strings.Cut(s.Inputs[i].Name, ".")
		weight := slices.IndexFunc(s.Inputs, func(a Argument) bool { return a.Name == strings.Replace(name, "adapter", "weight", 1) })
		if err := (adapter{at(inputs, i), at(inputs, i+1)}).check(s.Name, name, inputs[weight]); err != nil {
			return err
		}
	}
	return nil
}

// IsAdapters reports whether an argument belongs to an adapter: "adapter.a".
func (a Argument) IsAdapters() bool { return strings.Contains(a.Name, ".") }

// The rest is for layers, and for those of groups, whose header has Groups. Tensors are of rows.

// adapted adds the terms of adapters to parts. The first parts are products of an input and a
// weight, one for each adapter.
func adapted(parts []backend.Problem, w *region, adapters ...adapter) (all []backend.Problem) {
	for i, part := range parts {
		if i < len(adapters) && adapters[i].given() {
			whole := part.(*backend.GemmEpilogue)
			product, narrow := adapters[i].timesA(whole.Header.Plain(whole.Op), w, whole.A)
			whole.More = append(whole.More, backend.Pair{A: narrow, B: exchanged(adapters[i].b)})
			all = append(all, product)
		}
		all = append(all, part)
	}
	return all
}

// timesA is input aᵀ.
func (u adapter) timesA(h backend.Header, w *region, input *tensor.View) (product backend.Problem, narrow *tensor.View) {
	return times(h, w, input, exchanged(u.a))
}

// timesB is g b.
func (u adapter) timesB(h backend.Header, w *region, grad *tensor.View) (product backend.Problem, through *tensor.View) {
	return times(h, w, grad, u.b)
}

func times(h backend.Header, w *region, left, right *tensor.View) (backend.Problem, *tensor.View) {
	shape := slices.Clone(left.Shape)
	shape[len(shape)-1] = right.Shape[right.Rank()-1]
	out := w.view(shape)
	return &backend.GemmEpilogue{Header: h, A: left, B: right, Out: out}, out
}

// exchanged is a weight with its rows as columns, or that of each group.
func exchanged(v *tensor.View) *tensor.View { return tensor.Exchanged(v, v.Rank()-2, v.Rank()-1) }

// term is a product of a layer in backward: the gradient to its output, its weight and adapter, the
// adapter's gradients that are wanted, and through, which is g b once it is formed.
type term struct {
	grad, weight *tensor.View
	adapter      adapter
	gradA, gradB *tensor.View
	through      *tensor.View
}

// throughB is the problem that forms g b, if there is something to form.
func (t *term) throughB(h backend.Header, w *region) (problems []backend.Problem) {
	if t.adapter.given() && t.through == nil {
		var product backend.Problem
		product, t.through = t.adapter.timesB(h, w, t.grad)
		problems = append(problems, product)
	}
	return problems
}

// toInput is the problems of the gradient to the input that terms share.
func toInput(terms []*term, h backend.Header, w *region, gradInput *tensor.View) (problems []backend.Problem) {
	var pairs []backend.Pair
	for _, t := range terms {
		problems = append(problems, t.throughB(h, w)...)
		if pairs = append(pairs, backend.Pair{A: t.grad, B: t.weight}); t.adapter.given() {
			pairs = append(pairs, backend.Pair{A: t.through, B: t.adapter.a})
		}
	}
	return append(problems, &backend.GemmEpilogue{Header: h, A: pairs[0].A, B: pairs[0].B, More: pairs[1:], Out: gradInput})
}

// gradients is the problems of the gradients of the term's adapter.
func (t *term) gradients(h backend.Header, w *region, input *tensor.View) (problems []backend.Problem) {
	if t.adapter.given() && t.gradA != nil {
		problems = append(t.throughB(h, w), weightGradient(h, t.through, input, t.adapter.a, t.gradA))
	}
	if t.adapter.given() && t.gradB != nil {
		product, narrow := t.adapter.timesA(h, w, input)
		problems = append(problems, product, weightGradient(h, t.grad, narrow, t.adapter.b, t.gradB))
	}
	return problems
}

func weightGradient(h backend.Header, grad, input, weight, gradWeight *tensor.View) backend.Problem {
	return &backend.GemmEpilogueBackward{Header: h, GradOutput: grad, A: input, B: exchanged(weight), GradB: exchanged(gradWeight)}
}

// hiddenBackward is the problems of p, the backward of a layer's input that was a hidden
// activation, for the weight of the term. The first of its parts may be the gradient through that.
func (t *term) hiddenBackward(p backend.Problem, w *region) []backend.Problem {
	if !t.adapter.given() {
		return []backend.Problem{p}
	}
	if q, ofGroups := p.(*backend.GroupedHiddenBackward); ofGroups {
		if q.GradPreactivation == nil && q.GradBias == nil && q.Sums == nil {
			return []backend.Problem{p} // which multiplies nothing
		}
		problems := t.throughB(q.Header.Plain(q.Op), w)
		q.More = []backend.Pair{{A: t.through, B: t.adapter.a}}
		return append(problems, p)
	}
	parts := lower.Parts(p, w.part)
	first := parts[0].(*backend.GemmEpilogueBackward)
	return append(toInput([]*term{t}, first.Header, w, first.GradA), parts[1:]...)
}
