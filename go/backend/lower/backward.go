package lower

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

// Backward holds the steps of a GEMM epilogue's backward, in order. A step that is not needed is
// nil.
type Backward struct {
	// Recompute forms the preactivation, and no output.
	Recompute *backend.GemmEpilogue
	Pass      *Pass
	// A and B compute grad_a and grad_b.
	A, B *Product
}

// Products returns A and B, those that are needed.
func (b *Backward) Products() []*Product {
	return slices.DeleteFunc([]*Product{b.A, b.B}, func(p *Product) bool { return p == nil })
}

// Pass reads GradOutput once and computes
//
//	grad_preactivation = grad_output act'(saved)
//	grad_bias          = grad_preactivation summed over all dimensions but the last
//
// Sums have the values before they are rounded. Either result may be nil. All views have
// GradOutput's rank, and GradBias has the size 1 in all dimensions but the last. Runs that
// accumulate add to it. With Groups, where those of a problem's rows end, GradBias is [e, n]: the
// sums of each group's rows.
type Pass struct {
	Formula string
	Groups  *tensor.View
	// FromOutput: Saved is the output, else the preactivation.
	FromOutput bool
	// Saved is nil for the activation "none".
	GradOutput, Saved           *tensor.View
	GradPreactivation, GradBias *tensor.View
}

// Gradients returns the steps of a backward. It asks region for memory of GradOutput's shape: for
// the preactivation, if it has to be formed, then for grad_preactivation. Where region returns one
// view for both, the pass is in place.
func Gradients(p *backend.GemmEpilogueBackward, region Region) Backward {
	var b Backward
	gradient, shape := p.GradOutput, p.GradOutput.Shape
	activates, products := p.Formula != "none", p.GradA != nil || p.GradB != nil
	if p.GradBias != nil || activates && products {
		b.Pass = &Pass{Formula: p.Formula, Groups: p.Groups, GradOutput: gradient, GradBias: tensor.Aligned(p.GradBias, gradient.Rank())}
	}
	if b.Pass != nil && activates {
		switch {
		case p.Output != nil:
			b.Pass.Saved, b.Pass.FromOutput = p.Output, true
		case p.Preactivation != nil:
			b.Pass.Saved = p.Preactivation
		default:
			b.Pass.Saved = region(p.DType, shape...)
			b.Recompute = &backend.GemmEpilogue{Header: p.Header, BatchRank: p.BatchRank, A: p.A, B: p.B, Bias: p.Bias, Preactivation: b.Pass.Saved}
			b.Recompute.Formula = "none"
		}
		if products {
			gradient = region(p.DType, shape...)
			b.Pass.GradPreactivation = gradient
		}
	}
	if p.GradA != nil {
		b.A = gradA(p, gradient)
	}
	if p.GradB != nil {
		b.B = gradB(p, gradient)
	}
	return b
}
