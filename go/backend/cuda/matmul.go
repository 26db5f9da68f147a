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

	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// mostBLASWorkspace is what cuBLASLt may use for one product: as much as PyTorch gives it on
// Hopper.
const mostBLASWorkspace = 32 << 20

// matmul is a product that cuBLASLt can do in one call.
type matmul struct {
	views       [lower.Operands]*tensor.View // only where they start is used
	alignedBias *tensor.View                 // room for a copy
	matrices    [lower.Operands]matrix
	batch       lower.Dim // size 1 without one
	adds        adding
	dt, result  dtype.DType // of the operands, and of the result
	tf32        bool
	// whether the algorithm is that of invariantRows and invariantColumns
	invariant bool
}

// adding says in which runs a product is added to the output's values. cuda.h has the same numbers.
type adding C.int32_t

const (
	never adding = iota
	ifAccumulating
	always
)

// squeezed leaves out dimensions of size 1.
func squeezed(dims []lower.Dim) []lower.Dim {
	return slices.DeleteFunc(slices.Clone(dims), func(d lower.Dim) bool { return d.Size == 1 })
}

// merged is the one stride with which an operand's dimensions are walked, and whether there is one.
func merged(dims []lower.Dim, operand int) (int64, bool) {
	if len(dims) == 0 {
		return 1, true
	}
	for i := range dims[:len(dims)-1] {
		if dims[i].Strides[operand] != dims[i+1].Strides[operand]*dims[i+1].Size {
			return 0, false
		}
	}
	return dims[len(dims)-1].Strides[operand], true
}

// byColumns returns the leading dimension with which BLAS reads a matrix in place, column after
// column, and whether it can: the rows have the stride 1 and columns do not overlap. Exchanging the
// two gives the same for row after row.
func byColumns(rows, rowStride, columns, columnStride int64) (ld int64, ok bool) {
	if rows != 1 && rowStride != 1 {
		return 0, false
	}
	if columns == 1 {
		return rows, true
	}
	// cuBLASLt refuses longer ones
	return columnStride, columnStride >= rows && columnStride <= math.MaxInt32
}

// matrix is a matrix with the strides of its rows and columns.
type matrix struct {
	rows, rowStride, columns, columnStride int64
}

// matrixOf merges an operand's dimensions into rows and columns, if each are walked as one.
func matrixOf(rows, columns []lower.Dim, operand int) (m matrix, ok bool) {
	m.rows, m.columns = lower.Count(rows), lower.Count(columns)
	if m.rowStride, ok = merged(rows, operand); !ok {
		return m, false
	}
	m.columnStride, ok = merged(columns, operand)
	return m, ok
}

func (m matrix) transposed() matrix { return matrix{m.columns, m.columnStride, m.rows, m.rowStride} }

func (m matrix) byColumns() (ld int64, ok bool) {
	return byColumns(m.rows, m.rowStride, m.columns, m.columnStride)
}

// lies reports in which orders BLAS can read or write a matrix in place.
func (m matrix) lies() (byColumns, byRows bool) {
	_, byColumns = m.byColumns()
	_, byRows = m.transposed().byColumns()
	return byColumns, byRows
}

// inPlace reports whether BLAS can read an operand as it lies.
func inPlace(rows, columns []lower.Dim, operand int) bool {
	m, ok := matrixOf(rows, columns, operand)
	byColumns, byRows := m.lies()
	return ok && (byColumns || byRows)
}

// writable is inPlace for a result; with a bias, which BLAS adds along its own columns, that has to
// have rows.
func writable(p *lower.Product) bool {
	m, ok := matrixOf(p.M, p.N, lower.Out)
	byColumns, byRows := m.lies()
	return ok && (byRows || byColumns && p.Views[lower.Bias] == nil)
}

// multiply adds a product without an activation to the program. A bias has contiguous elements.
func (b *builder) multiply(whole *lower.Product, tf32 bool) {
	p := *whole
	p.Batch, p.M, p.N, p.K = squeezed(p.Batch), squeezed(p.M), squeezed(p.N), squeezed(p.K)
	if lower.Count(p.Batch, p.M, p.N) == 0 {
		return
	}
	if lower.Count(p.K) == 0 {
		b.emptySum(&p)
		return
	}
	if !inPlace(p.M, p.K, lower.Left) {
		b.stageInput(&p, lower.Left, p.M, p.K)
	}
	if !inPlace(p.K, p.N, lower.Right) {
		b.stageInput(&p, lower.Right, p.K, p.N)
	}
	if writable(&p) {
		b.enqueue(&p, tf32)
		return
	}
	result := p.Result(lower.Out)
	p.Views[lower.Out] = b.region(result.DType, result.Shape...)
	if p.Accumulates {
		b.unless(overwriting, func() { b.copy(p.Views[lower.Out], result) })
	}
	lower.Contiguous(lower.Out, p.Batch, p.M, p.N)
	b.enqueue(&p, tf32)
	b.copy(result, p.Views[lower.Out])
}

// emptySum is a product over no terms: zeros, or nothing to add.
func (b *builder) emptySum(p *lower.Product) {
	write := func() { b.zero(p.Result(lower.Out)) }
	if p.Accumulates {
		b.unless(accumulating, write)
	} else {
		write()
	}
}

// zero writes zeros to a view of any strides.
func (b *builder) zero(v *tensor.View) {
	one := b.region(v.DType, 1)
	b.program = append(b.program, fill{one})
	zeros := *one
	zeros.Shape, zeros.Strides = v.Shape, make([]int64, len(v.Shape))
	b.copy(v, &zeros)
}

// unless adds steps that runs with a property leave out.
func (b *builder) unless(is condition, add func()) {
	first := len(b.program)
	add()
	for i := range b.program[first:] {
		b.program[first+i] = conditional{b.program[first+i], is}
	}
}

// stageInput copies an operand to the workspace, where it is contiguous, and changes its strides;
// batch dimensions that it is broadcast over are not repeated.
func (b *builder) stageInput(p *lower.Product, operand int, rows, columns []lower.Dim) {
	var own []lower.Dim
	var kept []int
	for i, d := range p.Batch {
		if d.Strides[operand] != 0 {
			own, kept = append(own, d), append(kept, i)
		}
	}
	p.Views[operand] = b.copied(p.View(operand, own, rows, columns))
	lower.Contiguous(operand, own, rows, columns)
	for i, at := range kept {
		p.Batch[at] = own[i]
	}
}

// enqueue adds the calls for a product whose operands BLAS can read in place: one for each step of
// the batch dimensions that do not merge into one.
func (b *builder) enqueue(p *lower.Product, tf32 bool) {
	tf32 = tf32 && b.dt == dtype.Float32
	b.tf32 = b.tf32 || tf32
	single := matmul{batch: lower.Dim{Size: 1}, dt: b.dt, result: p.Views[lower.Out].DType, tf32: tf32}
	if p.Accumulates {
		single.adds = ifAccumulating
	}
	single.matrices[lower.Left], _ = matrixOf(p.M, p.K, lower.Left)
	single.matrices[lower.Right], _ = matrixOf(p.K, p.N, lower.Right)
	single.matrices[lower.Out], _ = matrixOf(p.M, p.N, lower.Out)
	single.invariant = b.invariant && p.ByRows
	if p.Views[lower.Bias] != nil {
		single.alignedBias = b.region(b.dt, single.matrices[lower.Out].columns)
	}
	batch := mergeBatch(p.Batch)
	if len(batch) > 0 { // one call for as many products as can be
		longest := 0
		for i, d := range batch {
			if d.Size > batch[longest].Size {
				longest = i
			}
		}
		single.batch = batch[longest]
		batch = slices.Delete(batch, longest, longest+1)
	}
	var walk func(dims []lower.Dim, at [lower.Operands]int64)
	walk = func(dims []lower.Dim, at [lower.Operands]int64) {
		if len(dims) == 0 {
			one := single
			for operand, v := range p.Views {
				one.views[operand] = moved(v, at[operand])
			}
			b.program = append(b.program, &one)
			return
		}
		for range dims[0].Size {
			walk(dims[1:], at)
			for operand, stride := range dims[0].Strides {
				at[operand] += stride
			}
		}
	}
	walk(batch, [lower.Operands]int64{})
}

// mergeBatch joins neighbours that every operand walks as one.
func mergeBatch(dims []lower.Dim) []lower.Dim {
	var joined []lower.Dim
	for _, d := range dims {
		whole := d // a step of the dimension around it
		for operand := range whole.Strides {
			whole.Strides[operand] *= d.Size
		}
		if n := len(joined); n > 0 && joined[n-1].Strides == whole.Strides {
			joined[n-1] = lower.Dim{Size: joined[n-1].Size * d.Size, Strides: d.Strides}
			continue
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
	// reduceInCompute is CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums are never rounded to
	// a half type, whatever PyTorch allows.
	reduceInCompute = 2
	// dontReduce is CUBLASLT_REDUCTION_SCHEME_NONE: the depth is not divided.
	dontReduce = 0
)

// compile implements operation. BLAS sees everything transposed, column-major: outᵀ = rightᵀ leftᵀ
// where out has rows, or out = left right where it has columns.
func (p *matmul) compile(c *compiler, s *C.epg_step) error {
	if err := c.device.blas(); err != nil {
		return err
	}
	if p.batch.Size > math.MaxInt32 {
		return status.Errorf(status.Unsupported, "cuda: batch: got %d products, want at most %d, the most that cuBLASLt runs in one call: split the batch", p.batch.Size, math.MaxInt32)
	}
	s.kind = C.EPG_MATMUL
	types, known := blasTypes[p.dt]
	if !known {
		return status.Errorf(status.Internal, "cuda: dtype: got %v, which has no cuBLASLt data type", p.dt)
	}
	problem := C.epg_matmul_problem{
		dtype: types.storage, result: blasTypes[p.result].storage, result_element: C.uint32_t(p.result.Size()), compute: types.compute, scale: types.scale, batch: C.int32_t(p.batch.Size), reduction_mask: reduceInCompute,
		element: C.uint32_t(p.dt.Size()), most_workspace: mostBLASWorkspace, alignment: vectorBytes,
	}
	if p.invariant {
		problem.reduction_mask = dontReduce
	}
	if p.tf32 {
		problem.compute = computeTF32
	}
	type operand struct {
		view *tensor.View
		matrix
		chosen matrix // of the sizes that the algorithm is chosen for
		batch  int64
	}
	operandAt := func(i int) operand {
		chosen := p.matrices[i]
		if p.invariant && i != lower.Right {
			chosen.rows = invariantRows
		}
		if p.invariant && i != lower.Left {
			chosen.columns = max(chosen.columns, invariantColumns)
		}
		return operand{p.views[i], p.matrices[i], chosen, p.batch.Strides[i]}
	}
	left, right, out := operandAt(lower.Left), operandAt(lower.Right), operandAt(lower.Out)
	operands := [C.EPG_MATRICES]operand{left, right, out}
	if _, rowwise := out.transposed().byColumns(); rowwise {
		operands = [C.EPG_MATRICES]operand{right, left, out}
		for i := range operands {
			operands[i].matrix, operands[i].chosen = operands[i].transposed(), operands[i].chosen.transposed()
		}
	}
	for i, o := range operands {
		ld, ok := o.byColumns()
		if !ok && i < C.EPG_MATRICES-1 {
			problem.transpose[i] = 1
			o.matrix, o.chosen = o.transposed(), o.chosen.transposed()
			ld, ok = o.byColumns()
		}
		if !ok {
			return status.Errorf(status.Unsupported, "cuda: matrix: got %d x %d elements, want a leading dimension of at most %d, cuBLASLt's limit: split the matrix",
				o.rows, o.columns, math.MaxInt32)
		}
		problem.rows[i], problem.columns[i], problem.leading[i] = C.uint64_t(o.rows), C.uint64_t(o.columns), C.int64_t(ld)
		problem.chosen_rows[i], problem.chosen_columns[i] = C.uint64_t(o.chosen.rows), C.uint64_t(o.chosen.columns)
		if p.invariant && ld*p.dt.Size()%vectorBytes != 0 { // some rows start elsewhere
			problem.alignment = problem.element
		}
		problem.batch_stride[i] = C.int64_t(o.batch)
		s.matmul.pointers[i] = c.address(0, o.view)
	}
	if bias := p.views[lower.Bias]; bias != nil {
		problem.has_bias = 1
		s.matmul.bias, s.matmul.aligned_bias = c.address(0, bias), c.address(0, p.alignedBias)
		s.matmul.bias_bytes = C.uint64_t(p.matrices[lower.Out].columns * p.dt.Size())
	}
	s.matmul.adds = C.int32_t(p.adds)
	return p.create(c, &problem, &s.matmul)
}

// create makes the product. Inside a tuning block its algorithm is the one that was fastest when
// the problem was first met in one.
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
			return status.Errorf(status.Unsupported, "cuda: matrix product: got m, k, n = %d, %d, %d in %v, for which cuBLASLt has no algorithm",
				p.matrices[lower.Left].rows, p.matrices[lower.Left].columns, p.matrices[lower.Right].columns, p.dt)
		}
		return failed(&failure)
	}
	if m.tuned == 0 {
		return nil
	}
	return c.choices.Store(key, unsafe.Slice((*byte)(unsafe.Pointer(&m.choices[0])), C.sizeof_epg_algorithm))
}

// tuningKey holds all that the fastest algorithm depends on.
func (d *device) tuningKey(p *C.epg_matmul_problem) string {
	return fmt.Sprintf("%s cublaslt %d: type %d %d compute %d bias %d transpose %v rows %v columns %v leading %v batch %d %v", d.name(),
		int(C.epg_blas_version()), p.dtype, p.result, p.compute, p.has_bias, p.transpose, p.rows, p.columns, p.leading, p.batch, p.batch_stride)
}
