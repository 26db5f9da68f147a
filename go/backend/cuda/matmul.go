package cuda

/*
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// mostBLASWorkspace is what cuBLASLt may use for one product: as much as PyTorch gives it on Hopper.
const mostBLASWorkspace = 32 << 20

// dim is one dimension of a product with its stride in every operand that has it.
type dim struct {
	size             int64
	left, right, out int64
}

// product is out[batch, m, n] = sum over k of left[batch, m, k] right[batch, k, n] (+ out). Each of the four is a list of dimensions, walked
// as one in row-major order.
type product struct {
	left, right, out *tensor.View
	batch, m, n, k   []dim
	accumulates      bool
}

// matmul is a product that cuBLASLt can do in one call.
type matmul struct {
	left, right, out                   *tensor.View // only where they start is used
	bias                               *tensor.View
	leftMatrix, rightMatrix, outMatrix matrix
	batch                              dim // size 1 without one
	accumulates                        bool
	dt                                 dtype.DType
	tf32                               bool
}

// squeezed leaves out dimensions of size 1.
func squeezed(dims []dim) []dim {
	return slices.DeleteFunc(slices.Clone(dims), func(d dim) bool { return d.size == 1 })
}

func count(dims []dim) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= d.size
	}
	return n
}

// merged is the one stride with which an operand's dimensions are walked, and whether there is one.
func merged(dims []dim, stride func(*dim) int64) (int64, bool) {
	if len(dims) == 0 {
		return 1, true
	}
	for i := range dims[:len(dims)-1] {
		if stride(&dims[i]) != stride(&dims[i+1])*dims[i+1].size {
			return 0, false
		}
	}
	return stride(&dims[len(dims)-1]), true
}

func ofLeft(d *dim) int64  { return d.left }
func ofRight(d *dim) int64 { return d.right }
func ofOut(d *dim) int64   { return d.out }

// byColumns returns the leading dimension with which BLAS reads a matrix in place, column after column, and whether it can: the rows have the
// stride 1 and columns do not overlap. Exchanging the two gives the same for row after row.
func byColumns(rows, rowStride, columns, columnStride int64) (ld int64, ok bool) {
	if rows != 1 && rowStride != 1 {
		return 0, false
	}
	if columns == 1 {
		return rows, true
	}
	return columnStride, columnStride >= rows && columnStride <= math.MaxInt32 // cuBLASLt refuses longer ones
}

// matrix is a matrix with the strides of its rows and columns.
type matrix struct {
	rows, rowStride, columns, columnStride int64
}

// matrixOf merges an operand's dimensions into rows and columns, if each are walked as one.
func matrixOf(rows, columns []dim, stride func(*dim) int64) (m matrix, ok bool) {
	m.rows, m.columns = count(rows), count(columns)
	if m.rowStride, ok = merged(rows, stride); !ok {
		return m, false
	}
	m.columnStride, ok = merged(columns, stride)
	return m, ok
}

func (m matrix) transposed() matrix { return matrix{m.columns, m.columnStride, m.rows, m.rowStride} }

func (m matrix) byColumns() (ld int64, ok bool) {
	return byColumns(m.rows, m.rowStride, m.columns, m.columnStride)
}

// inPlace reports whether BLAS can read an operand as it lies.
func inPlace(rows, columns []dim, stride func(*dim) int64) bool {
	m, ok := matrixOf(rows, columns, stride)
	if !ok {
		return false
	}
	_, columnwise := m.byColumns()
	_, rowwise := m.transposed().byColumns()
	return columnwise || rowwise
}

// writable is inPlace for a result; with a bias, which BLAS adds along its own columns, that has to have rows.
func writable(rows, columns []dim, withBias bool) bool {
	m, ok := matrixOf(rows, columns, ofOut)
	if !ok {
		return false
	}
	_, columnwise := m.byColumns()
	_, rowwise := m.transposed().byColumns()
	return rowwise || columnwise && !withBias
}

// multiply adds a product to the program. bias, of n contiguous elements, is added to every row.
func (b *builder) multiply(p product, bias *tensor.View, tf32 bool) error {
	p.batch, p.m, p.n, p.k = squeezed(p.batch), squeezed(p.m), squeezed(p.n), squeezed(p.k)
	if count(p.batch)*count(p.m)*count(p.n) == 0 {
		return nil
	}
	if count(p.k) == 0 {
		return b.emptySum(p)
	}
	var err error
	if !inPlace(p.m, p.k, ofLeft) {
		if p.left, err = b.stageInput(p.left, func(d *dim) *int64 { return &d.left }, p.batch, p.m, p.k); err != nil {
			return err
		}
	}
	if !inPlace(p.k, p.n, ofRight) {
		if p.right, err = b.stageInput(p.right, func(d *dim) *int64 { return &d.right }, p.batch, p.k, p.n); err != nil {
			return err
		}
	}
	if writable(p.m, p.n, bias != nil) {
		b.enqueue(p, bias, tf32)
		return nil
	}
	result := window(p.out, ofOut, p.batch, p.m, p.n)
	p.out = b.region(result.DType, result.Shape...)
	if p.accumulates {
		if err := b.onlyIf(true, func() error { return b.activation("none", p.out, &result) }); err != nil {
			return err
		}
	}
	contiguous(func(d *dim) *int64 { return &d.out }, p.batch, p.m, p.n)
	b.enqueue(p, bias, tf32)
	return b.activation("none", &result, p.out)
}

// emptySum is a product over no terms: zeros, or nothing to add.
func (b *builder) emptySum(p product) error {
	result := window(p.out, ofOut, p.batch, p.m, p.n)
	write := func() error { return b.zero(&result) }
	if p.accumulates {
		return b.onlyIf(false, write)
	}
	return write()
}

// zero writes zeros to a view of any strides.
func (b *builder) zero(v *tensor.View) error {
	one := b.region(v.DType, 1)
	b.program = append(b.program, fill{one})
	zeros := *one
	zeros.Shape, zeros.Strides = v.Shape, make([]int64, len(v.Shape))
	return b.activation("none", v, &zeros)
}

// onlyIf leaves what add adds to runs that accumulate, or to those that do not.
func (b *builder) onlyIf(accumulating bool, add func() error) error {
	first := len(b.program)
	if err := add(); err != nil {
		return err
	}
	for i := range b.program[first:] {
		b.program[first+i] = conditional{b.program[first+i], accumulating}
	}
	return nil
}

// window is the view of an operand's dimensions.
func window(v *tensor.View, stride func(*dim) int64, groups ...[]dim) tensor.View {
	w := *v
	w.Shape, w.Strides = nil, nil
	for _, group := range groups {
		for i := range group {
			w.Shape = append(w.Shape, group[i].size)
			w.Strides = append(w.Strides, stride(&group[i]))
		}
	}
	return w
}

// contiguous gives an operand contiguous strides over groups of dimensions, from the last to the first, and the number of elements they span.
func contiguous(stride func(*dim) *int64, groups ...[]dim) {
	next := int64(1)
	for _, group := range slices.Backward(groups) {
		for i := range slices.Backward(group) {
			*stride(&group[i]) = next
			next *= group[i].size
		}
	}
}

// stageInput copies an operand to the workspace, where it is contiguous, and changes its strides; batch dimensions that it is broadcast over are not repeated.
func (b *builder) stageInput(v *tensor.View, stride func(*dim) *int64, batch, rows, columns []dim) (*tensor.View, error) {
	var own []dim
	var kept []int
	for i := range batch {
		if *stride(&batch[i]) != 0 {
			own, kept = append(own, batch[i]), append(kept, i)
		}
	}
	get := func(d *dim) int64 { return *stride(d) }
	source := window(v, get, own, rows, columns)
	copied := b.region(source.DType, source.Shape...)
	if err := b.activation("none", copied, &source); err != nil {
		return nil, err
	}
	contiguous(stride, own, rows, columns)
	for i, at := range kept {
		batch[at] = own[i]
	}
	return copied, nil
}

// enqueue adds the calls for a product whose operands BLAS can read in place: one for each step of the batch dimensions that do not merge into one.
func (b *builder) enqueue(p product, bias *tensor.View, tf32 bool) {
	tf32 = tf32 && b.dt == dtype.Float32
	b.tf32 = b.tf32 || tf32
	single := matmul{bias: bias, batch: dim{size: 1}, accumulates: p.accumulates, dt: b.dt, tf32: tf32}
	single.leftMatrix, _ = matrixOf(p.m, p.k, ofLeft)
	single.rightMatrix, _ = matrixOf(p.k, p.n, ofRight)
	single.outMatrix, _ = matrixOf(p.m, p.n, ofOut)
	batch := mergeBatch(p.batch)
	if len(batch) > 0 { // one call for as many products as can be
		longest := 0
		for i, d := range batch {
			if d.size > batch[longest].size {
				longest = i
			}
		}
		single.batch = batch[longest]
		batch = slices.Delete(batch, longest, longest+1)
	}
	var walk func(dims []dim, left, right, target tensor.View)
	walk = func(dims []dim, left, right, target tensor.View) {
		if len(dims) == 0 {
			one := single
			one.left, one.right, one.out = &left, &right, &target
			b.program = append(b.program, &one)
			return
		}
		size := b.dt.Size()
		for i := range dims[0].size {
			l, r, t := left, right, target
			l.Offset += i * dims[0].left * size
			r.Offset += i * dims[0].right * size
			t.Offset += i * dims[0].out * size
			walk(dims[1:], l, r, t)
		}
	}
	walk(batch, *p.left, *p.right, *p.out)
}

// mergeBatch joins neighbours that every operand walks as one.
func mergeBatch(dims []dim) []dim {
	var joined []dim
	for _, d := range dims {
		if n := len(joined); n > 0 {
			outer := &joined[n-1]
			if outer.left == d.left*d.size && outer.right == d.right*d.size && outer.out == d.out*d.size {
				*outer = dim{outer.size * d.size, d.left, d.right, d.out}
				continue
			}
		}
		joined = append(joined, d)
	}
	return joined
}

// symbol implements operation.
func (*matmul) symbol() string { return blasName }

const blasName = "cublaslt"

// blasTypes are cudaDataType_t and cublasComputeType_t of each storage dtype.
var blasTypes = map[dtype.DType]struct{ storage, compute, scale C.int32_t }{
	dtype.Float32:  {0, 68, 0},
	dtype.Float64:  {1, 70, 1},
	dtype.Float16:  {2, 68, 0},
	dtype.BFloat16: {14, 68, 0},
}

const (
	// computeTF32 is CUBLAS_COMPUTE_32F_FAST_TF32.
	computeTF32 = 77
	// reduceInCompute is CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums are never rounded to a half type, whatever PyTorch allows.
	reduceInCompute = 2
)

// compile implements operation. BLAS sees everything transposed, column-major: outᵀ = rightᵀ leftᵀ where out has rows, or out = left right
// where it has columns.
func (p *matmul) compile(c *compiler, s *C.epg_step) error {
	if err := c.device.blas(); err != nil {
		return err
	}
	if p.batch.size > math.MaxInt32 {
		return status.Errorf(status.Unsupported, "cuda: a batch of %d products, and cuBLASLt does at most %d at once", p.batch.size, math.MaxInt32)
	}
	s.kind = C.EPG_MATMUL
	types, known := blasTypes[p.dt]
	if !known {
		return status.Errorf(status.Internal, "cuda: cuBLASLt's names for %v are missing", p.dt)
	}
	problem := C.epg_matmul_problem{
		dtype: types.storage, compute: types.compute, scale: types.scale, batch: C.int32_t(p.batch.size), reduction_mask: reduceInCompute,
		element: C.uint32_t(p.dt.Size()), most_workspace: mostBLASWorkspace,
	}
	if p.tf32 {
		problem.compute = computeTF32
	}
	type operand struct {
		view *tensor.View
		matrix
		batch int64
	}
	left, right := operand{p.left, p.leftMatrix, p.batch.left}, operand{p.right, p.rightMatrix, p.batch.right}
	out := operand{p.out, p.outMatrix, p.batch.out}
	operands := [C.EPG_MATRICES]operand{left, right, out}
	if _, rowwise := out.transposed().byColumns(); rowwise {
		operands = [C.EPG_MATRICES]operand{right, left, out}
		for i := range operands {
			operands[i].matrix = operands[i].transposed()
		}
	}
	for i, o := range operands {
		ld, ok := o.byColumns()
		if !ok && i < C.EPG_MATRICES-1 {
			problem.transpose[i] = 1
			o.matrix = o.transposed()
			ld, ok = o.byColumns()
		}
		if !ok {
			return status.Errorf(status.Unsupported, "cuda: a product of a matrix of %d x %d elements, whose rows and columns are both too long for cuBLASLt, want at most %d",
				o.rows, o.columns, math.MaxInt32)
		}
		problem.rows[i], problem.columns[i], problem.leading[i] = C.uint64_t(o.rows), C.uint64_t(o.columns), C.int64_t(ld)
		problem.batch_stride[i] = C.int64_t(o.batch)
		s.matmul.pointers[i] = c.address(0, o.view)
	}
	if p.bias != nil {
		problem.has_bias = 1
		s.matmul.bias = c.address(0, p.bias)
	}
	if p.accumulates {
		s.matmul.accumulates = 1
	}
	return p.create(c, &problem, &s.matmul)
}

// create makes the product. Inside a tuning block its algorithm is the one that was fastest when the problem was first met in one.
func (p *matmul) create(c *compiler, problem *C.epg_matmul_problem, m *C.epg_matmul) error {
	key := ""
	if c.choices != nil {
		key = c.device.tuningKey(problem)
		problem.tune = 1
		if choice, ok := c.choices.Lookup(key); ok && len(choice) == C.sizeof_epg_algorithm {
			known := (*C.epg_algorithm)(c.memory.allocate(C.sizeof_epg_algorithm))
			copy(unsafe.Slice((*byte)(unsafe.Pointer(known)), len(choice)), choice)
			if known.workspace <= mostBLASWorkspace { // else the file is damaged
				problem.known = known
			}
		}
	}
	var failure C.epg_failure
	if C.epg_matmul_create(c.device.handle, problem, m, &failure) != 0 {
		const notSupported = 15 // CUBLAS_STATUS_NOT_SUPPORTED
		if failure.code == notSupported {
			return status.Errorf(status.Unsupported, "cuda: cuBLASLt has no algorithm for a product of %d x %d x %d in %v",
				p.leftMatrix.rows, p.leftMatrix.columns, p.rightMatrix.columns, p.dt)
		}
		return failed(&failure)
	}
	if m.tuned == 0 {
		return nil
	}
	return c.choices.Store(key, unsafe.Slice((*byte)(unsafe.Pointer(&m.choices[0])), C.sizeof_epg_algorithm))
}

// tuningKey tells all that the fastest algorithm depends on.
func (d *device) tuningKey(p *C.epg_matmul_problem) string {
	return fmt.Sprintf("%s cublaslt %d: type %d compute %d bias %d transpose %v rows %v columns %v leading %v batch %d %v", d.name(),
		int(C.epg_blas_version()), p.dtype, p.compute, p.has_bias, p.transpose, p.rows, p.columns, p.leading, p.batch, p.batch_stride)
}
