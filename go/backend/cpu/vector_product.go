package cpu

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// A vector product is computed in blocks of the result. Both operands of a block are packed, blockBytes of a row of theirs at a time, by all threads; then
// threads compute tiles from what is packed. A sum is formed in the order of its depth whatever the blocks, tiles and threads are.
const (
	blockRows    = 1120
	blockColumns = 1024
	blockBytes   = 16 << 10 // of a packed row
	// The last tiles are cut into pieces, so many in each direction if they can be, so that threads end together. A piece is leastHigh panels high at least: the right operand's are
	// read for each piece anew.
	lastDown, lastAcross, leastHigh = 4, 4, 3
	// vectorSpeed is how many times as fast as gonum's products these are, for parallel's estimates.
	vectorSpeed = 4
)

// vectorProduct is a product by an engine.
type vectorProduct struct {
	product
	engine                *kernels.Engine
	form                  kernels.Form
	leftAxes, rightAxes   [2]kernels.Axis
	leftWidth, rightWidth int64
	sumSize               int64
	exchanged             bool // the operands are: sums are formed as if they were not
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
func (b *Backend) vectorProduct(p product) *vectorProduct {
	if b.engine == nil {
		return nil
	}
	v := &vectorProduct{product: p, engine: b.engine, sumSize: p.dt.Accumulator().Size()}
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
	left, right packedOperand
	sums        buffer
	tile        *kernels.Tile // by itself: cgo would look at its neighbours
	cut         kernels.Cut
}

// packedOperand is a part of an operand, in panels.
type packedOperand struct {
	buffer
	smallest []int16
	part     operandPart
	task     kernels.Operand
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

func grown(list []int16, n int64) []int16 {
	if int64(len(list)) < n {
		return make([]int16, n)
	}
	return list
}

var freePacked = sync.Pool{New: func() any { return &packed{tile: new(kernels.Tile)} }}

// getPacked is memory of which nothing is packed: where operands lie is known within a run only.
func getPacked() *packed {
	p := freePacked.Get().(*packed)
	p.left.part, p.right.part = operandPart{}, operandPart{}
	return p
}

func divideUp(a, b int64) int64 { return (a + b - 1) / b }

// run computes the product. Blocks that are many or small are each computed on one thread, others one after the other on all.
func (v *vectorProduct) run(r *backend.Run, to *sink) error {
	rows, columns := v.left.rows.length, v.right.rows.length
	if rows == 0 || columns == 0 || items(v.kept) == 0 {
		return nil
	}
	for _, m := range []*matrix{to.out, to.pre} {
		if m != nil {
			hintPages(r, m.view)
		}
	}
	blockRows := blockRows / v.leftWidth * v.leftWidth
	across, down := divideUp(columns, blockColumns), divideUp(rows, blockRows)
	blocks := int64(items(v.kept)) * down * across
	g := v.product.grid()
	work := g.work / vectorSpeed
	compute := func(block int64, threads int, p *packed) error {
		b := vectorBlock{batch: make([]int64, len(v.kept)), row: block / across % down * blockRows, column: block % across * blockColumns}
		unravel(b.batch, v.kept, int(block/across/down))
		b.rows, b.columns = min(blockRows, rows-b.row), min(blockColumns, columns-b.column)
		return v.block(r, &b, to, threads, p)
	}
	threads := threadsFor(r.Threads)
	if blocks >= 4*int64(threads) || work < goroutineWork {
		var failure atomic.Pointer[error]
		err := parallel(int(blocks), r.Threads, work, func(block int) {
			p := getPacked()
			defer freePacked.Put(p)
			if err := compute(int64(block), 1, p); err != nil {
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
	p := getPacked()
	defer freePacked.Put(p)
	for block := range blocks {
		// There and back, so that the next block shares an operand with the one before.
		if column := block % across; block/across%2 == 1 {
			block += across - 1 - 2*column
		}
		if err := compute(block, threads, p); err != nil {
			return err
		}
	}
	return nil
}

// block computes a block: for each part of the depth, and each item of the batch that is summed over, packs and multiplies.
func (v *vectorProduct) block(r *backend.Run, b *vectorBlock, to *sink, threads int, p *packed) error {
	most := v.form.Depth(blockBytes / v.sumSize)
	parts := max(1, divideUp(v.depth(), most))
	passes := int64(items(v.summed)) * parts
	if items(v.summed) == 0 || v.depth() == 0 {
		passes = 1
	}
	leftPanels, rightPanels := divideUp(b.rows, v.leftWidth), divideUp(b.columns, v.rightWidth)
	p.left.smallest, p.right.smallest = grown(p.left.smallest, leftPanels), grown(p.right.smallest, rightPanels)
	index := make([]int64, len(b.batch))
	inner := make([]int64, len(b.batch))
	for pass := range passes {
		first := pass % parts * most
		depth := max(0, min(most, v.depth()-first))
		if items(v.summed) == 0 {
			depth = 0
		}
		units := v.form.Words(depth)
		left, right := p.left.get(leftPanels*v.leftWidth*units*v.sumSize), p.right.get(rightPanels*v.rightWidth*units*v.sumSize)
		if depth > 0 {
			unravel(inner, v.summed, int(pass/parts))
			for d := range index {
				index[d] = b.batch[d] + inner[d]
			}
			p.left.task = kernels.Operand{
				Rows: v.leftAxes[0], Columns: v.leftAxes[1], Form: v.form, Width: v.leftWidth, Left: 1, Again: truth(pass > 0), Row: b.row, Count: b.rows,
				First: first, Depth: depth,
			}
			p.right.task = kernels.Operand{
				Rows: v.rightAxes[0], Columns: v.rightAxes[1], Form: v.form, Width: v.rightWidth, Again: truth(pass > 0), Row: b.column, Count: b.columns,
				First: first, Depth: depth,
			}
			leftFrom, rightFrom := v.left.at(r, index), v.right.at(r, index)
			var leftPacking, rightPacking *kernels.Packing
			if p.left.lacks(operandPart{uintptr(leftFrom), b.row, b.rows, first, depth}) {
				leftPacking = &kernels.Packing{Operand: &p.left.task, From: leftFrom, To: left, Smallest: p.left.smallest}
			}
			if p.right.lacks(operandPart{uintptr(rightFrom), b.column, b.columns, first, depth}) {
				rightPacking = &kernels.Packing{Operand: &p.right.task, From: rightFrom, To: right, Smallest: p.right.smallest}
			}
			if leftPacking != nil || rightPacking != nil {
				err := share(leftPanels+rightPanels, threads, (b.rows+b.columns)*depth*2, func(crew *kernels.Crew) { v.engine.Pack(crew, leftPacking, rightPacking) })
				if err != nil {
					return err
				}
			}
		}
		if err := v.tiles(r, b, to, threads, p, units, pass == 0, pass == passes-1); err != nil {
			return err
		}
	}
	return nil
}

// tiles multiplies what is packed. Where that is the whole depth, a tile's sums are scratch of its thread; else they stay with the block.
func (v *vectorProduct) tiles(r *backend.Run, b *vectorBlock, to *sink, threads int, p *packed, units int64, first, last bool) error {
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
	var sums unsafe.Pointer
	t := p.tile
	*t = kernels.Tile{
		Row: b.row, Column: b.column, Rows: b.rows, Columns: b.columns,
		Form: v.form, Units: units, First: truth(first), Last: truth(last), Accumulate: truth(to.accumulate), Exchanged: truth(v.exchanged), Size: v.dt.Size(), SumSize: v.sumSize,
		Add: v.add, Store: v.store, Value: to.value,
	}
	out, outAt := resultOf(to.out, r, b)
	t.Plain = truth(to.plain(v) && out.Rows.Rank == 1 && out.ColumnStride == v.sumSize)
	pre, preAt := resultOf(to.pre, r, b)
	t.Out, t.Pre = out, pre
	var biasAt unsafe.Pointer
	if to.bias != nil {
		biasAt = r.At(to.bias.view)
		t.BiasStride, _ = to.bias.columns.uniform()
	}
	tiles := divideUp(b.rows, height) * divideUp(b.columns, width)
	p.cut = kernels.Cut{Height: height, Width: width, Uncut: tiles, Down: lastDown, Across: min(lastAcross, width/leastWidth)}
	for panels := height / v.leftWidth; p.cut.Down > 1 && (panels%p.cut.Down != 0 || panels/p.cut.Down < leastHigh); {
		p.cut.Down--
	}
	if threads > 1 {
		p.cut.Uncut = max(0, tiles-2*int64(threads))
	}
	p.cut.Tasks = p.cut.Uncut + (tiles-p.cut.Uncut)*p.cut.Down*p.cut.Across
	work := b.rows * b.columns * max(1, v.form.Depth(units)/vectorSpeed)
	if first && last {
		t.Stride, p.cut.Scratch = width, height*width*v.sumSize
		sums = p.sums.get(p.cut.Scratch * membersFor(p.cut.Tasks, threads, work))
	} else {
		t.Stride = divideUp(b.columns, leastWidth) * leastWidth
		sums = p.sums.get(divideUp(b.rows, v.leftWidth) * v.leftWidth * t.Stride * v.sumSize)
	}
	left, right := p.left.get(0), p.right.get(0)
	return share(p.cut.Tasks, threads, work, func(crew *kernels.Crew) {
		v.engine.Multiply(crew, t, &p.cut, left, right, p.left.smallest, p.right.smallest, sums, outAt, preAt, biasAt)
	})
}

// resultOf is a matrix as the engine writes it, and where the block's batch item starts.
func resultOf(m *matrix, r *backend.Run, b *vectorBlock) (kernels.Result, unsafe.Pointer) {
	if m == nil {
		return kernels.Result{}, nil
	}
	rows, _ := kernelAxis(&m.rows) // checked when the kernel was made
	step, _ := m.columns.uniform()
	return kernels.Result{Rows: rows, ColumnStride: step}, m.at(r, b.batch)
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
