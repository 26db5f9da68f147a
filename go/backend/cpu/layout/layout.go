// Package layout says how operands lie in memory: an index of a matrix as one axis, operands as
// matrices, and walks over tensors of one shape. Both CPU engines compute on these. It is no part
// of epigrad's API and may change in any release.
package layout

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// Axis is one index of an operand: dimensions that are walked in row-major order as one.
type Axis struct {
	Sizes, Strides []int64 // bytes; neighbours that are walked as one are merged
	Length         int64
}

// NewAxis merges dimensions, whose strides are in elements.
func NewAxis(shape, strides []int64, elementSize int64) Axis {
	a := Axis{Length: 1}
	for d, n := range shape {
		a.Length *= n
		if n == 1 {
			continue
		}
		stride := strides[d] * elementSize
		if last := len(a.Sizes) - 1; last >= 0 && a.Strides[last] == stride*n {
			a.Sizes[last] *= n
			a.Strides[last] = stride
			continue
		}
		a.Sizes, a.Strides = append(a.Sizes, n), append(a.Strides, stride)
	}
	if len(a.Sizes) == 0 {
		a.Sizes, a.Strides = []int64{1}, []int64{0}
	}
	return a
}

// Uniform reports whether all steps are equal, and that step.
func (a *Axis) Uniform() (stride int64, ok bool) { return a.Strides[0], len(a.Sizes) == 1 }

// Offset returns the bytes from the axis's start to an index.
func (a *Axis) Offset(index int64) (bytes int64) {
	for d := len(a.Sizes) - 1; d >= 0; d-- {
		bytes += index % a.Sizes[d] * a.Strides[d]
		index /= a.Sizes[d]
	}
	return bytes
}

// Matrix is an operand seen as rows x columns for every index of the batch.
type Matrix struct {
	View          *tensor.View
	Rows, Columns Axis
	batch         []int64 // byte strides
}

// NewMatrix views [batch..., rows..., columns...]; batch and rows are numbers of dimensions. It is
// nil for an absent operand.
func NewMatrix(v *tensor.View, batch, rows int) *Matrix {
	if v == nil {
		return nil
	}
	size, first := v.DType.Size(), batch+rows
	m := &Matrix{
		View:    v,
		Rows:    NewAxis(v.Shape[batch:first], v.Strides[batch:first], size),
		Columns: NewAxis(v.Shape[first:], v.Strides[first:], size),
		batch:   make([]int64, batch),
	}
	for d := range m.batch {
		m.batch[d] = v.Strides[d] * size
	}
	return m
}

// ResultOf is a result of a product, or its bias, which has the same rows and columns; nil if
// absent.
func ResultOf(p *lower.Product, operand int) *Matrix {
	return NewMatrix(p.Result(operand), len(p.Batch), len(p.M))
}

// Transposed exchanges rows and columns.
func (m *Matrix) Transposed() *Matrix {
	return &Matrix{View: m.View, Rows: m.Columns, Columns: m.Rows, batch: m.batch}
}

// At returns the address of a batch item's element [0, 0].
func (m *Matrix) At(r *backend.Run, index []int64) unsafe.Pointer {
	p := r.At(m.View)
	for d, stride := range m.batch {
		p = unsafe.Add(p, index[d]*stride)
	}
	return p
}

// LiesInColumns reports whether a column's elements are neighbours, as those of a layer's [N, K]
// weight are that is seen as [K, N], and a row's are not.
func (m *Matrix) LiesInColumns() bool {
	along, even := m.Rows.Uniform()
	across, _ := m.Columns.Uniform()
	return even && along == m.View.DType.Size() && across != along && m.Rows.Length > 1
}

// Product is result[i, j] = sum over l of left[i, l] right[j, l], for every item of the kept batch,
// summed over the items of the other batch dimensions.
type Product struct {
	DType        dtype.DType
	Left, Right  *Matrix
	Kept, Summed []int64 // sizes of the batch dimensions, which the operands have in this order
	// Next is the next pair of a sum of products (lower.Product).
	Next *Product
}

// NewProduct views a product's operands as matrices.
func NewProduct(p *lower.Product) *Product {
	summed, depth := p.K[:p.Summed], p.K[p.Summed:]
	left, right := p.View(lower.Left, p.Batch, summed, p.M, depth), p.View(lower.Right, p.Batch, summed, p.N, depth)
	kept, batch := len(p.Batch), len(p.Batch)+p.Summed
	q := &Product{
		DType: left.DType, Left: NewMatrix(left, batch, len(p.M)), Right: NewMatrix(right, batch, len(p.N)),
		Kept: left.Shape[:kept], Summed: left.Shape[kept:batch],
	}
	if p.Next != nil {
		q.Next = NewProduct(p.Next)
	}
	return q
}

// Depth is the length of this pair's sum for one item of the batch.
func (p *Product) Depth() int64 { return p.Left.Columns.Length }

// Terms is the length of a sum in all.
func (p *Product) Terms() int64 {
	if p == nil {
		return 0
	}
	return p.Depth()*tensor.Elements(p.Summed) + p.Next.Terms()
}

// Work is how many multiply-adds the product takes.
func (p *Product) Work() int64 {
	return tensor.Elements(p.Kept) * p.Left.Rows.Length * p.Right.Rows.Length * p.Terms()
}

// Unravel finds the index of an item by its number in row-major order.
func Unravel(index, sizes []int64, number int64) {
	for d := len(sizes) - 1; d >= 0; d-- {
		index[d] = number % sizes[d]
		number /= sizes[d]
	}
}

// Address returns where an element of a batch item lies, and the step from there to the next
// column's.
func (m *Matrix) Address(r *backend.Run, batch []int64, row, column int64) (unsafe.Pointer, int64) {
	step, _ := m.Columns.Uniform()
	return unsafe.Add(m.At(r, batch), m.Rows.Offset(row)+column*step), step
}
