package cpu

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

const (
	// blockLength is the elements that a formula is applied to at a time: a handful of float64 blocks stay in the first-level cache.
	blockLength = 256
	// maxOperands is the most views that one loop walks.
	maxOperands = 8
	// elementsPerTask is the least work that is worth a goroutine's start.
	elementsPerTask = 32 * blockLength
)

// block is one operand's values of a block, in float64.
type block [blockLength]float64

// loops walks several views of one shape together, in the order that suits the first of them.
type loops struct {
	dt      dtype.DType
	views   []*tensor.View
	shape   []int64
	strides [][]int64 // bytes
	count   int64
}

// newLoops prepares a walk. The views have one shape.
func newLoops(dt dtype.DType, views ...*tensor.View) *loops {
	copies := make([]tensor.View, len(views))
	for i, v := range views {
		copies[i] = *v
	}
	l := &loops{dt: dt, views: views, count: views[0].Numel()}
	l.shape, l.strides = tensor.Collapse(copies)
	if len(l.shape) == 0 {
		l.shape = []int64{1}
		for i := range l.strides {
			l.strides[i] = []int64{0}
		}
	}
	for _, strides := range l.strides {
		for d := range strides {
			strides[d] *= dt.Size()
		}
	}
	return l
}

// bind returns the addresses of the views' first elements.
func (l *loops) bind(r *backend.Run) (at [maxOperands]unsafe.Pointer) {
	for i, v := range l.views {
		at[i] = r.At(v)
	}
	return at
}

// piece is a run of elements along the innermost loop: where it starts in the block, its length, and each view's address.
type piece struct {
	start, length int
	at            [maxOperands]unsafe.Pointer
}

// pieces calls visit for the runs that make up the n elements from index first on.
func (l *loops) pieces(base *[maxOperands]unsafe.Pointer, first int64, n int, visit func(p *piece)) {
	inner := len(l.shape) - 1
	p := piece{at: *base}
	index := make([]int64, len(l.shape)) // stays on the stack for the ranks that occur
	for d, rest := inner, first; d >= 0; d-- {
		index[d] = rest % l.shape[d]
		rest /= l.shape[d]
		for i := range l.views {
			p.at[i] = unsafe.Add(p.at[i], index[d]*l.strides[i][d])
		}
	}
	for {
		p.length = int(min(int64(n-p.start), l.shape[inner]-index[inner]))
		visit(&p)
		p.start += p.length
		if p.start == n {
			return
		}
		// Only a whole run ends before the block does: step back to its start, then carry into the outer loops. No address leaves its view on the way, since
		// Go's collector takes one that points nowhere for a defect of the program.
		for d := inner; ; d-- {
			if d < inner && index[d]+1 < l.shape[d] {
				index[d]++
				for i := range l.views {
					p.at[i] = unsafe.Add(p.at[i], l.strides[i][d])
				}
				break
			}
			for i := range l.views {
				p.at[i] = unsafe.Add(p.at[i], -index[d]*l.strides[i][d])
			}
			index[d] = 0
		}
	}
}

// forEachBlock loads the last len(views)-outputs views block by block, has compute fill the first outputs blocks, and stores those.
func (l *loops) forEachBlock(r *backend.Run, outputs int, compute func(n int, blocks *[maxOperands]block)) error {
	if l.count == 0 {
		return nil
	}
	base := l.bind(r)
	perTask := int64(elementsPerTask)
	tasks := int((l.count + perTask - 1) / perTask)
	return parallel(tasks, r.Threads, l.count*formulaWork, func(task int) {
		var blocks [maxOperands]block
		first := int64(task) * perTask
		for end := min(first+perTask, l.count); first < end; {
			n := int(min(blockLength, end-first))
			l.pieces(&base, first, n, func(p *piece) {
				for i := outputs; i < len(l.views); i++ {
					load(blocks[i][p.start:p.start+p.length], p.at[i], l.innerStride(i), l.dt)
				}
			})
			compute(n, &blocks)
			l.pieces(&base, first, n, func(p *piece) {
				for i := range outputs {
					store(p.at[i], l.innerStride(i), blocks[i][p.start:p.start+p.length], l.dt)
				}
			})
			first += int64(n)
		}
	})
}

func (l *loops) innerStride(view int) int64 {
	strides := l.strides[view]
	return strides[len(strides)-1]
}
