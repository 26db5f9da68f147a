//go:build cgo

package webgpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// What kernels/webgpu/gemm.wgsl does in one group of threads. A tile has one or two times tileSize rows and columns.
const (
	tileSize  = 64
	tileDepth = 16
)

// product is out[batch, m, n] = act(sum over k of a[batch, m, k] b[batch, k, n] + bias[n]), and pre the same without act. Each of the four is a list of dimensions, walked as
// one: for each, which dimension of an operand it is, or -1.
type product struct {
	a, b, bias, out, pre *tensor.View
	batch, m, n, k       []axis
	kind                 string
	accumulates          bool
}

// axis is one dimension of a product.
type axis struct {
	size      int64
	a, b, out int
}

// gemmEpilogue adds out = act(a b + bias).
func (b *builder) gemmEpilogue(p *backend.GemmEpilogue) error {
	in, out := b.inputs(p.A, p.B, p.Bias), b.outputs(p.Out, p.Preactivation)
	return b.preactivation(in[0], in[1], in[2], out[0], out[1], p.BatchRank, p.Kind)
}

// preactivation adds pre = a b + bias and out = act(pre), from the sum before it is rounded.
func (b *builder) preactivation(left, right, bias, out, pre *tensor.View, batchRank int, kind string) error {
	p := product{a: left, b: right, bias: bias, out: out, pre: pre, kind: kind}
	last := left.Rank() - 1
	result := out
	if out == nil {
		result = pre
	}
	for d := range batchRank {
		p.batch = append(p.batch, axis{result.Shape[d], d, d, d})
	}
	for d := batchRank; d < last; d++ {
		p.m = append(p.m, axis{result.Shape[d], d, -1, d})
	}
	p.k = []axis{{left.Shape[last], last, batchRank, -1}}
	p.n = []axis{{result.Shape[last], -1, batchRank + 1, last}}
	return b.multiply(p)
}

// gemmEpilogueBackward adds grad_preactivation, rounded to the storage dtype, the bias gradient from the unrounded values, and the two products. Whatever is not asked for
// is not computed.
func (b *builder) gemmEpilogueBackward(p *backend.GemmEpilogueBackward) error {
	in := b.inputs(p.GradOutput, p.A, p.B, p.Bias, p.Preactivation, p.Output)
	gradient, left, right, saved := in[0], in[1], in[2], in[4]
	f := gradPreactivation(p.Kind, false)
	switch {
	case p.Kind == "none":
		saved = nil
	case in[5] != nil:
		f, saved = gradPreactivation(p.Kind, true), in[5]
	case saved == nil:
		saved = b.region(p.DType, p.GradOutput.Shape...)
		if err := b.preactivation(left, right, in[3], nil, saved, p.BatchRank, "none"); err != nil {
			return err
		}
	}
	inputs := []*tensor.View{gradient, saved}
	if p.GradBias != nil {
		bias := *b.place(p.GradBias, hostOutput, true)
		for bias.Rank() < gradient.Rank() {
			bias = bias.Unsqueeze(0)
		}
		f.accumulates = true
		if err := b.sums(f, []*tensor.View{&bias}, inputs); err != nil {
			return err
		}
		f.accumulates = false
	}
	if p.Kind != "none" && (p.GradA != nil || p.GradB != nil) {
		gradient = b.region(p.DType, p.GradOutput.Shape...)
		if err := b.elementwise(f, []*tensor.View{gradient}, inputs); err != nil {
			return err
		}
	}
	if p.GradA != nil {
		if err := b.gradA(p, gradient, right); err != nil {
			return err
		}
	}
	if p.GradB != nil {
		return b.gradB(p, gradient, left)
	}
	return nil
}

// gradA adds grad_a = g bᵀ. Batch dimensions that a was broadcast over are summed: they are part of the contraction.
func (b *builder) gradA(p *backend.GemmEpilogueBackward, g, right *tensor.View) error {
	rank, last := p.BatchRank, g.Rank()-1
	q := product{a: g, b: right, out: b.place(p.GradA, hostOutput, false), kind: "none"}
	for d := range rank {
		q.sumOrKeep(axis{g.Shape[d], d, d, d})
	}
	for d := rank; d < last; d++ {
		q.m = append(q.m, axis{g.Shape[d], d, -1, d})
	}
	q.k = append(q.k, axis{g.Shape[last], last, rank + 1, -1})
	q.n = []axis{{right.Shape[rank], -1, rank, last}}
	return b.multiply(q)
}

// gradB adds grad_b = aᵀ g, summed over all rows and over the batch dimensions that b was broadcast over.
func (b *builder) gradB(p *backend.GemmEpilogueBackward, g, left *tensor.View) error {
	rank, last := p.BatchRank, g.Rank()-1
	q := product{a: left, b: g, out: b.place(p.GradB, hostOutput, true), kind: "none", accumulates: true}
	for d := range rank {
		q.sumOrKeep(axis{g.Shape[d], d, d, d})
	}
	for d := rank; d < last; d++ {
		q.k = append(q.k, axis{g.Shape[d], d, d, -1})
	}
	q.m = []axis{{left.Shape[last], last, -1, rank}}
	q.n = []axis{{g.Shape[last], -1, last, rank + 1}}
	return b.multiply(q)
}

// sumOrKeep puts a batch dimension among the batch, or where the result has the size 1 among the contraction.
func (p *product) sumOrKeep(x axis) {
	if p.out.Shape[x.out] != x.size {
		p.k = append(p.k, axis{x.size, x.a, x.b, -1})
		return
	}
	p.batch = append(p.batch, x)
}

// multiply adds a product. Where outputs cannot be written in place, or the contraction is cut, float32 sums lie in between.
func (b *builder) multiply(p product) error {
	result := p.out
	if result == nil {
		result = p.pre
	}
	if result.IsEmpty() {
		return nil
	}
	outputs := []*tensor.View{p.out, p.pre}
	sums := (*tensor.View)(nil)
	if count(p.k) > 0 {
		if tiles, ok := b.tiles(p); ok {
			return b.multiplyTiles(p, tiles)
		}
		sums = b.region(dtype.Float32, result.Shape...)
		q := p
		q.out, q.pre, q.bias, q.accumulates = nil, sums, nil, false
		tiles, _ := b.tiles(q)
		if err := b.multiplyTiles(q, tiles); err != nil {
			return err
		}
	}
	var bias *tensor.View
	if p.bias != nil {
		expanded, err := p.bias.Expand(result.Shape)
		if err != nil {
			return err
		}
		bias = &expanded
	}
	return b.elementwise(formula{name: "epilogue", kind: p.kind, accumulates: p.accumulates}, outputs, []*tensor.View{sums, bias})
}

func count(axes []axis) int64 {
	n := int64(1)
	for _, x := range axes {
		n *= x.size
	}
	return n
}

// operands are a product's, with their dimensions in the order batch, m, n, k.
func (p *product) operands() []operand {
	var all []operand
	add := func(v *tensor.View, place int, dimension func(x axis, group int) int) {
		if v == nil {
			return
		}
		seen := *v
		seen.Shape, seen.Strides = nil, nil
		for group, axes := range [][]axis{p.batch, p.m, p.n, p.k} {
			for _, x := range axes {
				stride := int64(0)
				if d := dimension(x, group); d >= 0 {
					stride = v.Strides[d]
				}
				seen.Shape, seen.Strides = append(seen.Shape, x.size), append(seen.Strides, stride)
			}
		}
		all = append(all, operand{view: &seen, place: place, written: place < 2, accumulates: place < 2 && p.accumulates})
	}
	const columns = 2
	add(p.out, 0, func(x axis, _ int) int { return x.out })
	add(p.pre, 1, func(x axis, _ int) int { return x.out })
	add(p.a, 2, func(x axis, _ int) int { return x.a })
	add(p.b, 3, func(x axis, _ int) int { return x.b })
	add(p.bias, 4, func(_ axis, group int) int {
		if group == columns {
			return 0
		}
		return -1
	})
	return all
}

// tile is a part of a product that one dispatch can do: the loops over the batch, m, n and k.
type tile struct {
	groups [4]loops
	// adds: sums are added to what a tile before this one has left, which had the first part of the contraction.
	adds bool
}

const (
	ofBatch = iota
	ofRows
	ofColumns
	ofDepth
)

// tiles cuts a product into those that a dispatch can do, and says whether outputs can be written by that: not where the contraction is cut, and not where an output's
// 16-bit elements share words across rows.
func (b *builder) tiles(p product) ([]tile, bool) {
	all := p.operands()
	var whole tile
	from := 0
	for group, axes := range [4][]axis{p.batch, p.m, p.n, p.k} {
		part := make([]operand, len(all))
		for i, o := range all {
			view := *o.view
			view.Shape, view.Strides = view.Shape[from:from+len(axes)], view.Strides[from:from+len(axes)]
			if group != ofBatch {
				view.Offset = 0
			}
			part[i] = o
			part[i].view = &view
		}
		whole.groups[group] = loopsOf(part)
		from += len(axes)
	}
	list := b.cutTile(whole, all)
	for _, t := range list {
		if t.adds && (p.pre == nil || p.pre.DType != dtype.Float32 || p.out != nil || p.bias != nil) {
			return nil, false
		}
		for i, o := range all {
			if o.written && isHalf(o.view.DType) && !t.quads(i, ofColumns) {
				return nil, false
			}
		}
	}
	return list, true
}

// quads reports whether an operand's elements can be taken four at a time along one group of loops: they lie side by side, each time from a multiple of four on.
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
	second.adds = t.adds || group == ofDepth
	return append(b.cutTile(first, all), b.cutTile(second, all)...)
}

// multiplyTiles adds the dispatches.
func (b *builder) multiplyTiles(p product, tiles []tile) error {
	for _, x := range tiles {
		whole, single := b.tileStep(p, x, true), b.tileStep(p, x, false)
		whole.unaligned = single
		if err := b.dispatch(whole); err != nil {
			return err
		}
	}
	return nil
}

// tileStep is the dispatch that does a tile, with those operands in quads that can be, or none.
func (b *builder) tileStep(p product, x tile, quads bool) *step {
	all := p.operands()
	deep := make([]bool, len(all)) // in quads along k
	for i, o := range all {
		all[i].accumulates = o.written && (x.adds || p.accumulates)
		along := map[int]int{2: ofRows, 3: ofColumns}
		if o.written {
			along[o.place] = ofColumns
		}
		group, ok := along[o.place]
		all[i].quads = quads && ok && x.quads(i, group)
		deep[i] = b.readsAlongK && quads && ok && !o.written && !all[i].quads && x.quads(i, ofDepth)
		all[i].quads = all[i].quads || deep[i]
	}
	t := b.template("gemm", formula{name: "gemm", kind: p.kind}, all)
	t.name = strings.Replace(t.name, "gemm_gemm", "gemm_epilogue", 1)
	at := func(place int) int { return slices.IndexFunc(all, func(o operand) bool { return o.place == place }) }
	t.definitions["A"], t.definitions["B"], t.definitions["BIASES"] = strconv.Itoa(at(2)), strconv.Itoa(at(3)), ""
	if p.bias != nil {
		t.definitions["BIASES"] = strconv.Itoa(at(4))
	}
	t.definitions["A_ALONG"] = along(x.groups[ofDepth], x.groups[ofRows], at(2), deep)
	t.definitions["B_ALONG"] = along(x.groups[ofDepth], x.groups[ofColumns], at(3), deep)
	for i, is := range deep {
		if is {
			t.definitions[fmt.Sprintf("DEEP%d", i)] = "yes"
		}
	}
	t.definitions["K_FLAT"] = ""
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
	tiling := b.tilingOf(x)
	tiling.define(t.definitions)
	t.definitions["SUM_OF_SUMS"] = ""
	if !isHalf(b.dt) { // where 16 bits are stored, they hide the error of a long sum
		t.definitions["SUM_OF_SUMS"] = "yes"
	}
	return &step{
		template: t, params: params.bytes,
		groups: [3]uint32{uint32(x.tiles(ofColumns, tiling.parts)), uint32(x.tiles(ofRows, tiling.parts)), uint32(x.groups[ofBatch].count())},
	}
}
