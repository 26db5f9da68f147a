package cuda

/*
#include <stdlib.h>
#include "cuda.h"

static int start(const epg_program *p, const uint64_t *bases, const epg_run_arguments *arguments, epg_failure *failure) {
	return p->run(p, bases, arguments, failure);
}
*/
import "C"

import (
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/go/tuning"
)

// workspaceAlignment is what PyTorch's allocator gives, and what every region of a workspace starts
// at.
const workspaceAlignment = 256

// vectorBytes is the width of a vector access.
const vectorBytes = 16

// mostParamBytes is the most that CUDA passes to a kernel on every driver.
const mostParamBytes = 4096

// none is the place of a run-time value that a launch does not have.
const none = -1

// launch is one kernel launch, complete but for what a run brings: addresses, parameters and
// whether to accumulate.
type launch struct {
	function string // the kernel's symbol
	grid     [3]int64
	block    [3]uint32
	params   []byte // the kernel's only parameter, a struct
	pointers []pointer
	// whether its blocks may start before the launch before it ends; the kernel itself waits for
	// that
	early      bool
	parameters int // where in params Run.Parameters go; none
	accumulate int // where in params Run.Accumulate goes, an int32; none
	shared     int // bytes of dynamic shared memory
	maps       []tensorMap
}

// tensorMap is a tensor that a kernel copies by boxes, as its parameters have it: the innermost
// dimension comes first, and is contiguous. Strides are in elements, of the others.
type tensorMap struct {
	pointer
	sizes, strides, box []int64
}

// pointer is an address in a launch's parameters.
type pointer struct {
	at   int // bytes into params
	view *tensor.View
}

// operation is one thing that a program does in its turn: a step, a product or a fill.
type operation interface {
	compile(c *compiler, s *C.epg_step) error
	// symbol names what runs: a kernel's symbol or a library; "" for nothing worth naming.
	symbol() string
}

// step is one kernel launch in two forms: vector where all its pointers are multiples of
// vectorBytes (nil if strides forbid it), general otherwise.
type step struct {
	vector, general *launch
	finishes        bool // whether it adds up partial sums, which lie as they always do
}

// fill writes zeros over a contiguous region.
type fill struct{ view *tensor.View }

// conditional is an operation that some runs leave out.
type conditional struct {
	operation
	unless condition
}

// condition is a property of a run: bits of epg_step.unless.
type condition C.uint32_t

const (
	accumulating condition = C.EPG_ACCUMULATING
	overwriting  condition = C.EPG_OVERWRITING
	boxable      condition = C.EPG_BOXABLE
	notBoxable   condition = C.EPG_NOT_BOXABLE
)

// options are what a program follows from beside its problem's shapes.
type options struct {
	blasAlone  bool         // no product by kernels of our own
	boxes      bool         // whether Hopper's tile program may run
	layers     *tileProgram // the program of layers without groups, or nil
	forced     bool         // whether it is sm80 wherever that can run
	tilesAlone bool         // whether it does small products too
	invariant  bool         // whether bits of a row may not depend on other rows (invariant.go)
	allowsTF32 bool         // for float32 products
}

// builder collects a problem's operations and its workspace.
type builder struct {
	device *device
	dt     dtype.DType
	options
	tf32    bool // whether a product is computed in TF32
	way     way
	ways    []way     // that the problem can go
	tokens  tokenRows // what the problem has of them
	program []operation
	scratch int64 // bytes
	refused error // why the backend has no kernel
	// withoutSaved is how many bytes of scratch more the problem would take if it had no saved
	// preactivation.
	withoutSaved int64
}

// region is a contiguous tensor in the workspace.
func (b *builder) region(dt dtype.DType, shape ...int64) *tensor.View {
	v := &tensor.View{
		Operand: backend.WorkspaceOperand, DType: dt, Device: tensor.Device{Type: tensor.CUDA}, Offset: b.scratch,
		Shape: shape, Strides: tensor.ContiguousStrides(shape),
	}
	b.scratch += regionBytes(dt, v.Numel())
	return v
}

// regionBytes is the size of a region with these elements.
func regionBytes(dt dtype.DType, elements int64) int64 {
	return ceilDiv(elements*dt.Size(), workspaceAlignment) * workspaceAlignment
}

// launch adds a step.
func (b *builder) launch(s step) { b.program = append(b.program, s) }

func (s step) symbol() string {
	if s.vector != nil {
		return s.vector.function
	}
	return s.general.function
}

func (fill) symbol() string { return "" }

// kernel is a compiled program.
type kernel struct {
	sku       backend.Sku
	precision backend.Precision
	workspace int64 // regions and what the products need as scratch
	regions   int64
	optional  int64 // what an operand that is left out would add
	device    *device
	memory    *memory
	// multiplies reports whether there are products among the steps.
	multiplies bool
}

func (k *kernel) Sku() backend.Sku             { return k.sku }
func (k *kernel) Precision() backend.Precision { return k.precision }
func (k *kernel) WorkspaceBytes() int64        { return k.workspace }

// MostWorkspaceBytes implements backend.Stager: other layouts may have cuBLASLt choose algorithms
// that take more scratch.
func (k *kernel) MostWorkspaceBytes() int64 {
	if k.multiplies {
		return k.regions + mostBLASWorkspace
	}
	return k.workspace + k.optional
}

// Program implements backend.Programmed.
func (k *kernel) Program() unsafe.Pointer { return unsafe.Pointer(k.memory.program) }

// Run enqueues the program on the run's stream.
func (k *kernel) Run(r *backend.Run) error {
	if k.memory.program.count == 0 {
		return nil
	}
	arguments := C.epg_run_arguments{
		workspace: C.uint64_t(uintptr(r.Workspace)), stream: C.uint64_t(r.Stream),
	}
	for i, value := range r.Parameters {
		arguments.parameters[i] = C.double(value)
	}
	if r.Accumulate {
		arguments.accumulate = 1
	}
	var bases [maxOperands]C.uint64_t
	for i, base := range r.Bases {
		bases[i] = C.uint64_t(uintptr(base))
	}
	var failure C.epg_failure
	if C.start(&k.memory.program.program, &bases[0], &arguments, &failure) != 0 {
		return failed(&failure)
	}
	runtime.KeepAlive(k)
	return nil
}

// maxOperands is the most tensors of a problem: a call's inputs and outputs, and a region behind
// them.
const maxOperands = 24

// memory is a program's memory outside of Go's heap.
type memory struct {
	program *C.epg_cuda_program
	rest    []unsafe.Pointer
}

func (m *memory) steps() []C.epg_step { return unsafe.Slice(m.program.steps, m.program.count) }

// compiler turns operations into what C executes.
type compiler struct {
	device  *device
	memory  *memory
	choices *tuning.File // of the tuning block that the call is in; nil for none
}

func (m *memory) allocate(bytes int) unsafe.Pointer {
	p := C.calloc(1, C.size_t(max(bytes, 1)))
	m.rest = append(m.rest, p)
	return p
}

func (m *memory) free() {
	C.epg_cuda_program_destroy(m.program)
	for _, p := range m.rest {
		C.free(p)
	}
}

// compile makes the kernel of a problem.
func (b *builder) compile(p backend.Problem) (*kernel, error) {
	if b.refused != nil {
		return nil, b.refused
	}
	op, kind, dt := p.Describe()
	m := &memory{program: C.epg_cuda_program_create(b.device.handle, C.int32_t(len(b.program)))}
	k := &kernel{workspace: b.scratch, regions: b.scratch, optional: b.withoutSaved, device: b.device, memory: m}
	runtime.AddCleanup(k, func(m *memory) { m.free() }, m)
	c := &compiler{b.device, m, p.Tuning()}
	var names []string
	for i, operation := range b.program {
		s := &m.steps()[i]
		s.vector.parameters, s.vector.accumulate, s.general.parameters, s.general.accumulate = none, none, none, none
		if err := operation.compile(c, s); err != nil {
			return nil, err
		}
		if name := operation.symbol(); name != "" {
			names = append(names, name)
		}
	}
	k.workspace += c.scratch(b.scratch)
	k.multiplies = slices.Contains(names, blasName)
	k.sku = backend.Sku{
		Op: op, Kind: kind, DType: dt.String(), Accumulator: dt.Accumulator().String(), Backend: backendName, Arch: b.device.arch(),
		Kernel: strings.Join(names, "+"), Layout: "strided", VectorWidth: 1,
	}
	if b.hasVectors() {
		k.sku.Layout, k.sku.VectorWidth = "vector", vectorBytes/int(dt.Size())
	}
	k.precision = backend.Precision{
		MathPrecision: b.mathPrecision(), Accumulator: dt.Accumulator().String(), Deterministic: true, BitStableOnSameHardware: true,
		BatchInvariant: b.invariant || !multiplies(p),
	}
	return k, nil
}

// hasVectors reports whether every launch over the problem's operands, of which there is one, has a
// form with vectors.
func (b *builder) hasVectors() bool {
	some := false
	for _, o := range b.program {
		for c, ok := o.(conditional); ok; c, ok = o.(conditional) {
			o = c.operation
		}
		s, ok := o.(step)
		if !ok || s.finishes {
			continue
		}
		if s.vector == nil {
			return false
		}
		some = true
	}
	return some
}

// mathPrecision is the precision of formulas, or of products if that is lower.
func (b *builder) mathPrecision() string {
	if b.tf32 {
		return "tf32"
	}
	return b.dt.Accumulator().String()
}

func (c *compiler) address(at int, v *tensor.View) C.epg_pointer {
	return C.epg_pointer{at: C.int32_t(at), operand: C.int32_t(v.Operand), offset: C.int64_t(v.Offset)}
}

// scratch gives all products one region of the workspace, which starts at an offset, and returns
// its bytes: they run one after the other.
func (c *compiler) scratch(offset int64) int64 {
	most := C.uint64_t(0)
	for i := range c.memory.steps() {
		m := &c.memory.steps()[i].matmul
		m.scratch = C.epg_pointer{operand: C.int32_t(backend.WorkspaceOperand), offset: C.int64_t(offset)}
		most = max(most, m.choices[0].workspace, m.choices[1].workspace)
	}
	return int64(most)
}

func (s step) compile(c *compiler, out *C.epg_step) error {
	out.kind = C.EPG_LAUNCH
	for _, form := range []struct {
		from *launch
		to   *C.epg_launch
	}{{s.vector, &out.vector}, {s.general, &out.general}} {
		if form.from == nil {
			continue
		}
		if err := c.launch(form.from, form.to); err != nil {
			return err
		}
	}
	return nil
}

func (c *compiler) launch(l *launch, out *C.epg_launch) error {
	if l.grid[0] > maxBlocks {
		return status.Errorf(status.Unsupported, "cuda: %s: got work for %d blocks, want at most %d, CUDA's limit of a launch: split the tensors",
			l.function, l.grid[0], maxBlocks)
	}
	if len(l.params) > mostParamBytes {
		return status.Errorf(status.Internal, "cuda: %s: got %d bytes of parameters, more than a launch takes", l.function, len(l.params))
	}
	function, err := c.device.function(l.function)
	if err != nil {
		return err
	}
	out.function = function
	for i := range 3 {
		out.grid[i], out.block[i] = C.uint32_t(l.grid[i]), C.uint32_t(l.block[i])
	}
	if l.early && c.device.startsEarly() {
		out.early = 1
	}
	out.parameters, out.accumulate = C.int32_t(l.parameters), C.int32_t(l.accumulate)
	params := c.memory.allocate(len(l.params))
	copy(unsafe.Slice((*byte)(params), len(l.params)), l.params)
	out.params, out.param_bytes = (*C.uint8_t)(params), C.uint32_t(len(l.params))
	pointers := (*C.epg_pointer)(c.memory.allocate(len(l.pointers) * C.sizeof_epg_pointer))
	for i, p := range l.pointers {
		unsafe.Slice(pointers, len(l.pointers))[i] = c.address(p.at, p.view)
	}
	out.pointers, out.num_pointers = pointers, C.uint32_t(len(l.pointers))
	maps := (*C.epg_tensor_map)(c.memory.allocate(len(l.maps) * C.sizeof_epg_tensor_map))
	for i, m := range l.maps {
		to := &unsafe.Slice(maps, len(l.maps))[i]
		to.pointer, to._type, to.rank = c.address(m.at, m.view), mapTypes[m.view.DType], C.int32_t(len(m.sizes))
		for d, size := range m.sizes {
			to.sizes[d], to.box[d] = C.uint64_t(size), C.uint32_t(m.box[d])
		}
		for d, stride := range m.strides {
			to.strides[d] = C.uint64_t(stride * m.view.DType.Size())
		}
	}
	out.maps, out.num_maps = maps, C.uint32_t(len(l.maps))
	if l.shared > 0 {
		out.shared = C.uint32_t(l.shared)
		var failure C.epg_failure
		if C.epg_cuda_allow_shared(c.device.handle, function, out.shared, &failure) != 0 {
			return failed(&failure)
		}
	}
	return nil
}

func (f fill) compile(c *compiler, out *C.epg_step) error {
	out.kind = C.EPG_FILL
	out.fill = c.address(0, f.view)
	out.fill_bytes = C.uint64_t(f.view.Numel() * f.view.DType.Size())
	return nil
}

func (o conditional) compile(c *compiler, s *C.epg_step) error {
	s.unless |= C.uint32_t(o.unless)
	return o.operation.compile(c, s)
}
