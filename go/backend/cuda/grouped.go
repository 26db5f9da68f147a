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

// tokenRows are rows of slots that are read where those of tokens lie.
type tokenRows struct {
	scatter *backend.ScatterRows // what would copy them
	rows    *tensor.View         // which have the memory of the tokens
	index   *tensor.View         // [rows], int32: the token of each row
}

// ofTokens adds steps that read a token's row for each of its slots, count rows in all: where it
// lies, or from a copy.
func (b *builder) ofTokens(h backend.Header, tokens, places *tensor.View, count int64, copies bool, add func(rows *tensor.View)) {
	rows := *tokens
	rows.Shape = []int64{count, tokens.Shape[1]}
	scatter := &backend.ScatterRows{Header: h, Input: tokens, Places: places}
	isLong := tokens.Shape[0]*tokens.Strides[0]/boxUnit > math.MaxUint32
	if copies || isLong {
		add(b.scattered(scatter, count))
		return
	}
	b.tokens = tokenRows{scatter, &rows, b.tokensOf(places, count)}
	add(&rows)
	b.tokens = tokenRows{}
}

// scattered copies tokens' rows into memory of their own, of this many rows.
func (b *builder) scattered(p *backend.ScatterRows, rows int64) *tensor.View {
	copied := *p
	copied.Out = b.region(b.dt, rows, p.Input.Shape[1])
	b.scatterRows(&copied)
	return copied.Out
}

// indexOf is where the rows of an operand lie, as tokens; nil where they lie in their places.
func (b *builder) indexOf(v *tensor.View) *tensor.View {
	if rows := b.tokens.rows; rows != nil && v.Operand == rows.Operand && v.Offset == rows.Offset {
		return b.tokens.index
	}
	return nil
}

// copiesTokens reports whether it is faster to copy the rows of tokens first, before a layer with
// these rows and hidden features.
func (b *builder) copiesTokens(ends *tensor.View, rows, features int64) bool {
	return b.hasGroups(sm90, ends, rows) && features > mostFeaturesOfTokens
}

// groupedLayer adds a layer of each group: one kernel for a gated one, or its parts.
func (b *builder) groupedLayer(p *backend.GroupedLayer) {
	layer := *p
	if p.Places != nil {
		features := p.Weight.Shape[1]
		if p.Halves != nil {
			features /= 2
		}
		layer.Places = nil
		b.ofTokens(p.Header, p.Input, p.Places, p.Rows(), b.copiesTokens(p.Groups, p.Rows(), features), func(rows *tensor.View) {
			layer.Input = rows
			b.groupedLayer(&layer)
		})
		return
	}
	if p.Halves == nil {
		b.parts(p, b.region)
		return
	}
	layer.Rest = nil
	b.byTiles(func(t *tileProgram) func() { return b.groupedGatedLinear(t, p) }, func() { b.parts(&layer, b.region) })
	b.zeroRest(p.Groups, p.Rest...)
}

// inColumns divides columns into equal parts of at most `most`, and adds the steps of each part.
// They share memory for the rows of one part. `part` narrows a tensor to the part's columns, along
// a dimension.
func (b *builder) inColumns(rows, columns, most int64, add func(memory *tensor.View, part func(v *tensor.View, dimension int) *tensor.View)) {
	each := columns
	if columns > most {
		each = min(ceilDiv(ceilDiv(columns, ceilDiv(columns, most)), tileColumns)*tileColumns, columns)
	}
	memory := b.region(b.dt, rows, each)
	for first := int64(0); first < columns; first += each {
		width := min(each, columns-first)
		add(narrowed(memory, 1, 0, width), func(v *tensor.View, dimension int) *tensor.View { return narrowed(v, dimension, first, width) })
	}
}

// combinedLayer adds a layer of each group and adds up its rows, of a lean one some columns at a
// time.
func (b *builder) combinedLayer(p *backend.CombinedLayer) {
	most, columns := int64(1024), p.Weight.Shape[1]
	if !p.Lean {
		most = columns
	}
	b.inColumns(p.Input.Shape[0], columns, most, func(rows *tensor.View, part func(v *tensor.View, dimension int) *tensor.View) {
		b.groupedLayer(&backend.GroupedLayer{Header: p.Header, Input: p.Input, Weight: part(p.Weight, 1), Bias: part(p.Bias, 1), Out: rows})
		b.combineRows(&backend.CombineRows{Header: p.Header, Input: rows, Places: p.Places, Scale: p.Scale, Out: part(p.Out, 1)})
	})
}

// groupedLayerBackward adds the gradients of a layer of each group. Rows of tokens are read where
// they lie beside short rows of the other operand. Else one half of their columns is copied at a
// time: each half reads the other operand once more.
func (b *builder) groupedLayerBackward(p *backend.GroupedLayerBackward) {
	const mostBesideTokens = 512
	tokens, places, other := p.Input, p.Places, p.GradOutput
	if p.GradPlaces != nil {
		tokens, places, other = p.GradOutput, p.GradPlaces, p.Input
	}
	if places == nil {
		b.parts(p, b.region)
		return
	}
	part := *p
	part.Places, part.GradPlaces = nil, nil
	rows := p.Rows()
	if other == nil || other.Shape[1] <= mostBesideTokens || !b.hasGroups(sm90, p.Groups, rows) {
		b.ofTokens(p.Header, tokens, places, rows, false, func(rows *tensor.View) {
			if p.Places != nil {
				part.Input = rows
			} else {
				part.GradOutput = rows
			}
			b.parts(&part, b.region)
		})
		return
	}
	columns := tokens.Shape[1]
	b.inColumns(rows, columns, ceilDiv(columns, 2), func(rows *tensor.View, of func(v *tensor.View, dimension int) *tensor.View) {
		b.scatterRows(&backend.ScatterRows{Header: p.Header, Input: of(tokens, 1), Places: places, Out: rows})
		half := part
		if p.Places != nil {
			half.Input, half.Weight, half.GradWeight = rows, of(p.Weight, 2), of(p.GradWeight, 2)
		} else {
			half.GradOutput, half.Weight, half.GradWeight, half.GradBias = rows, of(p.Weight, 1), of(p.GradWeight, 1), of(p.GradBias, 1)
		}
		b.parts(&half, b.region)
	})
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
// parts.
func (b *builder) groupedHiddenBackward(p *backend.GroupedHiddenBackward) {
	if p.Places != nil {
		part := *p
		part.Places = nil
		rows := p.Preactivation.Shape[0]
		b.ofTokens(p.Header, p.GradOutput, p.Places, rows, b.copiesTokens(p.Groups, rows, p.Weight.Shape[2]), func(rows *tensor.View) {
			part.GradOutput = rows
			b.groupedHiddenBackward(&part)
		})
		return
	}
	if p.Preactivation.Strides[1] != 1 && b.runs(sm80) { // which takes contiguous columns
		whole := *p
		whole.Preactivation = b.copied(p.Preactivation)
		p = &whole
	}
	launchOf := func(t *tileProgram) func() { return b.groupedHiddenBackwardBy(t, p) }
	b.byTiles(launchOf, func() { b.parts(p, b.region) })
}

// groupedEpilogue adds a product of each group with its bias and its activation.
func (b *builder) groupedEpilogue(p *backend.GemmEpilogue) {
	launchOf := func(t *tileProgram) func() {
		if p.Formula == "none" {
			return nil
		}
		return b.groupedLinear(t, p.Formula, p.Bias, p.Out, p.Preactivation, p.Groups, withMore(p.A, p.B, p.More)...)
	}
	b.byTiles(launchOf, func() { b.twoPasses(p) })
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
		launchOf := func(pairs ...backend.Pair) func(t *tileProgram) func() {
			return func(t *tileProgram) func() { return b.groupedLinear(t, "none", bias, out, nil, ends, pairs...) }
		}
		b.byTiles(launchOf(pairs...), func() {
			b.byTiles(launchOf(pairs[0]), func() { b.plainProduct(pairs[0].A, pairs[0].B, bias, out, ends, false) })
			for _, pair := range pairs[1:] {
				b.plainProduct(pair.A, pair.B, nil, out, ends, true)
			}
		})
		return
	}
	left, right, out := p.View(lower.Right, p.K, p.N), p.View(lower.Left, p.K, p.M), p.View(lower.Out, p.Batch, p.N, p.M)
	launchOf := func(t *tileProgram) func() { return b.groupedWeightGradient(t, left, right, out, ends) }
	b.byTiles(launchOf, func() { b.plainDepth(left, right, out, ends) })
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
