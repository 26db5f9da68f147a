//go:build cgo

package cuda

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
)

// parts adds what a problem is made of.
func (b *builder) parts(p backend.Problem, region lower.Region) {
	for _, part := range lower.Parts(p, region) {
		b.plan(part)
	}
}

// groupedLayer adds a layer of each group: one kernel for a gated one, or its parts.
func (b *builder) groupedLayer(p *backend.GroupedLayer) {
	if p.Halves == nil {
		b.parts(p, b.region)
		return
	}
	layer := *p
	layer.Rest = nil
	b.either(b.groupedGatedLinearSM90(p), func() { b.parts(&layer, b.region) })
	b.zeroRest(p.Groups, p.Rest...)
}

// groupedHiddenBackward adds the backward of a hidden activation of each group: one kernel, or its
// parts. Where there is a kernel, only runs of unaligned addresses take the parts: the gradient to
// the hidden activation then lies in GradPreactivation, if that is there, and takes no memory of
// its own.
func (b *builder) groupedHiddenBackward(p *backend.GroupedHiddenBackward) {
	var inBoxes func()
	if p.GradPreactivation != nil || p.GradBias != nil || p.Sums != nil {
		inBoxes = b.groupedHiddenBackwardSM90(p)
	}
	if inBoxes == nil {
		b.parts(p, b.region)
		return
	}
	b.either(inBoxes, func() {
		lent := p.GradPreactivation
		if lent != nil && p.Halves != nil {
			lent, _ = p.Halves(lent)
		}
		b.seldom = true
		defer func() { b.seldom = false }()
		b.parts(p, b.lending(lent))
	})
}

// groupedEpilogue adds a product of each group with its bias and its activation.
func (b *builder) groupedEpilogue(p *backend.GemmEpilogue) {
	var inBoxes func()
	if p.Formula != "none" {
		inBoxes = b.groupedLinearSM90(p.Formula, p.Bias, p.Out, p.Preactivation, p.Groups, append([]backend.Pair{{A: p.A, B: p.B}}, p.More...)...)
	}
	b.either(inBoxes, func() { b.twoPasses(p) })
}

// multiplyGroups adds a product of each group's rows, or the sum of several. Where one kernel does
// not take all pairs, it takes the first, and each other one is added to the rounded sum of those
// before.
func (b *builder) multiplyGroups(p *lower.Product) {
	ends := p.Views[lower.Ends]
	if p.ByRows {
		var pairs []backend.Pair
		for q := p; q != nil; q = q.Next {
			pairs = append(pairs, backend.Pair{A: q.View(lower.Left, q.M, q.K), B: q.View(lower.Right, q.Batch, q.K, q.N)})
		}
		bias, out := p.View(lower.Bias, p.Batch, p.N), p.View(lower.Out, p.M, p.N)
		inBoxes := b.groupedLinearSM90("none", bias, out, nil, ends, pairs...)
		var rest []backend.Pair
		if inBoxes == nil {
			pairs, rest = pairs[:1], pairs[1:]
			inBoxes = b.groupedLinearSM90("none", bias, out, nil, ends, pairs...)
		}
		b.either(inBoxes, func() {
			b.plainProduct(pairs[0].A, pairs[0].B, bias, out, ends, false)
			for _, pair := range pairs[1:] {
				b.plainProduct(pair.A, pair.B, nil, out, ends, true)
			}
		})
		for _, pair := range rest {
			b.plainProduct(pair.A, pair.B, nil, out, ends, true)
		}
		return
	}
	left, right, out := p.View(lower.Right, p.K, p.N), p.View(lower.Left, p.K, p.M), p.View(lower.Out, p.Batch, p.N, p.M)
	b.either(b.groupedWeightGradientSM90(left, right, out, ends), func() { b.plainDepth(left, right, out, ends) })
}

// scaleRows adds the launch that multiplies the gradient to the hidden activation with that, row by
// row, and scales both.
func (b *builder) scaleRows(p *backend.ScaleRows) {
	first := p.Grad
	if first == nil {
		first = p.Hidden
	}
	rows, features := first.Shape[0], first.Shape[1]
	if rows == 0 || p.Groups.Shape[0] == 0 || p.Sums == nil && features == 0 {
		return
	}
	width := vectorWidth(b.dt)
	b.forms(width, byRows(width, p.Grad, p.Hidden), typed("grouped_scale_hidden_", b.dt), func(q *parameters, _ int64) int64 {
		q.rowsMatrix(p.Grad, 1)
		q.rowsMatrix(p.Hidden, 1)
		q.address(p.Scales)
		q.address(p.Sums)
		q.address(p.Groups)
		q.int64(features)
		q.sizes(p.Groups.Shape[0])
		q.bool(p.ScalesGrad)
		q.bool(p.ScalesHidden)
		q.uint32(0)
		return ceilDiv(rows, groupedRows)
	})
}
