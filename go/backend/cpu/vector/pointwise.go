package vector

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/kernels/portable"
)

// workOf is what a formula needs for an element (pass.work).
func workOf(formula string) int64 {
	if row, _ := portable.LookupPointwise(formula); row.Cheap {
		return 4
	}
	return formulaWork
}

func (e *Engine) pointwise(p *backend.Pointwise) backend.Kernel {
	pass := e.pass(p.Formula, p.DType, operandsOf([]*tensor.View{p.Out}, p.Inputs...)).costing(workOf(p.Formula))
	return e.onePass(p, pass, targets{}, nil)
}

// pointwiseBackward makes one pass of the gradients that keep grad_output's shape and of the sums
// of one shape, and another for each other shape. The order of sums follows the layout of what the
// first gradient is a function of.
func (e *Engine) pointwiseBackward(p *backend.PointwiseBackward) backend.Kernel {
	like := p.Inputs[p.Uses[0][0]]
	whole, sums := p.Passes()
	if len(sums) == 0 {
		sums = [][]*tensor.View{nil}
	}
	var passes []kernel.Step
	for _, group := range sums {
		inputs := append([]*tensor.View{p.GradOutput}, p.UsedBy(whole, group)...)
		pass := e.pass(p.Formula+"_backward", p.DType, operandsOf(whole, inputs...)).costing(workOf(p.Formula))
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
