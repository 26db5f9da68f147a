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
	// Each thread's last tile is cut into pieces, so many in each direction if they can be, so that
	// threads end together. A piece is leastHigh panels high at least: the right operand's are read
	// for each piece anew.
	lastDown, lastAcross, leastHigh = 4, 4, 3
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
	exchanged             bool // the operands are: sums are formed as if they were not
	slowWithDenormals     bool // the processor is
	add, store            kernels.Kernel
}

// sink is what becomes of a product's sums: pre = sums + bias and out = value(pre), each if it is
// there.
type sink struct {
	out, pre, bias *layout.Matrix
	value          kernels.Kernel
	accumulate     bool
}

// plain tells that the product's sums are the result as they are.
func (s *sink) plain(v *product) bool {
	return s.pre == nil && s.bias == nil && !s.accumulate && s.value == v.store && v.DType.Size() == v.sumSize
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
		Product: p, engine: e.Engine, sumSize: p.DType.Accumulator().Size(), slowWithDenormals: e.SlowWithDenormals,
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
	v.add, _ = e.Kernel("add_" + p.DType.Short())
	v.store, _ = e.Kernel("epilogue_none_" + p.DType.Short())
	if fits != [4]bool{true, true, true, true} {
		return nil
	}
	return v
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

// run computes the product. Blocks that are many or small are each computed on one thread, others
// one after the other on all.
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
	if count > 1 && (count >= 4*int64(limit) || work < threads.TaskWork) {
		return v.runEach(r, to, c, count, work)
	}
	if work < threads.TaskWork {
		limit = 1
	}
	p := getPacked()
	defer p.free()
	for number := range count {
		if err := v.compute(r, c, number, to, limit, p); err != nil {
			return err
		}
	}
	return nil
}

// runEach computes each block on one thread.
func (v *product) runEach(r *backend.Run, to *sink, c blocks, count, work int64) error {
	var failure atomic.Pointer[error]
	err := threads.Parallel(int(count), r.Threads, work, func(number int) {
		p := getPacked()
		defer p.free()
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

// compute computes a block on at most limit threads: for each part of the depth, and each item of
// the batch that is summed over, it packs and multiplies.
func (v *product) compute(r *backend.Run, c blocks, number int64, to *sink, limit int, p *packed) error {
	b := &p.block
	v.place(b, c, number)
	most := v.form.Depth(blockBytes / v.sumSize)
	parts := max(1, divideUp(v.Depth(), most))
	summed := tensor.Elements(v.Summed)
	rounds := summed * parts
	if summed == 0 || v.Depth() == 0 {
		rounds = 1
	}
	dimensions := len(v.Kept) + len(v.Summed)
	p.index = slices.Grow(p.index[:0], dimensions)[:dimensions]
	copy(p.index, b.batch)
	for round := range rounds {
		first := round % parts * most
		depth := max(0, min(most, v.Depth()-first))
		if summed == 0 {
			depth = 0
		}
		units := v.form.Words(depth)
		p.left.room(divideUp(b.rows, v.leftWidth), v.leftWidth*units*v.sumSize)
		p.right.room(divideUp(b.columns, v.rightWidth), v.rightWidth*units*v.sumSize)
		lifted := int64(0)
		if depth > 0 {
			layout.Unravel(p.index[len(v.Kept):], v.Summed, round/parts)
			err := v.pack(r, p, first, depth, round > 0, limit)
			if err == nil {
				lifted, err = v.lift(p, units, limit, round == 0)
			}
			if err != nil {
				return err
			}
		}
		if err := v.tiles(r, to, limit, p, units, lifted, round == 0, round == rounds-1); err != nil {
			return err
		}
	}
	return nil
}

// pack packs [first, first+depth) of the depth of a block's operands, unless they are packed.
func (v *product) pack(r *backend.Run, p *packed, first, depth int64, again bool, limit int) error {
	b := &p.block
	left := kernels.Operand{
		Rows: v.leftAxes[0], Columns: v.leftAxes[1], Form: v.form, Width: v.leftWidth, Left: 1, Again: truth(again),
		Row: b.row, Count: b.rows, First: first, Depth: depth,
	}
	right := kernels.Operand{
		Rows: v.rightAxes[0], Columns: v.rightAxes[1], Form: v.form, Width: v.rightWidth, Again: truth(again),
		Row: b.column, Count: b.columns, First: first, Depth: depth,
	}
	p.packing = packing{v.engine, p.left.pack(v.Left.At(r, p.index), left), p.right.pack(v.Right.At(r, p.index), right)}
	if p.packing.left == nil && p.packing.right == nil {
		return nil
	}
	panels := divideUp(b.rows, v.leftWidth) + divideUp(b.columns, v.rightWidth)
	return threads.Share(panels, limit, (b.rows+b.columns)*depth*2, &p.packing)
}

// tiles multiplies what is packed. Where that is the whole depth, a tile's sums are scratch of its
// thread; else they stay with the block.
func (v *product) tiles(
	r *backend.Run, to *sink, limit int, p *packed, units, lifted int64, first, last bool,
) error {
	b, j := &p.block, &p.tiles
	j.engine, j.left, j.right = v.engine, &p.left.packing, &p.right.packing
	height, width := v.form.Tile()
	// whole panels that are whole groups too, of which epilogues write all
	leastWidth := v.rightWidth
	for leastWidth%kernels.Group != 0 {
		leastWidth *= 2
	}
	few := func() bool { return divideUp(b.rows, height)*divideUp(b.columns, width) < 4*int64(limit) }
	for limit > 1 && few() && (width > leastWidth || height > v.leftWidth) {
		if width > leastWidth {
			width /= 2
		} else {
			height = divideUp(height/2, v.leftWidth) * v.leftWidth
		}
	}
	t, cut := j.tile, &j.cut
	*t = kernels.Tile{
		Row: b.row, Column: b.column, Rows: b.rows, Columns: b.columns,
		Form: v.form, Units: units, First: truth(first), Last: truth(last),
		Accumulate: truth(to.accumulate), Exchanged: truth(v.exchanged), Lifted: lifted,
		Size: v.DType.Size(), SumSize: v.sumSize,
		Parameters: r.Parameters, Add: v.add, Store: v.store, Value: to.value,
	}
	j.out, j.pre, j.bias = resultOf(to.out, &t.Out, r, b), resultOf(to.pre, &t.Pre, r, b), nil
	t.Plain = truth(to.plain(v) && t.Out.Rows.Rank == 1 && t.Out.ColumnStride == v.sumSize)
	if to.bias != nil {
		j.bias = r.At(to.bias.View)
		t.BiasStride, _ = to.bias.Columns.Uniform()
	}
	tiles := divideUp(b.rows, height) * divideUp(b.columns, width)
	*cut = kernels.Cut{
		Height: height, Width: width, Uncut: tiles, Down: lastDown, Across: min(lastAcross, width/leastWidth),
	}
	for panels := height / v.leftWidth; cut.Down > 1 && (panels%cut.Down != 0 || panels/cut.Down < leastHigh); {
		cut.Down--
	}
	if limit > 1 {
		cut.Uncut = max(0, tiles-int64(limit))
	}
	cut.Tasks = cut.Uncut + (tiles-cut.Uncut)*cut.Down*cut.Across
	work := b.rows * b.columns * max(1, v.form.Depth(units)/speedup)
	if first && last {
		t.Stride, cut.Scratch = width, height*width*v.sumSize
		j.sums = p.sums.get(cut.Scratch * threads.Members(cut.Tasks, limit, work))
	} else {
		t.Stride = divideUp(b.columns, leastWidth) * leastWidth
		j.sums = p.sums.get(divideUp(b.rows, v.leftWidth) * v.leftWidth * t.Stride * v.sumSize)
	}
	return threads.Share(cut.Tasks, limit, work, j)
}

// resultOf says how the engine writes a matrix, and returns where the block's batch item starts.
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
