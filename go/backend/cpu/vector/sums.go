package vector

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

const (
	// longPiece is the most sums of a row in a task: memory is read in long pieces, and totals, 16
	// or 32 KiB of each output, stay in a near cache.
	longPiece = 4 * kernels.Block
	// longRow is the fewest elements of a row that several short runs make up: with fewer it is not
	// worth starting a row.
	longRow = 4 * kernels.Group
	// chains is the fewest groups of lanes that take turns, so that an addition need not wait for
	// the one before it.
	chains = 4
	// mostChunks is the most chunks that a sum's rows are cut into if there are few columns.
	mostChunks = 16
	// fewColumns is the number of columns from which on there are enough tasks for many threads.
	fewColumns = 4 * mostChunks
	// leastOfChunk is the fewest elements of a chunk.
	leastOfChunk = 32 * 256
)

// reduction is a pass that sums outputs over some dimensions of the operands' shape, and writes the
// outputs that keep the shape on the way. How it is cut, and so the order of a sum, follows from
// the shapes and one input's layout.
type reduction struct {
	*pass
	to      targets     // of one shape: size 1 in the dimensions that are summed over
	result  dtype.DType // of all targets
	sums    *kernels.Sums
	columns int64
	count   int64 // the operands' elements
	kept    int64 // a target's
}

// sums makes such a pass; nil where the engine cannot.
func (s *pass) sums(to targets, like *tensor.View) kernel.Step {
	if s == nil {
		return nil
	}
	q := &reduction{pass: s, to: to}
	for _, target := range to {
		switch {
		case target == nil:
		case q.result == dtype.Invalid:
			q.result = target.DType
		case q.result != target.DType:
			return nil
		}
	}
	d := q.dimensions(like)
	if len(d.shape) > kernels.MostRank {
		return nil
	}
	if q.kept > 0 {
		q.cut(d)
	}
	return q.run
}

// dimensions are those of the operands, in one input's order, and of the targets. A dimension
// either stays or goes: its elements are summed, and the targets have the stride 0 there.
type dimensions struct {
	shape   []int64
	stays   []bool
	strides [kernels.Operands][]int64 // bytes
	to      [kernels.Operands][]int64 // at the places of the outputs
}

// inOrder returns the tensor that gives the order in which all are walked: `like`, whose layout
// most tensors have, or the first input where `like` is broadcast. Every call has both. So the
// order and the bits do not depend on which results are wanted.
func (q *reduction) inOrder(like *tensor.View) *tensor.View {
	first := q.operands[kernels.Outputs]
	if like == nil {
		return first
	}
	for d, n := range like.Shape {
		if n > 1 && like.Strides[d] == 0 {
			return first
		}
	}
	return like
}

func (q *reduction) dimensions(like *tensor.View) *dimensions {
	input := q.inOrder(like)
	const firstTarget = 1 + kernels.Operands
	views := make([]*tensor.View, firstTarget+kernels.Outputs)
	if input.Numel() > 0 { // operands without elements have no addresses
		views[0] = input
		copy(views[1:], q.operands[:])
	}
	d := &dimensions{}
	stays := 0 // the target that tells which do
	for i, target := range q.to {
		if target == nil {
			continue
		}
		q.kept, stays = target.Numel(), firstTarget+i
		wide := *target
		if views[0] != nil {
			wide.Shape, wide.Strides = input.Shape, slices.Clone(target.Strides)
			for i, n := range target.Shape {
				if n != input.Shape[i] {
					wide.Strides[i] = 0
				}
			}
		}
		views[stays] = &wide
	}
	l := layout.NewWalk(q.dt, views...)
	d.shape = l.Shape
	for _, stride := range l.Strides[stays] {
		d.stays = append(d.stays, stride != 0)
	}
	copy(d.strides[:], l.Strides[1:firstTarget])
	copy(d.to[:], l.Strides[firstTarget:])
	q.count = input.Numel()
	return d
}

// before is where the dimensions that end at `end` begin that all stay, or all go.
func (d *dimensions) before(end int, stay bool) int {
	for end > 0 && d.stays[end-1] == stay {
		end--
	}
	return end
}

// count is the elements of the dimensions [from, to) that stay, or that go.
func (d *dimensions) count(from, to int, stay bool) int64 {
	n := int64(1)
	for i := from; i < to; i++ {
		if d.stays[i] == stay {
			n *= d.shape[i]
		}
	}
	return n
}

// loops is a walk over the dimensions that are picked.
func (d *dimensions) loops(size int64, strides *[kernels.Operands][]int64, pick func(i int) bool) (l kernels.Loops) {
	l.ElementSize = size
	for i, n := range d.shape {
		if !pick(i) {
			continue
		}
		l.Shape[l.Rank] = n
		for operand, steps := range strides {
			if steps != nil {
				l.Strides[operand][l.Rank] = steps[i]
			}
		}
		l.Rank++
	}
	if l.Rank == 0 {
		l.Rank, l.Shape[0] = 1, 1
	}
	return l
}

// cut decides how the sums are formed, by shapes and one input's layout alone. The innermost
// dimensions that stay are a run; those around it that go are its terms; and so on outwards:
//
//	outermost   [ ...        | others | terms | run ]   innermost
//	              both kinds   stay     go      stay
//
// What is computed at a time should be long, and lie together. There are three ways:
//
//   - whole runs, where a run and its terms are short: a task has several runs with all of their
//     terms;
//   - lanes, where runs are short: a task has one run's sums, in lanes that are whole groups, and
//     adds several runs at a time;
//   - rows, where runs are long: a task has a piece of a run, and adds row after row.
func (q *reduction) cut(d *dimensions) {
	all := len(d.shape)
	run := d.before(all, true)
	terms := d.before(run, false)
	others := d.before(terms, true)
	c := cutOf{run: d.count(run, all, true), terms: d.count(terms, run, false), others: d.count(others, terms, true)}
	c.lanes = c.run * kernels.Group / gcd(c.run, kernels.Group)

	stored := func(dt dtype.DType) kernels.Form { return forms[dt][len(forms[dt])-1] }
	s := &kernels.Sums{DType: stored(q.dt), Result: stored(q.result), Run: c.run, Terms: 1}
	row := run // the first dimension of what a row holds
	switch {
	case c.fitsWholeRuns():
		row = others
		c.wholeRuns(s, d.count(0, others, false) > 1)
	case c.fitsLanes():
		c.inLanes(s)
	default:
		c.inRows(s)
	}
	// for the padding of a run that ends anywhere
	s.Width = kernels.WholeGroups(s.Width) + kernels.Group
	s.Pieces = divideUp(s.Kept, s.Piece)
	q.columns = d.count(0, row, true) * s.Pieces
	s.RowsCount, s.Chunks = d.count(0, row, false), 1
	if q.count == 0 {
		s.RowsCount = 0
	}
	if q.columns < fewColumns {
		s.Chunks = max(1, min(mostChunks, s.RowsCount, q.count/(q.columns*leastOfChunk)))
	}
	for i, target := range q.to {
		s.Summed[i] = truth(target != nil)
	}
	size := q.dt.Size()
	s.To = d.loops(q.result.Size(), &d.to, func(i int) bool { return d.stays[i] })
	s.Outer = d.loops(size, &d.strides, func(i int) bool { return i < row && d.stays[i] })
	s.Rows = d.loops(size, &d.strides, func(i int) bool { return i < row && !d.stays[i] })
	s.Inner = d.loops(size, &d.strides, func(i int) bool { return i >= row || s.Lanes > 0 && !d.stays[i] })
	q.sums = s
}

// cutOf are the lengths that a cut follows from: of a run, its terms, the runs beside it, and the
// least lanes that are whole groups and whole runs.
type cutOf struct{ run, terms, others, lanes int64 }

func (c *cutOf) fitsWholeRuns() bool {
	row := c.terms * c.run
	return c.others > 1 && row <= kernels.Block/2 && row*c.others >= longRow
}

// wholeRuns has a block of several runs with all of their terms. Where there are several rows, each
// term has a total, since rows are added term by term.
func (c *cutOf) wholeRuns(s *kernels.Sums, severalRows bool) {
	row := c.terms * c.run
	runs := kernels.Block / row
	if groups := kernels.Group / gcd(row, kernels.Group); runs > groups {
		runs -= runs % groups // groups that end with a run need no copy
	}
	s.Terms, s.Kept, s.Block, s.Piece = c.terms, c.others*c.run, runs*row, runs*c.run
	if severalRows {
		s.Width = min(s.Kept, s.Piece) * c.terms
	} else {
		s.Piece *= max(1, kernels.Block/s.Piece)
		s.Width = min(s.Kept, s.Piece)
	}
}

func (c *cutOf) fitsLanes() bool {
	return c.lanes <= kernels.Block/2 || c.lanes <= kernels.Block && c.lanes > c.run
}

// inLanes has enough lanes that additions need not wait for each other.
func (c *cutOf) inLanes(s *kernels.Sums) {
	lanes := c.lanes * max(1, chains*kernels.Group/c.lanes)
	s.Lanes, s.Width, s.Block = lanes, lanes, kernels.Block/lanes*lanes
	s.Kept, s.Piece = c.run, min(c.run, longPiece)
}

// inRows has rows of a piece of a run.
func (c *cutOf) inRows(s *kernels.Sums) {
	s.Kept, s.Piece = c.run, min(c.run, longPiece)
	s.Width = s.Piece
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (q *reduction) run(r *backend.Run) error {
	if q.columns == 0 {
		return nil
	}
	hintPages(r, q.operands[:kernels.Outputs]...)
	s := freePartial.Get().(*partial)
	defer s.free()
	for i, operand := range q.operands {
		if operand != nil && q.count > 0 {
			s.at[i] = r.At(operand)
		}
	}
	for i, target := range q.to {
		if target != nil {
			s.to[i] = r.At(target)
		}
	}
	s.sums = *q.sums
	s.sums.Accumulate = truth(r.Accumulate)
	tasks, work := q.columns*q.sums.Chunks, q.count*q.work
	parts := tasks
	if q.sums.Chunks == 1 {
		parts = threads.Members(tasks, r.Threads, work)
		s.done = s.done[:0]
	} else {
		s.done = slices.Grow(s.done[:0], int(q.columns))[:q.columns]
		clear(s.done)
	}
	total := int(parts * q.sums.Totals())
	s.totals = slices.Grow(s.totals[:0], total)[:total]
	s.pass, s.parameters = q, r.Parameters
	return threads.Share(tasks, r.Threads, work, s)
}

// partial is the job of a reduction: the sums of a run's tasks, and the engine's parameters.
type partial struct {
	pass       *reduction
	sums       kernels.Sums
	parameters kernels.Parameters
	at         kernels.Addresses
	to         [kernels.Outputs]unsafe.Pointer
	totals     []float64
	done       []int32
}

// Call implements threads.Job.
func (s *partial) Call(crew *kernels.Crew) {
	s.pass.engine.Sum(crew, s.pass.function, &s.sums, s.pass.columns, &s.parameters, &s.at, &s.to, s.totals, s.done)
}

var freePartial = sync.Pool{New: func() any { return new(partial) }}

// free puts a job back without addresses of operands, whose memory may become Go's.
func (s *partial) free() {
	s.pass, s.at, s.to = nil, kernels.Addresses{}, [kernels.Outputs]unsafe.Pointer{}
	freePartial.Put(s)
}
