package optest

import (
	"bytes"
	"fmt"
	"math"
	"unsafe"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

const (
	// poison fills memory that no kernel may access: as any of the dtypes it is NaN.
	poison = 0xff
	// guardElements lie on both sides of an array. The number is odd, so that arrays are aligned to
	// their element and to nothing more.
	guardElements = 67
)

// device is the stated device of all arrays; Run sets it. Their memory is the host's.
var device = tensor.Device{Type: tensor.CPU}

// array is a tensor amid poisoned memory: the guards around it and, where the layout leaves some,
// the gaps between its elements.
type array struct {
	view   tensor.View
	layout string
	memory []byte
	before []byte
	at     []int64 // bytes into memory of each element, in row-major order
}

// newArray returns an array of poison.
func newArray(dt dtype.DType, shape []int64, l layout) *array {
	strides := l.strides(shape)
	offsets := []int64{0}
	lowest, highest := int64(0), int64(0)
	for d, n := range shape {
		next := make([]int64, 0, int64(len(offsets))*n)
		for _, from := range offsets {
			for i := range n {
				next = append(next, from+i*strides[d])
			}
		}
		offsets = next
		lowest, highest = lowest+min(0, max(0, n-1)*strides[d]), highest+max(0, max(0, n-1)*strides[d])
	}
	size, first := dt.Size(), guardElements-lowest
	total := (first + highest + 1 + guardElements) * size
	a := &array{layout: l.name, memory: newScratch(total)[:total:total]}
	for _, offset := range offsets {
		a.at = append(a.at, (first+offset)*size)
	}
	v := tensor.View{DType: dt, Device: device, Shape: shape, Strides: strides}
	if l.offset {
		v.Base, v.Offset = unsafe.Pointer(&a.memory[0]), first*size
	} else {
		v.Base = unsafe.Pointer(&a.memory[first*size])
	}
	if lowest == 0 {
		v.NBytes = (highest + 1) * size // what the array reaches, and not a byte more
	}
	a.view = v
	return a
}

// newScratch returns poisoned memory, aligned to 256 bytes, with a guard behind it.
func newScratch(size int64) []byte {
	const alignment = 256
	raw := make([]byte, size+2*alignment)
	for i := range raw {
		raw[i] = poison
	}
	skip := -uintptr(unsafe.Pointer(&raw[0])) % alignment
	return raw[skip:]
}

func isPoison(b []byte) bool {
	for _, x := range b {
		if x != poison {
			return false
		}
	}
	return true
}

// fill writes values, rounded to the dtype, and returns the array. Where elements share memory the
// last one stays.
func (a *array) fill(value func(i int) float64) *array {
	for i := range a.at {
		a.set(i, value(i))
	}
	a.before = bytes.Clone(a.memory)
	return a
}

func (a *array) set(i int, x float64) { Put(a.view.DType, unsafe.Pointer(&a.memory[a.at[i]]), x) }

// values reads the elements in row-major order.
func (a *array) values() []float64 {
	list := make([]float64, len(a.at))
	for i, at := range a.at {
		list[i] = Get(a.view.DType, unsafe.Pointer(&a.memory[at]))
	}
	return list
}

// bits returns the elements' bytes in row-major order.
func (a *array) bits() []byte {
	size := a.view.DType.Size()
	list := make([]byte, 0, int64(len(a.at))*size)
	for _, at := range a.at {
		list = append(list, a.memory[at:at+size]...)
	}
	return list
}

// unchanged reports whether no byte, of the elements or around them, is other than after fill.
func (a *array) unchanged() bool { return bytes.Equal(a.memory, a.before) }

// guarded reports whether everything but the elements is still poison.
func (a *array) guarded() bool {
	rest := bytes.Clone(a.memory)
	size := a.view.DType.Size()
	for _, at := range a.at {
		for i := range size {
			rest[at+i] = poison
		}
	}
	return isPoison(rest)
}

// String describes the array in messages.
func (a *array) String() string {
	return fmt.Sprintf("%v%v %s", a.view.DType, a.view.Shape, a.layout)
}

// unit is half the distance between 1 and the next number of a dtype: the relative error of one
// rounding.
func unit(dt dtype.DType) float64 {
	switch dt {
	case dtype.Float32:
		return 0x1p-24
	case dtype.BFloat16:
		return 0x1p-8
	case dtype.Float16:
		return 0x1p-11
	}
	return 0x1p-53
}

// tiny is the absolute error of one rounding where numbers are denormal.
func tiny(dt dtype.DType) float64 {
	switch dt {
	case dtype.Float32:
		return 0x1p-150
	case dtype.BFloat16:
		return 0x1p-134
	case dtype.Float16:
		return 0x1p-25
	}
	return math.SmallestNonzeroFloat64
}

// in returns a copy of the array in another layout.
func (a *array) in(l layout) *array {
	values := a.values()
	return newArray(a.view.DType, a.view.Shape, l).fill(func(i int) float64 { return values[i] })
}
