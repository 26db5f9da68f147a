//go:build cgo

package cuda

import (
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

func (b *builder) pointwise(p *backend.Pointwise) error {
	views := append([]*tensor.View{p.Out}, p.Inputs...)
	return b.elementwise(function{p.Formula + "_" + p.DType.Short(), 1, 1, ""}, numbersOf(p.Formula, p.Inputs), views...)
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
func (b *builder) pointwiseBackward(p *backend.PointwiseBackward) error {
	count := len(p.Gradients)
	full, summed := make([]*tensor.View, count), make([]*tensor.View, count)
	for i, gradient := range p.Gradients {
		switch {
		case gradient == nil:
		case slices.Equal(gradient.Shape, p.GradOutput.Shape):
			full[i] = gradient
		default:
			summed[i] = gradient
		}
	}
	name, given := p.Formula+"_backward_", numbersOf(p.Formula, p.Inputs)
	for i, gradient := range summed {
		if gradient == nil {
			continue
		}
		together := make([]*tensor.View, count)
		for j := i; j < len(summed); j++ {
			if summed[j] != nil && slices.Equal(summed[j].Shape, gradient.Shape) {
				together[j], summed[j] = summed[j], nil
			}
		}
		err := b.reduce(&reduction{
			columns: name + "columns_" + p.DType.Short(), rows: name + "rows_" + p.DType.Short(),
			outputs: full, sums: together, inputs: inputsOf(p, full, together), numbers: given,
		})
		if err != nil {
			return err
		}
		full = make([]*tensor.View, count)
	}
	if firstOf(full) == 0 && full[0] == nil {
		return nil
	}
	return b.elementwise(function{name + p.DType.Short(), count, 1, ""}, given, slices.Concat(full, inputsOf(p, full))...)
}

// inputsOf are those that the gradients of a pass depend on.
func inputsOf(p *backend.PointwiseBackward, gradients ...[]*tensor.View) []*tensor.View {
	return append([]*tensor.View{p.GradOutput}, p.UsedBy(gradients...)...)
}
