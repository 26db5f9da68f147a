package cpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// A vector product is computed in blocks of the result. Both operands of a block are packed, blockBytes of a row of theirs at a time, by all threads; then
// threads compute tiles from what is packed. A sum is formed in the order of its depth whatever the blocks, tiles and threads are.
const (
	blockRows    = 1120
	blockColumns = 1024
	blockBytes   = 16 << 10 // of a packed row
	// Each thread's last tile is cut into pieces, so many in each direction if they can be, so that threads end together. A piece is leastHigh panels high at least: the right
	// operand's are read for each piece anew.
	lastDown, lastAcross, leastHigh = 4, 4, 3
	// vectorSpeed is how many times as fast as gonum's products these are, for parallel's estimates.
	vectorSpeed = 4
)

// vectorProduct is a product by an engine.
type vectorProduct struct {
	*product
	engine                *kernels.Engine
	form                  kernels.Form
	leftAxes, rightAxes   [2]kernels.Axis
	leftWidth, rightWidth int64
	sumSize               int64
	exchanged             bool // the operands are: sums are formed as if they were not
	slowWithDenormals     bool // the processor is
	add, store            kernels.Kernel
}

// sink is what becomes of a product's sums: pre = sums + bias and out = value(pre), each if it is there.
type sink struct {
	out, pre, bias *matrix
	value          kernels.Kernel
	accumulate     bool
}

// plain tells that the product's sums are the result as they are.
func (s *sink) plain(v *vectorProduct) bool {
	return s.pre == nil && s.bias == nil && !s.accumulate && s.value == v.store && v.dt.Size() == v.sumSize
}

// forms are the ways to pack operands, best first. Not every engine has all.
var forms = map[dtype.DType][]kernels.Form{
	dtype.Float32:  {kernels.Float32},
	dtype.Float64:  {kernels.Float64},
	dtype.BFloat16: {kernels.BFloat16Tiles, kernels.BFloat16Pairs, kernels.BFloat16},
	dtype.Float16:  {kernels.Float16Tiles, kernels.Float16},
}

// vectorProduct makes a product by the engine, or nil where there is none or an operand has too many dimensions.
func (b *Backend) vectorProduct(p *product) *vectorProduct {
	if b.engine == nil {
		return nil
	}
	v := &vectorProduct{product: p, engine: b.engine, sumSize: p.dt.Accumulator().Size(), slowWithDenormals: b.slowWithDenormals}
	for _, form := range forms[p.dt] {
		if v.leftWidth, v.rightWidth = b.engine.Widths(form); v.leftWidth > 0 {
			v.form = form
			break
		}
	}
	var fits [4]bool
	v.leftAxes[0], fits[0] = kernelAxis(&p.left.rows)
	v.leftAxes[1], fits[1] = kernelAxis(&p.left.columns)
	v.rightAxes[0], fits[2] = kernelAxis(&p.right.rows)
	v.rightAxes[1], fits[3] = kernelAxis(&p.right.columns)
	v.add, _ = b.engine.Kernel("add_" + p.dt.Short())
	v.store, _ = b.engine.Kernel("epilogue_none_" + p.dt.Short())
	if fits != [4]bool{true, true, true, true} {
		return nil
	}
	return v
}

// routine names what multiplies, for Sku.
func (v *vectorProduct) routine() string {
	return v.engine.Name + ".multiply_" + v.form.String()
}

func kernelAxis(a *axis) (k kernels.Axis, fits bool) {
	if len(a.sizes) > kernels.MostRank {
		return k, false
	}
	k.Rank, k.Length = int64(len(a.sizes)), a.length
	copy(k.Sizes[:], a.sizes)
	copy(k.Strides[:], a.strides)
	return k, true
}

// vectorBlock is a block of one batch item's result.
type vectorBlock struct {
	batch         []int64 // index of the item
	row, column   int64
	rows, columns int64
}

// packed is the memory that a block needs: its operands, and its sums. What the engine is told lies here too, so that
// small products leave no garbage.
type packed struct {
	block       vectorBlock
	index       []int64 // of the item whose operands are packed
	left, right packedOperand
	packing     packing
	sums        buffer
	tiles       tiling
}

// packedOperand is a part of an operand, in panels.
type packedOperand struct {
	buffer
	part    operandPart
	operand kernels.Operand
	packing kernels.Packing
	lifted  int64 // the power of two that its numbers were multiplied by
	largest int64 // exponent of what was packed, negative while nobody has asked
}

// packing is a job of a crew's: the operands that are to be packed.
type packing struct {
	engine      *kernels.Engine
	left, right *kernels.Packing
}

func (j *packing) call(crew *kernels.Crew) { j.engine.Pack(crew, j.left, j.right) }

// tiling is another: a block's tiles, from what is packed.
type tiling struct {
	engine               *kernels.Engine
	tile                 *kernels.Tile // by itself: cgo would look at its neighbours
	cut                  kernels.Cut
	left, right          *kernels.Packing
	sums, out, pre, bias unsafe.Pointer
}

func (j *tiling) call(crew *kernels.Crew) {
	j.engine.Multiply(crew, j.tile, &j.cut, j.left.To, j.right.To, j.left.Smallest, j.right.Smallest, j.sums, j.out, j.pre, j.bias)
}

// operandPart says which part of a product's operand that is: blocks in a row may need the same.
type operandPart struct {
	from                     uintptr
	row, count, first, depth int64
}

// lacks tells that a part is not what is packed, and takes note that it will be.
func (o *packedOperand) lacks(part operandPart) bool {
	was := o.part
	o.part = part
	return was != part
}

// room makes room for so many panels.
func (o *packedOperand) room(panels, bytes int64) {
	if int64(len(o.packing.Smallest)) < panels {
		o.packing.Smallest = make([]int16, panels)
	}
	o.packing.To = o.get(panels * bytes)
}

// pack says what is to be packed of an operand; nil if it is packed.
func (o *packedOperand) pack(from unsafe.Pointer, part operandPart, operand kernels.Operand) *kernels.Packing {
	part.from = uintptr(from)
	if !o.lacks(part) {
		return nil
	}
	o.operand = operand
	o.operand.Row, o.operand.Count, o.operand.First, o.operand.Depth = part.row, part.count, part.first, part.depth
	o.packing.Operand, o.packing.From = &o.operand, from
	o.lifted, o.largest = 0, -1
	return &o.packing
}

// buffer is scratch that grows. It starts on a cache line.
type buffer struct{ memory []byte }

func (b *buffer) get(bytes int64) unsafe.Pointer {
	const line = 64
	if int64(len(b.memory)) < bytes+line {
		b.memory = make([]byte, bytes+line)
		hintMemory(unsafe.Pointer(unsafe.SliceData(b.memory)), bytes+line)
	}
	start := unsafe.Pointer(unsafe.SliceData(b.memory))
	return unsafe.Add(start, -int64(uintptr(start))&(line-1))
}

var freePacked = sync.Pool{New: func() any { return &packed{tiles: tiling{tile: new(kernels.Tile)}} }}

// getPacked is memory of which nothing is packed: where operands lie is known within a run only.
func getPacked() *packed {
	p := freePacked.Get().(*packed)
	p.left.part, p.right.part = operandPart{}, operandPart{}
	return p
}

// free puts it back, without the addresses: their memory may be given back, and become Go's.
func (p *packed) free() {
	p.left.packing.From, p.right.packing.From = nil, nil
	p.tiles.out, p.tiles.pre, p.tiles.bias = nil, nil, nil
	freePacked.Put(p)
}

func divideUp(a, b int64) int64 { return (a + b - 1) / b }

// run computes the product. Blocks that are many or small are each computed on one thread, others one after the other on all.
func (v *vectorProduct) run(r *backend.Run, to *sink) error {
	rows, columns := v.left.rows.length, v.right.rows.length
	if rows == 0 || columns == 0 || tensor.Elements(v.kept) == 0 {
		return nil
	}
	if to.out != nil {
		hintPages(r, to.out.view)
	}
	if to.pre != nil {
		hintPages(r, to.pre.view)
	}
	c := blocks{down: divideUp(rows, v.blockRows()), across: divideUp(columns, blockColumns)}
	count := tensor.Elements(v.kept) * c.down * c.across
	g := v.product.grid()
	work := g.work / vectorSpeed
	threads := threadsFor(r.Threads)
	if count > 1 && (count >= 4*int64(threads) || work < goroutineWork) {
		return v.runEach(r, to, c, count, work)
	}
	if work < goroutineWork {
		threads = 1
	}
	p := getPacked()
	defer p.free()
	for block := range count {
		// There and back, so that the next block shares an operand with the one before.
		if column := block % c.across; block/c.across%2 == 1 {
			block += c.across - 1 - 2*column
		}
		if err := v.block(r, c, block, to, threads, p); err != nil {
			return err
		}
	}
	return nil
}

// runEach computes each block on one thread.
func (v *vectorProduct) runEach(r *backend.Run, to *sink, c blocks, count, work int64) error {
	var failure atomic.Pointer[error]
	err := parallel(int(count), r.Threads, work, func(block int) {
		p := getPacked()
		defer p.free()
		if err := v.block(r, c, int64(block), to, 1, p); err != nil {
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

// blocks is how many there are in a result, down and across.
type blocks struct{ down, across int64 }

// blockRows is the rows of a block: whole panels.
func (v *vectorProduct) blockRows() int64 { return blockRows / v.leftWidth * v.leftWidth }

// place finds a block by its number.
func (v *vectorProduct) place(b *vectorBlock, c blocks, block int64) {
	b.batch = slices.Grow(b.batch[:0], len(v.kept))[:len(v.kept)]
	unravel(b.batch, v.kept, int(block/c.across/c.down))
	b.row, b.column = block/c.across%c.down*v.blockRows(), block%c.across*blockColumns
	b.rows, b.columns = min(v.blockRows(), v.left.rows.length-b.row), min(blockColumns, v.right.rows.length-b.column)
}

// block computes a block: for each part of the depth, and each item of the batch that is summed over, packs and multiplies.
func (v *vectorProduct) block(r *backend.Run, c blocks, number int64, to *sink, threads int, p *packed) error {
	b := &p.block
	v.place(b, c, number)
	most := v.form.Depth(blockBytes / v.sumSize)
	parts := max(1, divideUp(v.depth(), most))
	summed := tensor.Elements(v.summed)
	passes := summed * parts
	if summed == 0 || v.depth() == 0 {
		passes = 1
	}
	leftPanels, rightPanels := divideUp(b.rows, v.leftWidth), divideUp(b.columns, v.rightWidth)
	dimensions := len(v.kept) + len(v.summed)
	p.index = slices.Grow(p.index[:0], dimensions)[:dimensions]
	copy(p.index, b.batch)
	for pass := range passes {
		first := pass % parts * most
		depth := max(0, min(most, v.depth()-first))
		if summed == 0 {
			depth = 0
		}
		units := v.form.Words(depth)
		p.left.room(leftPanels, v.leftWidth*units*v.sumSize)
		p.right.room(rightPanels, v.rightWidth*units*v.sumSize)
		if depth > 0 {
			unravel(p.index[len(v.kept):], v.summed, int(pass/parts))
			again := truth(pass > 0)
			p.packing = packing{
				engine: v.engine,
				left: p.left.pack(v.left.at(r, p.index), operandPart{row: b.row, count: b.rows, first: first, depth: depth},
					kernels.Operand{Rows: v.leftAxes[0], Columns: v.leftAxes[1], Form: v.form, Width: v.leftWidth, Left: 1, Again: again}),
				right: p.right.pack(v.right.at(r, p.index), operandPart{row: b.column, count: b.columns, first: first, depth: depth},
					kernels.Operand{Rows: v.rightAxes[0], Columns: v.rightAxes[1], Form: v.form, Width: v.rightWidth, Again: again}),
			}
			if p.packing.left != nil || p.packing.right != nil {
				if err := share(leftPanels+rightPanels, threads, (b.rows+b.columns)*depth*2, &p.packing); err != nil {
					return err
				}
			}
		}
		lifted := int64(0)
		if depth > 0 {
			var err error
			if lifted, err = v.lift(p, units, threads, pass == 0); err != nil {
				return err
			}
		}
		if err := v.tiles(r, to, threads, p, units, lifted, pass == 0, pass == passes-1); err != nil {
			return err
		}
	}
	return nil
}

// tiles multiplies what is packed. Where that is the whole depth, a tile's sums are scratch of its thread; else they stay with the block.
func (v *vectorProduct) tiles(r *backend.Run, to *sink, threads int, p *packed, units, lifted int64, first, last bool) error {
	b, j := &p.block, &p.tiles
	j.engine, j.left, j.right = v.engine, &p.left.packing, &p.right.packing
	height, width := v.form.Tile()
	leastWidth := v.rightWidth // whole panels that are whole groups too, of which epilogues write all
	for leastWidth%kernels.Group != 0 {
		leastWidth *= 2
	}
	for threads > 1 && divideUp(b.rows, height)*divideUp(b.columns, width) < 4*int64(threads) && (width > leastWidth || height > v.leftWidth) {
		if width > leastWidth {
			width /= 2
		} else {
			height = divideUp(height/2, v.leftWidth) * v.leftWidth
		}
	}
	t, cut := j.tile, &j.cut
	*t = kernels.Tile{
		Row: b.row, Column: b.column, Rows: b.rows, Columns: b.columns,
		Form: v.form, Units: units, First: truth(first), Last: truth(last), Accumulate: truth(to.accumulate), Exchanged: truth(v.exchanged), Lifted: lifted,
		Size: v.dt.Size(), SumSize: v.sumSize,
		Parameters: r.Parameters, Add: v.add, Store: v.store, Value: to.value,
	}
	j.out, j.pre, j.bias = to.out.result(&t.Out, r, b), to.pre.result(&t.Pre, r, b), nil
	t.Plain = truth(to.plain(v) && t.Out.Rows.Rank == 1 && t.Out.ColumnStride == v.sumSize)
	if to.bias != nil {
		j.bias = r.At(to.bias.view)
		t.BiasStride, _ = to.bias.columns.uniform()
	}
	tiles := divideUp(b.rows, height) * divideUp(b.columns, width)
	*cut = kernels.Cut{Height: height, Width: width, Uncut: tiles, Down: lastDown, Across: min(lastAcross, width/leastWidth)}
	for panels := height / v.leftWidth; cut.Down > 1 && (panels%cut.Down != 0 || panels/cut.Down < leastHigh); {
		cut.Down--
	}
	if threads > 1 {
		cut.Uncut = max(0, tiles-int64(threads))
	}
	cut.Tasks = cut.Uncut + (tiles-cut.Uncut)*cut.Down*cut.Across
	work := b.rows * b.columns * max(1, v.form.Depth(units)/vectorSpeed)
	if first && last {
		t.Stride, cut.Scratch = width, height*width*v.sumSize
		j.sums = p.sums.get(cut.Scratch * membersFor(cut.Tasks, threads, work))
	} else {
		t.Stride = divideUp(b.columns, leastWidth) * leastWidth
		j.sums = p.sums.get(divideUp(b.rows, v.leftWidth) * v.leftWidth * t.Stride * v.sumSize)
	}
	return share(cut.Tasks, threads, work, j)
}

// result says how the engine writes a matrix, and returns where the block's batch item starts.
func (m *matrix) result(to *kernels.Result, r *backend.Run, b *vectorBlock) unsafe.Pointer {
	if m == nil {
		return nil
	}
	to.Rows, _ = kernelAxis(&m.rows) // checked when the kernel was made
	to.ColumnStride, _ = m.columns.uniform()
	return m.at(r, b.batch)
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
