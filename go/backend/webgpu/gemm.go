//go:build cgo

package webgpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// What kernels/webgpu/gemm.wgsl does in one group of threads. A tile has one or two times tileSize
// rows and columns.
const (
	tileSize  = 64
	tileDepth = 16
)

// gemmEpilogueBackward adds the steps of a backward. The pass is one dispatch for
// grad_preactivation and others for the sums.
func (b *builder) gemmEpilogueBackward(p *backend.GemmEpilogueBackward) {
	made := lower.Gradients(p, b.region)
	if made.Recompute != nil {
		b.multiply(lower.Forward(made.Recompute))
	}
	if pass := made.Pass; pass != nil {
		b.slopes(gradPreactivation(pass.Formula, pass.FromOutput), pass.Groups, []*tensor.View{pass.GradBias}, []*tensor.View{pass.GradPreactivation},
			[]*tensor.View{pass.GradOutput, pass.Saved})
	}
	for _, product := range made.Products() {
		b.multiply(product)
	}
}

// multiply adds a product. Where outputs cannot be written in place, the contraction is cut, or
// there are several pairs, float32 sums lie in between.
func (b *builder) multiply(p *lower.Product) {
	if lower.Count(p.Batch, p.M, p.N) == 0 {
		return
	}
	// Rows are of all groups at once, but for their biases, which are added to the sums.
	groupedRows := p.Views[lower.Ends] != nil && p.ByRows
	results := func(q *lower.Product) [][]lower.Dim {
		if groupedRows {
			return [][]lower.Dim{q.M, q.N}
		}
		return [][]lower.Dim{q.Batch, q.M, q.N}
	}
	if groupedRows && lower.Count(p.K) == 0 {
		p = b.ofZeros(p)
	}
	if p.Next == nil && lower.Count(p.K) > 0 {
		if tiles, ok := b.tiles(p); ok {
			b.multiplyTiles(p, tiles)
			return
		}
	}
	var region, sums *tensor.View
	for pair := p; pair != nil; pair = pair.Next {
		if lower.Count(pair.K) == 0 {
			continue
		}
		q := *pair
		q.Batch, q.M, q.N, q.Accumulates = slices.Clone(q.Batch), slices.Clone(q.M), slices.Clone(q.N), false
		lower.Contiguous(lower.Preactivation, results(&q)...)
		q.Views[lower.Out] = nil
		if !groupedRows {
			q.Views[lower.Bias] = nil
		}
		adds := region != nil
		if !adds {
			region = b.region(dtype.Float32, lower.Count(results(&q)...))
		}
		q.Views[lower.Preactivation] = region
		sums = q.View(lower.Preactivation, results(&q)...)
		tiles, _ := b.tiles(&q)
		for i := range tiles {
			tiles[i].adds = tiles[i].adds || adds
		}
		b.multiplyTiles(&q, tiles)
	}
	bias := p.View(lower.Bias, results(p)...)
	if sums != nil && groupedRows {
		bias = nil // which the sums have
	}
	b.elementwise(formula{name: "epilogue", kind: p.Formula, accumulates: p.Accumulates},
		[]*tensor.View{p.View(lower.Out, results(p)...), p.View(lower.Preactivation, results(p)...)}, []*tensor.View{sums, bias})
}

// ofZeros turns a product over no terms into one of zeros with a single term: only a kernel of
// groups can tell which bias is a row's.
func (b *builder) ofZeros(p *lower.Product) *lower.Product {
	q := *p
	zero := b.region(dtype.Float32, 1)
	b.zero(zero)
	q.Views[lower.Left], q.Views[lower.Right] = zero, zero
	q.Batch, q.M, q.N, q.K = slices.Clone(p.Batch), slices.Clone(p.M), slices.Clone(p.N), []lower.Dim{{Size: 1}}
	for _, group := range [][]lower.Dim{q.Batch, q.M, q.N} {
		for d := range group {
			group[d].Strides[lower.Left], group[d].Strides[lower.Right] = 0, 0
		}
	}
	return &q
}

// operandsOf are a product's, with their dimensions in the order batch, m, n, k.
func operandsOf(p *lower.Product) []operand {
	var all []operand
	for place := range p.Views {
		if v := p.View(place, p.Batch, p.M, p.N, p.K); v != nil {
			written := place == lower.Out || place == lower.Preactivation
			all = append(all, operand{view: v, place: place, written: written, accumulates: written && p.Accumulates})
		}
	}
	return all
}

// tile is a part of a product that one dispatch can do: the loops over the batch, m, n and k.
type tile struct {
	groups [4]loops
	from   [4]int64 // where these begin in the product's, which are one loop each where it matters
	// adds: sums are added to what a tile before this one has left, which had the first part of the
	// contraction.
	adds bool
}

const (
	ofBatch = iota
	ofRows
	ofColumns
	ofDepth
)

// tiles cuts a product into those that a dispatch can do, and says whether outputs can be written
// by that: not where the contraction is cut, and not where an output's 16-bit elements share words
// across rows.
func (b *builder) tiles(p *lower.Product) ([]tile, bool) {
	all := operandsOf(p)
	var whole tile
	for group, dims := range [4][]lower.Dim{p.Batch, p.M, p.N, p.K} {
		part := slices.Clone(all)
		for i := range part {
			part[i].view = p.View(part[i].place, dims)
			if group != ofBatch {
				part[i].view.Offset = 0
			}
		}
		whole.groups[group] = loopsOf(part)
	}
	list, pre := b.cutTile(whole, all), p.Views[lower.Preactivation]
	for _, t := range list {
		grouped := p.Views[lower.Ends] != nil
		if t.adds && (pre == nil || pre.DType != dtype.Float32 || p.Views[lower.Out] != nil || p.Views[lower.Bias] != nil && !grouped) {
			return nil, false
		}
		for i, o := range all {
			if !grouped && o.written && o.view.DType.IsHalf() && !t.quads(i, ofColumns) {
				return nil, false
			}
		}
	}
	return list, true
}

// quads reports whether an operand's elements can be taken four at a time along one group of loops:
// they lie side by side, each time from a multiple of four on.
func (t *tile) quads(i, along int) bool {
	across := t.groups[along]
	if len(across.shape) != 1 || across.strides[i][0] != 1 || across.shape[0]%4 != 0 {
		return false
	}
	for group := range t.groups {
		if t.groups[group].offsets[i]%4 != 0 {
			return false
		}
		if group != along && slices.ContainsFunc(t.groups[group].strides[i], func(stride int64) bool { return stride%4 != 0 }) {
			return false
		}
	}
	return true
}

// without is the tile without an operand.
func (t tile) without(i int) tile {
	for g, l := range t.groups {
		t.groups[g] = loops{l.shape, slices.Delete(slices.Clone(l.strides), i, i+1), slices.Delete(slices.Clone(l.offsets), i, i+1)}
	}
	return t
}

// together are the four loops as one.
func (t *tile) together() loops {
	first := t.groups[0]
	l := loops{slices.Clone(first.shape), make([][]int64, len(first.strides)), slices.Clone(first.offsets)}
	for i := range l.strides {
		l.strides[i] = slices.Clone(first.strides[i])
	}
	for _, group := range t.groups[1:] {
		l.shape = append(l.shape, group.shape...)
		for i := range l.strides {
			l.strides[i] = append(l.strides[i], group.strides[i]...)
			l.offsets[i] += group.offsets[i]
		}
	}
	return l
}

// cutTile cuts until operands, groups and trips are within the limits.
func (b *builder) cutTile(t tile, all []operand) []tile {
	most := [4]int64{b.limits.groups, b.limits.groups * tileSize, b.limits.groups * tileSize, b.limits.trips * tileDepth}
	group, dim := -1, 0
	for g, limit := range most {
		if t.groups[g].count() > limit {
			group = g
		}
	}
	if l := t.together(); group < 0 {
		if at, cut := b.tooFar(l, all, 1<<62); cut {
			for group = 0; at >= len(t.groups[group].shape); group++ {
				at -= len(t.groups[group].shape)
			}
			dim = at
		}
	}
	if group < 0 {
		return []tile{t}
	}
	halves := t.groups[group].halves(dim)
	first, second := t, t
	first.groups[group], second.groups[group] = halves[0], halves[1]
	second.from[group] += halves[0].count()
	second.adds = t.adds || group == ofDepth
	b.dividesDepth = b.dividesDepth || second.adds
	return append(b.cutTile(first, all), b.cutTile(second, all)...)
}

// multiplyTiles adds the dispatches.
func (b *builder) multiplyTiles(p *lower.Product, tiles []tile) {
	for _, x := range tiles {
		step := b.tileStep(p, x, false)
		if p.Views[lower.Ends] == nil { // groups begin anywhere
			single := step
			step = b.tileStep(p, x, true)
			step.unaligned = single
		}
		b.dispatch(step)
	}
}

// tileStep is the dispatch that does a tile, with those operands in quads that can be, or none.
func (b *builder) tileStep(p *lower.Product, x tile, quads bool) *step {
	all := operandsOf(p)
	if bias := slices.IndexFunc(all, func(o operand) bool { return o.place == lower.Bias }); x.adds && bias >= 0 {
		// the tile before this one has added it
		all, x = slices.Delete(all, bias, bias+1), x.without(bias)
	}
	deep := make([]bool, len(all)) // in quads along k
	for i, o := range all {
		all[i].accumulates = o.written && (x.adds || p.Accumulates)
		along := map[int]int{lower.Left: ofRows, lower.Right: ofColumns}
		if o.written {
			along[o.place] = ofColumns
		}
		group, ok := along[o.place]
		all[i].quads = quads && ok && x.quads(i, group)
		deep[i] = b.readsAlongK && quads && ok && !o.written && !all[i].quads && x.quads(i, ofDepth)
		all[i].quads = all[i].quads || deep[i]
	}
	t := b.template("gemm", formula{name: "gemm", kind: p.Formula}, all)
	t.name = strings.Replace(t.name, "gemm_gemm", "gemm_epilogue", 1)
	at := func(place int) int { return slices.IndexFunc(all, func(o operand) bool { return o.place == place }) }
	t.definitions["A"], t.definitions["B"], t.definitions["BIASES"] = strconv.Itoa(at(lower.Left)), strconv.Itoa(at(lower.Right)), ""
	if at(lower.Bias) >= 0 {
		t.definitions["BIASES"] = strconv.Itoa(at(lower.Bias))
	}
	t.definitions["A_ALONG"] = along(x.groups[ofDepth], x.groups[ofRows], at(lower.Left), deep)
	t.definitions["B_ALONG"] = along(x.groups[ofDepth], x.groups[ofColumns], at(lower.Right), deep)
	for i, is := range deep {
		if is {
			t.definitions[fmt.Sprintf("DEEP%d", i)] = "yes"
		}
	}
	t.definitions["ENDS"], t.definitions["DOWN"], t.definitions["K_FLAT"] = "", "", ""
	if len(x.groups[ofDepth].shape) <= 1 {
		t.definitions["K_FLAT"] = "yes"
	}
	if x.adds {
		t.definitions["ACCUMULATES"] = "always"
	}
	l := x.together()
	t.bind(all, l.offsets, l.shape, l.strides)
	var shape []int64
	strides := make([][]int64, len(all))
	var ends [4]int64
	for place, group := range []int{ofRows, ofColumns, ofDepth, ofBatch} {
		sizes, steps := reversed(x.groups[group])
		shape = append(shape, sizes...)
		for i := range strides {
			strides[i] = append(strides[i], steps[i]...)
		}
		ends[place] = int64(len(shape))
	}
	params := newParams(shape, strides)
	params.set(paramAccumulate, 1)
	for i, size := range []int64{x.groups[ofRows].count(), x.groups[ofColumns].count(), x.groups[ofDepth].count(), 0} {
		params.set(32+4*i, size)
		params.set(48+4*i, ends[i])
	}
	if ends := p.Views[lower.Ends]; ends != nil {
		rows := ofRows
		t.definitions["ENDS"] = strconv.Itoa(at(lower.Ends))
		if !p.ByRows {
			t.definitions["DOWN"], rows = "yes", ofDepth
		}
		params.set(4, ends.Strides[0])
		params.set(20, x.from[ofBatch])
		params.set(24, x.from[rows])
		params.set(28, x.from[rows]+x.groups[rows].count())
	}
	tiling := b.tilingOf(x)
	tiling.define(t.definitions)
	t.definitions["SUM_OF_SUMS"] = ""
	if !b.dt.IsHalf() { // where 16 bits are stored, they hide the error of a long sum
		t.definitions["SUM_OF_SUMS"] = "yes"
	}
	return &step{
		template: t, params: params.bytes,
		groups: [3]uint32{uint32(x.tiles(ofColumns, tiling.parts)), uint32(x.tiles(ofRows, tiling.parts)), uint32(x.groups[ofBatch].count())},
	}
}
