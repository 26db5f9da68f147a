package vector

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// Where one operand has few rows, it is packed once for strips of the other. Where it has very few,
// packing the other would take longer than multiplying: that is read where it lies, once.
const (
	// stripRows are the rows up to which an operand is packed for strips, and stripBytes limits the
	// accumulators and panels of a strip.
	stripRows  = 256
	stripBytes = 256 << 10
	// fewRows are those up to which no engine packs the right operand, and fewBytes limits the sums
	// of such a strip: they stay in the nearest cache.
	fewRows  = 8
	fewBytes = 16 << 10
)

// inStrips reports whether a product is computed in strips: where one operand has few rows, and is
// packed once for all of them.
func (v *product) inStrips(to *sink, items int64) bool {
	if items != 1 || v.next != nil || tensor.Elements(v.Summed) != 1 || v.Depth() == 0 || to.accumulate {
		return false
	}
	return v.inPlace() || v.Depth() <= v.mostDepth() && min(v.Left.Rows.Length, v.Right.Rows.Length) <= stripRows
}

// inPlace reports whether strips read the right operand where it lies: where its rows or its depth
// are contiguous.
func (v *product) inPlace() bool {
	contiguous := isContiguous(&v.Right.Rows, v.DType) || isContiguous(&v.Right.Columns, v.DType)
	return contiguous && v.Left.Rows.Length <= v.mostFew() && v.behind == nil && !v.exchanged
}

// mostFew is the rows up to which the right operand is not packed: without tiles as many as a
// register has floats, if those are more.
func (v *product) mostFew() int64 {
	if v.form.Tiles() {
		return fewRows
	}
	return max(fewRows, int64(v.engine.VectorBytes)/dtype.Float32.Size())
}

func isContiguous(a *layout.Axis, dt dtype.DType) bool {
	step, even := a.Uniform()
	return even && step == dt.Size()
}

// strips computes the product in strips of rows or columns, whose threads pack the other operand's
// panels where they need them, in a near cache. Where operands should be lifted it is not done, and
// anything may be in the results: they are packed whole for that.
func (v *product) strips(r *backend.Run, to *sink, limit int, p *packed) (done bool, err error) {
	b, j, c := &p.block, &p.tiles, &p.tiles.cut
	v.place(b, blocks{1, 1}, 0)
	b.rows, b.columns = v.Left.Rows.Length, v.Right.Rows.Length
	p.index = slices.Grow(p.index[:0], len(v.Kept)+len(v.Summed))[:len(v.Kept)+len(v.Summed)]
	clear(p.index)
	s := span{depth: v.Depth(), units: v.words(), begins: true, ends: true}
	v.prepare(r, to, p, s)
	if v.inPlace() {
		v.cutFew(p, int64(limit))
	} else {
		v.cutStrips(p, s, int64(limit))
	}
	if err := v.packed(r, p, s, c.RowByRow == 0, c.RowByRow == 1 && c.Round == 0); err != nil {
		return false, err
	}
	packing, multiplying := v.work(b, s)
	strips := c.Down * c.Across
	if j.sums, err = p.sums.get(c.Scratch * threads.Members(strips, limit, packing+multiplying)); err != nil {
		return false, err
	}
	refused, err := j.share(strips, limit, packing+multiplying)
	if refused {
		p.left.forget()
		p.right.forget()
	}
	return !refused, err
}

// cutStrips cuts a block into strips of the operand that has more rows.
func (v *product) cutStrips(p *packed, s span, limit int64) {
	b, c := &p.block, &p.tiles.cut
	*c = kernels.Cut{
		Down: 1, Across: 1, RowUnit: v.leftWidth, ColumnUnit: v.leastWidth(), RowByRow: truth(b.rows > b.columns),
		Pairs: truth(v.form.Pairs()),
	}
	if v.watches() {
		c.Refuse = kernels.WhereSmall
	}
	height := divideUp(b.rows, c.RowUnit) * c.RowUnit
	width := divideUp(b.columns, c.ColumnUnit) * c.ColumnUnit
	strips, length, unit, panel, other := &c.Across, &width, c.ColumnUnit, v.rightWidth, height
	if c.RowByRow == 1 {
		strips, length, unit, panel, other = &c.Down, &height, c.RowUnit, v.leftWidth, width
	}
	units := *length / unit
	most := max(1, min(kernels.StripPanels*panel, stripBytes/v.sumSize/max(other, s.units))/unit)
	*strips = divideUp(units, most)
	if limit > 1 {
		*strips = min(units, divideUp(max(*strips, tilesOfThread*limit), limit)*limit)
	}
	*length = divideUp(units, *strips) * unit
	p.tiles.tile.Stride = width
	c.Panels = height * width * v.sumSize
	c.Scratch = c.Panels + divideUp(*length, panel)*panel*s.units*v.sumSize
}

// turned reports whether tiles multiply the operands the other way round: the left one is packed as
// if it were the right one (few_tiles.h).
func (v *product) turned() bool { return v.form.Tiles() && isContiguous(&v.Right.Columns, v.DType) }

// mayRefuse reports whether a product may have to be computed another way, by its operands'
// numbers: where they had better be lifted, and where the tiles of float16 have infinities.
func (v *product) mayRefuse() bool { return v.watches() || v.form == kernels.Float16Tiles }

// cutFew cuts a block of few rows into strips of columns.
func (v *product) cutFew(p *packed, limit int64) {
	b, c := &p.block, &p.tiles.cut
	*c = kernels.Cut{Down: 1, RowUnit: v.leftWidth, ColumnUnit: 2 * kernels.Group, Pairs: truth(v.form.Pairs()), Round: v.form.Words(v.mostDepth())}
	if v.mayRefuse() {
		c.Refuse = kernels.WhereSmall
	}
	units := divideUp(b.columns, c.ColumnUnit)
	c.Across = divideUp(units, min(kernels.Block, fewBytes/v.sumSize/b.rows)/c.ColumnUnit)
	if limit > 1 {
		c.Across = min(units, divideUp(max(c.Across, tilesOfThread*limit), limit)*limit)
	}
	p.tiles.tile.Stride = divideUp(units, c.Across) * c.ColumnUnit
	c.Scratch = 2 * max(b.rows, fewRows) * p.tiles.tile.Stride * v.sumSize // tiles have 16 rows
}
