package cpu

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// vectorGemm is a GEMM epilogue, or its gradients, by an engine: steps, and the workspace that they share.
type vectorGemm struct {
	steps
	workspaceBytes int64
}

func (k *vectorGemm) WorkspaceBytes() int64 { return k.workspaceBytes }

// fits tells that the engine can walk the results' rows.
func fits(results ...*matrix) bool {
	for _, m := range results {
		if m != nil && len(m.rows.sizes) > kernels.MostRank {
			return false
		}
	}
	return true
}

// vectorGemmEpilogue applies bias and activation to the unrounded sums of a tile while it is in cache.
func (b *Backend) vectorGemmEpilogue(p *backend.GemmEpilogue) backend.Kernel {
	q := lower.Forward(p)
	product := b.vectorProduct(newProduct(&b.blas, q))
	value, ok := b.engine.Kernel("epilogue_" + p.Kind + "_" + p.DType.Short())
	to := &sink{out: resultOf(q, lower.Out), pre: resultOf(q, lower.Preactivation), bias: resultOf(q, lower.Bias), value: value}
	if product == nil || !ok || !fits(to.out, to.pre) {
		return nil
	}
	k := &vectorGemm{steps: steps{facts: b.vectorFacts(p, product.routine())}}
	k.run = append(k.run, func(r *backend.Run) error { return product.run(r, to) })
	return k
}

// vectorGemmEpilogueBackward makes the steps of a backward. Those that need memory share the
// workspace from its start, so the pass is in place.
func (b *Backend) vectorGemmEpilogueBackward(p *backend.GemmEpilogueBackward) backend.Kernel {
	k := &vectorGemm{}
	made := lower.Gradients(p, func(dt dtype.DType, shape ...int64) *tensor.View {
		v := workspace(dt, shape...)
		k.workspaceBytes = bytesOf(v)
		return v
	})
	if made.Recompute != nil {
		formed := b.vectorGemmEpilogue(made.Recompute)
		if formed == nil {
			return nil
		}
		k.run = append(k.run, formed.Run)
	}
	if made.Pass != nil {
		pass := b.gradientPass(made.Pass)
		if !pass.ok {
			return nil
		}
		k.run = append(k.run, pass.run)
	}
	routine := ""
	for _, q := range made.Products() {
		product, gradient := newProduct(&b.blas, q), resultOf(q, lower.Out)
		exchanged := q == made.B && gradient.liesInColumns()
		if exchanged {
			product.left, product.right, gradient = product.right, product.left, gradient.transposed()
		}
		v := b.vectorProduct(product)
		if v == nil || !fits(gradient) {
			return nil
		}
		v.exchanged, routine = exchanged, v.routine()
		k.run = append(k.run, func(r *backend.Run) error {
			return v.run(r, &sink{out: gradient, value: v.store, accumulate: q.Accumulates && r.Accumulate})
		})
	}
	k.facts = b.vectorFacts(p, routine)
	return k
}

// liesInColumns tells that a column's elements are neighbours, as those of a layer's [N, K] weight are that is seen as [K, N], and a row's are not. A product
// writes rows, so the transposed one is the faster to compute.
func (m *matrix) liesInColumns() bool {
	along, even := m.rows.uniform()
	across, _ := m.columns.uniform()
	return even && along == m.view.DType.Size() && across != along && m.rows.length > 1
}

// gradientPass forms grad_preactivation and the bias gradient.
func (b *Backend) gradientPass(p *lower.Pass) pass {
	saved, name := p.Saved, "activation_backward_"+p.Kind
	if p.FromOutput {
		name = "from_output_" + p.Kind
	}
	if saved == nil {
		saved = p.GradOutput // what the identity's kernel reads as its preactivation
	}
	v := b.vector(name, p.GradOutput.DType, operandsOf([]*tensor.View{p.GradPreactivation}, p.GradOutput, saved))
	if v == nil {
		return pass{}
	}
	if p.GradBias == nil {
		run, ok := v.elementwise()
		return pass{run, ok}
	}
	run, ok := v.sums([kernels.Outputs]*tensor.View{p.GradBias}, saved, true)
	return pass{run, ok}
}
