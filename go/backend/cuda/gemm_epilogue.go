//go:build cgo

package cuda

import (
	"cmp"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// gemmEpilogue adds out = act(a b + a' b' + ... + bias). Small problems of one pair are one launch.
// A product of half types, or a sum of two, may be one kernel (onePass). All others are products by
// BLAS and then the activation (twoPasses), in place if the preactivation is no output.
func (b *builder) gemmEpilogue(p *backend.GemmEpilogue) {
	if p.Groups != nil {
		b.groupedEpilogue(p)
		return
	}
	if s, ok := b.smallOf(p.BatchRank, cmp.Or(p.Out, p.Preactivation), p.A); ok && len(p.More) == 0 {
		b.smallForward(s, p.Formula, p.A, p.B, p.Bias, p.Out, p.Preactivation)
		return
	}
	if o, ok := b.onePassOf(lower.Forward(p)); ok {
		kind := p.Formula
		if p.Out == nil {
			kind = "none"
		}
		o.views[lower.Bias] = b.contiguousBias(o.views[lower.Bias])
		b.onePass(&o, kind, func() { b.twoPasses(p) })
		return
	}
	b.twoPasses(p)
}

// twoPasses adds products by BLAS and the activation. Each further product is added to what those
// before it have left, rounded.
func (b *builder) twoPasses(p *backend.GemmEpilogue) {
	pre := cmp.Or(p.Preactivation, p.Out)
	if len(p.More) > 0 && !pre.IsContiguous() {
		pre = b.region(p.DType, pre.Shape...)
	}
	b.preactivation(p, pre)
	for _, pair := range p.More {
		if p.Groups != nil {
			break // preactivation adds them too
		}
		q := lower.Forward(&backend.GemmEpilogue{Header: p.Header, BatchRank: p.BatchRank, A: pair.A, B: pair.B, Out: pre})
		if lower.Count(q.K) > 0 {
			b.onto(q, p.AllowTF32)
		}
	}
	if p.Preactivation != nil && p.Preactivation != pre {
		b.copy(p.Preactivation, pre)
	}
	if p.Out != nil && (p.Out != pre || p.Formula != "none") {
		b.activation(p.Formula, p.Out, pre)
	}
}

// preactivation adds pre = a b + bias: without further products, but for those of groups.
func (b *builder) preactivation(p *backend.GemmEpilogue, pre *tensor.View) {
	plain := *p
	plain.Out, plain.Preactivation = pre, nil
	if p.Groups != nil {
		b.multiplyGroups(lower.Forward(&plain))
		return
	}
	plain.More = nil
	q, bias := lower.Forward(&plain), p.Bias
	if lower.Count(q.K) == 0 && bias != nil {
		b.copy(q.Result(lower.Out), q.Result(lower.Bias))
		return
	}
	q.Views[lower.Bias] = b.contiguousBias(bias)
	if bias != nil && b.invariant && lower.Count(q.N) == 1 {
		b.ontoBias(q, p.AllowTF32)
		return
	}
	b.multiply(q, p.AllowTF32)
}

// contiguousBias is a bias, nil for none, whose elements are contiguous: itself, or a copy.
func (b *builder) contiguousBias(bias *tensor.View) *tensor.View {
	if bias == nil || bias.Numel() <= 1 || bias.Strides[0] == 1 {
		return bias
	}
	return b.copied(bias)
}

// ontoBias adds out = left right + bias for one column: the bias first, and the product onto it.
// cuBLASLt's algorithms for matrices take no bias there.
func (b *builder) ontoBias(q *lower.Product, tf32 bool) {
	out, sum := q.Result(lower.Out), b.copied(q.Result(lower.Bias))
	q.Views[lower.Out], q.Views[lower.Bias] = sum, nil
	lower.Contiguous(lower.Out, q.Batch, q.M, q.N)
	b.onto(q, tf32)
	b.copy(out, sum)
}

// onto adds a product to its result, which BLAS can write.
func (b *builder) onto(q *lower.Product, tf32 bool) {
	first := len(b.program)
	b.multiply(q, tf32)
	for _, o := range b.program[first:] {
		if product, ok := o.(*matmul); ok {
			product.adds = always
		}
	}
}

// gemmEpilogueBackward adds the steps of a backward, or one launch for a small problem. The steps
// that need memory share one region, so the pass is in place.
func (b *builder) gemmEpilogueBackward(p *backend.GemmEpilogueBackward) {
	if p.Groups == nil {
		// one launch adds to grad_b alone, and writes the dtype of the problem
		isFloat := b.isFloat(p.GradB) || b.isFloat(p.GradBias)
		if s, ok := b.smallOf(p.BatchRank, p.GradOutput, p.A); ok && !isFloat {
			b.smallBackward(s, p)
			return
		}
	}
	var region *tensor.View
	made := lower.Gradients(p, func(dt dtype.DType, shape ...int64) *tensor.View {
		if region == nil {
			region = b.region(dt, shape...)
		}
		return region
	})
	if made.Recompute != nil {
		b.preactivation(made.Recompute, made.Recompute.Preactivation)
	}
	if made.Pass != nil {
		b.gradPreactivation(made.Pass)
	}
	for _, product := range made.Products() {
		b.gradient(product, p.AllowTF32)
	}
}

// gradient adds a gradient's product: by BLAS, which is fastest, or by the kernel whose sums do not
// depend on the number of rows.
func (b *builder) gradient(p *lower.Product, tf32 bool) {
	if p.Views[lower.Ends] != nil {
		b.multiplyGroups(p)
		return
	}
	if b.invariant && p.ByRows && !p.Accumulates {
		if o, ok := b.onePassOf(p); ok {
			b.onePass(&o, "none", func() { b.multiply(p, tf32) })
			return
		}
	}
	b.multiply(p, tf32)
}
