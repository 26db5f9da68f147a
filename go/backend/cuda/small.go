//go:build cgo

package cuda

import (
	"slices"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// What kernels/cuda/gemm_epilogue_small.cu says of a launch, and how large a problem its kernels
// are for.
const (
	smallTile = 16
	// mostSmallWork is the most multiplications of a product.
	mostSmallWork = 1 << 21
)

// mostSmallTerms returns the most terms of a sum, which is one block's. cuBLASLt, with tensor
// cores, is faster from fewer terms on.
func mostSmallTerms(dt dtype.DType) int64 {
	if dt == dtype.Float32 {
		return 256
	}
	return 128
}

// smallGemm is a problem without a batch whose products take less time than launches do. Sizes are
// at least 1.
type smallGemm struct{ m, n, k int64 }

// smallOf returns the sizes of a problem, and whether it is small: by its sizes alone, so that bits
// depend neither on layouts nor on which results are wanted.
func (b *builder) smallOf(batchRank int, result, left *tensor.View) (s smallGemm, small bool) {
	last := result.Rank() - 1
	s = smallGemm{tensor.Elements(result.Shape[:last]), result.Shape[last], left.Shape[left.Rank()-1]}
	byTiles := b.tilesAlone && b.runs(sm80)
	return s, !b.blasAlone && !b.invariant && !byTiles && tensor.Elements(result.Shape[:batchRank]) == 1 && min(s.m, s.n, s.k) > 0 && max(s.m, s.n, s.k) <= mostSmallTerms(b.dt) &&
		s.m*s.n*s.k <= mostSmallWork
}

// rowsAndColumns are the strides of a view as a matrix, whose rows are all dimensions but the last;
// ok reports whether these are walked as one.
func rowsAndColumns(v *tensor.View) (strides [2]int64, ok bool) {
	flat, ok := v.FlattenLeading(1)
	if ok {
		strides = [2]int64{flat.Strides[0], flat.Strides[1]}
	}
	return strides, ok
}

// asMatrix gives an input as a matrix: itself, or a copy in the workspace.
func (b *builder) asMatrix(v *tensor.View) *tensor.View {
	if v == nil {
		return nil
	}
	if _, ok := rowsAndColumns(v); ok {
		return v
	}
	return b.copied(v)
}

// resultMatrix gives a result as a matrix: itself, or a place in the workspace, which is to be
// copied to it.
func (b *builder) resultMatrix(v *tensor.View, accumulates bool) *tensor.View {
	if v == nil {
		return nil
	}
	if _, ok := rowsAndColumns(v); ok {
		return v
	}
	region := b.region(v.DType, v.Shape...)
	if accumulates {
		b.unless(overwriting, func() { b.copy(region, v) })
	}
	return region
}

// matrix is a Matrix of gemm_epilogue_small.cu; a nil view has a null pointer.
func (p *parameters) matrix(v *tensor.View) {
	p.address(v)
	var strides [2]int64
	if v != nil {
		strides, _ = rowsAndColumns(v)
	}
	p.int64(strides[0])
	p.int64(strides[1])
}

func (p *parameters) sizes(sizes ...int64) {
	for _, size := range sizes {
		p.uint32(uint32(size))
	}
}

func tiles(rows, columns int64) int64 { return ceilDiv(rows, smallTile) * ceilDiv(columns, smallTile) }

// smallName is the name of a formula's kernel.
func smallName(formula string) string {
	if a, _ := activation.Lookup(formula); !a.Frequent {
		return "other"
	}
	return formula
}

// smallNumbers are the parameters of a formula, which the run brings, and its number among others.
func (p *parameters) smallNumbers(formula string) {
	p.numbers(numbers{})
	p.float64(float64(max(slices.Index(activation.OtherKernels(), formula), 0)))
}

// smallForward adds out = act(a b + bias) and the preactivation, either of which may be nil, in one
// launch.
func (b *builder) smallForward(s smallGemm, formula string, left, right, bias, out, preactivation *tensor.View) {
	b.small("gemm_epilogue_small_"+smallName(formula), tiles(s.m, s.n), []*tensor.View{left, right}, []*tensor.View{out, preactivation}, false,
		func(p *parameters) {
			p.strided(bias, 0)
			p.smallNumbers(formula)
			p.sizes(s.m, s.n, s.k, ceilDiv(s.n, smallTile))
		})
}

// smallBackward adds all gradients in one launch, before which the preactivation is formed where
// nothing was saved.
func (b *builder) smallBackward(s smallGemm, q *backend.GemmEpilogueBackward) {
	saved, from := q.Preactivation, ""
	switch {
	case q.Formula == "none":
		saved = nil
	case q.Output != nil:
		saved, from = q.Output, "from_output_"
	case saved != nil:
		b.withoutSaved = regionBytes(b.dt, s.m*s.n)
	default:
		saved = b.region(b.dt, q.GradOutput.Shape...)
		b.smallForward(s, "none", q.A, q.B, q.Bias, nil, saved)
	}
	var gradATiles, gradBTiles, biasBlocks int64
	if q.GradA != nil {
		gradATiles = tiles(s.m, s.k)
	}
	if q.GradB != nil {
		gradBTiles = tiles(s.k, s.n)
	}
	if q.GradBias != nil {
		biasBlocks = ceilDiv(s.n, smallTile)
	}
	b.small("gemm_epilogue_backward_small_"+from+smallName(q.Formula), gradATiles+gradBTiles+biasBlocks,
		[]*tensor.View{q.GradOutput, saved, q.A, q.B}, []*tensor.View{q.GradA, q.GradB}, true,
		func(p *parameters) {
			p.strided(q.GradBias, 0)
			p.smallNumbers(q.Formula)
			p.sizes(s.m, s.n, s.k, gradATiles, gradBTiles)
		})
}

// small adds a launch whose parameters are matrices and what rest adds, with copies of those that
// are not matrices. Where runs may accumulate, the last of the outputs does and the last parameter
// says so.
func (b *builder) small(function string, blocks int64, inputs, outputs []*tensor.View, accumulates bool, rest func(p *parameters)) {
	p := &parameters{}
	for _, v := range inputs {
		p.matrix(b.asMatrix(v))
	}
	results := make([]*tensor.View, len(outputs))
	for i, v := range outputs {
		results[i] = b.resultMatrix(v, accumulates && i == len(outputs)-1)
		p.matrix(results[i])
	}
	rest(p)
	if accumulates {
		p.accumulate(true)
	}
	b.general(p, function+"_"+b.dt.Short(), blocks)
	for i, v := range outputs {
		if results[i] != v {
			b.copy(v, results[i])
		}
	}
}
