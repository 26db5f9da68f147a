package vector

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/tensor"
)

// pointwise tells what a formula needs for an element (pass.work), and which input's layout gives
// the order of its gradients' sums.
func pointwise(formula string) (work int64, like int) {
	switch formula {
	case "lerp":
		return 4, 2
	case "prelu":
		return 4, 0
	}
	return formulaWork, 0
}

func (e *Engine) pointwise(p *backend.Pointwise) backend.Kernel {
	work, _ := pointwise(p.Formula)
	return e.onePass(p, e.pass(p.Formula, p.DType, operandsOf([]*tensor.View{p.Out}, p.Inputs...)).costing(work), targets{}, nil)
}

// pointwiseBackward makes one pass of the gradients that keep grad_output's shape and of the sums
// of one shape, and another for each other shape.
func (e *Engine) pointwiseBackward(p *backend.PointwiseBackward) backend.Kernel {
	work, at := pointwise(p.Formula)
	like := p.Inputs[at]
	whole, sums := p.Passes()
	if len(sums) == 0 {
		sums = [][]*tensor.View{nil}
	}
	var passes []kernel.Step
	for _, group := range sums {
		inputs := append([]*tensor.View{p.GradOutput}, p.UsedBy(whole, group)...)
		pass := e.pass(p.Formula+"_backward", p.DType, operandsOf(whole, inputs...)).costing(work)
		var to targets
		copy(to[:], group)
		if len(sums) == 1 {
			return e.onePass(p, pass, to, like)
		}
		passes = append(passes, pass.into(to, like))
		whole = make([]*tensor.View, len(whole))
	}
	return e.kernelOf(p, passes...)
}
