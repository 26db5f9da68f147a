package vector

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// fits reports whether the engine can walk the results' rows.
func fits(results ...*layout.Matrix) bool {
	for _, m := range results {
		if m != nil && len(m.Rows.Sizes) > kernels.MostRank {
			return false
		}
	}
	return true
}

// gemm applies bias and activation to the unrounded sums of a tile while it is in cache.
func (e *Engine) gemm(p *backend.GemmEpilogue) backend.Kernel {
	q := lower.Forward(p)
	product := e.product(layout.NewProduct(q))
	value, ok := e.Kernel("epilogue_" + p.Formula + "_" + p.DType.Short())
	to := &sink{
		out: layout.ResultOf(q, lower.Out), pre: layout.ResultOf(q, lower.Preactivation),
		bias: layout.ResultOf(q, lower.Bias), value: value,
	}
	if product == nil || !ok || !fits(to.out, to.pre) {
		return nil
	}
	run := func(r *backend.Run) error { return product.run(r, to) }
	return &kernel.Sequence{Facts: e.facts(p, product.routine()), Steps: []kernel.Step{run}}
}

// gemmBackward makes the steps of a backward. Those that need memory share the workspace from its
// start, so the pass is in place.
func (e *Engine) gemmBackward(p *backend.GemmEpilogueBackward) backend.Kernel {
	k := &kernel.Sequence{}
	made := lower.Gradients(p, func(dt dtype.DType, shape ...int64) *tensor.View {
		v := kernel.InWorkspace(dt, shape...)
		k.Workspace = kernel.Bytes(v)
		return v
	})
	if made.Recompute != nil {
		formed := e.gemm(made.Recompute)
		if formed == nil {
			return nil
		}
		k.Steps = append(k.Steps, formed.Run)
	}
	if made.Pass != nil {
		pass := e.gradientPass(made.Pass)
		if pass == nil {
			return nil
		}
		k.Steps = append(k.Steps, pass)
	}
	routine := ""
	for _, q := range made.Products() {
		v, gradient := e.gradientProduct(q, q == made.B)
		if v == nil {
			return nil
		}
		routine = v.routine()
		k.Steps = append(k.Steps, func(r *backend.Run) error {
			return v.run(r, &sink{out: gradient, value: v.store, accumulate: q.Accumulates && r.Accumulate})
		})
	}
	k.Facts = e.facts(p, routine)
	return k
}

// gradientProduct makes the product of a gradient, and says where the gradient goes. A product
// writes rows, so that of a weight that lies in columns is computed transposed.
func (e *Engine) gradientProduct(q *lower.Product, ofWeight bool) (*product, *layout.Matrix) {
	operands, gradient := layout.NewProduct(q), layout.ResultOf(q, lower.Out)
	exchanged := ofWeight && gradient.LiesInColumns()
	if exchanged {
		operands.Left, operands.Right, gradient = operands.Right, operands.Left, gradient.Transposed()
	}
	v := e.product(operands)
	if v == nil || !fits(gradient) {
		return nil, nil
	}
	v.exchanged = exchanged
	v.storesAs(e, gradient.View.DType)
	return v, gradient
}

// gradientPass forms grad_preactivation and the bias gradient; nil where the engine cannot.
func (e *Engine) gradientPass(p *lower.Pass) kernel.Step {
	saved, name := p.Saved, "activation_backward_"+p.Formula
	if p.FromOutput {
		name = "from_output_" + p.Formula
	}
	if saved == nil {
		saved = p.GradOutput // what the identity's function reads as its preactivation
	}
	operands := operandsOf([]*tensor.View{p.GradPreactivation}, p.GradOutput, saved)
	return e.pass(name, p.GradOutput.DType, operands).into(targets{p.GradBias}, saved)
}
