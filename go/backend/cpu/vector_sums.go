package cpu

import (
	"slices"
	"sync"
	"unsafe"

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
	row        kernels.Row
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
	q.row = kernels.Row{ElementSize: v.dt.Size(), Stream: truth(v.streams())}
	for i, operand := range v.operands {
		if operand != nil && q.summed.count > 0 {
			q.row.Strides[i] = q.kept.innerStride(len(q.to) + v.index(i))
		}
	}
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
	p := freePartial.Get().(*partial)
	defer func() {
		if cap(p.totals) <= keptTotals {
			freePartial.Put(p)
		}
	}()
	p.parts = kernels.Parts{
		Rows: q.summed.count, Chunks: int64(q.chunks), Columns: int64(columns), Width: int64(kernels.WholeGroups(q.along)), All: truth(q.along == 1),
	}
	for _, output := range q.outputs {
		p.parts.Summed[output] = 1
	}
	p.columns = slices.Grow(p.columns[:0], columns)[:columns]
	for i := range p.columns {
		first, n := q.column(i)
		// A piece lies within an innermost run: its elements are evenly spaced.
		q.kept.pieces(&base, first, n, func(at *piece) { p.columns[i] = q.place(&base, at) })
	}
	total := columns * q.chunks * len(q.to) * 2 * int(p.parts.Width)
	p.totals = slices.Grow(p.totals[:0], total)[:total]
	var at kernels.Addresses
	if q.summed.count > 0 {
		q.spread(&at, base[len(q.to):])
	}
	err := share(int64(columns*q.chunks), r.Threads, q.kept.count*q.summed.count*vectorWork, func(crew *kernels.Crew) {
		q.engine.Sum(crew, q.kernel, q.rows, &q.row, &p.parts, p.columns, numbers, &at, p.totals)
	})
	if err != nil {
		return err
	}
	return parallel(columns, r.Threads, q.kept.count*int64(q.chunks), func(column int) {
		first, n := q.column(column)
		for i, target := range q.to {
			all := p.sums(column*q.chunks, i, len(q.to), n)
			for chunk := 1; chunk < q.chunks; chunk++ {
				part := p.sums(column*q.chunks+chunk, i, len(q.to), n)
				all.merge(&part)
			}
			total := make([]float64, n)
			all.result(total)
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

// place is where a piece starts.
func (q *vectorSums) place(base *[maxOperands]unsafe.Pointer, p *piece) kernels.Column {
	c := kernels.Column{Count: int64(p.length)}
	next := len(q.to)
	for i, operand := range q.operands {
		if operand != nil && q.summed.count > 0 {
			c.Offsets[i] = int64(uintptr(p.at[next]) - uintptr(base[next]))
			next++
		}
	}
	return c
}

// partial is what a run's tasks add up, and what the engine is told of them.
type partial struct {
	parts   kernels.Parts
	columns []kernels.Column
	totals  []float64
}

// keptTotals is the most totals that are kept for the next run.
const keptTotals = 4 << 20

var freePartial = sync.Pool{New: func() any { return new(partial) }}

// sums are those of one task and output: of n columns, or in one.
func (p *partial) sums(task, output, outputs, n int) sums {
	width := kernels.WholeGroups(n)
	both := p.totals[(task*outputs+output)*2*int(p.parts.Width):][:2*width]
	if p.parts.All == 1 {
		return (&sums{both[:width], both[width:]}).folded()
	}
	return sums{both[:n], both[width:][:n]}
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
