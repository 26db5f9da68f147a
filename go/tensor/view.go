package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
)

// MaxRank is the most dimensions that a view may have (PyTorch's own limit is the same).
const MaxRank = 64

// DLPack's device types that epigrad knows (dlpack.h, DLDeviceType).
const (
	CPU    int32 = 1
	CUDA   int32 = 2
	WebGPU int32 = 15
)

// Meta is the device type of tensors that have a geometry and no memory. It is no DLPack device;
// bindings use it for PyTorch's meta tensors.
const Meta int32 = -1

// Device is DLPack's device type and index.
type Device struct {
	Type  int32
	Index int32
}

// String returns the word that users write: "cpu", "cuda:1".
func (d Device) String() string {
	switch d.Type {
	case CPU:
		return "cpu"
	case CUDA:
		return fmt.Sprintf("cuda:%d", d.Index)
	case WebGPU:
		return fmt.Sprintf("webgpu:%d", d.Index)
	case Meta:
		return "meta"
	default:
		return fmt.Sprintf("device(%d):%d", d.Type, d.Index)
	}
}

// View is a typed, strided window on memory that someone else owns. Nothing in this package reads
// or writes that memory.
type View struct {
	// Base is the start of the operand's buffer; nil for a view that only describes. On WebGPU it
	// is a buffer's handle.
	Base unsafe.Pointer
	// Offset is the bytes from Base to the element [0, 0, ...].
	Offset int64
	// Operand tells which operand of a call the view was made from: plans bind views to new Bases
	// by it.
	Operand int
	DType   dtype.DType
	Device  Device
	// Shape and Strides have one entry per dimension; strides are in elements and may be 0 or
	// negative.
	Shape, Strides []int64
	// NBytes is the stated size of the buffer from Base+Offset on; 0 is unknown.
	NBytes int64
}

// New returns a checked view; nil strides mean contiguous. It keeps the two slices, so the caller
// must not change them.
//
// Errors are InvalidProblem for a rank above MaxRank, a negative size, strides of another rank, and
// for an element count or an extent in bytes beyond 64 bits, and DTypeMismatch for a dtype outside
// the table. A view with a size 0 reaches no memory and is legal whatever its other sizes and
// strides.
func New(
	base unsafe.Pointer, byteOffset int64, dt dtype.DType, device Device, shape, strides []int64, operand int,
) (View, error) {
	if shape == nil {
		shape = []int64{} // a scalar's shape is a shape: nil stands for none at all elsewhere
	}
	v := View{
		Base: base, Offset: byteOffset, Operand: operand, DType: dt, Device: device, Shape: shape, Strides: strides,
	}
	if dt.Size() == 0 {
		return View{}, status.Errorf(status.DTypeMismatch, "dtype %v, want one of %s", dt, dtype.Names())
	}
	if len(shape) > MaxRank {
		return View{}, status.Errorf(status.InvalidProblem, "got %d dimensions, want at most %d", len(shape), MaxRank)
	}
	for _, n := range shape {
		if n < 0 {
			return View{}, invalid("shape %s has a negative size", list(shape))
		}
	}
	if strides == nil {
		v.Strides = ContiguousStrides(shape)
	} else if len(strides) != len(shape) {
		return View{}, invalid("shape %s and strides %s differ in rank", list(shape), list(strides))
	}
	if _, ok := product(shape); !ok {
		return View{}, invalid("shape %s has more elements than 64 bits can count", list(shape))
	}
	if _, _, err := v.Extent(); err != nil {
		return View{}, err
	}
	return v, nil
}

// Rank returns the number of dimensions.
func (v View) Rank() int { return len(v.Shape) }

// Numel returns the number of elements of a view that New accepted.
func (v View) Numel() int64 { return Elements(v.Shape) }

// Elements returns the number of elements of a shape, or of some of the dimensions of one, that New
// accepted.
func Elements(shape []int64) int64 {
	n, _ := product(shape)
	return n
}

// IsEmpty reports whether some size is 0.
func (v View) IsEmpty() bool { return v.isEmpty() }

func (v *View) isEmpty() bool {
	for _, n := range v.Shape {
		if n == 0 {
			return true
		}
	}
	return false
}

// IsContiguous reports whether the elements lie next to each other in row-major order. Strides of
// dimensions of size 1 do not matter, and an empty view is contiguous.
func (v View) IsContiguous() bool { return v.isContiguous() }

func (v *View) isContiguous() bool {
	want := int64(1)
	for d := len(v.Shape) - 1; d >= 0; d-- {
		n := v.Shape[d]
		if n == 1 {
			continue
		}
		if v.Strides[d] != want {
			return v.isEmpty()
		}
		want *= n
	}
	return true
}

// Extent returns the bytes that the view reaches, half-open and relative to Base+Offset; lo is
// negative where a stride is. An empty view reaches [0, 0). The error is InvalidProblem: the
// extent, or its place from Base, is beyond 64 bits.
func (v View) Extent() (lo, hi int64, err error) {
	lo, hi, ok := v.extent()
	if !ok {
		return 0, 0, invalid("shape %s with strides %s of %v at byte %d reaches beyond 64 bits",
			list(v.Shape), list(v.Strides), v.DType, v.Offset)
	}
	return lo, hi, nil
}

func (v *View) extent() (lo, hi int64, ok bool) {
	var below, above uint64
	for d, n := range v.Shape {
		if n == 0 {
			return 0, 0, true
		}
		stride := v.Strides[d]
		overflow, reach := bits.Mul64(uint64(n-1), magnitude(stride))
		if overflow != 0 || reach > math.MaxInt64 {
			return 0, 0, v.isEmpty()
		}
		// Both sums stay below 2^64: each is at most 2^63-1 before the addition, and is checked
		// after it.
		if stride < 0 {
			below += reach
		} else {
			above += reach
		}
		if below > math.MaxInt64 || above > math.MaxInt64 {
			return 0, 0, v.isEmpty()
		}
	}
	size := uint64(v.DType.Size())
	over1, below := bits.Mul64(below, size)
	over2, above := bits.Mul64(above+1, size)
	// The whole span, and both ends measured from Base, must be numbers of 63 bits.
	if over1|over2 != 0 || below > math.MaxInt64 || above > math.MaxInt64 || below+above > math.MaxInt64 {
		return 0, 0, false
	}
	lo, hi = -int64(below), int64(above)
	if v.Offset > math.MaxInt64-hi || v.Offset < math.MinInt64-lo {
		return 0, 0, false
	}
	return lo, hi, true
}

// ContiguousStrides returns the row-major strides of a shape. A size 0 counts as 1, as in PyTorch.
func ContiguousStrides(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	next := int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = next
		next *= max(shape[d], 1)
	}
	return strides
}

// product returns the number of elements of a shape and whether 64 bits hold it. One size 0 makes
// it 0, wherever it stands.
func product(shape []int64) (int64, bool) {
	n, ok := uint64(1), true
	for _, size := range shape {
		if size == 0 {
			return 0, true
		}
		if ok {
			overflow, low := bits.Mul64(n, uint64(size))
			n, ok = low, overflow == 0 && low <= math.MaxInt64
		}
	}
	if !ok {
		return 0, false
	}
	return int64(n), true
}

// magnitude is |x| where int64 has no room for it: that of the smallest number.
func magnitude(x int64) uint64 {
	if x < 0 {
		return -uint64(x)
	}
	return uint64(x)
}
