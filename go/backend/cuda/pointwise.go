//go:build cgo

package cuda

import (
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

func (b *builder) pointwise(p *backend.Pointwise) {
	views := append([]*tensor.View{p.Out}, p.Inputs...)
	f := function{name: p.Formula + "_" + p.DType.Short(), outputs: 1, vectors: 1}
	b.elementwise(f, numbersOf(p.Formula, p.Inputs), views...)
}

// numbersOf are the run's. lerp's is added to the weight tensor: beside one it is -0, which changes
// no number.
func numbersOf(formula string, inputs []*tensor.View) numbers {
	if formula == "lerp" && inputs[2] != nil {
		return numbers{fixed: true, first: math.Copysign(0, -1)}
	}
	return numbers{}
}

// pointwiseBackward makes one pass over the operands for all gradients of grad_output's own shape,
// and one for each set of dimensions that gradients are summed over; the first of those computes
// the former too.
func (b *builder) pointwiseBackward(p *backend.PointwiseBackward) {
	name, given := p.Formula+"_backward_", numbersOf(p.Formula, p.Inputs)
	none := make([]*tensor.View, len(p.Gradients))
	whole, sums := p.Passes()
	for _, group := range sums {
		b.reduce(&reduction{
			columns: name + "columns_" + p.DType.Short(), rows: name + "rows_" + p.DType.Short(),
			outputs: whole, sums: group, inputs: inputsOf(p, whole, group), numbers: given,
		})
		whole = none
	}
	if !slices.Equal(whole, none) {
		f := function{name: name + p.DType.Short(), outputs: len(whole), vectors: 1}
		b.elementwise(f, given, slices.Concat(whole, inputsOf(p, whole))...)
	}
}

// inputsOf are those that the gradients of a pass depend on.
func inputsOf(p *backend.PointwiseBackward, gradients ...[]*tensor.View) []*tensor.View {
	return append([]*tensor.View{p.GradOutput}, p.UsedBy(gradients...)...)
}
