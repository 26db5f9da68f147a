package reference

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/kernels/portable"
)

func newLerp(p *backend.Lerp) (backend.Kernel, error) {
	views := []*tensor.View{p.Out, p.Start, p.End}
	if p.Weight != nil {
		views = append(views, p.Weight)
	}
	return newElementwise(p, 1, func(r *backend.Run) compute {
		return func(n int, b *blocks) {
			if p.Weight == nil {
				fill(b[3][:n], r.Parameters[0])
			}
			portable.Lerp(b[0][:n], b[1][:n], b[2][:n], b[3][:n])
		}
	}, views...), nil
}

// newLerpBackward makes one pass of the gradients that keep grad_output's shape, and one for each
// that is summed.
func newLerpBackward(p *backend.LerpBackward) (backend.Kernel, error) {
	k := &kernel.Sequence{Facts: kernel.FactsOf(p, "")}
	var together [3]*tensor.View
	for i, gradient := range []*tensor.View{p.GradStart, p.GradEnd, p.GradWeight} {
		if gradient == nil {
			continue
		}
		if slices.Equal(gradient.Shape, p.GradOutput.Shape) {
			together[i] = gradient
			continue
		}
		k.Steps = append(k.Steps, lerpReduction(p, i, gradient))
	}
	if outputs, at := asked(together[:]...); len(outputs) > 0 {
		k.Steps = append(k.Steps, lerpTogether(p, outputs, at))
	}
	return k, nil
}

// lerpTogether makes the pass that computes every gradient of grad_output's own shape.
func lerpTogether(p *backend.LerpBackward, outputs []*tensor.View, at slots) func(*backend.Run) error {
	inputs := []*tensor.View{p.GradOutput}
	weighted, differed := at[0] >= 0 || at[1] >= 0, at[2] >= 0
	weight, start := -1, -1
	if weighted && p.Weight != nil {
		weight = len(outputs) + len(inputs)
		inputs = append(inputs, p.Weight)
	}
	if differed {
		start = len(outputs) + len(inputs)
		inputs = append(inputs, p.Start, p.End)
	}
	return newElementwise(p, len(outputs), func(r *backend.Run) compute {
		return func(n int, b *blocks) {
			var w, from, to []float64
			if weight >= 0 {
				w = b[weight][:n]
			} else if weighted {
				w = b[layout.MostOperands-1][:n]
				fill(w, r.Parameters[0])
			}
			if start >= 0 {
				from, to = b[start][:n], b[start+1][:n]
			}
			portable.LerpBackward(at.of(b, 0, n), at.of(b, 1, n), at.of(b, 2, n), b[len(outputs)][:n], from, to, w)
		}
	}, append(outputs, inputs...)...).Run
}

// lerpReduction makes the step that sums one gradient (0 start, 1 end, 2 weight) to its shape.
func lerpReduction(p *backend.LerpBackward, which int, gradient *tensor.View) func(*backend.Run) error {
	operands := []*tensor.View{p.GradOutput}
	switch {
	case which == 2:
		operands = append(operands, p.Start, p.End)
	case p.Weight != nil:
		operands = append(operands, p.Weight)
	}
	return newReduction(gradient, func(r *backend.Run) compute {
		return func(n int, b *blocks) {
			switch {
			case which == 2:
				portable.LerpBackward(nil, nil, b[0][:n], b[1][:n], b[2][:n], b[3][:n], nil)
				return
			case p.Weight == nil:
				fill(b[2][:n], r.Parameters[0])
			}
			if which == 0 {
				portable.LerpBackward(b[0][:n], nil, nil, b[1][:n], nil, nil, b[2][:n])
			} else {
				portable.LerpBackward(nil, b[0][:n], nil, b[1][:n], nil, nil, b[2][:n])
			}
		}
	}, operands...).run
}

func fill(dst []float64, value float64) {
	for i := range dst {
		dst[i] = value
	}
}
