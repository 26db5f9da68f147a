package vector

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// A product is computed in blocks of the result. Both operands of a block are packed, blockBytes of
// a row of theirs at a time, by all threads; then threads compute tiles from what is packed. A sum
// is formed in the order of its depth whatever the blocks, tiles and threads are.
const (
	blockRows    = 1120
	blockColumns = 1024
	blockBytes   = 16 << 10 // of a packed row
	spareDepth   = 8        // what part of blockBytes a row may have more, of further pairs
	// tilesOfThread is how many tiles each thread has at least, if they can be cut, so that threads
	// end together. Tiles are leastHigh panels high, if that is enough: the right operand's panels
	// are read for each anew.
	tilesOfThread, leastHigh = 4, 4
	// evenEnough is the tolerated load imbalance: the busiest thread's share by the mean.
	evenEnough = 1.05
	// packingWork is the cost of packing an element, in multiply-adds.
	packingWork = 2
	// speedup is how many times as fast as the portable engine's these products are, for estimates
	// of work.
	speedup = 4
)

// product is a product by an engine.
type product struct {
	*layout.Product
	engine                *kernels.Engine
	form                  kernels.Form
	leftAxes, rightAxes   [2]kernels.Axis
	leftWidth, rightWidth int64
	sumSize               int64
	result                dtype.DType // of the stored result
	next                  *product    // the next pair of a sum of products
	behind                *product    // a pair before that, packed behind the last part of this one
	pairs                 int         // packed together: this one and all behind it
	exchanged             bool        // the operands are: sums are formed as if they were not
	slowWithDenormals     bool        // the processor is
	neverLifts            bool        // what is watched for is only multiplied in another way
	add, store            kernels.Kernel
}

// sink is what becomes of a product's sums: pre = sums + bias and out = value(pre), each if it is
// there.
type sink struct {
	out, pre, bias *layout.Matrix
	value          kernels.Kernel
	accumulate     bool
}

// plain reports whether the product's sums are the result as they are.
func (s *sink) plain(v *product) bool {
	return s.pre == nil && s.bias == nil && !s.accumulate && s.value == v.store && v.result.Size() == v.sumSize
}

// forms are the ways to pack operands, best first. Not every engine has all.
var forms = map[dtype.DType][]kernels.Form{
	dtype.Float32:  {kernels.Float32},
	dtype.Float64:  {kernels.Float64},
	dtype.BFloat16: {kernels.BFloat16Tiles, kernels.BFloat16Pairs, kernels.BFloat16},
	dtype.Float16:  {kernels.Float16Tiles, kernels.Float16},
}

// product makes a product by the engine, or nil where an operand has too many dimensions.
func (e *Engine) product(p *layout.Product) *product {
	v := &product{
		Product: p, pairs: 1, engine: e.Engine, sumSize: p.DType.Accumulator().Size(), slowWithDenormals: e.SlowWithDenormals, neverLifts: e.neverLifts,
	}
	for _, form := range forms[p.DType] {
		if v.leftWidth, v.rightWidth = e.Widths(form); v.leftWidth > 0 {
			v.form = form
			break
		}
	}
	var fits [4]bool
	v.leftAxes[0], fits[0] = kernelAxis(&p.Left.Rows)
	v.leftAxes[1], fits[1] = kernelAxis(&p.Left.Columns)
	v.rightAxes[0], fits[2] = kernelAxis(&p.Right.Rows)
	v.rightAxes[1], fits[3] = kernelAxis(&p.Right.Columns)
	v.storesAs(e, p.DType)
	if fits != [4]bool{true, true, true, true} {
		return nil
	}
	if p.Next != nil {
		if v.next = e.product(p.Next); v.next == nil {
			return nil
		}
		if v.takes(v.next) {
			v.behind, v.next, v.pairs = v.next, v.next.next, 1+v.next.pairs
		}
	}
	return v
}

// takes reports whether a pair, with those behind it, is packed behind the last part of this pair's
// depth, and is one sum with it: where both are little deeper than a part may be.
func (v *product) takes(next *product) bool {
	most, parts := v.mostDepth(), v.rounds() > 0 && tensor.Elements(v.Summed) == 1 && next.rounds() == 1
	depth := v.form.Depth(v.form.Words((v.Depth()-1)%most+1) + next.words())
	return parts && depth <= most+most/spareDepth && next.pairs < kernels.MostPairs
}

// words are those that this pair and all behind it are packed in.
func (v *product) words() int64 {
	if v == nil {
		return 0
	}
	return v.form.Words(v.Depth()) + v.behind.words()
}

// mostDepth is how much of the depth is packed at a time.
func (v *product) mostDepth() int64 { return v.form.Depth(blockBytes / v.sumSize) }

// rounds counts the parts of a pair's depth, in every item of the batch that is summed over.
func (v *product) rounds() int64 {
	return tensor.Elements(v.Summed) * divideUp(v.Depth(), v.mostDepth())
}

// allRounds counts those of this pair and all behind it.
func (v *product) allRounds() int64 {
	if v == nil {
		return 0
	}
	return v.rounds() + v.next.allRounds()
}

// storesAs sets the stored dtype: sums of half types may stay in the accumulator's.
func (v *product) storesAs(e *Engine, dt dtype.DType) {
	v.result = dt
	v.add, _ = e.Kernel("add_" + dt.Short())
	v.store, _ = e.Kernel("epilogue_none_" + dt.Short())
}

// routine names what multiplies, for Sku.
func (v *product) routine() string { return v.engine.Name + ".multiply_" + v.form.String() }

func kernelAxis(a *layout.Axis) (k kernels.Axis, fits bool) {
	if len(a.Sizes) > kernels.MostRank {
		return k, false
	}
	k.Rank, k.Length = int64(len(a.Sizes)), a.Length
	copy(k.Sizes[:], a.Sizes)
	copy(k.Strides[:], a.Strides)
	return k, true
}

// block is a block of one batch item's result.
type block struct {
	batch         []int64 // index of the item
	row, column   int64
	rows, columns int64
}

// blocks is how many there are in a result, down and across.
type blocks struct{ down, across int64 }

// blockRows is the rows of a block: whole panels.
func (v *product) blockRows() int64 { return blockRows / v.leftWidth * v.leftWidth }

// place finds a block by its number.
func (v *product) place(b *block, c blocks, number int64) {
	b.batch = slices.Grow(b.batch[:0], len(v.Kept))[:len(v.Kept)]
	layout.Unravel(b.batch, v.Kept, number/c.across/c.down)
	b.row, b.column = number/c.across%c.down*v.blockRows(), number%c.across*blockColumns
	b.rows = min(v.blockRows(), v.Left.Rows.Length-b.row)
	b.columns = min(blockColumns, v.Right.Rows.Length-b.column)
}

// run computes the product: in strips if it can, else in blocks. Blocks that are many or small are
// each computed on one thread, others one after the other on all.
func (v *product) run(r *backend.Run, to *sink) error {
	rows, columns := v.Left.Rows.Length, v.Right.Rows.Length
	if rows == 0 || columns == 0 || tensor.Elements(v.Kept) == 0 {
		return nil
	}
	if to.out != nil {
		hintPages(r, to.out.View)
	}
	if to.pre != nil {
		hintPages(r, to.pre.View)
	}
	c := blocks{down: divideUp(rows, v.blockRows()), across: divideUp(columns, blockColumns)}
	count := tensor.Elements(v.Kept) * c.down * c.across
	work, limit := v.Work()/speedup, threads.For(r.Threads)
	if work < threads.TaskWork {
		limit = 1
	}
	p := getPacked()
	defer p.free()
	strips := v.inStrips(to, tensor.Elements(v.Kept))
	if !strips && count > 1 && (count >= 4*int64(limit) || work < threads.TaskWork) {
		return v.runEach(r, to, c, count, work)
	}
	if !strips || v.mayRefuse() { // strips may be refused when something is written already
		if err := v.reserve(p, int64(limit)); err != nil {
			return err
		}
	}
	if strips {
		if done, err := v.strips(r, to, limit, p); done || err != nil {
			return err
		}
	}
	for number := range count {
		if err := v.compute(r, c, number, to, limit, p); err != nil {
			return err
		}
	}
	return nil
}

// reserve makes room for any block of the result on at most limit threads, before one is written:
// where there is none, the results are as they were.
func (v *product) reserve(p *packed, limit int64) error {
	rows := divideUp(min(v.blockRows(), v.Left.Rows.Length), v.leftWidth) * v.leftWidth
	columns := divideUp(min(blockColumns, v.Right.Rows.Length), v.leastWidth()) * v.leastWidth()
	units := int64(0)
	for pair := v; pair != nil; pair = pair.next {
		units = max(units, v.form.Words(min(v.mostDepth(), pair.Depth()))+pair.behind.words())
	}
	panel := units * v.sumSize
	if err := p.left.room(rows/v.leftWidth, v.leftWidth*panel); err != nil {
		return err
	}
	if err := p.right.room(columns/v.rightWidth, v.rightWidth*panel); err != nil {
		return err
	}
	sums := rows * columns
	if v.allRounds() <= 1 { // those of the tiles at work
		height, width := v.form.Tile()
		sums = limit * min(rows, height+v.leftWidth) * min(columns, width+v.leastWidth())
	}
	_, err := p.sums.get(sums * v.sumSize)
	return err
}

// runEach computes each block on one thread.
func (v *product) runEach(r *backend.Run, to *sink, c blocks, count, work int64) error {
	members := threads.Members(count, r.Threads, work)
	free := make(chan *packed, members)
	for range members {
		p := getPacked()
		defer p.free()
		if err := v.reserve(p, 1); err != nil {
			return err
		}
		free <- p
	}
	var failure atomic.Pointer[error]
	err := threads.Parallel(int(count), r.Threads, work, func(number int) {
		p := <-free
		defer func() { free <- p }()
		if err := v.compute(r, c, int64(number), to, 1, p); err != nil {
			failure.CompareAndSwap(nil, &err) // a panic of the nested call's that was caught
		}
	})
	if err != nil {
		return err
	}
	if first := failure.Load(); first != nil {
		return *first
	}
	return nil
}

// compute computes a block on at most limit threads. It packs and multiplies for each pair, each
// item of the batch that is summed over, and each part of the depth.
func (v *product) compute(r *backend.Run, c blocks, number int64, to *sink, limit int, p *packed) error {
	b := &p.block
	v.place(b, c, number)
	dimensions := len(v.Kept) + len(v.Summed)
	p.index = slices.Grow(p.index[:0], dimensions)[:dimensions]
	copy(p.index, b.batch)
	all, most := v.allRounds(), v.mostDepth()
	pair, round := v, int64(0)
	for done := range max(1, all) {
		for pair.next != nil && round == pair.rounds() {
			pair, round = pair.next, 0
		}
		s := span{begins: done == 0, ends: done >= all-1}
		if all > 0 {
			parts := divideUp(pair.Depth(), most)
			s.first = round % parts * most
			s.depth = min(most, pair.Depth()-s.first)
			layout.Unravel(p.index[len(v.Kept):], v.Summed, round/parts)
			round++
		}
		if s.units = v.form.Words(s.depth); s.first+s.depth == pair.Depth() {
			s.units += pair.behind.words()
		}
		if err := pair.packed(r, p, s, true, true); err != nil {
			return err
		}
		if err := v.multiply(r, to, limit, p, s); err != nil {
			return err
		}
	}
	return nil
}

// span is a part of the depth: its elements, and the words that they are packed in, with the pairs
// behind. It may be the first one, whose sums begin, and the last, which ends them.
type span struct {
	first, depth, units int64
	begins, ends        bool
}

// packed decides which operands of a block are to be packed, and makes room for those that are
// packed whole.
func (v *product) packed(r *backend.Run, p *packed, s span, wholeLeft, wholeRight bool) error {
	b := &p.block
	if wholeLeft {
		if err := p.left.room(divideUp(b.rows, v.leftWidth), v.leftWidth*s.units*v.sumSize); err != nil {
			return err
		}
	}
	if wholeRight {
		if err := p.right.room(divideUp(b.columns, v.rightWidth), v.rightWidth*s.units*v.sumSize); err != nil {
			return err
		}
	}
	if s.depth == 0 {
		p.left.forget()
		p.right.forget()
		return nil
	}
	turned := !wholeRight && v.inPlace() && v.turned()
	before := int64(0)
	for i, pair := 0, v; before < s.units; i, pair = i+1, pair.behind {
		if i > 0 {
			s.first, s.depth = 0, pair.Depth()
		}
		words := v.form.Words(s.depth)
		after := s.units - before - words
		p.left.pack(r, i, pair.Left, p.index, kernels.Operand{
			Rows: pair.leftAxes[0], Columns: pair.leftAxes[1], Form: v.form, Width: v.leftWidth, Left: truth(!turned), Again: truth(!s.begins),
			Row: b.row, Count: b.rows, First: s.first, Depth: s.depth, Before: before, After: after,
		})
		p.right.pack(r, i, pair.Right, p.index, kernels.Operand{
			Rows: pair.rightAxes[0], Columns: pair.rightAxes[1], Form: v.form, Width: v.rightWidth, Again: truth(!s.begins),
			Row: b.column, Count: b.columns, First: s.first, Depth: s.depth, Before: before, After: after,
		})
		before += words
	}
	return nil
}

// multiply packs and multiplies. Where the span is the whole depth, a tile's sums are scratch of
// its thread; else they stay with the block.
func (v *product) multiply(r *backend.Run, to *sink, limit int, p *packed, s span) (err error) {
	b, j := &p.block, &p.tiles
	v.prepare(r, to, p, s)
	t := j.tile
	v.cut(p, int64(limit))
	tiles := j.cut.Down * j.cut.Across
	packing, multiplying := v.work(b, s)
	if s.begins && s.ends {
		height := divideUp(divideUp(b.rows, v.leftWidth), j.cut.Down) * v.leftWidth
		t.Stride = divideUp(divideUp(b.columns, j.cut.ColumnUnit), j.cut.Across) * j.cut.ColumnUnit
		j.cut.Scratch = height * t.Stride * v.sumSize
		j.sums, err = p.sums.get(j.cut.Scratch * threads.Members(tiles, limit, packing+multiplying))
	} else {
		t.Stride = divideUp(b.columns, v.leastWidth()) * v.leastWidth()
		j.sums, err = p.sums.get(divideUp(b.rows, v.leftWidth) * v.leftWidth * t.Stride * v.sumSize)
	}
	if err != nil {
		return err
	}
	switch {
	case s.depth > 0 && p.left.lifted+p.right.lifted > 0:
		j.cut.Refuse = kernels.Always
	case s.depth > 0 && v.watches():
		j.cut.Refuse = kernels.WhereSmall
	}
	if refused, err := j.share(tiles, limit, packing+multiplying); err != nil || !refused {
		return err
	}
	lifted, err := v.lift(p, s.units, limit, s.begins)
	if err != nil {
		return err
	}
	clear(p.left.packing.Operand[:])
	clear(p.right.packing.Operand[:])
	t.Lifted, j.cut.Refuse = lifted, kernels.Never
	_, err = j.share(tiles, limit, multiplying)
	return err
}

// work is the cost of packing a block's operands and of multiplying them.
func (v *product) work(b *block, s span) (packing, multiplying int64) {
	return (b.rows + b.columns) * s.depth * packingWork, b.rows * b.columns * max(1, v.form.Depth(s.units)/speedup)
}

// prepare sets the parameters that all tiles of a block share.
func (v *product) prepare(r *backend.Run, to *sink, p *packed, s span) {
	b, j := &p.block, &p.tiles
	j.engine, j.left, j.right = v.engine, &p.left.packing, &p.right.packing
	t := j.tile
	*t = kernels.Tile{
		Row: b.row, Column: b.column, Rows: b.rows, Columns: b.columns,
		Form: v.form, Units: s.units, First: truth(s.begins), Last: truth(s.ends),
		Accumulate: truth(to.accumulate), Exchanged: truth(v.exchanged),
		Size: v.result.Size(), SumSize: v.sumSize,
		Parameters: r.Parameters, Add: v.add, Store: v.store, Value: to.value,
	}
	j.out, j.pre, j.bias = resultOf(to.out, &t.Out, r, b), resultOf(to.pre, &t.Pre, r, b), nil
	t.Plain = truth(to.plain(v) && t.Out.Rows.Rank == 1 && t.Out.ColumnStride == v.sumSize)
	if to.bias != nil {
		j.bias = r.At(to.bias.View)
		t.BiasStride, _ = to.bias.Columns.Uniform()
	}
}

// leastWidth is the columns of whole panels that are whole groups too, of which epilogues write
// all.
func (v *product) leastWidth() int64 {
	width := v.rightWidth
	for width%kernels.Group != 0 {
		width *= 2
	}
	return width
}

// cut cuts a block into tiles for up to limit threads. Each thread has the same number of tiles in
// a stretch of rows or of columns, whose panels it packs itself. Stretches divide the longer
// dimension, unless the other one divides more evenly. If tiles are few, they get lower before they
// get narrower, since epilogues are faster on long rows.
func (v *product) cut(p *packed, limit int64) {
	b := &p.block
	height, width := v.form.Tile()
	c := &p.tiles.cut
	*c = kernels.Cut{
		Down: divideUp(b.rows, height), Across: divideUp(b.columns, width),
		RowUnit: v.leftWidth, ColumnUnit: v.leastWidth(), Pairs: truth(v.form.Pairs()),
	}
	down, across := divideUp(b.rows, c.RowUnit), divideUp(b.columns, c.ColumnUnit) // at most
	for limit > 1 && c.Down*c.Across < tilesOfThread*limit && (c.Down < down || c.Across < across) {
		if c.Down < down && (c.Across == across || down >= 2*leastHigh*c.Down) {
			c.Down = min(2*c.Down, down)
		} else {
			c.Across = min(2*c.Across, across)
		}
	}
	// the longest stretch, relative to an even share
	uneven := func(n, unit int64) float64 {
		return float64(divideUp(divideUp(n, unit), limit)*unit*limit) / float64(n)
	}
	byRows, byColumns := uneven(b.rows, c.RowUnit), uneven(b.columns, c.ColumnUnit)
	rows := b.rows > b.columns
	if rows && byRows > evenEnough {
		rows = byRows <= byColumns
	} else if !rows && byColumns > evenEnough {
		rows = byRows < byColumns
	}
	c.RowByRow = truth(rows)
	if rows {
		c.Down = min(divideUp(c.Down, limit)*limit, down)
	} else {
		c.Across = min(divideUp(c.Across, limit)*limit, across)
	}
}

// resultOf describes a matrix to the engine, and returns where the block's batch item starts.
func resultOf(m *layout.Matrix, to *kernels.Result, r *backend.Run, b *block) unsafe.Pointer {
	if m == nil {
		return nil
	}
	to.Rows, _ = kernelAxis(&m.Rows) // checked when the kernel was made
	to.ColumnStride, _ = m.Columns.Uniform()
	return m.At(r, b.batch)
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
