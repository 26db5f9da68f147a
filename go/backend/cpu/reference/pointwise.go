package reference

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/kernels/portable"
)

func newPointwise(p *backend.Pointwise) (backend.Kernel, error) {
	formula, err := pointwiseOf(p.Formula)
	if err != nil {
		return nil, err
	}
	inputs, at := places(p.Inputs, 1)
	return newElementwise(p, 1, func(r *backend.Run) compute {
		return func(n int, b *blocks) { formula.Value(b[0][:n], at.of(b, n, r), r.Parameters[0]) }
	}, append([]*tensor.View{p.Out}, inputs...)...), nil
}

// newPointwiseBackward makes one pass of the gradients that keep grad_output's shape, and one for
// each that is summed.
func newPointwiseBackward(p *backend.PointwiseBackward) (backend.Kernel, error) {
	formula, err := pointwiseOf(p.Formula)
	if err != nil {
		return nil, err
	}
	k := &kernel.Sequence{Facts: kernel.FactsOf(p, "")}
	whole, sums := p.Passes()
	for _, group := range sums {
		for i, gradient := range group {
			if gradient == nil {
				continue
			}
			alone := make([]*tensor.View, len(group))
			alone[i] = gradient
			operands, term := gradientsPass(p, formula, alone)
			k.Steps = append(k.Steps, newReduction(gradient, term, operands...).run)
		}
	}
	if outputs, _ := places(whole, 0); len(outputs) > 0 {
		operands, pass := gradientsPass(p, formula, whole)
		k.Steps = append(k.Steps, newElementwise(p, len(outputs), pass, append(outputs, operands...)...).Run)
	}
	return k, nil
}

// gradientsPass computes some gradients, into the first blocks, from the operands in the next ones.
func gradientsPass(p *backend.PointwiseBackward, formula portable.Pointwise, gradients []*tensor.View) ([]*tensor.View, func(*backend.Run) compute) {
	outputs, results := places(gradients, 0)
	first := len(outputs)
	inputs, at := places(p.UsedBy(gradients), first+1)
	return append([]*tensor.View{p.GradOutput}, inputs...), func(r *backend.Run) compute {
		return func(n int, b *blocks) {
			to := make([][]float64, len(gradients))
			for i, block := range results {
				if block >= 0 {
					to[i] = b[block][:n]
				}
			}
			formula.Gradients(to, b[first][:n], at.of(b, n, r), r.Parameters[0])
		}
	}
}

// inBlocks are the blocks of operands; -1 for one that is absent.
type inBlocks []int

// places lists the views that there are, and their blocks from first on.
func places(views []*tensor.View, first int) (here []*tensor.View, at inBlocks) {
	for _, v := range views {
		if v == nil {
			at = append(at, -1)
			continue
		}
		at = append(at, first+len(here))
		here = append(here, v)
	}
	return here, at
}

// of returns the blocks of inputs. An absent one has the run's parameter for all its elements.
func (at inBlocks) of(b *blocks, n int, r *backend.Run) [][]float64 {
	inputs, number := make([][]float64, len(at)), b[layout.MostOperands-1][:n]
	for i, block := range at {
		if inputs[i] = number; block >= 0 {
			inputs[i] = b[block][:n]
		}
	}
	if slices.Contains(at, -1) {
		for i := range number {
			number[i] = r.Parameters[0]
		}
	}
	return inputs
}

func pointwiseOf(formula string) (portable.Pointwise, error) {
	p, ok := portable.LookupPointwise(formula)
	if !ok {
		return p, status.Errorf(status.Unsupported, "formula: got %q, for which the cpu backend has no code", formula)
	}
	return p, nil
}
