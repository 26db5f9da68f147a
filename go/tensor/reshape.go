package tensor

import (
	"math/bits"
	"slices"

	"github.com/epigrad/epigrad/go/status"
)

// The views below have their own Shape and Strides and the same memory. A dimension may count from
// the end (-1 is the last); one that the view does not have is a mistake in the calling code, and
// panics as a slice index does.

// Transpose returns the view with two dimensions exchanged.
func (v View) Transpose(i, j int) View {
	i, j = v.dim(i), v.dim(j)
	v.Shape, v.Strides = slices.Clone(v.Shape), slices.Clone(v.Strides)
	v.Shape[i], v.Shape[j] = v.Shape[j], v.Shape[i]
	v.Strides[i], v.Strides[j] = v.Strides[j], v.Strides[i]
	return v
}

// Exchanged is v with two dimensions exchanged; nil of nil.
func Exchanged(v *View, i, j int) *View {
	if v == nil {
		return nil
	}
	t := v.Transpose(i, j)
	return &t
}

// Aligned gives v leading dimensions of size 1 until it has `rank` dimensions; nil stays nil.
func Aligned(v *View, rank int) *View {
	if v == nil {
		return nil
	}
	wide := *v
	for wide.Rank() < rank {
		wide = wide.Unsqueeze(0)
	}
	return &wide
}

// Permute returns the view whose dimension d is the view's dims[d]. Each dimension has to be named
// once.
func (v View) Permute(dims ...int) (View, error) {
	rank := v.Rank()
	shape, strides := make([]int64, len(dims)), make([]int64, len(dims))
	var seen uint64
	for to, from := range dims {
		if from < 0 {
			from += rank
		}
		if len(dims) != rank || from < 0 || from >= rank || seen>>from&1 == 1 {
			return View{}, invalid("shape %s: %v is not a permutation of its dimensions", list(v.Shape), dims)
		}
		seen |= 1 << from
		shape[to], strides[to] = v.Shape[from], v.Strides[from]
	}
	if len(dims) != rank {
		return View{}, invalid("shape %s: %v is not a permutation of its dimensions", list(v.Shape), dims)
	}
	v.Shape, v.Strides = shape, strides
	return v, nil
}

// Narrow returns the length indices of a dimension that begin with start. A known NBytes follows
// the offset; the error is InvalidProblem for a range outside the dimension and BufferTooSmall
// where the first element lies outside NBytes.
func (v View) Narrow(dim int, start, length int64) (View, error) {
	dim = v.dim(dim)
	if start < 0 || length < 0 || start > v.Shape[dim] || length > v.Shape[dim]-start {
		return View{}, invalid("shape %s: [%d, %d + %d) is not inside dimension %d", list(v.Shape), start, start, length, dim)
	}
	v.Shape, v.Strides = slices.Clone(v.Shape), slices.Clone(v.Strides)
	v.Shape[dim] = length
	if v.isEmpty() {
		// No element has an address: the strides of an empty view may be anything, so the offset
		// stays where it is.
		return v, nil
	}
	skipped := start * v.Strides[dim] * v.DType.Size()
	v.Offset += skipped
	if v.NBytes != 0 {
		if v.NBytes <= skipped {
			err := status.Errorf(status.BufferTooSmall, "shape %s: index %d of dimension %d lies outside the buffer's %d bytes",
				list(v.Shape), start, dim, v.NBytes)
			err.Needed, err.Got = skipped+v.DType.Size(), v.NBytes
			return View{}, err
		}
		v.NBytes -= skipped
	}
	return v, nil
}

// Every returns every step-th index of a dimension, from the first on.
func (v View) Every(dim int, step int64) View {
	dim = v.dim(dim)
	v.Shape, v.Strides = slices.Clone(v.Shape), slices.Clone(v.Strides)
	v.Shape[dim] = (v.Shape[dim] + step - 1) / step
	v.Strides[dim] *= step
	return v
}

// Unsqueeze returns the view with a dimension of size 1 before dim; dim may be the rank, and -1
// appends.
func (v View) Unsqueeze(dim int) View {
	if dim < 0 {
		dim += v.Rank() + 1
	}
	stride := v.leadingStride(dim)
	v.Shape = slices.Insert(slices.Clone(v.Shape), dim, 1)
	v.Strides = slices.Insert(slices.Clone(v.Strides), dim, stride)
	return v
}

// Squeeze returns the view without dimension dim, or the view itself where that dimension's size is
// not 1.
func (v View) Squeeze(dim int) View {
	dim = v.dim(dim)
	if v.Shape[dim] != 1 {
		return v
	}
	v.Shape = slices.Delete(slices.Clone(v.Shape), dim, dim+1)
	v.Strides = slices.Delete(slices.Clone(v.Strides), dim, dim+1)
	return v
}

// Expand returns the view broadcast to a shape: new leading dimensions, and those of size 1 that
// grow, have stride 0.
func (v View) Expand(shape []int64) (View, error) {
	added := len(shape) - v.Rank()
	if added < 0 || len(shape) > MaxRank {
		return View{}, invalid("shape %s does not broadcast to %s", list(v.Shape), list(shape))
	}
	strides := make([]int64, len(shape))
	for d, n := range shape {
		switch {
		case n < 0:
			return View{}, invalid("shape %s does not broadcast to %s: a negative size", list(v.Shape), list(shape))
		case d < added:
		case v.Shape[d-added] == n:
			strides[d] = v.Strides[d-added]
		case v.Shape[d-added] != 1:
			return View{}, invalid("shape %s does not broadcast to %s", list(v.Shape), list(shape))
		}
	}
	if _, ok := product(shape); !ok {
		return View{}, invalid("shape %s has more elements than 64 bits can count", list(shape))
	}
	v.Shape, v.Strides = slices.Clone(shape), strides
	return v, nil
}

// FlattenLeading returns the view with all dimensions but the last keep merged into one, which is
// the first of the keep+1 that are left (of size 1 where there was none to merge), and whether the
// strides allow that.
func (v View) FlattenLeading(keep int) (View, bool) {
	leading := v.Rank() - keep
	if keep < 0 || leading < 0 {
		return View{}, false
	}
	size, ok := product(v.Shape[:leading])
	if !ok {
		return View{}, false
	}
	stride, merged := v.leadingStride(leading), int64(1)
	if !v.isEmpty() {
		for d := leading - 1; d >= 0; d-- {
			n := v.Shape[d]
			if n == 1 {
				continue
			}
			if merged == 1 {
				stride = v.Strides[d]
			} else if v.Strides[d] != stride*merged {
				return View{}, false
			}
			merged *= n
		}
	}
	v.Shape = append([]int64{size}, v.Shape[leading:]...)
	v.Strides = append([]int64{stride}, v.Strides[leading:]...)
	return v, true
}

// dim counts a negative dimension from the end.
func (v *View) dim(d int) int {
	if d < 0 {
		return d + len(v.Shape)
	}
	return d
}

// leadingStride is the stride that a dimension of size 1 gets before dimension d: a whole step over
// d, which is a leading dimension that BLAS accepts wherever d's own stride is.
func (v *View) leadingStride(d int) int64 {
	if d == len(v.Shape) {
		return 1
	}
	overflow, low := bits.Mul64(uint64(max(v.Shape[d], 1)), magnitude(v.Strides[d]))
	if overflow != 0 || int64(low) < 0 {
		return 1 // nothing is reached by it: the dimension has one index
	}
	if v.Strides[d] < 0 {
		return -int64(low)
	}
	return int64(low)
}
