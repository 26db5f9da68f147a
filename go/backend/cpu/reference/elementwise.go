package reference

import (
	"cmp"
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/kernels/portable"
)

// function makes the formula of a run's parameters.
type function func(parameters []float64) formula

// formula computes outputs, nil for those that are not wanted, of inputs.
type formula func(outputs, inputs [][]float64)

// pass is outputs that are a function of the inputs at the same place. Absent operands are nil; an
// absent input is the run's first parameter everywhere.
type pass struct {
	function        function
	outputs, inputs []*tensor.View
}

// compute computes elements in the blocks of the operands.
func (s *pass) compute(r *backend.Run) compute {
	apply, absent := s.function(r.Parameters[:]), slices.Contains(s.inputs, nil)
	return func(n int, b *blocks) {
		number := b.of[layout.MostOperands-1][:n]
		for i := 0; i < n && absent; i++ {
			number[i] = r.Parameters[0]
		}
		outputs, inputs := b.lists[:len(s.outputs)], b.lists[len(s.outputs):][:len(s.inputs)]
		for i, v := range s.outputs {
			if outputs[i] = nil; v != nil {
				outputs[i] = b.of[i][:n]
			}
		}
		for i, v := range s.inputs {
			if inputs[i] = number; v != nil {
				inputs[i] = b.of[len(outputs)+i][:n]
			}
		}
		apply(outputs, inputs)
	}
}

// elementwise writes the outputs.
func (s *pass) elementwise(p backend.Problem) kernel.Step {
	_, _, dt := p.Describe()
	walk := layout.NewWalk(dt, slices.Concat(s.outputs, s.inputs)...)
	return func(r *backend.Run) error { return forEachBlock(walk, r, len(s.outputs), s.compute(r)) }
}

func forward(p backend.Problem, f function, out *tensor.View, inputs ...*tensor.View) backend.Kernel {
	s := &pass{f, []*tensor.View{out}, inputs}
	return &kernel.Sequence{Facts: kernel.FactsOf(p, ""), Steps: []kernel.Step{s.elementwise(p)}}
}

// backward makes a reduction for each of the outputs that are summed, and then a pass of those that
// are not: that may replace an input. needed are the inputs that some outputs are a function of.
func backward(p backend.Problem, f function, whole, sums []*tensor.View, needed func(outputs []*tensor.View) []*tensor.View) backend.Kernel {
	k := &kernel.Sequence{Facts: kernel.FactsOf(p, "")}
	for i, sum := range sums {
		if sum != nil {
			alone := make([]*tensor.View, len(sums))
			alone[i] = sum
			k.Steps = append(k.Steps, newReduction(sum, &pass{f, alone, needed(alone)}).run)
		}
	}
	if slices.ContainsFunc(whole, func(v *tensor.View) bool { return v != nil }) {
		s := &pass{f, whole, needed(whole)}
		k.Steps = append(k.Steps, s.elementwise(p))
	}
	return k
}

// all are the inputs that every output is a function of.
func all(inputs ...*tensor.View) func([]*tensor.View) []*tensor.View {
	return func([]*tensor.View) []*tensor.View { return inputs }
}

func newActivation(p *backend.Activation) (backend.Kernel, error) {
	activation, err := formulaOf(portable.Lookup, p.Formula)
	if err != nil {
		return nil, err
	}
	return forward(p, func(parameters []float64) formula {
		act := activation(parameters)
		return func(out, in [][]float64) { act.Values(out[0], in[0]) }
	}, p.Out, p.Input), nil
}

func newActivationBackward(p *backend.ActivationBackward) (backend.Kernel, error) {
	activation, err := formulaOf(portable.Lookup, p.Formula)
	if err != nil {
		return nil, err
	}
	return backward(p, func(parameters []float64) formula {
		act := activation(parameters)
		return func(out, in [][]float64) {
			act.Gradients(out[0], in[0], in[1])
			act.Values(out[1], in[1])
		}
	}, []*tensor.View{p.GradInput, p.Out}, []*tensor.View{p.GradBias, nil}, all(p.GradOutput, p.Input)), nil
}

func newActivationCurvature(p *backend.ActivationCurvature) (backend.Kernel, error) {
	activation, err := formulaOf(portable.Lookup, p.Formula)
	if err != nil {
		return nil, err
	}
	at := cmp.Or(p.Input, p.Output)
	return backward(p, func(parameters []float64) formula {
		act := activation(parameters)
		gradients, curvatures := act.Gradients, act.Curvatures
		if p.Input == nil {
			gradients, curvatures = act.GradientsFromOutput, act.CurvaturesFromOutput
		}
		return func(out, in [][]float64) {
			gradients(out[0], in[0], in[2])
			curvatures(out[1], in[0], in[1], in[2])
		}
	}, []*tensor.View{p.GradGradOutput, p.GradInput}, nil, all(p.GradGradInput, p.GradOutput, at)), nil
}

func newGated(p *backend.Gated) (backend.Kernel, error) {
	gate, err := formulaOf(portable.LookupGated, p.Formula)
	if err != nil {
		return nil, err
	}
	return forward(p, func(parameters []float64) formula {
		gated := gate(parameters)
		return func(out, in [][]float64) { gated.Values(out[0], in[0], in[1]) }
	}, p.Out, p.Value, p.Gate), nil
}

func newGatedBackward(p *backend.GatedBackward) (backend.Kernel, error) {
	gate, err := formulaOf(portable.LookupGated, p.Formula)
	if err != nil {
		return nil, err
	}
	return backward(p, func(parameters []float64) formula {
		gated := gate(parameters)
		return func(out, in [][]float64) { gated.Gradients(out[0], out[1], in[0], in[1], in[2]) }
	}, []*tensor.View{p.GradValue, p.GradGate}, []*tensor.View{p.GradBiasValue, p.GradBiasGate}, all(p.GradOutput, p.Value, p.Gate)), nil
}

func newGatedCurvature(p *backend.GatedCurvature) (backend.Kernel, error) {
	gate, err := formulaOf(portable.LookupGated, p.Formula)
	if err != nil {
		return nil, err
	}
	return backward(p, func(parameters []float64) formula {
		gated := gate(parameters)
		return func(out, in [][]float64) { gated.Curvatures(out[0], out[1], out[2], in[0], in[1], in[2], in[3], in[4]) }
	}, []*tensor.View{p.GradGradOutput, p.GradValue, p.GradGate}, nil, all(p.GradGradValue, p.GradGradGate, p.GradOutput, p.Value, p.Gate)), nil
}

func newPointwise(p *backend.Pointwise) (backend.Kernel, error) {
	named, err := formulaOf(portable.LookupPointwise, p.Formula)
	if err != nil {
		return nil, err
	}
	return forward(p, func(parameters []float64) formula {
		return func(out, in [][]float64) { named.Value(out[0], in, parameters[0]) }
	}, p.Out, p.Inputs...), nil
}

func newPointwiseBackward(p *backend.PointwiseBackward) (backend.Kernel, error) {
	named, err := formulaOf(portable.LookupPointwise, p.Formula)
	if err != nil {
		return nil, err
	}
	whole, groups := p.Passes()
	sums := make([]*tensor.View, len(whole))
	for _, group := range groups {
		for i, gradient := range group {
			if gradient != nil {
				sums[i] = gradient
			}
		}
	}
	return backward(p, func(parameters []float64) formula {
		return func(out, in [][]float64) { named.Gradients(out, in[0], in[1:], parameters[0]) }
	}, whole, sums, func(outputs []*tensor.View) []*tensor.View {
		return append([]*tensor.View{p.GradOutput}, p.UsedBy(outputs)...)
	}), nil
}
