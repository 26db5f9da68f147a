//go:build cgo

package cuda

import (
	"slices"

	"github.com/epigrad/epigrad/go/tensor"
)

// mostUnrounded is the most bytes of slopes that are kept unrounded at a time, to be summed; tests
// change it.
var mostUnrounded int64 = 64 << 20

// groupSums are sums of each group's rows, which may be added to.
type groupSums struct {
	ends, scales *tensor.View
	sums         *tensor.View // [e, n]
	partials     *tensor.View
	// rows of a chunk, which has `parts` partial sums. Chunks are a group's tiles, or begin at
	// multiples of rows.
	rows, parts int64
	ofTiles     bool
}

// groupSums makes room for the partial sums.
func (b *builder) groupSums(sums, scales, ends *tensor.View, rows int64) *groupSums {
	g := &groupSums{ends: ends, scales: scales, sums: sums, rows: sumRows, parts: 1}
	g.partials = b.region(b.dt.Accumulator(), ceilDiv(rows, sumRows)+ends.Shape[0], sums.Shape[1])
	return g
}

// addRows adds the launch that sums rows of x, the first of which is the row `first` of all. They
// may be those of tokens.
func (b *builder) addRows(g *groupSums, x *tensor.View, first int64) {
	rows, columns, groups := x.Shape[0], x.Shape[1], g.ends.Shape[0]
	if rows*columns*groups == 0 {
		return
	}
	width := vectorWidth(x.DType)
	b.forms(width, byRows(width, x), typed("grouped_sums_", x.DType), func(p *parameters, unit int64) int64 {
		blocks := ceilDiv(columns, sumLanes*unit)
		p.rowsMatrix(x, 1)
		p.address(b.indexOf(x))
		p.address(g.scales)
		p.address(g.partials)
		p.address(g.ends)
		p.int64(first)
		p.int64(first + rows)
		p.int64(columns)
		p.divisor(blocks)
		p.sizes(groups, 0)
		return (ceilDiv(rows, sumRows) + groups) * blocks
	})
}

// finishSums adds the launch that adds up the partial sums.
func (b *builder) finishSums(g *groupSums) {
	groups, columns := g.sums.Shape[0], g.sums.Shape[1]
	if groups*columns == 0 {
		return
	}
	blocks := ceilDiv(columns, sumLanes)
	p := &parameters{}
	p.strided(g.sums, 0, none, 1)
	p.address(g.partials)
	p.address(g.ends)
	p.int64(columns)
	p.divisor(blocks)
	p.accumulate(true)
	p.sizes(g.rows, g.parts)
	p.bool(g.ofTiles)
	b.general(p, "grouped_finish_sums_"+g.sums.DType.Short(), groups*blocks)
}

// sumRowsOf adds sums of the rows of a matrix.
func (b *builder) sumRowsOf(x, sums, scales, ends *tensor.View) {
	g := b.groupSums(sums, scales, ends, x.Shape[0])
	b.addRows(g, x, 0)
	b.finishSums(g)
}

// someRows are some of a matrix's rows; nil of nil.
func someRows(v *tensor.View, first, rows int64) *tensor.View {
	if v == nil {
		return nil
	}
	some := *moved(v, first*v.Strides[0])
	some.Shape = []int64{rows, v.Shape[1]}
	return &some
}

// sumSlopes adds a summing pass (reduce.go) over the rows of all groups, whose sums are those of
// each group. The pass gives the terms before they are rounded, as its sums of chunks of one row.
func (b *builder) sumSlopes(r *reduction) {
	rows, columns := r.inputs[0].Shape[0], r.inputs[0].Shape[1]
	wide := b.dt.Accumulator()
	var all [2]*groupSums
	var unrounded [2]*tensor.View
	chunks := max(mostUnrounded/wide.Size()/max(columns, 1)/sumRows, 1)
	piece := chunks * sumRows
	for i, sums := range r.sums {
		if sums != nil {
			all[i], unrounded[i] = b.groupSums(sums, nil, r.groups, rows), b.region(wide, min(piece, rows), columns)
		}
	}
	for first := int64(0); first < rows && columns > 0; first += piece {
		count := min(piece, rows-first)
		part := &reduction{columns: r.columns}
		var partials []*tensor.View
		for i := range r.sums {
			part.outputs = append(part.outputs, someRows(r.outputs[i], first, count))
			partials = append(partials, unrounded[i])
		}
		for _, input := range r.inputs {
			part.inputs = append(part.inputs, someRows(input, first, count))
		}
		b.unsummed(part, partials)
		for i, g := range all {
			if g == nil {
				continue
			}
			b.addRows(g, someRows(unrounded[i], 0, count), first)
		}
	}
	for _, g := range all {
		if g == nil {
			continue
		}
		b.finishSums(g)
	}
}

// unsummed adds a summing pass over rows that writes the terms of its sums.
func (b *builder) unsummed(r *reduction, terms []*tensor.View) {
	rows, columns := r.inputs[0].Shape[0], r.inputs[0].Shape[1]
	kept, reduced := tensor.Apart(slices.Concat(r.inputs, r.outputs), []int64{1, columns})
	o := order{keptFirst: true, unit: 1, run: 1, shortRun: 1, chunks: rows}
	o.keptLanes = int(rowLanes(ceilDiv(columns, vectorWidth(b.dt))))
	b.sum(r, o, walkOf(kept), walkOf(reduced), terms, columns)
}
