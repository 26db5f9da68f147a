package cpu

import (
	"github.com/epigrad/epigrad/go/backend"
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
	product := b.vectorProduct(forwardProduct(&b.blas, p.A, p.B, p.BatchRank))
	value, ok := b.engine.Kernel("epilogue_" + p.Kind + "_" + p.DType.Short())
	to := &sink{
		out: optionalMatrix(p.Out, p.BatchRank), pre: optionalMatrix(p.Preactivation, p.BatchRank), bias: optionalMatrix(p.Bias, 0), value: value,
	}
	if product == nil || !ok || !fits(to.out, to.pre) {
		return nil
	}
	k := &vectorGemm{steps: steps{facts: b.vectorFacts(p, product.routine())}}
	k.run = append(k.run, func(r *backend.Run) error { return product.run(r, to) })
	return k
}

// vectorGemmEpilogueBackward forms grad_preactivation (in the workspace, rounded to storage) and the bias gradient (from the unrounded values) in one pass, in
// which the preactivation is formed first where none was saved; then the two products.
func (b *Backend) vectorGemmEpilogueBackward(p *backend.GemmEpilogueBackward) backend.Kernel {
	rank, shape := p.BatchRank, p.GradOutput.Shape
	k := &vectorGemm{}
	workspace := &tensor.View{
		Operand: backend.WorkspaceOperand, DType: p.DType, Device: p.GradOutput.Device, Shape: shape, Strides: tensor.ContiguousStrides(shape),
	}
	gradient := p.GradOutput // also what the identity's pass reads as its preactivation
	saved, name := gradient, "activation_backward_"+p.Kind
	if p.Kind != "none" {
		switch {
		case p.Output != nil:
			saved, name = p.Output, "from_output_"+p.Kind
		case p.Preactivation != nil:
			saved = p.Preactivation
		default:
			saved = workspace
			k.run = append(k.run, b.recompute(p, workspace))
		}
		if p.GradA != nil || p.GradB != nil {
			gradient = workspace
		}
		if gradient == workspace || saved == workspace {
			k.workspaceBytes = workspace.Numel() * p.DType.Size()
		}
	}
	if gradient == workspace || p.GradBias != nil {
		var outputs []*tensor.View
		if gradient == workspace {
			outputs = []*tensor.View{workspace}
		}
		k.run = append(k.run, b.gradientPass(name, p, operandsOf(outputs, p.GradOutput, saved)))
	}
	batch := shape[:rank]
	var product *vectorProduct
	if p.GradA != nil {
		product = b.vectorProduct(newProduct(&b.blas, newMatrix(gradient, rank), newMatrix(p.B, rank), batch, p.GradA))
		k.run = append(k.run, gradientProduct(product, newMatrix(p.GradA, rank), false))
	}
	if p.GradB != nil {
		left, right, result := newMatrix(p.A, rank).transposed(), newMatrix(gradient, rank).transposed(), newMatrix(p.GradB, rank)
		exchanged := result.liesInColumns()
		if exchanged {
			left, right, result = right, left, result.transposed()
		}
		if product = b.vectorProduct(newProduct(&b.blas, left, right, batch, p.GradB)); product != nil {
			product.exchanged = exchanged
		}
		k.run = append(k.run, gradientProduct(product, result, true))
	}
	for _, run := range k.run {
		if run == nil {
			return nil
		}
	}
	routine := ""
	if product != nil {
		routine = product.routine()
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

// recompute is the step that forms the preactivation, rounded as a saved one is.
func (b *Backend) recompute(p *backend.GemmEpilogueBackward, workspace *tensor.View) func(*backend.Run) error {
	product := b.vectorProduct(forwardProduct(&b.blas, p.A, p.B, p.BatchRank))
	if product == nil {
		return nil
	}
	to := &sink{pre: optionalMatrix(workspace, p.BatchRank), bias: optionalMatrix(p.Bias, 0)}
	if !fits(to.pre) {
		return nil
	}
	return func(r *backend.Run) error { return product.run(r, to) }
}

// gradientPass is the step that forms grad_preactivation, and its sums over all rows if they are asked for.
func (b *Backend) gradientPass(name string, p *backend.GemmEpilogueBackward, operands [kernels.Operands]*tensor.View) func(*backend.Run) error {
	v := b.vector(name, p.DType, operands)
	if v == nil {
		return nil
	}
	var run func(*backend.Run) error
	var ok bool
	if p.GradBias == nil {
		run, ok = v.elementwise()
	} else {
		// The bias gradient, as wide as grad_output, of size 1 in all dimensions but the last.
		bias := *p.GradBias
		last := p.GradOutput.Rank() - 1
		bias.Shape, bias.Strides = make([]int64, last+1), make([]int64, last+1)
		for d := range last {
			bias.Shape[d] = 1
		}
		bias.Shape[last], bias.Strides[last] = p.GradBias.Shape[0], p.GradBias.Strides[0]
		run, ok = v.sums([kernels.Outputs]*tensor.View{&bias}, operands[kernels.Outputs+1], true)
	}
	if !ok {
		return nil
	}
	return run
}

// gradientProduct is the step that stores a product as a gradient.
func gradientProduct(product *vectorProduct, gradient matrix, accumulates bool) func(*backend.Run) error {
	if product == nil || !fits(&gradient) {
		return nil
	}
	return func(r *backend.Run) error {
		return product.run(r, &sink{out: &gradient, value: product.store, accumulate: accumulates && r.Accumulate})
	}
}
