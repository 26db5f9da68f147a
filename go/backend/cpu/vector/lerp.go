package vector

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/tensor"
)

func (e *Engine) lerp(p *backend.Lerp) backend.Kernel {
	operands := operandsOf([]*tensor.View{p.Out}, p.Start, p.End, p.Weight)
	return e.onePass(p, e.pass("lerp", p.DType, operands).costing(lerpWork), targets{}, nil)
}

// lerpBackward makes one pass of the gradients that keep grad_output's shape and of the sums of one
// shape, and another for each other shape.
func (e *Engine) lerpBackward(p *backend.LerpBackward) backend.Kernel {
	var together, to targets
	for i, gradient := range []*tensor.View{p.GradStart, p.GradEnd, p.GradWeight} {
		switch {
		case gradient == nil:
		case slices.Equal(gradient.Shape, p.GradOutput.Shape):
			together[i] = gradient
		default:
			to[i] = gradient
		}
	}
	var passes []kernel.Step
	for {
		var now targets
		more := false
		var shape []int64
		for i, target := range to {
			if target != nil && (shape == nil || slices.Equal(shape, target.Shape)) {
				shape, now[i], to[i] = target.Shape, target, nil
			}
			more = more || to[i] != nil
		}
		inputs := []*tensor.View{p.GradOutput, nil, nil, nil}
		if together[2] != nil || now[2] != nil {
			inputs[1], inputs[2] = p.Start, p.End
		}
		if together[0] != nil || together[1] != nil || now[0] != nil || now[1] != nil {
			inputs[3] = p.Weight
		}
		pass := e.pass("lerp_backward", p.DType, operandsOf(together[:], inputs...)).costing(lerpWork)
		if !more && passes == nil {
			return e.onePass(p, pass, now, p.Weight)
		}
		passes = append(passes, pass.into(now, p.Weight))
		if !more {
			return e.kernelOf(p, passes...)
		}
		together = targets{}
	}
}
