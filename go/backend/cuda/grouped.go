//go:build cgo

package cuda

import (
	"math/bits"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// Constants of kernels/cuda/grouped_rows.cu and grouped_products.cu.
const (
	// mostRouted is the most groups that slots are sorted by.
	mostRouted = 8192
	// groups that a block of the scan has
	scanGroups = 8
	// groupedRows are the rows of a block whose threads are 32 to a row
	groupedRows = 8
	// groupedTile is the rows and columns of a product's tile
	groupedTile = 64
	// sumRows and sumLanes are the rows of a chunk, and the columns, or vectors, that a block sums
	sumRows, sumLanes = 256, 32
)

const (
	// mostChunks is how many parts the slots are cut into that are sorted beside each other.
	mostChunks = 1024
	// mostCounts bounds the counts of groups in chunks.
	mostCounts = 1 << 22
	// roundsAlone is how many rounds of slots one block sorts faster than several with a launch
	// more.
	roundsAlone = 2
)

// mostUnrounded is the most bytes of slopes that are kept unrounded at a time, to be summed; tests
// change it.
var mostUnrounded int64 = 64 << 20

// mostPieces is how many parts slopes are summed in where that happens seldom: the workspace has
// room for a part in all other runs too.
const mostPieces = 64

// groupEnds adds the launch that makes ends of a caller's offsets.
func (b *builder) groupEnds(p *backend.GroupEnds) error {
	groups := p.Ends.Shape[0]
	if groups == 0 {
		return nil
	}
	q := &parameters{}
	q.vector(p.Offsets)
	q.address(p.Ends)
	q.int64(groups)
	q.sizes(p.Rows)
	q.bool(p.Offsets.DType == dtype.Int64)
	return b.general(q, "grouped_ends", 1)
}

// general adds a launch that has one form.
func (b *builder) general(p *parameters, function string, blocks int64) error {
	l, err := p.launch(function, blocks)
	if err == nil {
		b.launch(step{general: l})
	}
	return err
}

// route adds the launches that sort slots: ranks and counts in chunks, the counts of chunks before,
// and places.
func (b *builder) route(p *backend.Route) error {
	groups, slots := p.Ends.Shape[0], p.Index.Numel()
	if groups > mostRouted {
		return status.Errorf(status.Unsupported, "%s: %d experts, and the cuda backend has kernels for at most %d", p.Op, groups, mostRouted)
	}
	turns := ceilDiv(slots, blockThreads)
	rounds := max(ceilDiv(turns, min(mostChunks, mostCounts/max(groups, 1))), 1)
	if turns <= roundsAlone {
		rounds = max(turns, 1)
	}
	chunks := max(ceilDiv(turns, rounds), 1)
	counts, totals := b.region(dtype.Int32, chunks, groups), b.region(dtype.Int32, groups)
	launch := func(function string, blocks int64) error {
		q := &parameters{}
		q.address(p.Index)
		q.int64(p.Index.Strides[0])
		q.int64(p.Index.Strides[1])
		q.address(p.Ends)
		q.address(p.Places)
		q.address(counts)
		q.address(totals)
		q.sizes(slots, max(p.Index.Shape[1], 1), groups, rounds, chunks)
		q.bool(chunks == 1)
		return b.general(q, function, blocks)
	}
	if err := launch("grouped_route_rank", chunks); err != nil || groups == 0 {
		return err
	}
	if chunks > 1 {
		if err := launch("grouped_route_scan", ceilDiv(groups, scanGroups)); err != nil {
			return err
		}
	}
	return launch("grouped_route_place", max(min(turns, 2*int64(b.device.processors)), 1))
}

// groupedMatrix is a Matrix of groups.cuh: rows, or a matrix or a vector for each group.
func (p *parameters) groupedMatrix(v *tensor.View, group, row, column int) {
	p.address(v)
	for _, d := range [3]int{group, row, column} {
		stride := int64(0)
		if v != nil && d >= 0 {
			stride = v.Strides[d]
		}
		p.int64(stride)
	}
}

// rowsMatrix is a matrix of rows, whose strides count units of so many elements.
func (p *parameters) rowsMatrix(v *tensor.View, unit int64) {
	if v == nil || unit == 1 {
		p.groupedMatrix(v, none, 0, 1)
		return
	}
	units := *v
	units.Strides = []int64{v.Strides[0] / unit, v.Strides[1]}
	p.groupedMatrix(&units, none, 0, 1)
}

// byRows reports whether rows of matrices can be read and written by vectors, as far as their
// strides tell.
func byRows(width int64, matrices ...*tensor.View) bool {
	for _, v := range matrices {
		if v != nil && (v.Shape[1]%width != 0 || v.Strides[1] != 1 || v.Strides[0]%width != 0) {
			return false
		}
	}
	return true
}

// rowLanes is the logarithm of how many threads are side by side in a row of so many units.
func rowLanes(units int64) int64 {
	return int64(min(blockThreadsLog2, bits.Len64(uint64(max(units, 1)-1))))
}

// rowBlocks is how many blocks have these rows.
func rowBlocks(rows, lanes int64) int64 { return ceilDiv(rows, blockThreads>>lanes) }

// forms adds a launch over rows: with vectors where strides allow it, and without. fill gives it
// parameters for units of so many elements, and tells how many blocks there are.
func (b *builder) forms(width int64, vectors bool, name func(unit int64) string, fill func(p *parameters, unit int64) (blocks int64)) error {
	var s step
	for _, form := range []struct {
		unit int64
		to   **launch
	}{{width, &s.vector}, {1, &s.general}} {
		if form.unit > 1 && !vectors {
			continue
		}
		p := &parameters{}
		blocks := fill(p, form.unit)
		l, err := p.launch(name(form.unit), blocks)
		if err != nil {
			return err
		}
		*form.to = l
	}
	b.launch(s)
	return nil
}

// vectorWidth is how many elements a vector has.
func vectorWidth(dt dtype.DType) int64 { return vectorBytes / dt.Size() }

// slots are the Slots of grouped_rows.cu.
func (p *parameters) slots(places, scale *tensor.View, isFloat bool) {
	p.address(places)
	p.groupedVector(scale)
	p.bool(isFloat)
	p.sizes(places.Shape[1])
}

// groupedVector is a pointer and the strides of two dimensions.
func (p *parameters) groupedVector(v *tensor.View) {
	p.address(v)
	strides := []int64{0, 0}
	if v != nil {
		strides = v.Strides
	}
	p.int64(strides[0])
	p.int64(strides[1])
}

// isFloat reports whether a tensor is in float, beside others in a half type.
func (b *builder) isFloat(v *tensor.View) bool {
	return v != nil && v.DType == dtype.Float32 && b.dt != dtype.Float32
}

// scaleTypes are the numbers of dtypes in grouped_rows.cu.
var scaleTypes = map[dtype.DType]int64{dtype.Float32: 0, dtype.Float64: 1, dtype.BFloat16: 2, dtype.Float16: 3}

// sized names a kernel that copies units of so many elements.
func (b *builder) sized(name string) func(unit int64) string {
	return func(unit int64) string {
		return name + map[int64]string{2: "2", 4: "4", 8: "8", vectorBytes: "16"}[unit*b.dt.Size()]
	}
}

// typed names a kernel of a dtype in its two forms.
func typed(name string, dt dtype.DType) func(unit int64) string {
	return func(unit int64) string {
		if unit == 1 {
			return name + dt.Short() + "_strided"
		}
		return name + dt.Short()
	}
}

// scatterRows adds the launch that copies rows to their places.
func (b *builder) scatterRows(p *backend.ScatterRows) error {
	tokens, each, columns := p.Places.Shape[0], p.Places.Shape[1], int64(0)
	if p.Out != nil {
		columns = p.Out.Shape[1]
	}
	if tokens*each == 0 || columns == 0 && p.Scales == nil {
		return nil
	}
	width, scale := vectorWidth(b.dt), p.Scale
	if p.Scales == nil {
		scale = nil
	}
	return b.forms(width, columns > 0 && byRows(width, p.Input, p.Out), b.sized("grouped_scatter_"), func(q *parameters, unit int64) int64 {
		q.rowsMatrix(p.Input, unit)
		q.rowsMatrix(p.Out, unit)
		q.slots(p.Places, scale, false)
		q.address(p.Scales)
		q.int64(tokens)
		q.int64(columns / unit)
		lanes, scaleType := rowLanes(max(columns/unit, 1)), int64(0)
		if scale != nil {
			scaleType = scaleTypes[scale.DType]
		}
		q.sizes(lanes, scaleType)
		return rowBlocks(tokens, lanes)
	})
}

// combineRows adds the launch that adds up the rows of each token's slots.
func (b *builder) combineRows(p *backend.CombineRows) error {
	tokens, columns := p.Out.Shape[0], p.Out.Shape[1]
	if tokens*columns == 0 {
		return nil
	}
	width := vectorWidth(b.dt)
	return b.forms(width, byRows(width, p.Input, p.Out), typed("grouped_combine_", b.dt), func(q *parameters, unit int64) int64 {
		q.rowsMatrix(p.Input, 1)
		q.rowsMatrix(p.Out, 1)
		q.slots(p.Places, p.Scale, b.isFloat(p.Scale))
		q.int64(tokens)
		q.int64(columns / unit)
		lanes := rowLanes(columns / unit)
		q.sizes(lanes, 0)
		return rowBlocks(tokens, lanes)
	})
}

// scaleGradient adds the launch of the scales' gradients.
func (b *builder) scaleGradient(p *backend.ScaleGradient) error {
	slots, columns := p.Places.Numel(), int64(0)
	if slots == 0 {
		return nil
	}
	if p.Bias != nil {
		columns = p.Bias.Shape[1]
	}
	q := &parameters{}
	q.address(p.Sums)
	q.address(p.Places)
	q.groupedVector(p.Index)
	q.rowsMatrix(p.GradOutput, 1)
	q.rowsMatrix(p.Bias, 1)
	q.groupedVector(p.GradScale)
	q.int64(columns)
	q.sizes(slots, p.Places.Shape[1])
	q.bool(b.isFloat(p.GradScale))
	q.uint32(0)
	return b.general(q, "grouped_scale_gradient_"+b.dt.Short(), ceilDiv(slots, groupedRows))
}

// zeroRest adds the launches that write zeros over the rows that are nobody's.
func (b *builder) zeroRest(ends *tensor.View, results ...*tensor.View) error {
	for _, v := range results {
		if v == nil || v.IsEmpty() {
			continue
		}
		width := vectorWidth(b.dt)
		err := b.forms(width, byRows(width, v), b.sized("grouped_zero_"), func(q *parameters, unit int64) int64 {
			q.rowsMatrix(v, unit)
			q.address(ends)
			q.int64(v.Shape[0])
			q.int64(v.Shape[1] / unit)
			lanes := rowLanes(v.Shape[1] / unit)
			q.sizes(ends.Shape[0], lanes)
			most := 2 * int64(b.device.processors)
			return min(rowBlocks(v.Shape[0], lanes), most)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// groupedProduct adds out[r] = left[r] right[e] + bias[e] for the rows r of each group e, with
// right operands [e, depth, columns].
func (b *builder) groupedProduct(left, right, bias, out, ends *tensor.View) error {
	return b.boxedOr(b.boxedLinear("none", left, right, bias, out, nil, ends), func() error {
		return b.plainProduct(left, right, bias, out, ends)
	})
}

// boxedOr adds the launch that copies boxes where there is one, and, for runs whose addresses boxes
// cannot start at, the other way.
func (b *builder) boxedOr(boxed, otherwise func() error) error {
	if boxed == nil {
		return otherwise()
	}
	return b.either(boxed, otherwise)
}

// plainProduct is groupedProduct for any strides, and any processor.
func (b *builder) plainProduct(left, right, bias, out, ends *tensor.View) error {
	rows, columns, groups := out.Shape[0], out.Shape[1], ends.Shape[0]
	if rows*columns == 0 || groups == 0 {
		return nil
	}
	across := ceilDiv(columns, groupedTile)
	p := &parameters{}
	p.groupedMatrix(left, none, 0, 1)
	p.groupedMatrix(right, 0, 1, 2)
	p.groupedMatrix(bias, 0, none, 1)
	p.groupedMatrix(out, none, 0, 1)
	p.address(ends)
	p.int64(columns)
	p.int64(left.Shape[1])
	p.divisor(across)
	p.int64(0)
	p.sizes(groups, 0)
	return b.general(p, "grouped_product_"+b.dt.Short(), (rows/groupedTile+groups)*across)
}

// groupedDepth adds out[e] = leftᵀ right of the rows of each group e, or adds that to out.
func (b *builder) groupedDepth(left, right, out, ends *tensor.View) error {
	return b.boxedOr(b.boxedDepth(left, right, out, ends), func() error { return b.plainDepth(left, right, out, ends) })
}

// plainDepth is groupedDepth for any strides, and any processor.
func (b *builder) plainDepth(left, right, out, ends *tensor.View) error {
	groups, rows, columns := out.Shape[0], out.Shape[1], out.Shape[2]
	if groups*rows*columns == 0 {
		return nil
	}
	down, across := ceilDiv(rows, groupedTile), ceilDiv(columns, groupedTile)
	p := &parameters{}
	p.groupedMatrix(left, none, 0, 1)
	p.groupedMatrix(right, none, 0, 1)
	p.groupedMatrix(nil, none, none, none)
	p.groupedMatrix(out, 0, 1, 2)
	p.address(ends)
	p.int64(columns)
	p.int64(rows)
	p.divisor(across)
	p.int64(down)
	p.sizes(groups)
	function := "grouped_depth_" + b.dt.Short()
	if b.isFloat(out) {
		function += "_f32"
	}
	return b.accumulating(p, function, groups*down*across)
}

// accumulating adds a launch whose next parameter, and last but for a gap, is whether to
// accumulate.
func (b *builder) accumulating(p *parameters, function string, blocks int64) error {
	accumulate := len(p.bytes)
	p.uint32(0)
	if len(p.bytes)%8 != 0 {
		p.uint32(0)
	}
	l, err := p.launch(function, blocks)
	if err != nil {
		return err
	}
	l.accumulate = accumulate
	b.launch(step{general: l})
	return nil
}

// groupSums are sums of each group's rows, which may be added to.
type groupSums struct {
	ends, scales *tensor.View
	sums         *tensor.View // [e, n]
	partials     *tensor.View
}

// groupSums makes room for the partial sums.
func (b *builder) groupSums(sums, scales, ends *tensor.View, rows int64) *groupSums {
	g := &groupSums{ends: ends, scales: scales, sums: sums}
	g.partials = b.region(b.dt.Accumulator(), ceilDiv(rows, sumRows)+ends.Shape[0], sums.Shape[1])
	return g
}

// addRows adds the launch that sums rows of x, the first of which is the row `first` of all.
func (b *builder) addRows(g *groupSums, x *tensor.View, first int64) error {
	rows, columns, groups := x.Shape[0], x.Shape[1], g.ends.Shape[0]
	if rows*columns*groups == 0 {
		return nil
	}
	width := vectorWidth(x.DType)
	return b.forms(width, byRows(width, x), typed("grouped_sums_", x.DType), func(p *parameters, unit int64) int64 {
		blocks := ceilDiv(columns, sumLanes*unit)
		p.rowsMatrix(x, 1)
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
func (b *builder) finishSums(g *groupSums) error {
	groups, columns := g.sums.Shape[0], g.sums.Shape[1]
	if groups*columns == 0 {
		return nil
	}
	blocks := ceilDiv(columns, sumLanes)
	p := &parameters{}
	p.groupedMatrix(g.sums, 0, none, 1)
	p.address(g.partials)
	p.address(g.ends)
	p.int64(columns)
	p.divisor(blocks)
	return b.accumulating(p, "grouped_finish_sums_"+g.sums.DType.Short(), groups*blocks)
}

// sumRowsOf adds sums of the rows of a matrix.
func (b *builder) sumRowsOf(x, sums, scales, ends *tensor.View) error {
	g := b.groupSums(sums, scales, ends, x.Shape[0])
	if err := b.addRows(g, x, 0); err != nil {
		return err
	}
	return b.finishSums(g)
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
func (b *builder) sumSlopes(r *reduction, ends, scales *tensor.View, seldom bool) error {
	rows, columns := r.inputs[0].Shape[0], r.inputs[0].Shape[1]
	wide := b.dt.Accumulator()
	var all [2]*groupSums
	var unrounded [2]*tensor.View
	chunks := max(mostUnrounded/wide.Size()/max(columns, 1)/sumRows, 1)
	if seldom {
		chunks = min(chunks, ceilDiv(rows, mostPieces*sumRows))
	}
	piece := chunks * sumRows
	for i, sums := range r.sums {
		if sums != nil {
			all[i], unrounded[i] = b.groupSums(sums, scales, ends, rows), b.region(wide, min(piece, rows), columns)
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
		if err := b.unsummed(part, partials); err != nil {
			return err
		}
		for i, g := range all {
			if g == nil {
				continue
			}
			if err := b.addRows(g, someRows(unrounded[i], 0, count), first); err != nil {
				return err
			}
		}
	}
	for _, g := range all {
		if g == nil {
			continue
		}
		if err := b.finishSums(g); err != nil {
			return err
		}
	}
	return nil
}

// unsummed adds a summing pass over rows that writes the terms of its sums.
func (b *builder) unsummed(r *reduction, terms []*tensor.View) error {
	rows, columns := r.inputs[0].Shape[0], r.inputs[0].Shape[1]
	all := append(append([]*tensor.View{}, r.inputs...), r.outputs...)
	shape := []int64{1, columns}
	o := order{keptFirst: true, unit: 1, run: 1, shortRun: 1, chunks: rows}
	o.keptLanes = int(rowLanes(ceilDiv(columns, vectorWidth(b.dt))))
	return b.sum(r, o, walkOf(restricted(all, shape, true)), walkOf(restricted(all, shape, false)), terms, columns)
}

// groupedLayer adds a layer of each group: one kernel, or the product and the activation's pass.
func (b *builder) groupedLayer(p *backend.GroupedLayer) error {
	var boxed func() error
	switch {
	case p.Halves != nil:
		boxed = b.boxedGated(p)
	case p.Formula != "none":
		boxed = b.boxedLinear(p.Formula, p.Input, exchanged(p.Weight), p.Bias, p.Out, p.Preactivation, p.Ends)
	}
	if err := b.boxedOr(boxed, func() error { return b.layerInPasses(p) }); err != nil {
		return err
	}
	return b.zeroRest(p.Ends, p.Rest...)
}

// layerInPasses adds the product and the activation's pass.
func (b *builder) layerInPasses(p *backend.GroupedLayer) error {
	pre := p.Preactivation
	switch {
	case pre != nil:
	case p.Halves != nil:
		pre = b.region(b.dt, p.Input.Shape[0], p.Weight.Shape[1])
	default:
		pre = p.Out
	}
	if err := b.groupedProduct(p.Input, exchanged(p.Weight), p.Bias, pre, p.Ends); err != nil {
		return err
	}
	switch {
	case p.Out == nil:
		return nil
	case p.Halves != nil:
		value, gate := p.Halves(pre)
		return b.gated(&backend.Gated{Header: p.Header, Value: value, Gate: gate, Out: p.Out})
	case p.Out != pre || p.Formula != "none":
		return b.activation(p.Formula, p.Out, pre)
	}
	return nil
}

// groupedLayerBackward adds the gradients of a layer of each group: the activation's pass, and the
// products.
func (b *builder) groupedLayerBackward(p *backend.GroupedLayerBackward) error {
	grad := p.GradOutput
	switch {
	case p.Formula == "none":
		if p.GradBias != nil {
			if err := b.sumRowsOf(grad, p.GradBias, p.Scales, p.Ends); err != nil {
				return err
			}
		}
	case p.GradInput != nil || p.GradWeight != nil || p.GradBias != nil:
		var err error
		if grad, err = b.groupedSlopes(p); err != nil {
			return err
		}
	}
	if p.GradInput != nil {
		if err := b.groupedProduct(grad, p.Weight, nil, p.GradInput, p.Ends); err != nil {
			return err
		}
	}
	if p.GradWeight != nil {
		if err := b.groupedDepth(grad, p.Input, p.GradWeight, p.Ends); err != nil {
			return err
		}
	}
	if !p.Rest {
		return nil
	}
	return b.zeroRest(p.Ends, p.GradInput)
}

// groupedSlopes adds the gradient of the preactivation, and its sums.
func (b *builder) groupedSlopes(p *backend.GroupedLayerBackward) (grad *tensor.View, err error) {
	pre, shape := p.Preactivation, p.GradOutput.Shape
	if pre == nil {
		pre = b.region(b.dt, shape...)
		if err := b.groupedProduct(p.Input, exchanged(p.Weight), p.Bias, pre, p.Ends); err != nil {
			return nil, err
		}
	} else {
		b.withoutSaved = regionBytes(b.dt, tensor.Elements(shape))
	}
	if p.GradInput != nil || p.GradWeight != nil {
		grad = b.region(b.dt, shape...)
	}
	return grad, b.slopes(p.Formula, p.GradOutput, pre, grad, p.GradBias, p.Scales, p.Ends, false)
}

// slopes adds out = grad act'(pre), which may be nil, and sums of its rows, which may be too.
func (b *builder) slopes(formula string, grad, pre, out, sums, scales, ends *tensor.View, seldom bool) error {
	suffix := formula + "_" + b.dt.Short()
	inputs := []*tensor.View{grad, pre}
	switch {
	case formula == "none":
		if out != nil {
			if err := b.activation("none", out, grad); err != nil {
				return err
			}
		}
		if sums == nil {
			return nil
		}
		return b.sumRowsOf(grad, sums, scales, ends)
	case sums == nil:
		f := function{name: "grad_preactivation_" + suffix, outputs: 1, vectors: vectorsOf(formula, b.dt)}
		return b.elementwise(f, numbers{}, append([]*tensor.View{out}, inputs...)...)
	}
	r := &reduction{columns: "grad_preactivation_columns_" + suffix, outputs: []*tensor.View{out}, sums: []*tensor.View{sums}, inputs: inputs}
	return b.sumSlopes(r, ends, scales, seldom)
}

// gatedSlopes is slopes for the halves of a gated activation's input.
func (b *builder) gatedSlopes(p *backend.GroupedHiddenBackward, grad *tensor.View, seldom bool) error {
	value, gate := p.Halves(p.Preactivation)
	gradValue, gradGate := p.Halves(p.GradPreactivation)
	if p.GradBias == nil {
		return b.gatedBackward(&backend.GatedBackward{
			Header: p.Header, GradOutput: grad, Value: value, Gate: gate, GradValue: gradValue, GradGate: gradGate,
		})
	}
	biasValue, biasGate := p.Halves(p.GradBias)
	r := &reduction{
		columns: "gated_backward_columns_" + p.Formula + "_" + b.dt.Short(), outputs: []*tensor.View{gradValue, gradGate},
		sums: []*tensor.View{biasValue, biasGate}, inputs: []*tensor.View{grad, value, gate},
	}
	return b.sumSlopes(r, p.Ends, nil, seldom)
}

// groupedHiddenBackward adds the backward of a hidden activation of each group: one kernel, or
// several passes.
func (b *builder) groupedHiddenBackward(p *backend.GroupedHiddenBackward) error {
	var boxed func() error
	if p.GradPreactivation != nil || p.GradBias != nil || p.Sums != nil {
		boxed = b.boxedHiddenBackward(p)
	}
	return b.boxedOr(boxed, func() error { return b.hiddenBackwardInPasses(p, boxed != nil) })
}

// hiddenBackwardInPasses adds the product, the hidden activation again, what is made of both row by
// row, and the slopes. With seldom there is a kernel for all of it, and only runs of unaligned
// addresses come here: the gradient to the hidden activation then lies in GradPreactivation, if
// that is there, and takes no memory of its own.
func (b *builder) hiddenBackwardInPasses(p *backend.GroupedHiddenBackward, seldom bool) error {
	rows, features := p.GradOutput.Shape[0], p.Weight.Shape[2]
	sloped := p.GradPreactivation != nil || p.GradBias != nil
	var grad *tensor.View // to the hidden activation
	if sloped || p.Sums != nil {
		switch grad = p.GradPreactivation; {
		case grad == nil || !seldom:
			grad = b.region(b.dt, rows, features)
		case p.Halves != nil:
			grad, _ = p.Halves(grad)
		}
		if err := b.groupedProduct(p.GradOutput, p.Weight, nil, grad, p.Ends); err != nil {
			return err
		}
	}
	hidden := p.Out
	if hidden == nil && p.Sums != nil {
		hidden = b.region(b.dt, rows, features)
	}
	if hidden != nil {
		if err := b.hidden(p, hidden); err != nil {
			return err
		}
	}
	if err := b.scaleHidden(p, grad, hidden, sloped); err != nil {
		return err
	}
	switch {
	case !sloped:
		return nil
	case p.Halves != nil:
		return b.gatedSlopes(p, grad, seldom)
	}
	return b.slopes(p.Formula, grad, p.Preactivation, p.GradPreactivation, p.GradBias, nil, p.Ends, seldom)
}

// hidden adds the hidden activation of a preactivation.
func (b *builder) hidden(p *backend.GroupedHiddenBackward, out *tensor.View) error {
	if p.Halves == nil {
		return b.activation(p.Formula, out, p.Preactivation)
	}
	value, gate := p.Halves(p.Preactivation)
	return b.gated(&backend.Gated{Header: p.Header, Value: value, Gate: gate, Out: out})
}

// scaleHidden adds the launch that multiplies the gradient to the hidden activation with that, row
// by row, and scales both. Either is nil where it is not needed.
func (b *builder) scaleHidden(p *backend.GroupedHiddenBackward, grad, hidden *tensor.View, sloped bool) error {
	rows, features := p.GradOutput.Shape[0], p.Weight.Shape[2]
	scales := p.Scales != nil && (sloped || p.Out != nil)
	if rows == 0 || p.Ends.Shape[0] == 0 || p.Sums == nil && (!scales || features == 0) {
		return nil
	}
	width := vectorWidth(b.dt)
	return b.forms(width, byRows(width, grad, hidden), typed("grouped_scale_hidden_", b.dt), func(q *parameters, _ int64) int64 {
		q.rowsMatrix(grad, 1)
		q.rowsMatrix(hidden, 1)
		q.address(p.Scales)
		q.address(p.Sums)
		q.address(p.Ends)
		q.int64(features)
		q.sizes(p.Ends.Shape[0])
		q.bool(scales && sloped)
		q.bool(scales && p.Out != nil)
		q.uint32(0)
		return ceilDiv(rows, groupedRows)
	})
}
