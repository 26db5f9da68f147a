//go:build cgo

// Operands under one set of loops.

package cuda

import "github.com/epigrad/epigrad/go/tensor"

// walk is a set of operands over one set of loops: a shape, outermost first, with each operand's
// strides in elements, and where it starts. Operands that are absent are nil and have strides 0.
type walk struct {
	views   []*tensor.View
	shape   []int64
	strides [][]int64
}

// walkOf collapses views, of which some may be nil, in the order that suits the first that is not.
func walkOf(views []*tensor.View) walk {
	shape, strides := tensor.Collapse(views)
	if len(shape) == 0 {
		shape = []int64{1}
		for i := range strides {
			strides[i] = []int64{0}
		}
	}
	return walk{views, shape, strides}
}

// pieces cuts a walk into those that kernels can take, of maxRank dimensions at most: one for each
// index of the outer dimensions.
func (w walk) pieces() []walk {
	if len(w.shape) <= maxRank {
		return []walk{w}
	}
	var all []walk
	for index := range w.shape[0] {
		inner := walk{make([]*tensor.View, len(w.views)), w.shape[1:], make([][]int64, len(w.views))}
		for i, v := range w.views {
			inner.views[i], inner.strides[i] = moved(v, index*w.strides[i][0]), w.strides[i][1:]
		}
		all = append(all, inner.pieces()...)
	}
	return all
}

// moved is a view that starts some elements later.
func moved(v *tensor.View, by int64) *tensor.View {
	if v == nil || by == 0 {
		return v
	}
	later := *v
	later.Offset += by * v.DType.Size()
	return &later
}

// vectors reports whether operands can be accessed by vectors along the innermost dimension, as far
// as their strides tell: whether each is contiguous along it, or an input that has one value along
// it (those are the bits of broadcast), and whether all vectors start at a multiple of their width.
func (w walk) vectors(isInput func(i int) bool, width int64) (broadcast uint32, ok bool) {
	inner := len(w.shape) - 1
	if len(w.shape) > 1 && w.shape[inner]%width != 0 {
		return 0, false
	}
	for i, v := range w.views {
		switch {
		case v == nil:
		case w.strides[i][inner] == 0 && isInput(i):
			broadcast |= 1 << i
		case w.strides[i][inner] != 1 || !multiples(w.strides[i][:inner], width):
			return 0, false
		}
	}
	return broadcast, true
}

func multiples(strides []int64, width int64) bool {
	for _, stride := range strides {
		if stride%width != 0 {
			return false
		}
	}
	return true
}
