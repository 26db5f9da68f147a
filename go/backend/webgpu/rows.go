//go:build cgo

package webgpu

import (
	"fmt"
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// The parts of an index of kernels/webgpu/rows.wgsl.
const (
	byColumn = iota
	bySlot
	byToken
	byName // a row or a group that data names
)

// rowOperand is a tensor of a kernel of rows.wgsl.
type rowOperand struct {
	name string
	view *tensor.View // nil for one that is absent
	is   []int        // the part of the index that each dimension is walked by
	out  bool
}

// moves are what a kernel of rows.wgsl does: the sizes of a thread's index, and parameters.
type moves struct {
	name                    string
	columns, slots, tokens  int64
	split, terms, run, x, y int64
	rows                    int64 // a name from here on is none
	wide                    bool
}

// move adds a dispatch of rows.wgsl.
func (b *builder) move(m moves, list ...rowOperand) {
	count := m.columns * m.slots * m.tokens
	if count == 0 {
		return
	}
	definitions := map[string]string{"MOVE": m.name, "WIDE": ""}
	if m.wide {
		definitions["WIDE"] = "yes"
	}
	var all []operand
	var strides [][]int64
	for _, o := range list {
		definitions[o.name] = ""
		if o.view == nil {
			continue
		}
		if o.view.IsEmpty() {
			return
		}
		definitions[o.name] = fmt.Sprint(len(all))
		all = append(all, operand{view: o.view, place: len(all), written: o.out})
		steps := make([]int64, byName+1)
		for d, part := range o.is {
			steps[part] = o.view.Strides[d]
		}
		strides = append(strides, steps)
	}
	t := b.template("rows", formula{name: m.name}, all)
	for name, value := range definitions {
		t.definitions[name] = value
	}
	for _, o := range all {
		low, high := reach(o.view.Shape, o.view.Strides)
		size := o.view.DType.Size()
		at := o.view.Offset / size
		if (high-low+1)*size+b.limits.alignment > b.limits.bindingBytes {
			b.failed = status.Errorf(status.Unsupported, "%s: got %d bytes of rows, want at most %d, the adapter's binding size: use smaller tensors",
				b.op, (high-low+1)*size, b.limits.bindingBytes-b.limits.alignment)
		}
		t.bindings = append(t.bindings, binding{
			slot: o.view.Operand, base: at * size, from: (at + low) * size, to: (at + high + 1) * size, size: size, written: o.written,
		})
	}
	turns := m.run
	if turns == 0 {
		turns = m.terms
	}
	if count > b.mostIndices() || turns > b.limits.trips {
		b.failed = status.Errorf(status.Unsupported, "%s: got %d indices and a loop of %d turns, want at most %d and %d on this adapter",
			b.op, count, turns, b.mostIndices(), b.limits.trips)
	}
	p := newParams([]int64{m.columns, m.slots, m.tokens, 1}, strides)
	p.set(0, count)
	p.set(20, m.split)
	p.set(24, m.terms)
	p.set(28, m.run)
	p.set(32, m.x)
	p.set(36, m.y)
	p.set(40, m.rows)
	b.dispatch(&step{template: t, params: p.bytes, groups: b.grid(p, count)})
}

// words views a tensor of 64-bit integers as pairs of 32-bit words. `low` has the lower halves; the
// higher half of each is `high` words further on.
func (b *builder) words(v *tensor.View) (low *tensor.View, high int64) {
	pairs := *v
	pairs.DType = dtype.Int32
	pairs.Shape, pairs.Strides = append(slices.Clone(v.Shape), 2), append(slices.Clone(v.Strides), 1)
	for d := range v.Strides {
		pairs.Strides[d] *= 2
	}
	placed := b.input(&pairs)
	return placed, placed.Strides[v.Rank()]
}

// zero adds the pass that writes zeros.
func (b *builder) zero(v *tensor.View) {
	bits := *v
	if v.DType == dtype.Int32 {
		bits.DType = dtype.Float32
	}
	b.elementwise(formula{name: "epilogue"}, []*tensor.View{&bits}, nil)
}

func (b *builder) groupEnds(p *backend.GroupEnds) {
	m := moves{name: "ends", columns: 1, slots: 1, tokens: 1, terms: p.Ends.Shape[0], x: p.Rows}
	var offsets *tensor.View
	if m.wide = p.Offsets.DType == dtype.Int64; m.wide {
		offsets, m.split = b.words(p.Offsets)
	} else {
		offsets = b.input(p.Offsets)
	}
	b.move(m, rowOperand{"TO", b.output(p.Ends), []int{byName}, true}, rowOperand{"FROM", offsets, []int{byName}, false})
}

// route counts the slots of each group in chunks, adds them up, and finds the places of each
// chunk's.
func (b *builder) route(p *backend.Route) {
	const leastChunk, mostChunks = 256, 1 << 15
	groups, slots := p.Ends.Shape[0], p.Index.Numel()
	ends, places := b.output(p.Ends), b.output(p.Places)
	if slots == 0 {
		b.zero(ends)
		return
	}
	index, high := b.words(p.Index)
	run := max(leastChunk, ceilDiv(slots, mostChunks))
	chunks := ceilDiv(slots, run)
	m := moves{
		name: "count", columns: groups, slots: 1, tokens: chunks, split: high, terms: slots, run: run, x: p.Index.Shape[1], y: groups, rows: p.Rows,
	}
	ofSlots, to := rowOperand{"INDEX", index, []int{byToken, bySlot}, false}, rowOperand{"TO", places, []int{byToken, bySlot}, true}
	if groups == 0 {
		m.name, m.columns = "place", 1
		b.move(m, to, ofSlots, rowOperand{name: "BEFORE"}, rowOperand{name: "ENDS"})
		return
	}
	counts, before, totals := b.region(dtype.Int32, chunks, groups), b.region(dtype.Int32, chunks, groups), b.region(dtype.Int32, groups)
	b.move(m, rowOperand{"TO", counts, []int{byToken, byColumn}, true}, ofSlots)
	b.move(moves{name: "scan", columns: groups, slots: 1, tokens: 1, terms: chunks},
		rowOperand{"TO", before, []int{byName, byColumn}, true}, rowOperand{"TOTALS", totals, []int{byColumn}, true},
		rowOperand{"FROM", counts, []int{byName, byColumn}, false})
	// Twice: a kernel that writes places cannot read ends that share their memory.
	own := b.region(dtype.Int32, groups)
	for _, v := range []*tensor.View{ends, own} {
		b.move(moves{name: "add", columns: 1, slots: 1, tokens: 1, terms: groups, rows: p.Rows},
			rowOperand{"TO", v, []int{byName}, true}, rowOperand{"FROM", totals, []int{byColumn}, false})
	}
	m.name = "place"
	b.move(m, to, ofSlots, rowOperand{"BEFORE", before, []int{byToken, byColumn}, false}, rowOperand{"ENDS", own, []int{byName}, false})
}

func (b *builder) scatterRows(p *backend.ScatterRows) {
	tokens, each := p.Places.Shape[0], p.Places.Shape[1]
	places := rowOperand{"PLACES", b.input(p.Places), []int{byToken, bySlot}, false}
	if p.Out != nil {
		b.move(moves{name: "scatter", columns: p.Out.Shape[1], slots: each, tokens: tokens, rows: p.Rows()},
			rowOperand{"TO", b.output(p.Out), []int{byName, byColumn}, true},
			rowOperand{"FROM", b.input(p.Input), []int{byToken, byColumn}, false}, places)
	}
	if p.Scales == nil {
		return
	}
	b.move(moves{name: "scatter", columns: 1, slots: each, tokens: tokens, rows: p.Rows()},
		rowOperand{"TO", b.output(p.Scales), []int{byName}, true},
		rowOperand{"FROM", b.input(p.Scale), []int{byToken, bySlot}, false}, places)
}

func (b *builder) combineRows(p *backend.CombineRows) {
	each := p.Places.Shape[1]
	if each == 0 || p.Input.Shape[0] == 0 {
		b.zero(p.Out)
		return
	}
	b.move(moves{name: "combine", columns: p.Out.Shape[1], slots: 1, tokens: p.Out.Shape[0], terms: each, rows: p.Input.Shape[0]},
		rowOperand{"TO", p.Out, []int{byToken, byColumn}, true},
		rowOperand{"FROM", p.Input, []int{byName, byColumn}, false},
		rowOperand{"PLACES", p.Places, []int{byToken, bySlot}, false},
		rowOperand{"SCALE", p.Scale, []int{byToken, bySlot}, false})
}

func (b *builder) scaleGradient(p *backend.ScaleGradient) {
	if p.Sums.IsEmpty() {
		b.zero(b.output(p.GradScale))
		return
	}
	m := moves{name: "scale_gradient", columns: 1, slots: p.Places.Shape[1], tokens: p.Places.Shape[0]}
	slots := []int{byToken, bySlot}
	list := []rowOperand{
		{"TO", b.output(p.GradScale), slots, true},
		{"FROM", b.input(p.Sums), []int{byName}, false},
		{"PLACES", b.input(p.Places), slots, false},
		{name: "BIAS"},
		{name: "GRAD"},
		{name: "INDEX"},
	}
	if p.Bias != nil && !p.Bias.IsEmpty() {
		index, _ := b.words(p.Index)
		m.terms = p.Bias.Shape[1]
		list[3] = rowOperand{"BIAS", b.input(p.Bias), []int{byName, byColumn}, false}
		list[4] = rowOperand{"GRAD", b.input(p.GradOutput), []int{byToken, byColumn}, false}
		list[5] = rowOperand{"INDEX", index, slots, false}
	}
	b.move(m, list...)
}

// scaleRows sums products of elements along the rows, and multiplies rows by their scales.
func (b *builder) scaleRows(p *backend.ScaleRows) {
	both, product := []*tensor.View{b.input(p.Grad), b.input(p.Hidden)}, formula{name: "product"}
	if p.Sums != nil {
		sums := b.output(p.Sums).Unsqueeze(1)
		b.sums(product, []*tensor.View{&sums}, both)
	}
	scales := b.input(p.Scales)
	for i, scaled := range []*tensor.View{p.Grad, p.Hidden} {
		if is := [2]bool{p.ScalesGrad, p.ScalesHidden}[i]; !is {
			continue
		}
		column := *scales
		column.Shape, column.Strides = scaled.Shape, []int64{scales.Strides[0], 0}
		b.elementwise(product, []*tensor.View{b.output(scaled)}, []*tensor.View{both[i], &column})
	}
}

// zeroRows zeros rows of what has other rows already.
func (b *builder) zeroRows(p *backend.ZeroRows) {
	groups := b.input(p.Groups)
	for _, v := range p.Outputs {
		if v == nil || v.IsEmpty() {
			continue
		}
		out := b.output(v)
		if groups.IsEmpty() {
			b.zero(out)
			continue
		}
		b.slots[out.Operand].keeps = true
		b.move(moves{name: "zero", columns: v.Shape[1], slots: 1, tokens: v.Shape[0], terms: groups.Shape[0]},
			rowOperand{"TO", out, []int{byToken, byColumn}, true}, rowOperand{"FROM", groups, []int{byName}, false})
	}
}

// sumRows adds sums[e] = the sum over the rows of group e of scale input: a product along the rows.
func (b *builder) sumRows(groups, input, scales, sums *tensor.View) {
	column, wide := scales.Unsqueeze(1), sums.Unsqueeze(1)
	made := lower.Gradients(&backend.GemmEpilogueBackward{
		Header: backend.Header{Formula: "none", DType: b.dt, Groups: groups}, GradOutput: input, A: &column, GradB: &wide,
	}, b.region)
	b.multiply(made.B)
}

// biasSums is sums for biases: with groups, of each one's rows.
func (b *builder) biasSums(f formula, groups *tensor.View, sums, inputs []*tensor.View) {
	if groups == nil {
		b.sums(f, sums, inputs)
		return
	}
	terms := make([]*tensor.View, len(sums))
	for i, sum := range sums {
		if sum != nil {
			terms[i] = b.region(dtype.Float32, inputs[0].Shape...)
		}
	}
	f.accumulates = false // it is the sums that do
	b.elementwise(f, terms, inputs)
	one := b.region(dtype.Float32, 1)
	b.elementwise(formula{name: "one"}, []*tensor.View{one}, nil)
	ones := *one
	ones.Shape, ones.Strides = inputs[0].Shape[:1], []int64{0}
	for i, sum := range sums {
		if sum == nil {
			continue
		}
		b.sumRows(groups, terms[i], &ones, sum)
	}
}
