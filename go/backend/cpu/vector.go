package cpu

import (
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

const (
	// vectorWork is what a vector kernel needs for an element, in multiply-adds of a product.
	vectorWork = 32
	// A task's elements: as many as leave each thread vectorTurns tasks, within bounds. Long pieces are read faster.
	vectorTurns             = 8
	leastOfTask, mostOfTask = 1 << 15, 1 << 18
)

// vectorKernel is one of an engine's kernels on the operands of a problem, absent ones nil.
type vectorKernel struct {
	engine   *kernels.Engine
	kernel   kernels.Kernel
	dt       dtype.DType
	operands [kernels.Operands]*tensor.View
}

// operandsOf places operands where a kernel has them.
func operandsOf(outputs []*tensor.View, inputs ...*tensor.View) (all [kernels.Operands]*tensor.View) {
	copy(all[:kernels.Outputs], outputs)
	copy(all[kernels.Outputs:], inputs)
	return all
}

// vector returns the engine's kernel of a name, without the dtype's suffix, or nil where there is no engine.
func (b *Backend) vector(name string, dt dtype.DType, operands [kernels.Operands]*tensor.View) *vectorKernel {
	if b.engine == nil {
		return nil
	}
	kernel, ok := b.engine.Kernel(name + "_" + dt.Short())
	if !ok {
		return nil
	}
	return &vectorKernel{b.engine, kernel, dt, operands}
}

// present are the operands that there are.
func (v *vectorKernel) present() []*tensor.View {
	var views []*tensor.View
	for _, operand := range v.operands {
		if operand != nil {
			views = append(views, operand)
		}
	}
	return views
}

// spread gives each operand that there is, in order, what belongs to it.
func (v *vectorKernel) spread(at *kernels.Addresses, addresses []unsafe.Pointer) {
	next := 0
	for i, operand := range v.operands {
		if operand != nil {
			at[i] = addresses[next]
			next++
		}
	}
}

// walk translates loops over the present operands for the engine; false where they have too many dimensions.
func (v *vectorKernel) walk(l *loops) (*kernels.Loops, bool) {
	if len(l.shape) > kernels.MostRank {
		return nil, false
	}
	w := &kernels.Loops{ElementSize: v.dt.Size(), Rank: int64(len(l.shape))}
	copy(w.Shape[:], l.shape)
	next := 0
	for i, operand := range v.operands {
		if operand != nil {
			copy(w.Strides[i][:], l.strides[next])
			next++
		}
	}
	return w, true
}

// elementwise makes the pass that computes the outputs among the operands; false where the engine cannot.
func (v *vectorKernel) elementwise() (func(*backend.Run) error, bool) {
	l := newLoops(v.dt, v.present()...)
	walk, ok := v.walk(l)
	return func(r *backend.Run) error {
		if l.count == 0 {
			return nil
		}
		hintPages(r, v.operands[:kernels.Outputs]...)
		j := freeWalking.Get().(*walking)
		defer j.free()
		base := l.bind(r)
		each := min(max(leastOfTask, l.count/int64(vectorTurns*threadsFor(r.Threads))&-leastOfTask), mostOfTask)
		*j = walking{v: v, walk: walk, count: l.count, each: each, parameters: r.Parameters}
		v.spread(&j.at, base[:])
		return share(divideUp(l.count, each), r.Threads, l.count*vectorWork, j)
	}, ok
}

// walking is a crew's job: an elementwise pass.
type walking struct {
	v           *vectorKernel
	walk        *kernels.Loops
	count, each int64
	parameters  kernels.Parameters
	at          kernels.Addresses
}

func (j *walking) call(crew *kernels.Crew) {
	j.v.engine.Elementwise(crew, j.v.kernel, j.walk, 0, j.count, j.each, &j.parameters, &j.at)
}

var freeWalking = sync.Pool{New: func() any { return new(walking) }}

// free puts a job back, without the addresses: their memory may be given back, and become Go's.
func (j *walking) free() {
	*j = walking{}
	freeWalking.Put(j)
}

// passes is a kernel made of an engine's passes, or nil where one of them cannot be made.
func (b *Backend) passes(p backend.Problem, made ...pass) backend.Kernel {
	k := &steps{facts: b.vectorFacts(p, "")}
	for _, step := range made {
		if !step.ok {
			return nil
		}
		k.run = append(k.run, step.run)
	}
	return k
}

// pass is one step of a kernel, if it could be made.
type pass struct {
	run func(*backend.Run) error
	ok  bool
}

// vectorPass makes a pass over the operands, which also sums outputs to the tensors in to, at the places of the outputs that they are sums of; those may
// be absent from the operands, in the order of `like` (inOrder).
func (b *Backend) vectorPass(name string, dt dtype.DType, operands [kernels.Operands]*tensor.View, to [kernels.Outputs]*tensor.View, like *tensor.View) pass {
	v := b.vector(name, dt, operands)
	if v == nil {
		return pass{}
	}
	if to == [kernels.Outputs]*tensor.View{} {
		run, ok := v.elementwise()
		return pass{run, ok}
	}
	run, ok := v.sums(to, like, true)
	return pass{run, ok}
}

func (b *Backend) vectorActivation(p *backend.Activation) backend.Kernel {
	return b.passes(p, b.vectorPass("activation_"+p.Kind, p.DType, operandsOf([]*tensor.View{p.Out}, p.Input), [kernels.Outputs]*tensor.View{}, nil))
}

func (b *Backend) vectorActivationBackward(p *backend.ActivationBackward) backend.Kernel {
	operands := operandsOf([]*tensor.View{p.GradInput, p.Out}, p.GradOutput, p.Input)
	return b.passes(p, b.vectorPass("activation_backward_"+p.Kind, p.DType, operands, [kernels.Outputs]*tensor.View{p.GradBias}, p.Input))
}

func (b *Backend) vectorGated(p *backend.Gated) backend.Kernel {
	return b.passes(p, b.vectorPass("gated_"+p.Activation, p.DType, operandsOf([]*tensor.View{p.Out}, p.Value, p.Gate), [kernels.Outputs]*tensor.View{}, nil))
}

func (b *Backend) vectorGatedBackward(p *backend.GatedBackward) backend.Kernel {
	operands := operandsOf([]*tensor.View{p.GradValue, p.GradGate}, p.GradOutput, p.Value, p.Gate)
	return b.passes(p, b.vectorPass("gated_backward_"+p.Activation, p.DType, operands, [kernels.Outputs]*tensor.View{p.GradBiasValue, p.GradBiasGate}, p.Gate))
}

func (b *Backend) vectorLerp(p *backend.Lerp) backend.Kernel {
	return b.passes(p, b.vectorPass("lerp", p.DType, operandsOf([]*tensor.View{p.Out}, p.Start, p.End, p.Weight), [kernels.Outputs]*tensor.View{}, nil))
}
