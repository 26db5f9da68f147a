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
	if p.Formula != "none" && len(p.More) == 0 {
		inBoxes = b.groupedLinearSM90(p.Formula, p.A, p.B, p.Bias, p.Out, p.Preactivation, p.Groups)
	}
	b.either(inBoxes, func() { b.twoPasses(p) })
}

// multiplyGroups adds a product of each group's rows.
func (b *builder) multiplyGroups(p *lower.Product) {
	ends := p.Views[lower.Ends]
	if p.ByRows {
		left, right, bias := p.View(lower.Left, p.M, p.K), p.View(lower.Right, p.Batch, p.K, p.N), p.View(lower.Bias, p.Batch, p.N)
		out := p.View(lower.Out, p.M, p.N)
		b.either(b.groupedLinearSM90("none", left, right, bias, out, nil, ends), func() { b.plainProduct(left, right, bias, out, ends, false) })
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
