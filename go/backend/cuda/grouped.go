//go:build cgo

package cuda

import (
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/tensor"
)

// parts adds what a problem is made of.
func (b *builder) parts(p backend.Problem, region lower.Region) {
	for _, part := range lower.Parts(p, region) {
		b.plan(part)
	}
}

// groupedLayer adds a layer of each group: one kernel for a gated one, or its parts. Rows of tokens
// are read where they lie, unless it is faster to copy them.
func (b *builder) groupedLayer(p *backend.GroupedLayer) {
	if p.Places != nil {
		rows := *p.Input // of slots
		rows.Shape = []int64{p.Places.Numel(), p.Input.Shape[1]}
		layer := *p
		layer.Input, layer.Places = &rows, nil
		features := p.Weight.Shape[1]
		if p.Halves != nil {
			features /= 2
		}
		isLong := p.Input.Shape[0]*p.Input.Strides[0]/boxUnit > math.MaxUint32
		if isLong || len(p.More) > 0 || b.copiesTokens(p.Groups, &rows, features) {
			layer.Input = b.region(b.dt, rows.Shape...)
			b.scatterRows(&backend.ScatterRows{Header: p.Header, Input: p.Input, Places: p.Places, Out: layer.Input})
		} else {
			b.tokens = b.tokensOf(p.Places)
			defer func() { b.tokens = nil }()
		}
		b.groupedLayer(&layer)
		return
	}
	if p.Halves == nil {
		b.parts(p, b.region)
		return
	}
	layer := *p
	layer.Rest = nil
	b.either(b.groupedGatedLinearSM90(p), func() { b.parts(&layer, b.region) })
	b.zeroRest(p.Groups, p.Rest...)
}

// copiesTokens reports whether tokens are copied to the rows of slots before a layer with so many
// hidden features.
func (b *builder) copiesTokens(ends, rows *tensor.View, features int64) bool {
	return b.hasGroups(ends, rows) && features > mostFeaturesOfTokens
}

// combinedLayer adds a layer of each group, some columns at a time, and adds up their rows. Where
// tokens are copied, there is memory for all columns.
func (b *builder) combinedLayer(p *backend.CombinedLayer) {
	const mostColumns = 1024
	rows, columns := p.Input.Shape[0], p.Weight.Shape[1]
	each := columns
	if columns > mostColumns && !b.copiesTokens(p.Groups, p.Input, p.Input.Shape[1]) {
		each = ceilDiv(ceilDiv(columns, ceilDiv(columns, mostColumns)), tileColumns) * tileColumns
	}
	product := b.region(b.dt, rows, min(each, columns))
	for first := int64(0); first < columns; first += each {
		width := min(each, columns-first)
		part := func(v *tensor.View, dimension int) *tensor.View { return narrowed(v, dimension, first, width) }
		out := narrowed(product, 1, 0, width)
		b.groupedLayer(&backend.GroupedLayer{Header: p.Header, Input: p.Input, Weight: part(p.Weight, 1), Bias: part(p.Bias, 1), Out: out})
		b.combineRows(&backend.CombineRows{Header: p.Header, Input: out, Places: p.Places, Scale: p.Scale, Out: part(p.Out, 1)})
	}
}

// narrowed is a part of a tensor along a dimension, or nil of nil.
func narrowed(v *tensor.View, dimension int, first, width int64) *tensor.View {
	if v == nil {
		return nil
	}
	part := *v
	part.Shape = slices.Clone(v.Shape)
	part.Shape[dimension] = width
	part.Offset += first * v.Strides[dimension] * v.DType.Size()
	return &part
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
		inBoxes = b.groupedLinearSM90(p.Formula, p.Bias, p.Out, p.Preactivation, p.Groups, withMore(p.A, p.B, p.More)...)
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
		first := func() { b.plainProduct(pairs[0].A, pairs[0].B, bias, out, ends, false) }
		further := func() {
			for _, pair := range pairs[1:] {
				b.plainProduct(pair.A, pair.B, nil, out, ends, true)
			}
		}
		if whole := b.groupedLinearSM90("none", bias, out, nil, ends, pairs...); whole != nil {
			b.either(whole, func() {
				first()
				further()
			})
			return
		}
		b.either(b.groupedLinearSM90("none", bias, out, nil, ends, pairs[0]), first)
		further()
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
