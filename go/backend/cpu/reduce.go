package cpu

import (
	"math"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

// sums are running column sums with the error of each addition kept beside them (Neumaier 1974, https://doi.org/10.1002/zamm.19740540106), so
// that a sum over millions of rows is as good as one over two.
type sums struct {
	total, carry []float64
}

func newSums(n int) sums {
	both := make([]float64, 2*n)
	return sums{both[:n], both[n:]}
}

// add adds x[i] to column i.
func (s *sums) add(x []float64) {
	for i, v := range x {
		s.addOne(i, v)
	}
}

func (s *sums) addOne(i int, v float64) {
	total := s.total[i]
	sum := total + v
	if math.Abs(total) >= math.Abs(v) {
		s.carry[i] += (total - sum) + v
	} else {
		s.carry[i] += (v - sum) + total
	}
	s.total[i] = sum
}

// merge adds another's columns.
func (s *sums) merge(other *sums) {
	for i := range s.total {
		s.addOne(i, other.total[i])
		s.carry[i] += other.carry[i]
	}
}

// result writes the sums to dst. Where a sum is infinite or NaN the carry is inf - inf and means nothing: the sum itself is the answer.
func (s *sums) result(dst []float64) {
	for i := range dst {
		dst[i] = s.total[i]
		if carry := s.carry[i]; !math.IsNaN(carry) && !math.IsInf(carry, 0) {
			dst[i] += carry
		}
	}
}

// maxChunks is how many pieces a long reduction is cut into, so that several goroutines can share it; the cut depends on shapes alone.
const maxChunks = 16

// reduction sums a function of several operands over some dimensions of their shape into one output.
type reduction struct {
	out    *tensor.View // size 1 in the dimensions that are summed over
	kept   *loops       // out and the operands over the dimensions that stay
	summed *loops       // the operands over the dimensions that go
	term   func(r *backend.Run) compute
}

// newReduction prepares out = sum of term, where the operands have one shape and out has the size 1 in each dimension that is summed over.
// A term reads blocks 1, 2, ... (the operands) and writes block 0.
func newReduction(out *tensor.View, term func(*backend.Run) compute, operands ...*tensor.View) *reduction {
	keptOut := *out
	keptViews, summedViews := []*tensor.View{&keptOut}, []*tensor.View{}
	for _, operand := range operands {
		kept, summed := *operand, *operand
		kept.Shape, summed.Shape = append([]int64(nil), operand.Shape...), append([]int64(nil), operand.Shape...)
		for d, n := range out.Shape {
			if n == operand.Shape[d] {
				summed.Shape[d] = 1
			} else {
				kept.Shape[d] = 1
			}
		}
		keptViews, summedViews = append(keptViews, &kept), append(summedViews, &summed)
	}
	summed := newLoops(out.DType, summedViews...)
	if summed.count == 0 {
		keptViews = keptViews[:1] // the operands have no elements, hence no addresses
	}
	return &reduction{out: out, term: term, kept: newLoops(out.DType, keptViews...), summed: summed}
}

// run computes the reduction. Where enough elements stay, a block is a run of those and rows are added to it; else a block is a run of what is
// summed, added up at once.
func (q *reduction) run(r *backend.Run) error {
	if q.kept.count == 0 {
		return nil
	}
	base, term := q.kept.bind(r), q.term(r)
	along := min(int(q.kept.shape[len(q.kept.shape)-1]), blockLength)
	if q.kept.count < blockLength/8 && q.summed.count > 1 {
		along = 1
	}
	inner := q.kept.shape[len(q.kept.shape)-1]
	runs := (inner + int64(along) - 1) / int64(along)
	columns := int(q.kept.count / inner * runs)
	chunks := 1
	if columns < maxChunks {
		chunks = int(max(1, min(maxChunks, q.summed.count/elementsPerTask*int64(along))))
	}
	partial := make([]sums, columns*chunks)
	err := parallel(columns*chunks, r.Threads, q.kept.count*q.summed.count*formulaWork, func(task int) {
		column, chunk := task/chunks, task%chunks
		first := int64(column)/runs*inner + int64(column)%runs*int64(along)
		n := int(min(int64(along), inner-int64(column)%runs*int64(along)))
		partial[task] = newSums(n)
		q.kept.pieces(&base, first, n, func(p *piece) {
			from := q.summed.count * int64(chunk) / int64(chunks)
			to := q.summed.count * int64(chunk+1) / int64(chunks)
			if along == 1 {
				q.sumRun(p, from, to, term, &partial[task])
			} else {
				q.sumRows(p, from, to, term, &partial[task])
			}
		})
	})
	if err != nil {
		return err
	}
	return parallel(columns, r.Threads, q.kept.count*int64(chunks), func(column int) {
		all := &partial[column*chunks]
		for chunk := 1; chunk < chunks; chunk++ {
			all.merge(&partial[column*chunks+chunk])
		}
		var total block
		all.result(total[:len(all.total)])
		first := int64(column)/runs*inner + int64(column)%runs*int64(along)
		q.kept.pieces(&base, first, len(all.total), func(p *piece) {
			sums := total[p.start : p.start+p.length]
			if r.Accumulate {
				var old block
				load(old[:p.length], p.at[0], q.kept.innerStride(0), q.kept.dt)
				for i := range sums {
					sums[i] += old[i]
				}
			}
			store(p.at[0], q.kept.innerStride(0), sums, q.kept.dt)
		})
	})
}

// sumRun adds the terms [from, to) of one kept element.
func (q *reduction) sumRun(p *piece, from, to int64, term compute, total *sums) {
	var at [maxOperands]unsafe.Pointer
	copy(at[:], p.at[1:])
	var blocks [maxOperands]block
	for from < to {
		n := int(min(blockLength, to-from))
		q.summed.pieces(&at, from, n, func(run *piece) {
			for i := range q.summed.views {
				load(blocks[i+1][run.start:run.start+run.length], run.at[i], q.summed.innerStride(i), q.summed.dt)
			}
		})
		term(n, &blocks)
		for _, v := range blocks[0][:n] {
			total.addOne(0, v)
		}
		from += int64(n)
	}
}

// sumRows adds the rows [from, to) of a run of kept elements.
func (q *reduction) sumRows(p *piece, from, to int64, term compute, total *sums) {
	var at [maxOperands]unsafe.Pointer
	copy(at[:], p.at[1:])
	var blocks [maxOperands]block
	for from < to {
		n := int(min(blockLength, to-from))
		q.summed.pieces(&at, from, n, func(run *piece) {
			for row := range int64(run.length) {
				for i := range q.summed.views {
					address := unsafe.Add(run.at[i], row*q.summed.innerStride(i))
					load(blocks[i+1][:p.length], address, q.kept.innerStride(i+1), q.summed.dt)
				}
				term(p.length, &blocks)
				total.add(blocks[0][:p.length])
			}
		})
		from += int64(n)
	}
}
