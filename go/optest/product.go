package optest

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// gemmCase is a product's shapes, as matmul takes them.
type gemmCase struct{ a, b []int64 }

// vectors and matrices, batches of either side, and what broadcasts.
var gemmCases = []gemmCase{
	{[]int64{5, 7}, []int64{7, 6}},
	{[]int64{3, 5, 7}, []int64{7, 6}},
	{[]int64{2, 3, 5, 7}, []int64{3, 7, 6}},
	{[]int64{2, 1, 5, 7}, []int64{1, 3, 7, 6}},
	{[]int64{5, 7}, []int64{4, 7, 6}},
	{[]int64{1, 5, 7}, []int64{4, 7, 6}},
	{[]int64{4, 5, 7}, []int64{1, 7, 6}},
	{[]int64{3, 5, 7}, []int64{2, 1, 7, 6}},
	{[]int64{2, 3, 5, 7}, []int64{1, 1, 7, 6}},
	{[]int64{7}, []int64{7, 6}},
	{[]int64{5, 7}, []int64{7}},
	{[]int64{7}, []int64{7}},
	{[]int64{2, 5, 7}, []int64{7}},
	{[]int64{7}, []int64{3, 7, 6}},
	{[]int64{7}, []int64{2, 3, 7, 6}},
	{[]int64{1, 1}, []int64{1, 1}},
	{[]int64{1, 7}, []int64{7, 1}},
}

// emptyCases have a dimension of size 0: of the batch, of either side, or the depth.
var emptyCases = []gemmCase{
	{[]int64{0, 7}, []int64{7, 6}},
	{[]int64{5, 0}, []int64{0, 6}},
	{[]int64{5, 7}, []int64{7, 0}},
	{[]int64{3, 0, 7}, []int64{3, 7, 6}},
	{[]int64{3, 5, 0}, []int64{3, 0, 6}},
	{[]int64{0, 5, 7}, []int64{0, 7, 6}},
	{[]int64{0, 5, 7}, []int64{7, 6}},
	{[]int64{5, 7}, []int64{0, 7, 6}},
	{[]int64{1, 5, 7}, []int64{0, 7, 6}},
	{[]int64{0, 1, 5, 7}, []int64{3, 7, 6}},
	{[]int64{0}, []int64{0}},
	{[]int64{0}, []int64{0, 6}},
	{[]int64{5, 0}, []int64{0}},
	{[]int64{0, 7}, []int64{7}},
	{[]int64{0, 0}, []int64{0, 0}},
}

// product is a case worked out: batched matrices and which of them meet.
type product struct {
	gemmCase
	m, n, k  int
	batch    []int64
	out      []int64
	bias     []int64
	items    int
	itemA    []int // the matrix of a that belongs to each item of the batch
	itemB    []int
	matrices [2]int // in a and in b
}

func newProduct(c gemmCase) *product {
	p := &product{gemmCase: c, bias: []int64{}}
	a, b := c.a, c.b
	if len(a) == 1 {
		a = []int64{1, a[0]}
	}
	if len(b) == 1 {
		b = []int64{b[0], 1}
	} else {
		p.bias = []int64{b[len(b)-1]}
	}
	batchA, batchB := a[:len(a)-2], b[:len(b)-2]
	p.m, p.k, p.n = int(a[len(a)-2]), int(a[len(a)-1]), int(b[len(b)-1])
	p.batch, _ = tensor.BroadcastShapes(batchA, batchB)
	p.itemA, p.itemB = broadcastIndex(batchA, p.batch), broadcastIndex(batchB, p.batch)
	p.items = len(p.itemA)
	p.matrices = [2]int{size(batchA), size(batchB)}
	p.out = slices.Clone(p.batch)
	if len(c.a) > 1 {
		p.out = append(p.out, int64(p.m))
	}
	if len(c.b) > 1 {
		p.out = append(p.out, int64(p.n))
	}
	return p
}

func size(shape []int64) int {
	n := 1
	for _, x := range shape {
		n *= int(x)
	}
	return n
}

// broadcastIndex gives, for each element of the shape to, in row-major order, the index of the
// element of from that broadcasts there.
func broadcastIndex(from, to []int64) []int {
	index := make([]int, size(to))
	for i := range index {
		rest, place, at := i, 1, 0
		for d := len(to) - 1; d >= 0; d-- {
			position := rest % int(to[d])
			rest /= int(to[d])
			if f := d - (len(to) - len(from)); f >= 0 {
				if from[f] != 1 {
					at += position * place
				}
				place *= int(from[f])
			}
		}
		index[i] = at
	}
	return index
}

// sumTo adds the elements of a shape up to the shape that broadcasts to it.
func sumTo(values []float64, from, to []int64) []float64 {
	sums := make([]float64, size(to))
	for i, at := range broadcastIndex(to, from) {
		sums[at] += values[i]
	}
	return sums
}

// general is one matrix of a batch.
func general(values []float64, item, rows, columns int) blas64.General {
	length := rows * columns
	return blas64.General{Rows: rows, Cols: columns, Stride: max(1, columns), Data: values[item*length : (item+1)*length]}
}

// pre is a b + bias.
func (p *product) pre(a, b, bias []float64) []float64 {
	out := make([]float64, p.items*p.m*p.n)
	for item := range p.items {
		c := general(out, item, p.m, p.n)
		if p.k > 0 {
			blas64.Gemm(blas.NoTrans, blas.NoTrans, 1, general(a, p.itemA[item], p.m, p.k), general(b, p.itemB[item], p.k, p.n), 0, c)
		}
		for i := range c.Data {
			if bias != nil {
				c.Data[i] += bias[i%p.n]
			}
		}
	}
	return out
}

// gradA is g bᵀ and gradB is aᵀ g, each summed over the items that share a matrix; gradBias is the
// sum of g's rows.
func (p *product) gradA(g, b []float64) []float64 {
	out := make([]float64, p.matrices[0]*p.m*p.k)
	for item := range p.items {
		if p.m*p.n*p.k > 0 {
			blas64.Gemm(blas.NoTrans, blas.Trans, 1, general(g, item, p.m, p.n), general(b, p.itemB[item], p.k, p.n), 1,
				general(out, p.itemA[item], p.m, p.k))
		}
	}
	return out
}

func (p *product) gradB(a, g []float64) []float64 {
	out := make([]float64, p.matrices[1]*p.k*p.n)
	for item := range p.items {
		if p.m*p.n*p.k > 0 {
			blas64.Gemm(blas.Trans, blas.NoTrans, 1, general(a, p.itemA[item], p.m, p.k), general(g, item, p.m, p.n), 1,
				general(out, p.itemB[item], p.k, p.n))
		}
	}
	return out
}

func (p *product) gradBias(g []float64) []float64 {
	out := make([]float64, p.n)
	for i, x := range g {
		out[i%p.n] += x
	}
	return out
}

// bounds are how far results may be from the references, as sums of products of n terms in a
// dtype's accumulator are. Formulas and elementwise sums are computed with the rounding
// elementwise, and a formula has an error besides; an activation's argument has had the rounding
// argument.
type bounds struct{ unit, accumulator, tiny, elementwise, formula, argument float64 }

// boundsOf are those of formulas and elementwise sums in float64.
func boundsOf(dt dtype.DType) bounds {
	return bounds{unit: unit(dt), accumulator: unit(dt.Accumulator()), tiny: tiny(dt), elementwise: unit(dtype.Float64)}
}

// sum is the error of accumulating terms whose absolute values add up to size. The reference's own
// is of the same form.
func (b bounds) sum(terms int, size float64) float64 {
	return float64(2*terms+8) * b.accumulator * size
}

// stored adds the rounding to storage of a value known up to an error.
func (b bounds) stored(value, err float64) float64 {
	return err + b.unit*(math.Abs(value)+err) + b.tiny
}

// unrounded are the bounds of results before they are stored.
func (b bounds) unrounded() bounds { return bounds{elementwise: b.elementwise, formula: b.formula} }

func (b bounds) allStored(values, errs []float64) []float64 {
	list := make([]float64, len(values))
	for i, v := range values {
		list[i] = b.stored(v, errs[i])
	}
	return list
}

func magnitudes(values []float64) []float64 {
	if values == nil {
		return nil
	}
	list := make([]float64, len(values))
	for i, v := range values {
		list[i] = math.Abs(v)
	}
	return list
}

// expectation is a result with its error bound.
type expectation struct{ value, bound []float64 }

// forward is what the operation should give for the values that are stored: the output, and the
// preactivation.
func (p *product) forward(kind string, limits bounds, a, b, bias []float64) (out, pre expectation) {
	pre.value = p.pre(a, b, bias)
	errs := p.pre(magnitudes(a), magnitudes(b), magnitudes(bias))
	out.value = make([]float64, len(pre.value))
	outErrs := make([]float64, len(pre.value))
	act := references[kind]
	for i, x := range pre.value {
		errs[i] = limits.sum(p.k+1, errs[i])
		out.value[i] = act.value(x)
		outErrs[i] = act.spread(x, errs[i]+limits.argument*(math.Abs(x)+errs[i])+limits.tiny) + act.formulaError(x, limits.formula)
	}
	out.bound = limits.allStored(out.value, outErrs)
	pre.bound = limits.allStored(pre.value, errs)
	return out, pre
}

// backward is what the gradients should be. The slopes are off by slopeErr beside the reference's
// and the formula's error.
func (p *product) backward(kind string, limits bounds, gradOutput, a, b, pre []float64, slopeErr float64) (gradA, gradB, gradBias expectation) {
	gradient, errs := make([]float64, len(pre)), make([]float64, len(pre))
	rounded, biasErrs := make([]float64, len(pre)), make([]float64, len(pre))
	act := references[kind]
	for i, g := range gradOutput {
		gradient[i] = g * act.slope(pre[i])
		errs[i] = math.Abs(g) * (slopeErr + act.slopeError(pre[i], limits.formula))
		depth := max(p.n, p.m) * max(p.items, 1)
		rounded[i] = limits.stored(gradient[i], errs[i]) + limits.sum(depth, math.Abs(gradient[i]))
		biasErrs[i] = errs[i] + 4*limits.elementwise*float64(len(pre))*math.Abs(gradient[i])
	}
	gradA.value, gradB.value, gradBias.value = p.gradA(gradient, b), p.gradB(a, gradient), p.gradBias(gradient)
	gradA.bound = limits.allStored(gradA.value, p.gradA(rounded, magnitudes(b)))
	gradB.bound = limits.allStored(gradB.value, p.gradB(magnitudes(a), rounded))
	gradBias.bound = limits.allStored(gradBias.value, p.gradBias(biasErrs))
	return gradA, gradB, gradBias
}
