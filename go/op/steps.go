package op

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/go/tuning"
)

// regionAlignment is what tensors between steps start at a multiple of, in bytes: the most that a
// backend asks for.
const regionAlignment = 256

// region makes the tensors between steps: contiguous, one behind the other in the workspace.
type region struct {
	dt     dtype.DType
	device tensor.Device
	bytes  int64
	// operand is what the region is among a problem's operands; 0 for backend.WorkspaceOperand
	operand int
}

func (w *region) view(shape []int64) *tensor.View { return w.typed(w.dt, shape) }

// part is typed for a lowering.
func (w *region) part(dt dtype.DType, shape ...int64) *tensor.View { return w.typed(dt, shape) }

// typed is view for another dtype than the call's.
func (w *region) typed(dt dtype.DType, shape []int64) *tensor.View {
	v := &tensor.View{
		Operand: cmp.Or(w.operand, backend.WorkspaceOperand), DType: dt, Device: w.device, Offset: w.bytes,
		Shape: shape, Strides: tensor.ContiguousStrides(shape),
	}
	w.bytes += aligned256(v.Numel() * dt.Size())
	return v
}

// standIn has a shape, and one element for all: for an operand that a step needs the shape of.
func (w *region) standIn(shape []int64) *tensor.View {
	v := w.view([]int64{1})
	v.Shape, v.Strides = shape, make([]int64, len(shape))
	return v
}

func aligned256(bytes int64) int64 { return (bytes + regionAlignment - 1) &^ (regionAlignment - 1) }

// parts are operations that are only steps of others.
var parts = []operation{gatedLayer, hiddenBackward, gatedHiddenBackward}

// resolveStep is resolve for a step.
func resolveStep(c *Call) (*operation, error) {
	for i := range parts {
		if o := &parts[i]; o.Name == c.Op {
			return o.completed(c)
		}
	}
	return resolve(c)
}

// linear is a layer's call.
func (w *region) linear(c *Call, kind string, parameters []float64, input, weight, bias, out, pre *tensor.View) Call {
	return Call{
		Op: "linear", Kind: kind, Parameters: parameters, AllowTF32: c.AllowTF32, BatchInvariant: c.BatchInvariant, Backend: c.Backend,
		Inputs: []*tensor.View{input, weight, bias}, Outputs: []*tensor.View{out, pre},
	}
}

// linearBackward is the call of the gradients of a layer without an activation.
func (w *region) linearBackward(c *Call, grad, input, weight, bias, gradInput, gradWeight, gradBias *tensor.View) Call {
	return Call{
		Op: "linear_backward", Kind: "none", AllowTF32: c.AllowTF32, BatchInvariant: c.BatchInvariant, Backend: c.Backend,
		Inputs: []*tensor.View{grad, input, weight, bias, nil, nil}, Outputs: []*tensor.View{gradInput, gradWeight, gradBias},
	}
}

// place is where a step's operand is: so many bytes into an operand of the whole call, or into the
// workspace.
type place struct {
	operand int
	offset  int64
}

// absent is the place of an operand that a step does not have.
const absent = -2

// step is one kernel, and the places of its operands, inputs before outputs; nil for those of the
// whole call, with the region behind them.
type step struct {
	kernel     backend.Kernel
	places     []place
	parameters []float64 // of its formula
	adds       bool
}

// stepped is a kernel that is made of others, which run one after the other.
type stepped struct {
	sku       backend.Sku
	precision backend.Precision
	steps     []step
	operands  int // the most of a step
	// gives out what lies between steps; nil where that is the workspace
	memory backend.Allocator
	// Bytes: what lies between steps, what the steps need themselves, and the most that they may
	// need.
	regions, scratch, worst int64
}

// allocates has what lies between steps be in memory that a backend gives out, if it does so.
func (k *stepped) allocates(b backend.Backend, device tensor.Device) {
	if device.Type != tensor.CPU {
		k.memory, _ = b.(backend.Allocator)
	}
}

// stepwise chooses a kernel for each step of a call.
func (o *operation) stepwise(c *Call, b backend.Backend, dt dtype.DType, device tensor.Device, choices *tuning.File) (backend.Kernel, error) {
	k := &stepped{}
	k.allocates(b, device)
	var names []string
	for _, call := range o.steps(c, dt, device) {
		part, err := resolveStep(&call)
		if err != nil {
			return nil, err
		}
		var places []place
		for i, views := range [2][]*tensor.View{call.Inputs, call.Outputs} {
			for _, v := range views {
				places = append(places, k.placeOf(v))
			}
			if missing := len(part.Inputs) - len(places); i == 0 && missing > 0 {
				places = append(places, slices.Repeat([]place{{operand: absent}}, missing)...)
			}
		}
		kernel, err := part.choose(&call, choices)
		if err != nil {
			return nil, err
		}
		_, parameters := part.computes(&call)
		k.add(step{kernel, places, parameters, call.adds})
		names = append(names, kernel.Sku().Kernel)
	}
	k.describe(o.Name, c.Kind, k.steps[0].kernel, names)
	return k, nil
}

// inProblems chooses a kernel for each problem of a call.
func (o *operation) inProblems(c *Call, b backend.Backend, h backend.Header, device tensor.Device) (backend.Kernel, error) {
	operands := len(o.Inputs) + len(c.Outputs)
	w := &region{dt: h.DType, device: device, operand: operands}
	_, parameters := o.computes(c)
	return kernelOf(o.problems(c, h, w), b, w, parameters, o.Name, c.Kind)
}

// kernelOf makes a kernel of problems, whose region is the last of their operands. What it says of
// itself is of its products: the other kernels move rows.
func kernelOf(problems []backend.Problem, b backend.Backend, w *region, parameters []float64, op, kind string) (backend.Kernel, error) {
	k := &stepped{operands: w.operand + 1}
	k.allocates(b, w.device)
	var names []string
	var first backend.Kernel
	for _, p := range problems {
		kernel, err := selected(p, b, w, parameters)
		if err != nil {
			return nil, err
		}
		k.add(step{kernel, nil, parameters, false})
		if isNamed(p) {
			first = cmp.Or(first, kernel)
			names = append(names, kernel.Sku().Kernel)
		}
	}
	if first == nil {
		first = k.steps[0].kernel
		names = append(names, first.Sku().Kernel)
	}
	k.regions = w.bytes
	k.describe(op, kind, first, names)
	return k, nil
}

// selected is a backend's kernel of a problem, or one of its parts where it has none.
func selected(p backend.Problem, b backend.Backend, w *region, parameters []float64) (backend.Kernel, error) {
	kernel, err := b.Select(p)
	if !errors.Is(err, &status.Error{Code: status.Unsupported}) {
		return kernel, err
	}
	between := &region{dt: w.dt, device: w.device, operand: w.operand + 1}
	parts := lower.Parts(p, between.part)
	if parts == nil {
		return nil, err
	}
	op, kind, _ := p.Describe()
	return kernelOf(parts, b, between, parameters, op, kind)
}

// isNamed reports whether a problem has a product, or is a pass over more than rows of groups.
func isNamed(p backend.Problem) bool {
	switch p.(type) {
	case *backend.GemmEpilogue, *backend.GemmEpilogueBackward:
		return true
	case *backend.GroupedLayer, *backend.GroupedLayerBackward, *backend.GroupedHiddenBackward:
		return true
	case *backend.Activation, *backend.ActivationBackward, *backend.Gated, *backend.GatedBackward:
		return p.Grouping() == nil
	}
	return false
}

// describe has the steps say what one of them says, with the names of those that count.
func (k *stepped) describe(op, kind string, of backend.Kernel, names []string) {
	k.sku, k.precision = of.Sku(), of.Precision()
	k.sku.Op, k.sku.Kind, k.sku.Kernel = op, kind, strings.Join(names, "+")
	for _, s := range k.steps {
		if p := s.kernel.Precision(); p.MathPrecision == "tf32" {
			k.precision.MathPrecision = p.MathPrecision
		}
	}
}

func (k *stepped) placeOf(v *tensor.View) place {
	switch {
	case v == nil:
		return place{operand: absent}
	case v.Operand == backend.WorkspaceOperand:
		_, end, _ := v.Extent() // of memory that a region has
		k.regions = max(k.regions, aligned256(v.Offset+end))
	}
	return place{v.Operand, v.Offset}
}

func (k *stepped) add(s step) {
	k.steps = append(k.steps, s)
	k.operands = max(k.operands, len(s.places))
	k.scratch = max(k.scratch, s.kernel.WorkspaceBytes())
	most := s.kernel.WorkspaceBytes()
	if stager, copies := s.kernel.(backend.Stager); copies {
		most = max(most, stager.MostWorkspaceBytes())
	}
	k.worst = max(k.worst, most)
}

func (k *stepped) Sku() backend.Sku             { return k.sku }
func (k *stepped) Precision() backend.Precision { return k.precision }
func (k *stepped) WorkspaceBytes() int64        { return k.scratchFrom() + k.scratch }

// MostWorkspaceBytes implements backend.Stager.
func (k *stepped) MostWorkspaceBytes() int64 { return k.scratchFrom() + k.worst }

// scratchFrom is where the steps' own scratch starts in the workspace.
func (k *stepped) scratchFrom() int64 {
	if k.memory != nil {
		return 0
	}
	return k.regions
}

var freeSteps = sync.Pool{New: func() any { return new(backend.Run) }}

// bind appends where a step's operands are, from where those of the whole call are, and the region.
func (s *step) bind(bases, of []unsafe.Pointer, region unsafe.Pointer) []unsafe.Pointer {
	if s.places == nil {
		return append(append(bases, of...), region)
	}
	for _, p := range s.places {
		switch p.operand {
		case absent:
			bases = append(bases, nil)
		case backend.WorkspaceOperand:
			bases = append(bases, unsafe.Add(region, p.offset))
		default:
			base := of[p.operand]
			if base != nil { // an empty tensor's is
				base = unsafe.Add(base, p.offset)
			}
			bases = append(bases, base)
		}
	}
	return bases
}

// Run implements backend.Kernel.
func (k *stepped) Run(r *backend.Run) error {
	part := freeSteps.Get().(*backend.Run)
	bases := slices.Grow(part.Bases[:0], k.operands)
	defer func() {
		clear(bases[:cap(bases)]) // addresses may be given back, and become Go's
		*part = backend.Run{Bases: bases}
		freeSteps.Put(part)
	}()
	between := r.Workspace
	if k.memory != nil && k.regions > 0 {
		address, err := k.memory.Allocate(k.regions)
		if err != nil {
			return check.In(k.sku.Op, err)
		}
		defer func() { _ = k.memory.Free(address) }() // it was just given out
		between = unsafe.Add(unsafe.Pointer(nil), address)
	}
	for i := range k.steps {
		s := &k.steps[i]
		bases = s.bind(bases[:0], r.Bases, between)
		*part = backend.Run{
			Bases: bases, Workspace: unsafe.Add(r.Workspace, k.scratchFrom()), Stream: r.Stream, Threads: r.Threads,
			Accumulate: r.Accumulate || s.adds,
		}
		copy(part.Parameters[:], s.parameters)
		if err := s.kernel.Run(part); err != nil {
			return err
		}
	}
	return nil
}
