//go:build cgo

// Activations, gates and their gradients, as elementwise kernels and reductions.

package cuda

import (
	"cmp"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// vectorsOf is how many vectors a thread does that computes an activation: one where that is
// `cheap` (kernels/cuda/activation.cuh).
func vectorsOf(kind string, dt dtype.DType) int64 {
	row, _ := activation.Lookup(kind)
	if row.Cheap || row.CheapInHalf && dt.IsHalf() {
		return 1
	}
	return 2
}

// activation adds out = act(in), in one shape and any strides; out may be in.
func (b *builder) activation(kind string, out, in *tensor.View) {
	f := function{name: "activation_" + kind + "_" + out.DType.Short(), outputs: 1, vectors: vectorsOf(kind, out.DType)}
	b.elementwise(f, numbers{}, out, in)
}

// copy adds to = from, in one shape and any strides: "none" keeps all bits.
func (b *builder) copy(to, from *tensor.View) { b.activation("none", to, from) }

// copied is a contiguous copy in the workspace.
func (b *builder) copied(v *tensor.View) *tensor.View {
	to := b.region(v.DType, v.Shape...)
	b.copy(to, v)
	return to
}

// activationBackward adds the gradient, with its column sums in the same pass, and the activation:
// in one pass where both are wanted.
func (b *builder) activationBackward(p *backend.ActivationBackward) {
	gradient := p.GradInput != nil || p.GradBias != nil
	if gradient && p.Out != nil && p.Formula != "none" {
		what, suffix := "activation_backward_", p.Formula+"_"+p.DType.Short()
		if p.GradBias == nil {
			b.elementwise(function{name: what + suffix, outputs: 2, vectors: 1}, numbers{}, p.GradInput, p.Out, p.GradOutput, p.Input)
			return
		}
		b.reduce(&reduction{
			columns: what + "columns_" + suffix, outputs: []*tensor.View{p.GradInput, p.Out}, sums: []*tensor.View{p.GradBias, nil},
			inputs: []*tensor.View{p.GradOutput, p.Input}, accumulates: true,
		})
		return
	}
	if gradient {
		pass := &lower.Pass{Formula: p.Formula, Groups: p.Groups, GradOutput: p.GradOutput, Saved: p.Input, GradPreactivation: p.GradInput, GradBias: p.GradBias}
		b.gradPreactivation(pass)
	}
	if p.Out != nil {
		b.activation(p.Formula, p.Out, p.Input)
	}
}

func (b *builder) gated(p *backend.Gated) {
	suffix := p.Formula + "_" + p.DType.Short()
	f := function{name: "gated_" + suffix, outputs: 1, vectors: vectorsOf(p.Formula, p.DType), interleaved: "gated_pairs_" + suffix}
	b.elementwise(f, numbers{}, p.Out, p.Value, p.Gate)
}

func (b *builder) gatedBackward(p *backend.GatedBackward) {
	if p.GradBiasValue != nil || p.GradBiasGate != nil {
		b.reduce(&reduction{
			columns: "gated_backward_columns_" + p.Formula + "_" + p.DType.Short(),
			outputs: []*tensor.View{p.GradValue, p.GradGate}, sums: []*tensor.View{p.GradBiasValue, p.GradBiasGate},
			inputs: []*tensor.View{p.GradOutput, p.Value, p.Gate}, groups: p.Groups, accumulates: true,
		})
		return
	}
	suffix := p.Formula + "_" + p.DType.Short()
	f := function{name: "gated_backward_" + suffix, outputs: 2, vectors: 1, interleaved: "gated_backward_pairs_" + suffix}
	b.elementwise(f, numbers{}, p.GradValue, p.GradGate, p.GradOutput, p.Value, p.Gate)
}

func (b *builder) activationCurvature(p *backend.ActivationCurvature) {
	name, suffix := "curvature_", p.Formula+"_"+p.DType.Short()
	if p.Output != nil {
		name += "from_output_"
	}
	b.elementwise(function{name: name + suffix, outputs: 2, vectors: 1}, numbers{},
		p.GradGradOutput, p.GradInput, p.GradGradInput, p.GradOutput, cmp.Or(p.Input, p.Output))
}

func (b *builder) gatedCurvature(p *backend.GatedCurvature) {
	f := function{name: "gated_curvature_" + p.Formula + "_" + p.DType.Short(), outputs: 3, vectors: 1}
	b.elementwise(f, numbers{}, p.GradGradOutput, p.GradValue, p.GradGate, p.GradGradValue, p.GradGradGate, p.GradOutput, p.Value, p.Gate)
}

// gradPreactivation adds a pass, whose views have any strides.
func (b *builder) gradPreactivation(p *lower.Pass) {
	if p.Formula == "none" && (p.GradBias == nil || p.Groups != nil) {
		if p.GradBias != nil {
			b.sumRowsOf(p.GradOutput, p.GradBias, nil, p.Groups)
		}
		if p.GradPreactivation != nil {
			b.copy(p.GradPreactivation, p.GradOutput)
		}
		return
	}
	what, suffix := "grad_preactivation_", p.Formula+"_"+p.GradOutput.DType.Short()
	inputs := []*tensor.View{p.GradOutput, p.Saved}
	switch {
	case p.Formula == "none":
		inputs = inputs[:1]
	case p.FromOutput:
		what += "from_output_"
	}
	if p.GradBias == nil {
		f := function{name: what + suffix, outputs: 1, vectors: vectorsOf(p.Formula, p.GradOutput.DType)}
		if p.FromOutput {
			f.vectors = 1
		}
		b.elementwise(f, numbers{}, append([]*tensor.View{p.GradPreactivation}, inputs...)...)
		return
	}
	b.reduce(&reduction{
		columns: what + "columns_" + suffix, outputs: []*tensor.View{p.GradPreactivation}, sums: []*tensor.View{p.GradBias}, inputs: inputs,
		groups: p.Groups, accumulates: true,
	})
}

// ComputesInAccumulator reports whether formulas are computed in the accumulator's dtype, and not
// in float64.
func (*Backend) ComputesInAccumulator() bool { return true }
