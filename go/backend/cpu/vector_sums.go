package cpu

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// vectorSums is a pass of an engine that sums outputs over some dimensions of the operands' shape, in chunks and columns that shapes alone decide, and
// writes the outputs that keep the shape on the way.
type vectorSums struct {
	*vectorKernel
	to         []*tensor.View // of one shape: size 1 in the dimensions that are summed over
	outputs    []int          // which output each is the sum of
	accumulate bool           // into to, where the run says so
	kept       *loops         // to, then the operands, over the dimensions that stay
	summed     *loops         // the operands over the dimensions that go
	rows       *kernels.Loops
	along      int // the columns of a task; 1 where too few stay, so that a task adds along what goes
	chunks     int
}

// sums makes such a pass; false where the engine cannot. With accumulate a run may ask for its results to be added to what is there.
func (v *vectorKernel) sums(to [kernels.Outputs]*tensor.View, accumulate bool) (func(*backend.Run) error, bool) {
	q := &vectorSums{vectorKernel: v, accumulate: accumulate}
	for output, target := range to {
		if target != nil {
			q.to, q.outputs = append(q.to, target), append(q.outputs, output)
		}
	}
	keptViews, summedViews := slices.Clone(q.to), []*tensor.View{}
	for _, operand := range v.present() {
		kept, summed := *operand, *operand
		kept.Shape, summed.Shape = slices.Clone(operand.Shape), slices.Clone(operand.Shape)
		for d, n := range q.to[0].Shape {
			if n == operand.Shape[d] {
				summed.Shape[d] = 1
			} else {
				kept.Shape[d] = 1
			}
		}
		keptViews, summedViews = append(keptViews, &kept), append(summedViews, &summed)
	}
	// The order of a sum is that of the first input, whatever outputs there are.
	input := summedViews[v.index(kernels.Outputs)]
	q.summed = newLoops(v.dt, append([]*tensor.View{input}, summedViews...)...)
	q.summed.views, q.summed.strides = q.summed.views[1:], q.summed.strides[1:]
	if q.summed.count == 0 {
		keptViews = q.to // the operands have no elements, hence no addresses
	}
	q.kept = newLoops(v.dt, keptViews...)
	q.along = int(min(q.kept.inner(), kernels.Block))
	if q.kept.count < 2*kernels.Group && q.summed.count > 1 {
		q.along = 1
	}
	q.chunks = 1
	if q.kept.count < maxChunks*kernels.Block {
		q.chunks = int(max(1, min(maxChunks, q.summed.count*min(q.kept.count, kernels.Block)/elementsPerTask)))
	}
	rows, ok := v.walk(q.summed)
	q.rows = rows
	return q.run, ok
}

func (l *loops) inner() int64 { return l.shape[len(l.shape)-1] }

// columns is how many pieces of at most `along` elements the dimensions that stay are cut into.
func (q *vectorSums) columns() int {
	if q.kept.count == 0 {
		return 0
	}
	return int(q.kept.count / q.kept.inner() * q.runs())
}

// runs is how many of them make up an innermost run.
func (q *vectorSums) runs() int64 { return (q.kept.inner() + int64(q.along) - 1) / int64(q.along) }

// column returns a piece's first element and its length.
func (q *vectorSums) column(i int) (first int64, n int) {
	run, at := int64(i)/q.runs(), int64(i)%q.runs()*int64(q.along)
	return run*q.kept.inner() + at, int(min(int64(q.along), q.kept.inner()-at))
}

func (q *vectorSums) run(r *backend.Run) error {
	columns := q.columns()
	if columns == 0 {
		return nil
	}
	hintPages(r, q.operands[:kernels.Outputs]...)
	base, numbers := q.kept.bind(r), numbersOf(r)
	partial := make([][]sums, columns*q.chunks)
	err := parallel(len(partial), r.Threads, q.kept.count*q.summed.count*vectorWork, func(task int) {
		from := q.summed.count * int64(task%q.chunks) / int64(q.chunks)
		to := q.summed.count * int64(task%q.chunks+1) / int64(q.chunks)
		first, n := q.column(task / q.chunks)
		// A piece lies within an innermost run: its elements are evenly spaced.
		q.kept.pieces(&base, first, n, func(p *piece) { partial[task] = q.add(p, from, to, numbers) })
	})
	if err != nil {
		return err
	}
	return parallel(columns, r.Threads, q.kept.count*int64(q.chunks), func(column int) {
		all := partial[column*q.chunks]
		first, n := q.column(column)
		for i, target := range q.to {
			for chunk := 1; chunk < q.chunks; chunk++ {
				all[i].merge(&partial[column*q.chunks+chunk][i])
			}
			total := make([]float64, n)
			all[i].result(total)
			q.kept.pieces(&base, first, n, func(p *piece) {
				if q.accumulate && r.Accumulate {
					old := make([]float64, n)
					load(old, p.at[i], q.kept.innerStride(i), target.DType)
					for j, x := range old {
						total[j] += x
					}
				}
				store(p.at[i], q.kept.innerStride(i), total, target.DType)
			})
		}
	})
}

// add sums the rows [from, to) of a piece, for each output that is summed.
func (q *vectorSums) add(p *piece, from, to int64, numbers *kernels.Numbers) []sums {
	var at kernels.Addresses
	var totals kernels.Sums
	width := kernels.WholeGroups(p.length)
	for _, output := range q.outputs {
		totals[output] = make([]float64, 2*width)
	}
	if from < to {
		q.spread(&at, p.at[len(q.to):])
		if q.along == 1 {
			q.engine.SumAll(q.kernel, q.rows, from, to-from, numbers, &at, &totals)
		} else {
			row := kernels.Row{ElementSize: q.dt.Size(), Count: int64(p.length), Stream: q.rows.Stream}
			next := len(q.to)
			for i, operand := range q.operands {
				if operand != nil {
					row.Strides[i] = q.kept.innerStride(next)
					next++
				}
			}
			q.engine.SumRows(q.kernel, q.rows, &row, from, to-from, numbers, &at, &totals)
		}
	}
	result := make([]sums, len(q.outputs))
	for i, output := range q.outputs {
		both := sums{totals[output][:width], totals[output][width:]}
		if q.along == 1 {
			result[i] = both.folded()
		} else {
			result[i] = sums{both.total[:p.length], both.carry[:p.length]}
		}
	}
	return result
}

// folded is the sum of all columns, in one.
func (s *sums) folded() sums {
	one := newSums(1)
	for i, total := range s.total {
		one.addOne(0, total)
		one.carry[0] += s.carry[i]
	}
	return one
}

// vectorLerpBackward makes one pass of the gradients that keep grad_output's shape and of the sums of one shape, and another for each other shape.
func (b *Backend) vectorLerpBackward(p *backend.LerpBackward) backend.Kernel {
	var together, to [kernels.Outputs]*tensor.View
	for i, gradient := range []*tensor.View{p.GradStart, p.GradEnd, p.GradWeight} {
		switch {
		case gradient == nil:
		case slices.Equal(gradient.Shape, p.GradOutput.Shape):
			together[i] = gradient
		default:
			to[i] = gradient
		}
	}
	var made []pass
	for {
		var now [kernels.Outputs]*tensor.View
		more := false
		var shape []int64
		for i, target := range to {
			if target != nil && (shape == nil || slices.Equal(shape, target.Shape)) {
				shape, now[i], to[i] = target.Shape, target, nil
			}
			more = more || to[i] != nil
		}
		inputs := []*tensor.View{p.GradOutput, nil, nil, nil}
		if together[2] != nil || now[2] != nil {
			inputs[1], inputs[2] = p.Start, p.End
		}
		if together[0] != nil || together[1] != nil || now[0] != nil || now[1] != nil {
			inputs[3] = p.Weight
		}
		made = append(made, b.vectorPass("lerp_backward", p.DType, operandsOf(together[:], inputs...), now))
		if !more {
			return b.passes(p, made...)
		}
		together = [kernels.Outputs]*tensor.View{}
	}
}
