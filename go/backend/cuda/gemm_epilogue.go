//go:build cgo

package cuda

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

// gemmEpilogue adds out = act(a b + bias): small problems in one launch, others by BLAS, which makes the product with the bias, rounded once to the
// preactivation, and the activation, in place where nobody asks for the preactivation.
func (b *builder) gemmEpilogue(p *backend.GemmEpilogue) error {
	result := p.Out
	if result == nil {
		result = p.Preactivation
	}
	if s, ok := b.smallOf(p.BatchRank, result, p.A); ok {
		return b.smallForward(s, p.Kind, p.A, p.B, p.Bias, p.Out, p.Preactivation)
	}
	pre := p.Preactivation
	if pre == nil {
		pre = p.Out
	}
	if err := b.preactivation(p.A, p.B, p.Bias, pre, p.BatchRank, p.AllowTF32); err != nil {
		return err
	}
	if p.Out == nil || p.Out == pre && p.Kind == "none" {
		return nil
	}
	return b.activation(p.Kind, p.Out, pre)
}

// preactivation adds pre = a b + bias.
func (b *builder) preactivation(left, right, bias, pre *tensor.View, batchRank int, tf32 bool) error {
	last := left.Rank() - 1
	if left.Shape[last] == 0 && bias != nil {
		expanded, err := bias.Expand(pre.Shape)
		if err != nil {
			return err
		}
		return b.activation("none", pre, &expanded)
	}
	if bias != nil && bias.Numel() > 1 && bias.Strides[0] != 1 {
		packed := b.region(bias.DType, bias.Shape...)
		if err := b.activation("none", packed, bias); err != nil {
			return err
		}
		bias = packed
	}
	p := product{left: left, right: right, out: pre}
	for d := range batchRank {
		p.batch = append(p.batch, dim{pre.Shape[d], left.Strides[d], right.Strides[d], pre.Strides[d]})
	}
	for d := batchRank; d < last; d++ {
		p.m = append(p.m, dim{size: pre.Shape[d], left: left.Strides[d], out: pre.Strides[d]})
	}
	p.k = []dim{{size: left.Shape[last], left: left.Strides[last], right: right.Strides[batchRank]}}
	p.n = []dim{{size: pre.Shape[last], right: right.Strides[batchRank+1], out: pre.Strides[last]}}
	return b.multiply(p, bias, tf32)
}

// gemmEpilogueBackward adds grad_preactivation, rounded to the storage dtype in the workspace, with the bias gradient from the unrounded
// values in the same pass, and then the two products; or all in one launch where the problem is small. Whatever is not asked for is not computed.
func (b *builder) gemmEpilogueBackward(p *backend.GemmEpilogueBackward) error {
	if s, ok := b.smallOf(p.BatchRank, p.GradOutput, p.A); ok {
		return b.smallBackward(s, p)
	}
	gradient := p.GradOutput
	needed := p.GradA != nil || p.GradB != nil
	switch {
	case p.Kind != "none":
		saved, fromOutput := p.Preactivation, false
		if p.Output != nil {
			saved, fromOutput = p.Output, true
		}
		var region *tensor.View
		if needed || saved == nil {
			region = b.region(p.DType, p.GradOutput.Shape...)
		}
		if saved == nil {
			saved = region
			if err := b.preactivation(p.A, p.B, p.Bias, saved, p.BatchRank, p.AllowTF32); err != nil {
				return err
			}
		}
		if !needed {
			region = nil
		}
		if err := b.gradPreactivation(p.Kind, fromOutput, p.GradOutput, saved, region, p.GradBias); err != nil {
			return err
		}
		gradient = region
	case p.GradBias != nil:
		if err := b.gradPreactivation("none", false, p.GradOutput, nil, nil, p.GradBias); err != nil {
			return err
		}
	}
	if p.GradA != nil {
		if err := b.gradA(p, gradient); err != nil {
			return err
		}
	}
	if p.GradB != nil {
		return b.gradB(p, gradient)
	}
	return nil
}

// gradA adds grad_a = g bᵀ. Batch dimensions that a was broadcast over are summed: they are part of the contraction.
func (b *builder) gradA(p *backend.GemmEpilogueBackward, g *tensor.View) error {
	rank, last := p.BatchRank, g.Rank()-1
	q := product{left: g, right: p.B, out: p.GradA}
	for d := range rank {
		q.add(dim{g.Shape[d], g.Strides[d], p.B.Strides[d], p.GradA.Strides[d]}, p.GradA.Shape[d])
	}
	for d := rank; d < last; d++ {
		q.m = append(q.m, dim{size: g.Shape[d], left: g.Strides[d], out: p.GradA.Strides[d]})
	}
	q.k = append(q.k, dim{size: g.Shape[last], left: g.Strides[last], right: p.B.Strides[rank+1]})
	q.n = []dim{{size: p.B.Shape[rank], right: p.B.Strides[rank], out: p.GradA.Strides[last]}}
	return b.multiply(q, nil, p.AllowTF32)
}

// gradB adds grad_b = aᵀ g, summed over all rows and over the batch dimensions that b was broadcast over.
func (b *builder) gradB(p *backend.GemmEpilogueBackward, g *tensor.View) error {
	rank, last := p.BatchRank, g.Rank()-1
	q := product{left: p.A, right: g, out: p.GradB, accumulates: true}
	for d := range rank {
		q.add(dim{g.Shape[d], p.A.Strides[d], g.Strides[d], p.GradB.Strides[d]}, p.GradB.Shape[d])
	}
	for d := rank; d < last; d++ {
		q.k = append(q.k, dim{size: g.Shape[d], left: p.A.Strides[d], right: g.Strides[d]})
	}
	q.m = []dim{{size: p.A.Shape[last], left: p.A.Strides[last], out: p.GradB.Strides[rank]}}
	q.n = []dim{{size: g.Shape[last], right: g.Strides[last], out: p.GradB.Strides[rank+1]}}
	return b.multiply(q, nil, p.AllowTF32)
}

// add puts a batch dimension among the batch, or where the result has the size 1 among the contraction.
func (p *product) add(d dim, resultSize int64) {
	if d.size != resultSize {
		d.out = 0
		p.k = append(p.k, d)
		return
	}
	p.batch = append(p.batch, d)
}
