package epigrad

import (
	"unsafe"

	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/mat"

	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// Element is the type of a tensor's elements. One call has one element type.
type Element interface {
	float32 | float64 | BFloat16 | Float16
}

// Index is the element type of indices and offsets.
type Index interface {
	int32 | int64
}

// Tensor is a typed, strided window on a slice. Making one checks nothing; the functions that use
// it do.
type Tensor[T Element | Index] struct {
	// Data holds the elements. It may be longer than what the shape reaches.
	Data []T
	// Shape is the size of each dimension; no dimensions is a scalar.
	Shape []int
	// Strides are the elements from one index of a dimension to the next; nil is row-major without
	// gaps.
	Strides []int
	// Offset is the place of the element [0, 0, ...] in Data.
	Offset int
}

// Of returns a row-major tensor on a slice.
func Of[T Element | Index](data []T, shape ...int) *Tensor[T] {
	return &Tensor[T]{Data: data, Shape: shape}
}

// New returns a row-major tensor of zeros. A shape that makes no sense gets no memory, and an error
// from the function that it is given to.
func New[T Element | Index](shape ...int) *Tensor[T] {
	t := &Tensor[T]{Shape: shape}
	if v, err := tensor.New(nil, 0, dtypeOf[T](), cpu, wide(shape), nil, 0); err == nil {
		t.Data = make([]T, v.Numel())
	}
	return t
}

// Matrix returns a matrix whose rows start stride elements apart, as gonum's General has them.
func Matrix[T Element | Index](rows, columns int, data []T, stride int) *Tensor[T] {
	return &Tensor[T]{Data: data, Shape: []int{rows, columns}, Strides: []int{stride, 1}}
}

// FromBlas32 returns a tensor on the memory of a matrix.
func FromBlas32(m blas32.General) *Tensor[float32] { return Matrix(m.Rows, m.Cols, m.Data, m.Stride) }

// FromBlas64 returns a tensor on the memory of a matrix.
func FromBlas64(m blas64.General) *Tensor[float64] { return Matrix(m.Rows, m.Cols, m.Data, m.Stride) }

// FromMat returns a tensor on the memory of a matrix, such as a *mat.Dense. gonum's x.T() is none:
// use FromMat(x).Transposed(). A bias in a 1 x n matrix x is Of(x.RawMatrix().Data, n).
func FromMat(m mat.RawMatrixer) *Tensor[float64] { return FromBlas64(m.RawMatrix()) }

// FromVec returns a tensor on the memory of a vector.
func FromVec(v mat.RawVectorer) *Tensor[float64] {
	raw := v.RawVector()
	return &Tensor[float64]{Data: raw.Data, Shape: []int{raw.N}, Strides: []int{raw.Inc}}
}

// Transposed returns a tensor on the same memory whose last two dimensions have changed places. A
// tensor with fewer dimensions is returned as it is.
func (t *Tensor[T]) Transposed() *Tensor[T] {
	rank := len(t.Shape)
	if rank < 2 || (t.Strides != nil && len(t.Strides) != rank) {
		return t
	}
	turned := &Tensor[T]{Data: t.Data, Shape: append([]int{}, t.Shape...), Offset: t.Offset}
	if t.Strides != nil {
		turned.Strides = append([]int{}, t.Strides...)
	} else {
		for _, stride := range tensor.ContiguousStrides(wide(t.Shape)) {
			turned.Strides = append(turned.Strides, int(stride))
		}
	}
	for _, list := range [][]int{turned.Shape, turned.Strides} {
		list[rank-2], list[rank-1] = list[rank-1], list[rank-2]
	}
	return turned
}

var cpu = tensor.Device{Type: tensor.CPU}

func dtypeOf[T Element | Index]() dtype.DType {
	switch any(*new(T)).(type) {
	case float32:
		return dtype.Float32
	case float64:
		return dtype.Float64
	case BFloat16:
		return dtype.BFloat16
	case Float16:
		return dtype.Float16
	case int32:
		return dtype.Int32
	default:
		return dtype.Int64
	}
}

func wide(sizes []int) []int64 {
	if sizes == nil {
		return []int64{}
	}
	list := make([]int64, len(sizes))
	for i, n := range sizes {
		list[i] = int64(n)
	}
	return list
}

// view is the tensor as the core sees it, nil for an absent one. Its slice is known to hold every
// element that it reaches.
func (t *Tensor[T]) view(op, argument string, operand int) (*tensor.View, error) {
	if t == nil {
		return nil, nil
	}
	var strides []int64
	if t.Strides != nil {
		strides = wide(t.Strides)
	}
	v, err := tensor.New(nil, 0, dtypeOf[T](), cpu, wide(t.Shape), strides, operand)
	if err != nil {
		return nil, check.Wrap(op, argument, err)
	}
	if v.IsEmpty() {
		return &v, nil
	}
	low, high, err := v.Extent() // bytes
	if err != nil {
		return nil, check.Wrap(op, argument, err)
	}
	size := v.DType.Size()
	first, count := int64(t.Offset)+low/size, high/size
	if t.Offset < 0 || first < 0 {
		return nil, check.Invalid(op, argument, "offset %d with strides %v reaches element %d, want none before 0", t.Offset, t.Strides, first)
	}
	if have := int64(len(t.Data) - t.Offset); count > have {
		e := status.Errorf(status.BufferTooSmall, "%s: %s: got %d elements from offset %d on, want %d for shape %v",
			op, argument, max(have, 0), t.Offset, count, t.Shape)
		e.Needed, e.Got = high, max(have, 0)*size
		return nil, e
	}
	v.Base = unsafe.Pointer(&t.Data[t.Offset])
	return &v, nil
}
