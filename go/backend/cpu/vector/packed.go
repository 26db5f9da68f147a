package vector

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// packed is the memory that a block needs: its operands, its sums, and the engine's parameters.
// It is used again, so that small products leave no garbage.
type packed struct {
	block       block
	index       []int64 // of the item whose operands are packed
	left, right packedOperand
	sums        buffer
	tiles       tiling
}

// packedOperand is a part of an operand, in panels, and those of the pairs behind it.
type packedOperand struct {
	buffer
	parts    [kernels.MostPairs]operandPart
	operands [kernels.MostPairs]kernels.Operand
	packing  kernels.Packing
	lifted   int64 // the power of two that its numbers were multiplied by
	largest  int64 // exponent of the packed values, negative while unknown
}

// operandPart says which part of a product's operand that is: blocks in a row may need the same.
type operandPart struct {
	of                       *layout.Matrix
	from                     uintptr
	row, count, first, depth int64
}

// room makes room for panels of this size.
func (o *packedOperand) room(panels, bytes int64) (err error) {
	if int64(len(o.packing.Smallest)) < panels {
		o.packing.Smallest = make([]int16, panels)
	}
	o.packing.To, err = o.get(panels * bytes)
	return err
}

// forget takes the operand for not packed.
func (o *packedOperand) forget() {
	o.lifted = 0
	clear(o.parts[:])
	clear(o.packing.Operand[:])
}

// pack says which part of a pair is to be packed, behind those of the pairs before it, unless all
// of them are packed.
func (o *packedOperand) pack(r *backend.Run, pair int, m *layout.Matrix, item []int64, operand kernels.Operand) {
	from := m.At(r, item)
	part := operandPart{m, uintptr(from), operand.Row, operand.Count, operand.First, operand.Depth}
	if pair == 0 {
		clear(o.packing.Operand[:])
	}
	if o.packing.Operand[0] == nil && o.parts[pair] == part {
		return
	}
	o.parts[pair], o.operands[pair], o.packing.From[pair] = part, operand, from
	for i := range pair + 1 {
		o.packing.Operand[i] = &o.operands[i]
	}
	o.lifted, o.largest = 0, -1
}

// tiling is the job that packs a block's operands and computes its tiles from them.
type tiling struct {
	engine         *kernels.Engine
	tile           *kernels.Tile // by itself: cgo would look at its neighbours
	cut            kernels.Cut
	left, right    *kernels.Packing
	sums           unsafe.Pointer
	out, pre, bias unsafe.Pointer
	refused        atomic.Bool // the operands are to be lifted first
}

// Call implements threads.Job.
func (j *tiling) Call(crew *kernels.Crew) {
	j.engine.Product(crew, j.left, j.right, j.tile, &j.cut, j.sums, j.out, j.pre, j.bias)
	if crew.Refused != 0 {
		j.refused.Store(true)
	}
}

// share computes the tiles, on up to limit threads. If it was refused, results are unchanged, or,
// in strips, undefined.
func (j *tiling) share(tiles int64, limit int, work int64) (refused bool, err error) {
	j.refused.Store(false)
	err = threads.Share(tiles, limit, work, j)
	return j.refused.Load(), err
}

// buffer is scratch that grows. It starts on a cache line.
type buffer struct{ scratch *scratch }

// scratch is memory of C's. It is given back with the buffer that has it, or when that grows.
type scratch struct {
	at      unsafe.Pointer
	bytes   int64
	cleanup runtime.Cleanup
}

// get returns memory of this size, or an error where there is none.
func (b *buffer) get(bytes int64) (unsafe.Pointer, error) {
	if b.scratch != nil && b.scratch.bytes >= bytes {
		return b.scratch.at, nil
	}
	if b.scratch != nil {
		b.scratch.cleanup.Stop()
		kernels.Free(b.scratch.at)
		b.scratch = nil
	}
	at := kernels.Allocate(bytes)
	if at == nil {
		text := fmt.Sprintf("no memory for a product's workspace of %d bytes", bytes)
		return nil, backend.Failed("cpu", "aligned_alloc", "ENOMEM", int(syscall.ENOMEM), text)
	}
	hintMemory(at, bytes)
	b.scratch = &scratch{at: at, bytes: bytes}
	b.scratch.cleanup = runtime.AddCleanup(b.scratch, kernels.Free, at)
	return at, nil
}

var freePacked = sync.Pool{New: func() any { return &packed{tiles: tiling{tile: new(kernels.Tile)}} }}

// getPacked returns memory that holds no packed operand: where operands lie is known within a run
// only.
func getPacked() *packed {
	p := freePacked.Get().(*packed)
	p.left.forget()
	p.right.forget()
	return p
}

// free puts it back without addresses of operands, whose memory may become Go's.
func (p *packed) free() {
	clear(p.left.packing.From[:])
	clear(p.right.packing.From[:])
	p.tiles.out, p.tiles.pre, p.tiles.bias = nil, nil, nil
	freePacked.Put(p)
}
