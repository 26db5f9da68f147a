package reference

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/tensor"
)

// elementwise is a kernel whose outputs are functions of the operands at the same place.
type elementwise struct {
	kernel.Facts
	walk    *layout.Walk
	outputs int
	compute func(r *backend.Run) compute
}

func (k *elementwise) WorkspaceBytes() int64 { return 0 }

func (k *elementwise) Run(r *backend.Run) error {
	return forEachBlock(k.walk, r, k.outputs, k.compute(r))
}

// newElementwise makes a kernel; outputs come first among the views and in the blocks.
func newElementwise(p backend.Problem, outputs int, compute func(*backend.Run) compute, views ...*tensor.View) *elementwise {
	_, _, dt := p.Describe()
	return &elementwise{Facts: kernel.FactsOf(p, ""), walk: layout.NewWalk(dt, views...), outputs: outputs, compute: compute}
}

func newActivation(p *backend.Activation) (backend.Kernel, error) {
	formula, err := formulaOf(p.Formula)
	if err != nil {
		return nil, err
	}
	return newElementwise(p, 1, func(r *backend.Run) compute {
		act := formula(r.Parameters[:])
		return func(n int, b *blocks) { act.Values(b[0][:n], b[1][:n]) }
	}, p.Out, p.Input), nil
}

func newActivationBackward(p *backend.ActivationBackward) (backend.Kernel, error) {
	formula, err := formulaOf(p.Formula)
	if err != nil {
		return nil, err
	}
	k := &kernel.Sequence{Facts: kernel.FactsOf(p, "")}
	// First, since grad_input may replace grad_output.
	if p.GradBias != nil {
		k.Steps = append(k.Steps, newReduction(p.GradBias, func(r *backend.Run) compute {
			act := formula(r.Parameters[:])
			return func(n int, b *blocks) { act.Gradients(b[0][:n], b[1][:n], b[2][:n]) }
		}, p.GradOutput, p.Input).run)
	}
	if outputs, at := asked(p.GradInput, p.Out); len(outputs) > 0 {
		e := newElementwise(p, len(outputs), func(r *backend.Run) compute {
			act := formula(r.Parameters[:])
			return func(n int, b *blocks) {
				g, x := b[len(outputs)][:n], b[len(outputs)+1][:n]
				if gradient := at.of(b, 0, n); gradient != nil {
					act.Gradients(gradient, g, x)
				}
				if value := at.of(b, 1, n); value != nil {
					act.Values(value, x)
				}
			}
		}, append(outputs, p.GradOutput, p.Input)...)
		k.Steps = append(k.Steps, e.Run)
	}
	return k, nil
}

func newGated(p *backend.Gated) (backend.Kernel, error) {
	formula, err := gatedFormulaOf(p.Formula)
	if err != nil {
		return nil, err
	}
	return newElementwise(p, 1, func(r *backend.Run) compute {
		gated := formula(r.Parameters[:])
		return func(n int, b *blocks) { gated.Values(b[0][:n], b[1][:n], b[2][:n]) }
	}, p.Out, p.Value, p.Gate), nil
}

func newGatedBackward(p *backend.GatedBackward) (backend.Kernel, error) {
	formula, err := gatedFormulaOf(p.Formula)
	if err != nil {
		return nil, err
	}
	k := &kernel.Sequence{Facts: kernel.FactsOf(p, "")}
	inputs := []*tensor.View{p.GradOutput, p.Value, p.Gate}
	if outputs, at := asked(p.GradValue, p.GradGate); len(outputs) > 0 {
		e := newElementwise(p, len(outputs), func(r *backend.Run) compute {
			gated := formula(r.Parameters[:])
			return func(n int, b *blocks) {
				g := b[len(outputs):]
				gated.Gradients(at.of(b, 0, n), at.of(b, 1, n), g[0][:n], g[1][:n], g[2][:n])
			}
		}, append(outputs, inputs...)...)
		k.Steps = append(k.Steps, e.Run)
	}
	if p.GradBiasValue != nil {
		k.Steps = append(k.Steps, newReduction(p.GradBiasValue, func(r *backend.Run) compute {
			gated := formula(r.Parameters[:])
			return func(n int, b *blocks) {
				gated.Gradients(b[0][:n], nil, b[1][:n], b[2][:n], b[3][:n])
			}
		}, inputs...).run)
	}
	if p.GradBiasGate != nil {
		k.Steps = append(k.Steps, newReduction(p.GradBiasGate, func(r *backend.Run) compute {
			gated := formula(r.Parameters[:])
			return func(n int, b *blocks) {
				gated.Gradients(nil, b[0][:n], b[1][:n], b[2][:n], b[3][:n])
			}
		}, inputs...).run)
	}
	return k, nil
}

// slots tells which block an optional output is in; -1 where it is not asked for.
type slots [3]int

// asked lists the requested outputs and where each of the candidates went.
func asked(candidates ...*tensor.View) ([]*tensor.View, slots) {
	at := slots{-1, -1, -1}
	var views []*tensor.View
	for i, v := range candidates {
		if v != nil {
			at[i] = len(views)
			views = append(views, v)
		}
	}
	return views, at
}

// of returns the block of an output, or nil where it is not asked for.
func (s *slots) of(b *blocks, output, n int) []float64 {
	if s[output] < 0 {
		return nil
	}
	return b[s[output]][:n]
}
