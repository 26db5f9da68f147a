package layout

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// MostOperands is the most views that one walk has.
const MostOperands = 8

// Addresses are those of the views' first elements.
type Addresses [MostOperands]unsafe.Pointer

// Walk visits several views of one shape together, in the order that suits the first of them.
type Walk struct {
	DType   dtype.DType
	Views   []*tensor.View
	Shape   []int64
	Strides [][]int64 // bytes
	Count   int64
}

// NewWalk prepares a walk. The views that are not nil have one shape; sums may have another dtype
// than the rest.
func NewWalk(dt dtype.DType, views ...*tensor.View) *Walk {
	w := &Walk{DType: dt, Views: views}
	w.Shape, w.Strides = tensor.Collapse(views)
	w.Count = tensor.Elements(w.Shape)
	if len(w.Shape) == 0 {
		w.Shape = []int64{1}
		for i := range w.Strides {
			w.Strides[i] = []int64{0}
		}
	}
	for i, strides := range w.Strides {
		for d := range strides {
			if views[i] != nil {
				strides[d] *= views[i].DType.Size()
			}
		}
	}
	return w
}

// Bind returns where a run has the views' first elements.
func (w *Walk) Bind(r *backend.Run) (at Addresses) {
	for i, v := range w.Views {
		if v != nil {
			at[i] = r.At(v)
		}
	}
	return at
}

// InnerStride is a view's step along the innermost loop, in bytes.
func (w *Walk) InnerStride(view int) int64 {
	strides := w.Strides[view]
	return strides[len(strides)-1]
}

// Piece is a run of elements along the innermost loop: where it starts in the block, its length,
// and each view's address.
type Piece struct {
	Start, Length int
	At            Addresses
}

// Pieces calls visit for the runs that make up the n elements from index first on.
func (w *Walk) Pieces(base *Addresses, first int64, n int, visit func(p *Piece)) {
	inner := len(w.Shape) - 1
	p := Piece{At: *base}
	index := make([]int64, len(w.Shape)) // stays on the stack for the ranks that occur
	for d, rest := inner, first; d >= 0; d-- {
		index[d] = rest % w.Shape[d]
		rest /= w.Shape[d]
		for i := range w.Views {
			p.At[i] = unsafe.Add(p.At[i], index[d]*w.Strides[i][d])
		}
	}
	for {
		p.Length = int(min(int64(n-p.Start), w.Shape[inner]-index[inner]))
		visit(&p)
		p.Start += p.Length
		if p.Start == n {
			return
		}
		// Only a whole run ends before the block does: step back to its start, then carry into the
		// outer loops. No address leaves its view on the way, since Go's collector takes one that
		// points nowhere for a defect of the program.
		for d := inner; ; d-- {
			if d < inner && index[d]+1 < w.Shape[d] {
				index[d]++
				for i := range w.Views {
					p.At[i] = unsafe.Add(p.At[i], w.Strides[i][d])
				}
				break
			}
			for i := range w.Views {
				p.At[i] = unsafe.Add(p.At[i], -index[d]*w.Strides[i][d])
			}
			index[d] = 0
		}
	}
}
