package reference

import (
	"slices"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/elements"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/tensor"
)

// maxChunks is how many pieces a long reduction is cut into, so that several goroutines can share
// it; the cut depends on shapes alone.
const maxChunks = 16

// reduction sums a function of several operands over some dimensions of their shape into one
// output.
type reduction struct {
	kept   *layout.Walk // the output and the operands over the dimensions that stay
	summed *layout.Walk // the operands over the dimensions that go
	term   *pass
	output int // of the term, which is the one there is
}

// newReduction prepares out = sum of term, a pass with one output, where the inputs have one shape
// and out has the size 1 in each dimension that is summed over.
func newReduction(out *tensor.View, term *pass) *reduction {
	keptViews, summedViews := tensor.Apart(term.inputs, out.Shape)
	summed := layout.NewWalk(term.inputs[0].DType, summedViews...)
	if summed.Count == 0 {
		keptViews = nil // the operands have no elements, hence no addresses
	}
	return &reduction{term: term, output: slices.Index(term.outputs, out), kept: layout.NewWalk(out.DType, append([]*tensor.View{out}, keptViews...)...), summed: summed}
}

// run computes the reduction. Where enough elements stay, a block is a run of those and rows are
// added to it; else a block is a run of what is summed, added up at once.
func (q *reduction) run(r *backend.Run) error {
	if q.kept.Count == 0 {
		return nil
	}
	base, term := q.kept.Bind(r), q.term.compute(r)
	along := min(int(q.kept.Shape[len(q.kept.Shape)-1]), blockLength)
	if q.kept.Count < blockLength/8 && q.summed.Count > 1 {
		along = 1
	}
	inner := q.kept.Shape[len(q.kept.Shape)-1]
	runs := (inner + int64(along) - 1) / int64(along)
	columns := int(q.kept.Count / inner * runs)
	chunks := 1
	if columns < maxChunks {
		chunks = int(max(1, min(maxChunks, q.summed.Count/elementsPerTask*int64(along))))
	}
	partial := make([]elements.Sums, columns*chunks)
	err := threads.Parallel(columns*chunks, r.Threads, q.kept.Count*q.summed.Count*threads.FormulaWork, func(task int) {
		column, chunk := task/chunks, task%chunks
		first := int64(column)/runs*inner + int64(column)%runs*int64(along)
		n := int(min(int64(along), inner-int64(column)%runs*int64(along)))
		partial[task] = elements.NewSums(n)
		q.kept.Pieces(&base, first, n, func(p *layout.Piece) {
			from := q.summed.Count * int64(chunk) / int64(chunks)
			to := q.summed.Count * int64(chunk+1) / int64(chunks)
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
	return threads.Parallel(columns, r.Threads, q.kept.Count*int64(chunks), func(column int) {
		all := &partial[column*chunks]
		for chunk := 1; chunk < chunks; chunk++ {
			all.Merge(&partial[column*chunks+chunk])
		}
		var total block
		all.Result(total[:all.Len()])
		first := int64(column)/runs*inner + int64(column)%runs*int64(along)
		q.kept.Pieces(&base, first, all.Len(), func(p *layout.Piece) {
			sums := total[p.Start : p.Start+p.Length]
			if r.Accumulate {
				var old block
				elements.Load(old[:p.Length], p.At[0], q.kept.InnerStride(0), q.kept.DType)
				for i := range sums {
					sums[i] += old[i]
				}
			}
			elements.Store(p.At[0], q.kept.InnerStride(0), sums, q.kept.DType)
		})
	})
}

// sumRun adds the terms [from, to) of one kept element.
func (q *reduction) sumRun(p *layout.Piece, from, to int64, term compute, total *elements.Sums) {
	var at layout.Addresses
	copy(at[:], p.At[1:])
	var b blocks
	for from < to {
		n := int(min(blockLength, to-from))
		q.summed.Pieces(&at, from, n, func(run *layout.Piece) {
			for i, v := range q.summed.Views {
				if v == nil {
					continue
				}
				elements.Load(b.of[len(q.term.outputs)+i][run.Start:run.Start+run.Length], run.At[i], q.summed.InnerStride(i), q.summed.DType)
			}
		})
		term(n, &b)
		for _, v := range b.of[q.output][:n] {
			total.AddOne(0, v)
		}
		from += int64(n)
	}
}

// sumRows adds the rows [from, to) of a run of kept elements.
func (q *reduction) sumRows(p *layout.Piece, from, to int64, term compute, total *elements.Sums) {
	var at layout.Addresses
	copy(at[:], p.At[1:])
	var b blocks
	for from < to {
		n := int(min(blockLength, to-from))
		q.summed.Pieces(&at, from, n, func(run *layout.Piece) {
			for row := range int64(run.Length) {
				for i, v := range q.summed.Views {
					if v == nil {
						continue
					}
					address := unsafe.Add(run.At[i], row*q.summed.InnerStride(i))
					elements.Load(b.of[len(q.term.outputs)+i][:p.Length], address, q.kept.InnerStride(i+1), q.summed.DType)
				}
				term(p.Length, &b)
				total.Add(b.of[q.output][:p.Length])
			}
		})
		from += int64(n)
	}
}
