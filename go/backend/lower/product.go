package lower

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

// The operands of a product, results first. They index Product.Views and Dim.Strides.
const (
	Out = iota
	Preactivation
	Left
	Right
	Bias
	Ends
	Operands
)

// Dim is one dimension of a product. Strides are in elements, one for each operand: 0 where the
// operand lacks the dimension or is broadcast along it.
type Dim struct {
	Size    int64
	Strides [Operands]int64
}

// Product computes, for each index of Batch, M and N,
//
//	preactivation[batch, m, n] = sum over k of left[batch, m, k] right[batch, k, n] + bias[n]
//	out[batch, m, n]           = act(preactivation[batch, m, n])
//
// Batch, M, N and K are lists of dimensions. Each list is walked as one index, in row-major order.
// Bias may be nil, and so may one of the results.
//
// Where there are Ends, Batch are the groups of a problem's rows. The rows, which are M with ByRows
// and else K, are then those of the group alone, up to its end.
type Product struct {
	Formula        string // of the activation
	Views          [Operands]*tensor.View
	Batch, M, N, K []Dim
	// Next is the next pair of a sum of products, without a bias: its sums are added before this
	// one's bias and activation. It has the same results and sizes, but for the depth.
	Next *Product
	// Summed counts the batch dimensions that the result is summed over. They come first in K.
	Summed int
	// Accumulates: a run that accumulates adds to the result.
	Accumulates bool
	// ByRows: M are the problem's rows, of which each gives one of the result.
	ByRows bool
}

// Forward returns the product of a GEMM epilogue.
func Forward(p *backend.GemmEpilogue) *Product {
	g := grouping{p.Groups}
	rank, left := g.rank(p.BatchRank), g.each(p.A)
	last := left.Rank() - 1
	q := &Product{Formula: p.Formula, Views: [Operands]*tensor.View{g.each(p.Out), g.each(p.Preactivation), left, p.B, p.Bias, p.Groups}, ByRows: true}
	out, pre, a, b := stridesOf(q.Views[Out], rank), stridesOf(q.Views[Preactivation], rank), stridesOf(left, rank), stridesOf(p.B, rank)
	bias := stridesOf(p.Bias, g.rank(0))
	q.M = dims(left.Shape[rank:last], strides{Out: out.rows, Preactivation: pre.rows, Left: a.rows})
	q.N = dims(p.B.Shape[rank+1:], strides{Out: out.columns, Preactivation: pre.columns, Right: b.columns, Bias: bias.columns})
	q.K = dims(left.Shape[last:], strides{Left: a.columns, Right: b.rows})
	q.Batch = dims(left.Shape[:rank], strides{
		Out: out.batch, Preactivation: pre.batch, Left: a.batch, Right: b.batch, Bias: bias.batch, Ends: g.strides(),
	})
	if len(p.More) > 0 {
		rest := *p
		rest.A, rest.B, rest.Bias, rest.More = p.More[0].A, p.More[0].B, nil, p.More[1:]
		q.Next = Forward(&rest)
	}
	return q
}

// gradA is grad_a = g bᵀ.
func gradA(p *backend.GemmEpilogueBackward, gradient *tensor.View) *Product {
	groups := grouping{p.Groups}
	rank, gradA, g := groups.rank(p.BatchRank), groups.each(p.GradA), groups.each(gradient)
	last := g.Rank() - 1
	q := &Product{Formula: "none", Views: [Operands]*tensor.View{Out: gradA, Left: g, Right: p.B, Ends: p.Groups}, ByRows: true}
	out, left, b := stridesOf(gradA, rank), stridesOf(g, rank), stridesOf(p.B, rank)
	q.M = dims(g.Shape[rank:last], strides{Out: out.rows, Left: left.rows})
	q.N = dims(p.B.Shape[rank:rank+1], strides{Out: out.columns, Right: b.rows})
	q.K = dims(g.Shape[last:], strides{Left: left.columns, Right: b.columns})
	q.batch(dims(g.Shape[:rank], strides{Out: out.batch, Left: left.batch, Right: b.batch, Ends: groups.strides()}))
	return q
}

// gradB is grad_b = aᵀ g, summed over all rows.
func gradB(p *backend.GemmEpilogueBackward, gradient *tensor.View) *Product {
	groups := grouping{p.Groups}
	rank, left, g := groups.rank(p.BatchRank), groups.each(p.A), groups.each(gradient)
	last := g.Rank() - 1
	q := &Product{Formula: "none", Views: [Operands]*tensor.View{Out: p.GradB, Left: left, Right: g, Ends: p.Groups}, Accumulates: true}
	out, a, right := stridesOf(p.GradB, rank), stridesOf(left, rank), stridesOf(g, rank)
	q.M = dims(left.Shape[last:], strides{Out: out.rows, Left: a.columns})
	q.N = dims(g.Shape[last:], strides{Out: out.columns, Right: right.columns})
	q.K = dims(g.Shape[rank:last], strides{Left: a.rows, Right: right.rows})
	q.batch(dims(g.Shape[:rank], strides{Out: out.batch, Left: a.batch, Right: right.batch, Ends: groups.strides()}))
	return q
}

// grouping is where a problem's groups end, if it has some. They are a batch then, along which
// tensors of rows are broadcast.
type grouping struct{ ends *tensor.View }

// rank is the rank of the batch, in place of that of a problem without groups.
func (g grouping) rank(batch int) int {
	if g.ends != nil {
		return 1
	}
	return batch
}

func (g grouping) strides() []int64 {
	if g.ends == nil {
		return nil
	}
	return g.ends.Strides
}

// each is a tensor of rows with the batch's dimension.
func (g grouping) each(v *tensor.View) *tensor.View {
	if v == nil || g.ends == nil {
		return v
	}
	wide := v.Unsqueeze(0)
	wide.Shape[0], wide.Strides[0] = g.ends.Shape[0], 0
	return &wide
}

// batch adds batch dimensions: to the contraction where the result has the size 1, else to Batch.
func (p *Product) batch(all []Dim) {
	var summed []Dim
	for d, dim := range all {
		if p.Views[Out].Shape[d] == dim.Size {
			p.Batch = append(p.Batch, dim)
			continue
		}
		dim.Strides[Out] = 0
		summed = append(summed, dim)
	}
	p.K, p.Summed = append(summed, p.K...), len(summed)
}

// matrix holds the strides of a view [batch..., rows..., columns].
type matrix struct{ batch, rows, columns []int64 }

// stridesOf is empty for a view that is nil.
func stridesOf(v *tensor.View, batchRank int) (m matrix) {
	if v != nil {
		last := v.Rank() - 1
		m = matrix{v.Strides[:batchRank], v.Strides[batchRank:last], v.Strides[last:]}
	}
	return m
}

// strides has a list for each operand, nil where the operand lacks the dimensions.
type strides [Operands][]int64

func dims(sizes []int64, of strides) []Dim {
	all := make([]Dim, len(sizes))
	for d, size := range sizes {
		all[d].Size = size
		for operand, list := range of {
			if len(list) > 0 {
				all[d].Strides[operand] = list[d]
			}
		}
	}
	return all
}

// View returns an operand with the dimensions of the groups, in their order, or nil for an absent
// operand.
func (p *Product) View(operand int, groups ...[]Dim) *tensor.View {
	if p.Views[operand] == nil {
		return nil
	}
	rank := 0
	for _, group := range groups {
		rank += len(group)
	}
	v, both := *p.Views[operand], make([]int64, 2*rank)
	v.Shape, v.Strides = both[:0:rank], both[rank:rank]
	for _, group := range groups {
		for _, dim := range group {
			v.Shape, v.Strides = append(v.Shape, dim.Size), append(v.Strides, dim.Strides[operand])
		}
	}
	return &v
}

// Result returns an operand that is a result, or the bias, with the dimensions of a result.
func (p *Product) Result(operand int) *tensor.View { return p.View(operand, p.Batch, p.M, p.N) }

// Contiguous sets an operand's strides: the groups lie in their order, without gaps.
func Contiguous(operand int, groups ...[]Dim) {
	next := int64(1)
	for _, group := range slices.Backward(groups) {
		for d := range slices.Backward(group) {
			group[d].Strides[operand] = next
			next *= group[d].Size
		}
	}
}

// Count returns the number of indices of the groups together.
func Count(groups ...[]Dim) int64 {
	n := int64(1)
	for _, group := range groups {
		for _, dim := range group {
			n *= dim.Size
		}
	}
	return n
}
