package vector

import (
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
	// What an activation needs for an element, in multiply-adds of a product.
	formulaWork = 16
	// A task has as many elements as leave turns tasks for each thread, within bounds: long pieces
	// are read faster.
	turns                   = 8
	leastOfTask, mostOfTask = 1 << 12, 1 << 18
)

// views are a function's operands, outputs first; absent ones are nil.
type views [kernels.Operands]*tensor.View

// targets are the tensors to which outputs are summed, at the places of those outputs.
type targets [kernels.Outputs]*tensor.View

// operandsOf places operands where a function has them.
func operandsOf(outputs []*tensor.View, inputs ...*tensor.View) (all views) {
	copy(all[:kernels.Outputs], outputs)
	copy(all[kernels.Outputs:], inputs)
	return all
}

// pass is a function of an engine on the operands of a problem. A nil pass, of a function that the
// engine lacks, makes nil.
type pass struct {
	engine   *kernels.Engine
	function kernels.Kernel
	dt       dtype.DType
	operands views
	work     int64 // of an element
}

// pass finds the function of a name, without the dtype's suffix.
func (e *Engine) pass(name string, dt dtype.DType, operands views) *pass {
	function, ok := e.Kernel(name + "_" + dt.Short())
	if !ok {
		return nil
	}
	return &pass{e.Engine, function, dt, operands, formulaWork}
}

// costing sets the work of an element, for a function that is no activation's formula.
func (s *pass) costing(work int64) *pass {
	if s != nil {
		s.work = work
	}
	return s
}

// into makes the pass that writes the outputs among the operands and sums outputs to targets, if
// there are any; nil where the engine cannot. A sum's order follows `like` (reduction.inOrder). A
// run may add the sums to the targets' values.
func (s *pass) into(to targets, like *tensor.View) kernel.Step {
	if to == (targets{}) {
		return s.elementwise()
	}
	return s.sums(to, like)
}

// elementwise makes the pass that writes the outputs among the operands; nil where the engine
// cannot.
func (s *pass) elementwise() kernel.Step {
	if s == nil {
		return nil
	}
	w := layout.NewWalk(s.dt, s.operands[:]...)
	if len(w.Shape) > kernels.MostRank {
		return nil
	}
	loops := s.loops(w)
	return func(r *backend.Run) error {
		if w.Count == 0 {
			return nil
		}
		hintPages(r, s.operands[:kernels.Outputs]...)
		j := freeWalking.Get().(*walking)
		defer j.free()
		at := w.Bind(r)
		each := min(max(leastOfTask, w.Count/int64(turns*threads.For(r.Threads))&-leastOfTask), mostOfTask)
		*j = walking{pass: s, loops: loops, count: w.Count, each: each, parameters: r.Parameters, at: kernels.Addresses(at[:kernels.Operands])}
		return threads.Share(divideUp(w.Count, each), r.Threads, w.Count*s.work, j)
	}
}

// program is an epg_program of the pass, nil where there is so much to do that several threads may
// share it.
func (s *pass) program() unsafe.Pointer {
	w := layout.NewWalk(s.dt, s.operands[:]...)
	if w.Count == 0 || w.Count*s.work >= threads.TaskWork {
		return nil
	}
	var operand, offset [kernels.Operands]int64
	for i, v := range s.operands {
		operand[i] = -1
		if v != nil {
			operand[i], offset[i] = int64(v.Operand), v.Offset
		}
	}
	return s.engine.NewPass(s.function, s.loops(w), w.Count, &operand, &offset)
}

// loops describes a walk over the operands to the engine.
func (s *pass) loops(w *layout.Walk) *kernels.Loops {
	l := &kernels.Loops{ElementSize: s.dt.Size(), Rank: int64(len(w.Shape))}
	copy(l.Shape[:], w.Shape)
	for i, strides := range w.Strides {
		copy(l.Strides[i][:], strides)
	}
	return l
}

// walking is the job of an elementwise pass.
type walking struct {
	pass        *pass
	loops       *kernels.Loops
	count, each int64
	parameters  kernels.Parameters
	at          kernels.Addresses
}

// Call implements threads.Job.
func (j *walking) Call(crew *kernels.Crew) {
	j.pass.engine.Elementwise(crew, j.pass.function, j.loops, 0, j.count, j.each, &j.parameters, &j.at)
}

var freeWalking = sync.Pool{New: func() any { return new(walking) }}

// free puts a job back without addresses of operands, whose memory may become Go's.
func (j *walking) free() {
	*j = walking{}
	freeWalking.Put(j)
}

func divideUp(a, b int64) int64 { return (a + b - 1) / b }
