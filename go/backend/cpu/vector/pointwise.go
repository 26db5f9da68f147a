package vector

import (
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
	facts := pointwise[p.Formula]
	like := p.Inputs[facts.like]
	whole, sums := p.Passes()
	if len(sums) == 0 {
		sums = [][]*tensor.View{nil}
	}
	var passes []kernel.Step
	for _, group := range sums {
		inputs := append([]*tensor.View{p.GradOutput}, p.UsedBy(whole, group)...)
		pass := e.pass(p.Formula+"_backward", p.DType, operandsOf(whole, inputs...)).costing(facts.work)
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
