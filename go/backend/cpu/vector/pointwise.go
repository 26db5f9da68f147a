package vector

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/tensor"
)

// pointwise tells of a formula what it needs for an element (pass.work), and which input's layout
// gives the order of its gradients' sums.
var pointwise = map[string]struct {
	work int64
	like int
}{
	"lerp":  {4, 2},
	"prelu": {4, 0},
	"xielu": {formulaWork, 0},
}

func (e *Engine) pointwise(p *backend.Pointwise) backend.Kernel {
	operands := operandsOf([]*tensor.View{p.Out}, p.Inputs...)
	return e.onePass(p, e.pass(p.Formula, p.DType, operands).costing(pointwise[p.Formula].work), targets{}, nil)
}

// pointwiseBackward makes one pass of the gradients that keep grad_output's shape and of the sums
// of one shape, and another for each other shape.
func (e *Engine) pointwiseBackward(p *backend.PointwiseBackward) backend.Kernel {
	var together, to targets
	for i, gradient := range p.Gradients {
		switch {
		case gradient == nil:
		case slices.Equal(gradient.Shape, p.GradOutput.Shape):
			together[i] = gradient
		default:
			to[i] = gradient
		}
	}
	facts := pointwise[p.Formula]
	like := p.Inputs[facts.like]
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
		inputs := append([]*tensor.View{p.GradOutput}, p.UsedBy(together[:], now[:])...)
		pass := e.pass(p.Formula+"_backward", p.DType, operandsOf(together[:], inputs...)).costing(facts.work)
		if !more && passes == nil {
			return e.onePass(p, pass, now, like)
		}
		passes = append(passes, pass.into(now, like))
		if !more {
			return e.kernelOf(p, passes...)
		}
		together = targets{}
	}
}
