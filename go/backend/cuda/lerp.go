//go:build cgo

package cuda

import (
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

func (b *builder) lerp(p *backend.Lerp) error {
	return b.elementwise(function{"lerp_" + p.DType.Short(), 1, 1}, lerpWeight(p.Weight), p.Out, p.Start, p.End, p.Weight)
}

// lerpWeight is the number that is added to the weight tensor: the run's where there is no tensor,
// else -0, which changes no number.
func lerpWeight(weight *tensor.View) numbers {
	if weight == nil {
		return numbers{}
	}
	return numbers{fixed: true, first: math.Copysign(0, -1)}
}

// lerpBackward makes one pass over the operands for all gradients of grad_output's own shape, and
// one for each set of dimensions that gradients are summed over; the first of those computes the
// former too.
func (b *builder) lerpBackward(p *backend.LerpBackward) error {
	gradients := []*tensor.View{p.GradStart, p.GradEnd, p.GradWeight}
	full, summed := make([]*tensor.View, 3), make([]*tensor.View, 3)
	for i, gradient := range gradients {
		switch {
		case gradient == nil:
		case slices.Equal(gradient.Shape, p.GradOutput.Shape):
			full[i] = gradient
		default:
			summed[i] = gradient
		}
	}
	for i, gradient := range summed {
		if gradient == nil {
			continue
		}
		together := make([]*tensor.View, 3)
		for j := i; j < len(summed); j++ {
			if summed[j] != nil && slices.Equal(summed[j].Shape, gradient.Shape) {
				together[j], summed[j] = summed[j], nil
			}
		}
		err := b.reduce(&reduction{
			columns: "lerp_backward_columns_" + p.DType.Short(), rows: "lerp_backward_rows_" + p.DType.Short(),
			outputs: full, sums: together, inputs: lerpInputs(p, full, together), numbers: lerpWeight(p.Weight),
		})
		if err != nil {
			return err
		}
		full = make([]*tensor.View, 3)
	}
	if firstOf(full) == 0 && full[0] == nil {
		return nil
	}
	views := slices.Concat(full, lerpInputs(p, full, full))
	return b.elementwise(function{"lerp_backward_" + p.DType.Short(), 3, 1}, lerpWeight(p.Weight), views...)
}

// lerpInputs are those that the gradients of a pass depend on.
func lerpInputs(p *backend.LerpBackward, gradients ...[]*tensor.View) []*tensor.View {
	inputs := []*tensor.View{p.GradOutput, nil, nil, nil}
	for _, g := range gradients {
		if g[2] != nil {
			inputs[1], inputs[2] = p.Start, p.End
		}
		if g[0] != nil || g[1] != nil {
			inputs[3] = p.Weight
		}
	}
	return inputs
}
