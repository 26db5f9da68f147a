//go:build cgo

package webgpu

import (
	"slices"
	"unsafe"

	"github.com/epigrad/epigrad/go/tensor"
)

// copyLoop copies a host tensor to packed memory and back.
type copyLoop struct {
	strides  []int64 // of the packed tensor, one for each dimension of the view
	elements int64   // that it has
	size     int64
	dims     []copyDim // outermost first
}

// copyDim is one loop, with strides in bytes.
type copyDim struct{ size, host, packed int64 }

// packing is the way to pack a view: its dimensions in the order of their strides, so that what is
// contiguous in some order stays as it is, and each element once where the view is broadcast.
func packing(v *tensor.View) copyLoop {
	loop := copyLoop{strides: make([]int64, v.Rank()), elements: 1, size: v.DType.Size()}
	if v.IsEmpty() {
		loop.elements = 0
		return loop
	}
	var order []int
	for d, n := range v.Shape {
		if n > 1 && v.Strides[d] != 0 {
			order = append(order, d)
		}
	}
	slices.SortStableFunc(order, func(d, e int) int { return int(magnitude(v.Strides[e]) - magnitude(v.Strides[d])) })
	for _, d := range slices.Backward(order) {
		n := v.Shape[d]
		loop.strides[d] = loop.elements
		dim := copyDim{n, v.Strides[d] * loop.size, loop.elements * loop.size}
		loop.elements *= n
		if k := len(loop.dims); k > 0 && dim.host == loop.dims[k-1].host*loop.dims[k-1].size {
			loop.dims[k-1].size *= n
			continue
		}
		loop.dims = append(loop.dims, dim)
	}
	slices.Reverse(loop.dims)
	return loop
}

func magnitude(x int64) int64 { return max(x, -x) }

// contiguous reports whether the host's memory is packed already.
func (l *copyLoop) contiguous() bool {
	return len(l.dims) == 0 || len(l.dims) == 1 && l.dims[0].host == l.size
}

// pack returns the packed bytes: the host's own where they are.
func (l *copyLoop) pack(memory unsafe.Pointer) []byte {
	bytes := l.elements * l.size
	if l.contiguous() {
		return unsafe.Slice((*byte)(memory), bytes)
	}
	packed := make([]byte, bytes)
	walk(l.dims, l.size, memory, unsafe.Pointer(&packed[0]), func(host, packed unsafe.Pointer, bytes int64) {
		copy(unsafe.Slice((*byte)(packed), bytes), unsafe.Slice((*byte)(host), bytes))
	})
	return packed
}

// unpack writes the packed bytes to where the host has them.
func (l *copyLoop) unpack(memory unsafe.Pointer, packed []byte) {
	walk(l.dims, l.size, memory, unsafe.Pointer(&packed[0]), func(host, packed unsafe.Pointer, bytes int64) {
		copy(unsafe.Slice((*byte)(host), bytes), unsafe.Slice((*byte)(packed), bytes))
	})
}

// walk calls visit for each stretch of bytes that is contiguous on both sides.
func walk(dims []copyDim, size int64, host, packed unsafe.Pointer, visit func(host, packed unsafe.Pointer, bytes int64)) {
	switch {
	case len(dims) == 0:
		visit(host, packed, size)
	case len(dims) == 1 && dims[0].host == size:
		visit(host, packed, dims[0].size*size)
	default:
		for i := range dims[0].size {
			walk(dims[1:], size, unsafe.Add(host, i*dims[0].host), unsafe.Add(packed, i*dims[0].packed), visit)
		}
	}
}
