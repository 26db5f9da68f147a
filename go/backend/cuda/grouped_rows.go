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

// groupEnds adds the launch that makes ends of a caller's offsets.
func (b *builder) groupEnds(p *backend.GroupEnds) {
	groups := p.Ends.Shape[0]
	if groups == 0 {
		return
	}
	q := &parameters{}
	q.strided(p.Offsets, 0)
	q.address(p.Ends)
	q.int64(groups)
	q.sizes(p.Rows)
	q.bool(p.Offsets.DType == dtype.Int64)
	b.general(q, "grouped_ends", 1)
}

// general adds a launch that has one form.
func (b *builder) general(p *parameters, function string, blocks int64) {
	b.launch(step{general: p.launch(function, blocks)})
}

// route adds the launches that sort slots: ranks and counts in chunks, the counts of chunks before,
// and places.
func (b *builder) route(p *backend.Route) {
	groups, slots := p.Ends.Shape[0], p.Index.Numel()
	if groups > mostRouted {
		b.refused = status.Errorf(status.Unsupported, "%s: weight_in: got %d experts, want at most %d on the cuda backend", p.Op, groups, mostRouted)
		return
	}
	turns := ceilDiv(slots, blockThreads)
	rounds := max(ceilDiv(turns, min(mostChunks, mostCounts/max(groups, 1))), 1)
	if turns <= roundsAlone {
		rounds = max(turns, 1)
	}
	chunks := max(ceilDiv(turns, rounds), 1)
	counts, totals := b.region(dtype.Int32, chunks, groups), b.region(dtype.Int32, groups)
	launch := func(function string, blocks int64) {
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
		q.sizes(p.Rows, 0)
		b.general(q, function, blocks)
	}
	launch("grouped_route_rank", chunks)
	if groups == 0 {
		return
	}
	if chunks > 1 {
		launch("grouped_route_scan", ceilDiv(groups, scanGroups))
	}
	launch("grouped_route_place", max(min(turns, 2*int64(b.device.processors)), 1))
}

// tokensOf adds the launch that finds the token of each row, and gives the tokens [rows].
func (b *builder) tokensOf(places *tensor.View, rows int64) *tensor.View {
	slots := places.Numel()
	tokens := b.region(dtype.Int32, rows)
	if slots > 0 {
		q := &parameters{}
		q.address(places)
		q.address(tokens)
		q.sizes(slots, places.Shape[1])
		b.general(q, "grouped_tokens", ceilDiv(slots, blockThreads))
	}
	return tokens
}

// rowsMatrix is a matrix of rows, whose strides count units of `unit` elements.
func (p *parameters) rowsMatrix(v *tensor.View, unit int64) {
	if v == nil || unit == 1 {
		p.strided(v, none, 0, 1)
		return
	}
	units := *v
	units.Strides = []int64{v.Strides[0] / unit, v.Strides[1]}
	p.strided(&units, none, 0, 1)
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

// rowLanes is log2 of the threads that lie side by side in a row of units.
func rowLanes(units int64) int64 {
	return int64(min(blockThreadsLog2, bits.Len64(uint64(max(units, 1)-1))))
}

// rowBlocks is how many blocks have these rows.
func rowBlocks(rows, lanes int64) int64 { return ceilDiv(rows, blockThreads>>lanes) }

// forms adds a launch over rows: with vectors where strides allow it, and without. fill writes the
// parameters for units of `unit` elements, and returns the number of blocks.
func (b *builder) forms(width int64, vectors bool, name func(unit int64) string, fill func(p *parameters, unit int64) (blocks int64)) {
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
		*form.to = p.launch(name(form.unit), blocks)
	}
	b.launch(s)
}

// vectorWidth is how many elements a vector has.
func vectorWidth(dt dtype.DType) int64 { return vectorBytes / dt.Size() }

// slots are the Slots of grouped_rows.cu.
func (p *parameters) slots(places, scale *tensor.View, isFloat bool, rows int64) {
	p.address(places)
	p.strided(scale, 0, 1)
	p.bool(isFloat)
	p.sizes(places.Shape[1], rows, 0)
}

// isFloat reports whether a tensor is in float, beside others in a half type.
func (b *builder) isFloat(v *tensor.View) bool {
	return v != nil && v.DType == dtype.Float32 && b.dt != dtype.Float32
}

// scaleTypes are the numbers of dtypes in grouped_rows.cu.
var scaleTypes = map[dtype.DType]int64{dtype.Float32: 0, dtype.Float64: 1, dtype.BFloat16: 2, dtype.Float16: 3}

// sized names the kernel that copies units of a number of elements.
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
func (b *builder) scatterRows(p *backend.ScatterRows) {
	tokens, each, columns, rows := p.Places.Shape[0], p.Places.Shape[1], int64(0), p.Rows()
	if p.Out != nil {
		columns = p.Out.Shape[1]
	}
	if tokens*each == 0 || columns == 0 && p.Scales == nil {
		return
	}
	width, scale := vectorWidth(b.dt), p.Scale
	if p.Scales == nil {
		scale = nil
	}
	b.forms(width, columns > 0 && byRows(width, p.Input, p.Out), b.sized("grouped_scatter_"), func(q *parameters, unit int64) int64 {
		q.rowsMatrix(p.Input, unit)
		q.rowsMatrix(p.Out, unit)
		q.slots(p.Places, scale, false, rows)
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
func (b *builder) combineRows(p *backend.CombineRows) {
	tokens, columns := p.Out.Shape[0], p.Out.Shape[1]
	if tokens*columns == 0 {
		return
	}
	width := vectorWidth(b.dt)
	b.forms(width, byRows(width, p.Input, p.Out), typed("grouped_combine_", b.dt), func(q *parameters, unit int64) int64 {
		q.rowsMatrix(p.Input, 1)
		q.rowsMatrix(p.Out, 1)
		q.slots(p.Places, p.Scale, b.isFloat(p.Scale), p.Input.Shape[0])
		q.int64(tokens)
		q.int64(columns / unit)
		lanes := rowLanes(columns / unit)
		q.sizes(lanes, 0)
		return rowBlocks(tokens, lanes)
	})
}

// scaleGradient adds the launch of the scales' gradients.
func (b *builder) scaleGradient(p *backend.ScaleGradient) {
	slots, columns := p.Places.Numel(), int64(0)
	if slots == 0 {
		return
	}
	if p.Bias != nil {
		columns = p.Bias.Shape[1]
	}
	q := &parameters{}
	q.address(p.Sums)
	q.address(p.Places)
	q.strided(p.Index, 0, 1)
	q.rowsMatrix(p.GradOutput, 1)
	q.rowsMatrix(p.Bias, 1)
	q.strided(p.GradScale, 0, 1)
	q.int64(columns)
	q.sizes(slots, p.Places.Shape[1])
	q.bool(b.isFloat(p.GradScale))
	q.uint32(0)
	b.general(q, "grouped_scale_gradient_"+b.dt.Short(), ceilDiv(slots, groupedRows))
}

// zeroRest adds the launches that write zeros over the rows of no group.
func (b *builder) zeroRest(ends *tensor.View, results ...*tensor.View) {
	for _, v := range results {
		if v == nil || v.IsEmpty() {
			continue
		}
		width := vectorWidth(b.dt)
		b.forms(width, byRows(width, v), b.sized("grouped_zero_"), func(q *parameters, unit int64) int64 {
			q.rowsMatrix(v, unit)
			q.address(ends)
			q.int64(v.Shape[0])
			q.int64(v.Shape[1] / unit)
			lanes := rowLanes(v.Shape[1] / unit)
			q.sizes(ends.Shape[0], lanes)
			most := 2 * int64(b.device.processors)
			return min(rowBlocks(v.Shape[0], lanes), most)
		})
	}
}
