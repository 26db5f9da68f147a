package webgpu

/*
#include "layer.h"
*/
import "C"

import (
	"encoding/binary"
	"slices"
	"strings"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// What kernels/webgpu says of a dispatch.
const (
	groupThreads = 256
	mostRank     = 16
	mostOperands = 7

	// The fields of Params, in bytes.
	paramAccumulate = 12
	paramRest       = 16
	paramParameters = 64
	paramLows       = 80
	paramLimits     = 96
	paramOffset     = 104
	paramShape      = 112
	paramOperands   = paramShape + 4*mostRank
	operandBytes    = 16 + 4*mostRank
	paramAlignment  = 256
)

// slot is a buffer of a program: what one operand is copied to or lies in, or scratch.
type slot struct {
	kind  int
	view  *tensor.View // the caller's; nil for scratch
	bytes int64
	loop  copyLoop // how a host tensor is packed
	// loads: an output whose content a run needs that accumulates.
	loads bool
	// keeps: an output of which a run writes a part.
	keeps bool
}

const (
	scratch = iota
	hostInput
	hostOutput
	onDevice
)

// binding is one operand of a step. Bytes count from where the slot starts, or on the device from
// the operand's address.
type binding struct {
	slot           int
	from, to, base int64 // the range in memory, and the place of the element [0, 0, ...]
	size           int64 // of an element
	quads          bool  // four elements are read or written at once
	written        bool
}

// step is one dispatch.
type step struct {
	*template
	pipeline C.epg_wgpu_pipeline
	groups   [3]uint32
	params   []byte
	// unaligned does the same where an array starts so that four elements cannot be read at once;
	// it is compiled when it is needed. Nil where there are no such operands.
	unaligned *step
}

// builder collects a problem's steps.
type builder struct {
	device *device
	limits limits
	op     string
	dt     dtype.DType
	// portable: nothing is used that an adapter may lack.
	portable bool
	// writesOut: loops of a few turns are written out.
	writesOut bool
	// readsAlongK: operands that lie along k are read four at a time.
	readsAlongK bool
	// tiling, if there is one, is that of all products.
	tiling *tiling
	slots  []slot
	steps  []*step
	// dividesDepth: sums were too long for one dispatch
	dividesDepth bool
	// failed is why there is no kernel: nothing is added from then on.
	failed error
}

// kernel is a program that is ready to run.
type kernel struct {
	device    *device
	slots     []slot
	steps     []*step
	sku       backend.Sku
	precision backend.Precision
}

// view is the view of a slot's memory from its start.
func (b *builder) add(s slot, v tensor.View) *tensor.View {
	b.slots = append(b.slots, s)
	v.Operand = len(b.slots) - 1
	return &v
}

// region is a contiguous tensor of scratch.
func (b *builder) region(dt dtype.DType, shape ...int64) *tensor.View {
	v := tensor.View{DType: dt, Shape: shape, Strides: tensor.ContiguousStrides(shape), Device: tensor.Device{Type: tensor.WebGPU}}
	return b.add(slot{kind: scratch, bytes: v.Numel() * dt.Size()}, v)
}

// placed is a problem over the buffers that its operands are copied to, or lie in.
func placed[P backend.Problem](b *builder, p P) P {
	return backend.Replaced(p, func(v *tensor.View, role backend.Role) *tensor.View {
		switch role {
		case backend.Output:
			return b.output(v)
		case backend.Sum:
			return b.place(v, hostOutput, true)
		default:
			return b.input(v)
		}
	})
}

// input is a view of the buffer of an operand that is read; those of one tensor are one.
func (b *builder) input(v *tensor.View) *tensor.View { return b.place(v, hostInput, false) }

// output is a view of the buffer of an operand that is written.
func (b *builder) output(v *tensor.View) *tensor.View { return b.place(v, hostOutput, false) }

// place finds room for an operand. What is in the host's memory is packed: in the order that it has
// there, with nothing in between.
func (b *builder) place(v *tensor.View, kind int, loads bool) *tensor.View {
	if v == nil {
		return nil
	}
	if v.Device.Type == tensor.WebGPU {
		return b.add(slot{kind: onDevice, view: v}, *v)
	}
	for i, s := range b.slots {
		if kind == hostInput && s.kind == kind && same(s.view, v) {
			packed := *v
			packed.Operand, packed.Offset, packed.Strides = i, 0, s.loop.strides
			return &packed
		}
	}
	packed := *v
	loop := packing(v)
	packed.Offset, packed.Strides = 0, loop.strides
	return b.add(slot{kind: kind, view: v, bytes: loop.elements * v.DType.Size(), loop: loop, loads: loads}, packed)
}

func same(a, b *tensor.View) bool {
	return a.Operand == b.Operand && a.Offset == b.Offset && slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Strides, b.Strides)
}

// dispatch compiles a step and adds it.
func (b *builder) dispatch(s *step) {
	b.device.mutex.Lock()
	defer b.device.mutex.Unlock()
	if b.failed == nil {
		b.steps = append(b.steps, s)
		b.failed = s.compile(b.device)
	}
}

// compile finds the step's pipeline; the device's mutex is held.
func (s *step) compile(d *device) (err error) {
	if s.pipeline.pipeline == nil {
		s.pipeline, err = d.pipeline(s.file, s.definitions)
	}
	return err
}

// suited is the step itself, or what does the same for arrays that start as these do; the device's
// mutex is held.
func (s *step) suited(d *device, buffers []held) (*step, error) {
	if s.unaligned == nil || !slices.ContainsFunc(s.bindings, func(b binding) bool { return b.quads && buffers[b.slot].offset%(4*b.size) != 0 }) {
		return s, nil
	}
	return s.unaligned, s.unaligned.compile(d)
}

// kernel makes the program of a problem.
func (b *builder) kernel(p backend.Problem) *kernel {
	op, kind, dt := p.Describe()
	var names []string
	for _, s := range b.steps {
		if !slices.Contains(names, s.name) {
			names = append(names, s.name)
		}
	}
	return &kernel{
		device: b.device, slots: b.slots, steps: b.steps,
		sku: backend.Sku{
			Op: op, Kind: kind, DType: dt.String(), Accumulator: dt.Accumulator().String(), Backend: backendName, Arch: b.device.name,
			Kernel: strings.Join(names, "+"), Layout: "strided", VectorWidth: 1,
		},
		precision: backend.Precision{
			MathPrecision: dtype.Float32.String(), Accumulator: dt.Accumulator().String(), Deterministic: true, BitStableOnSameHardware: true,
			BatchInvariant: !b.dividesDepth,
		},
	}
}

func (k *kernel) Sku() backend.Sku             { return k.sku }
func (k *kernel) Precision() backend.Precision { return k.precision }
func (k *kernel) WorkspaceBytes() int64        { return 0 }

// held is a slot's buffer in a run.
type held struct {
	buffer buffer
	offset int64 // of the slot's start
}

// Run sends the program. Where results are the host's it waits for them, otherwise for nothing.
func (k *kernel) Run(r *backend.Run) error {
	if len(k.steps) == 0 {
		return nil
	}
	d := k.device
	d.mutex.Lock()
	defer d.mutex.Unlock()
	run := &submission{device: d}
	defer run.release()
	buffers, err := k.buffers(run, r)
	if err != nil {
		return err
	}
	if err := k.encode(run, r, buffers); err != nil {
		return err
	}
	for i, s := range k.slots {
		if s.kind == hostOutput && s.bytes > 0 {
			memory := unsafe.Pointer(r.At(s.view))
			run.readBack = append(run.readBack, readBack{buffers[i].buffer, 0, s.bytes, func(bytes []byte) { s.loop.unpack(memory, bytes) }})
		}
	}
	return run.submit()
}

// buffers finds or borrows every slot's buffer and fills those that the host's tensors are copied
// to.
func (k *kernel) buffers(run *submission, r *backend.Run) ([]held, error) {
	buffers := make([]held, len(k.slots))
	for i, s := range k.slots {
		if s.kind == onDevice {
			if s.view.IsEmpty() {
				continue
			}
			lo, hi, err := s.view.Extent()
			if err != nil {
				return nil, err
			}
			address := uintptr(r.Bases[s.view.Operand])
			a, err := run.device.memory.holding(address+uintptr(lo), hi-lo)
			if err != nil {
				return nil, err
			}
			buffers[i] = held{a.buffer, int64(address - a.address)}
			continue
		}
		if s.bytes == 0 {
			continue
		}
		var err error
		if buffers[i].buffer, err = run.acquire(C.EPG_WGPU_STORAGE, s.bytes); err != nil {
			return nil, err
		}
		if s.kind == hostInput || s.keeps || s.loads && r.Accumulate {
			if err := run.write(buffers[i].buffer, 0, s.loop.pack(r.At(s.view))); err != nil {
				return nil, err
			}
		}
	}
	return buffers, nil
}

// encode binds the steps' operands and writes their parameters.
func (k *kernel) encode(run *submission, r *backend.Run, buffers []held) error {
	size := int64(0)
	steps := make([]*step, len(k.steps))
	for i := range steps {
		s, err := k.steps[i].suited(k.device, buffers)
		if err != nil {
			return err
		}
		steps[i] = s
		size += (int64(len(s.params)) + paramAlignment - 1) / paramAlignment * paramAlignment
	}
	uniform, err := run.acquire(C.EPG_WGPU_UNIFORM, size)
	if err != nil {
		return err
	}
	params := make([]byte, 0, size)
	for _, s := range steps {
		start := len(params)
		params = append(params, s.params...)
		here := params[start:]
		s.putNumbers(here, r.Parameters[:])
		if s.definitions["ACCUMULATES"] == "run" {
			binary.LittleEndian.PutUint32(here[paramAccumulate:], truth(r.Accumulate))
		}
		dispatch := C.epg_wgpu_dispatch{pipeline: s.pipeline, first_binding: C.uint32_t(len(run.bindings)), num_bindings: C.uint32_t(len(s.bindings) + 1)}
		for j, g := range s.groups {
			dispatch.groups[j] = C.uint32_t(g)
		}
		run.dispatches = append(run.dispatches, dispatch)
		run.bindings = append(run.bindings, C.epg_wgpu_range{uniform.handle, C.uint64_t(start), C.uint64_t(len(s.params))})
		for j := range s.bindings {
			bound, err := k.bind(run, &s.bindings[j], s, buffers, here[paramOperands+j*operandBytes:])
			if err != nil {
				return err
			}
			run.bindings = append(run.bindings, bound)
		}
		params = params[:start+(len(s.params)+paramAlignment-1)/paramAlignment*paramAlignment]
	}
	return run.write(uniform, 0, params)
}

// bind is the range of an operand's buffer, aligned as the device wants it, and writes where in
// that range the operand starts.
func (k *kernel) bind(run *submission, b *binding, s *step, buffers []held, param []byte) (C.epg_wgpu_range, error) {
	h := buffers[b.slot]
	from := (h.offset + b.from) / k.device.limits.alignment * k.device.limits.alignment
	bound := C.epg_wgpu_range{h.buffer.handle, C.uint64_t(from), C.uint64_t(wordsUp(h.offset + b.to - from))}
	if !b.written && s.writes(h.buffer, buffers) {
		// One buffer cannot be read through one binding and written through another: the kernel
		// reads a copy.
		copied, err := run.acquire(C.EPG_WGPU_STORAGE, int64(bound.bytes))
		if err != nil {
			return bound, err
		}
		to := C.epg_wgpu_range{copied.handle, 0, bound.bytes}
		run.before = append(run.before, C.epg_wgpu_copy{from: bound, to: to})
		bound = to
	}
	binary.LittleEndian.PutUint32(param, uint32((h.offset+b.base-from)/b.size))
	return bound, nil
}

// writes reports whether the step writes to a buffer.
func (s *step) writes(b buffer, buffers []held) bool {
	return slices.ContainsFunc(s.bindings, func(other binding) bool { return other.written && buffers[other.slot].buffer.handle == b.handle })
}

func truth(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
