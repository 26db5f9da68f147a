package op

import (
	"cmp"
	"errors"
	"strings"
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// regionAlignment is what tensors between steps start at a multiple of, in bytes: the most that a
// backend asks for.
const regionAlignment = 256

// region makes the tensors between steps: contiguous, one behind the other in the workspace.
type region struct {
	dt      dtype.DType
	device  tensor.Device
	bytes   int64
	operand int // what the region is among a problem's operands
	reader  backend.TokenReader
}

// holds reports whether a tensor lies in the region.
func (w *region) holds(v *tensor.View) bool { return v != nil && v.Operand == w.operand }

// readsTokens reports whether the backend reads the rows of tokens where they lie.
func (w *region) readsTokens(h backend.Header, features int64, backward bool) bool {
	return w.reader != nil && w.reader.ReadsTokens(h, features, backward)
}

func (w *region) view(shape []int64) *tensor.View { return w.typed(w.dt, shape) }

// part is a lower.Region.
func (w *region) part(dt dtype.DType, shape ...int64) *tensor.View { return w.typed(dt, shape) }

// typed is view for another dtype than the call's.
func (w *region) typed(dt dtype.DType, shape []int64) *tensor.View {
	v := &tensor.View{
		Operand: w.operand, DType: dt, Device: w.device, Offset: w.bytes,
		Shape: shape, Strides: tensor.ContiguousStrides(shape),
	}
	w.bytes += aligned256(v.Numel() * dt.Size())
	return v
}

// standIn is a view with a shape and one element of v, for a step that reads only the shape.
func standIn(v *tensor.View, shape []int64) *tensor.View {
	one := *v
	one.Shape, one.Strides = shape, make([]int64, len(shape))
	return &one
}

func aligned256(bytes int64) int64 { return (bytes + regionAlignment - 1) &^ (regionAlignment - 1) }

// stepped is a kernel that is made of others, the steps, which run one after the other. Each has
// the operands of the whole call, with the region behind them.
type stepped struct {
	sku        backend.Sku
	precision  backend.Precision
	steps      []backend.Kernel
	parameters []float64 // of the formula
	// gives out what lies between steps; nil where that is the workspace
	memory backend.Allocator
	// Bytes: what lies between steps, what the steps need themselves, and the most that they may
	// need.
	regions, scratch, worst int64
}

// allocates takes the memory between steps from the backend, if that is an Allocator.
func (k *stepped) allocates(b backend.Backend, device tensor.Device) {
	if device.Type != tensor.CPU {
		k.memory, _ = b.(backend.Allocator)
	}
}

// kernelOf makes a kernel of problems, whose region is the last of their operands. What it says of
// itself is of its products and passes: the other kernels move rows.
func kernelOf(problems []backend.Problem, b backend.Backend, w *region, parameters []float64, op, kind string) (backend.Kernel, error) {
	k := &stepped{parameters: parameters}
	k.allocates(b, w.device)
	var names []string
	var first backend.Kernel
	for _, p := range problems {
		kernel, err := selected(p, b, &region{dt: w.dt, device: w.device, operand: w.operand + 1}, parameters)
		if err != nil {
			return nil, err
		}
		k.add(kernel)
		if isNamed(p) {
			first = cmp.Or(first, kernel)
			names = append(names, kernel.Sku().Kernel)
		}
	}
	if first == nil {
		first = k.steps[0]
		names = append(names, first.Sku().Kernel)
	}
	k.regions = w.bytes
	k.describe(op, kind, first, names)
	return k, nil
}

// selected is a backend's kernel of a problem, or one of its parts where it has none, with a region
// between them.
func selected(p backend.Problem, b backend.Backend, between *region, parameters []float64) (backend.Kernel, error) {
	kernel, err := b.Select(p)
	if !errors.Is(err, &status.Error{Code: status.Unsupported}) {
		return kernel, err
	}
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
	case *backend.GemmEpilogue, *backend.GemmEpilogueBackward, *backend.GatedLinear, *backend.HiddenBackward, *backend.GatedHiddenBackward:
		return true
	case *backend.GroupedLayer, *backend.CombinedLayer, *backend.GroupedLayerBackward, *backend.GroupedHiddenBackward:
		return true
	case *backend.Activation, *backend.ActivationBackward, *backend.Gated, *backend.GatedBackward:
		return p.Grouping() == nil
	}
	return false
}

// describe gives the kernel the facts of one step, and the names of the steps that count.
func (k *stepped) describe(op, kind string, of backend.Kernel, names []string) {
	k.sku, k.precision = of.Sku(), of.Precision()
	k.sku.Op, k.sku.Kind, k.sku.Kernel = op, kind, strings.Join(names, "+")
	for _, step := range k.steps {
		if p := step.Precision(); p.MathPrecision == "tf32" {
			k.precision.MathPrecision = p.MathPrecision
		}
	}
}

func (k *stepped) add(kernel backend.Kernel) {
	k.steps = append(k.steps, kernel)
	k.scratch = max(k.scratch, kernel.WorkspaceBytes())
	most := kernel.WorkspaceBytes()
	if stager, copies := kernel.(backend.Stager); copies {
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

// Run implements backend.Kernel.
func (k *stepped) Run(r *backend.Run) error {
	part := freeSteps.Get().(*backend.Run)
	bases := append(part.Bases[:0], r.Bases...)
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
	*part = backend.Run{
		Bases: append(bases, between), Workspace: unsafe.Add(r.Workspace, k.scratchFrom()), Stream: r.Stream, Threads: r.Threads,
		Accumulate: r.Accumulate,
	}
	copy(part.Parameters[:], k.parameters)
	for _, step := range k.steps {
		if err := step.Run(part); err != nil {
			return err
		}
	}
	return nil
}
