// Package caller uses the C ABI from C memory, as a C program does, so that Go tests can reach it:
// cgo is not to be had in test files.
package caller

/*
#cgo CFLAGS: -std=c11 -I${SRCDIR}/../../../cbridge/include
#include <stdlib.h>
#include "epigrad.h"

void epg_set_last_error(const char *text, size_t length, int64_t needed, int64_t got);
*/
import "C"

import (
	"runtime"
	"unsafe"

	_ "github.com/epigrad/epigrad/cbridge" // what is called
)

// Tensor is a DLTensor. Data is in C memory; nil is a null pointer.
type Tensor struct {
	Code, Bits uint8
	Lanes      uint16
	Device     int32
	Shape      []int64
	Strides    []int64 // nil: a null pointer
	Data       []float32
	ByteOffset uint64
	// NBytes is the stated size; 0 is unknown.
	NBytes uint64
}

// Floats returns a contiguous float32 tensor on C memory, which lives as long as the process.
func Floats(values []float32, shape ...int64) *Tensor {
	memory := unsafe.Slice((*float32)(C.malloc(C.size_t(4*max(1, len(values))))), len(values))
	copy(memory, values)
	return &Tensor{Code: C.kDLFloat, Bits: 32, Lanes: 1, Device: C.kDLCPU, Shape: shape, Data: memory}
}

// Call is an epg_call.
type Call struct {
	// SizeError is added to struct_size, as if the caller had another header.
	SizeError       int
	Op, Kind        string
	NullOp          bool
	Flags           uint32
	Parameters      []float64
	Dim, Gate       int32
	Threads         int32
	Stream          uintptr
	Inputs, Outputs []*Tensor
	// Surplus is added to both counts of tensors.
	Surplus int32
	// Workspace is its bytes, and Shift what it starts behind a multiple of 256.
	Workspace, Shift uint64
}

// GateFirst is a gate that is the first half.
const GateFirst int32 = C.EPG_GATE_FIRST

// Flags of a call.
const (
	Accumulate uint32 = C.EPG_ACCUMULATE
	AllowTF32  uint32 = C.EPG_ALLOW_TF32
)

// Result is a function's result, and the thread's last error if it failed.
type Result struct {
	Code        int32
	Message     string
	Needed, Got int64
}

// arena is C memory that is given back together.
type arena struct{ blocks []unsafe.Pointer }

func (a *arena) alloc(size uintptr) unsafe.Pointer {
	p := C.calloc(1, C.size_t(max(size, 1)))
	a.blocks = append(a.blocks, p)
	return p
}

func (a *arena) text(s string) *C.char {
	p := unsafe.Slice((*byte)(a.alloc(uintptr(len(s)+1))), len(s)+1)
	copy(p, s)
	return (*C.char)(unsafe.Pointer(&p[0]))
}

func (a *arena) numbers(list []int64) *C.int64_t {
	if list == nil {
		return nil
	}
	p := a.alloc(uintptr(8 * len(list)))
	copy(unsafe.Slice((*int64)(p), len(list)), list)
	return (*C.int64_t)(p)
}

func (a *arena) free() {
	for _, p := range a.blocks {
		C.free(p)
	}
}

func (a *arena) tensors(list []*Tensor) **C.DLTensor {
	pointers := unsafe.Slice((**C.DLTensor)(a.alloc(uintptr(8*len(list)+64))), len(list))
	for i, t := range list {
		if t == nil {
			continue
		}
		d := (*C.DLTensor)(a.alloc(unsafe.Sizeof(C.DLTensor{})))
		d.data = unsafe.Pointer(unsafe.SliceData(t.Data))
		d.device.device_type = C.int32_t(t.Device)
		d.ndim = C.int32_t(len(t.Shape))
		d.dtype.code, d.dtype.bits, d.dtype.lanes = C.uint8_t(t.Code), C.uint8_t(t.Bits), C.uint16_t(t.Lanes)
		d.shape, d.strides = a.numbers(t.Shape), a.numbers(t.Strides)
		d.byte_offset = C.uint64_t(t.ByteOffset)
		pointers[i] = d
	}
	return unsafe.SliceData(pointers)
}

func (a *arena) call(c *Call) *C.epg_call {
	if c == nil {
		return nil
	}
	call := (*C.epg_call)(a.alloc(unsafe.Sizeof(C.epg_call{})))
	call.struct_size = C.uint32_t(int(unsafe.Sizeof(*call)) + c.SizeError)
	call.flags, call.dim, call.gate, call.num_threads = C.uint32_t(c.Flags), C.int32_t(c.Dim), C.int32_t(c.Gate), C.int32_t(c.Threads)
	if c.Parameters != nil {
		values := unsafe.Slice((*float64)(a.alloc(uintptr(8*len(c.Parameters)))), len(c.Parameters))
		copy(values, c.Parameters)
		call.parameters, call.num_parameters = (*C.double)(unsafe.SliceData(values)), C.int32_t(len(values))
	}
	*(*uintptr)(unsafe.Pointer(&call.stream)) = c.Stream
	if !c.NullOp {
		call.op = a.text(c.Op)
	}
	if c.Kind != "" {
		call.kind = a.text(c.Kind)
	}
	call.num_inputs, call.num_outputs = C.int32_t(int32(len(c.Inputs))+c.Surplus), C.int32_t(int32(len(c.Outputs))+c.Surplus)
	call.inputs, call.outputs = a.tensors(c.Inputs), a.tensors(c.Outputs)
	sizes := unsafe.Slice((*uint64)(a.alloc(uintptr(8*(len(c.Inputs)+len(c.Outputs))))), len(c.Inputs)+len(c.Outputs))
	for i, t := range append(append([]*Tensor(nil), c.Inputs...), c.Outputs...) {
		if t != nil {
			sizes[i] = t.NBytes
		}
	}
	call.nbytes = (*C.uint64_t)(unsafe.SliceData(sizes))
	if c.Workspace > 0 {
		p := a.alloc(uintptr(c.Workspace+c.Shift) + 256)
		call.workspace, call.workspace_nbytes = unsafe.Add(p, -uintptr(p)%256+uintptr(c.Shift)), C.uint64_t(c.Workspace)
	}
	return call
}

// result reads the last error on the thread that failed.
func result(do func() C.int32_t) Result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := Result{Code: int32(do())}
	if r.Code != C.EPG_OK {
		var needed, got C.int64_t
		C.epg_last_error_bytes(&needed, &got)
		r.Message, r.Needed, r.Got = C.GoString(C.epg_last_error()), int64(needed), int64(got)
	}
	return r
}

// Run is epg_run; a nil call is a null pointer, here and below.
func Run(c *Call) Result {
	var a arena
	defer a.free()
	return result(func() C.int32_t { return C.epg_run(a.call(c)) })
}

// Validate is epg_validate.
func Validate(c *Call) Result {
	var a arena
	defer a.free()
	return result(func() C.int32_t { return C.epg_validate(a.call(c)) })
}

// Infer is epg_infer for all outputs; a shape is nil where the rank is -1.
func Infer(c *Call) (shapes [][]int64, workspace uint64, r Result) {
	var a arena
	defer a.free()
	sizes, ranks := a.numbers(make([]int64, C.EPG_MAX_OUTPUTS*C.EPG_MAX_RANK)), (*C.int32_t)(a.alloc(C.EPG_MAX_OUTPUTS*C.sizeof_int32_t))
	bytes := (*C.uint64_t)(a.alloc(8))
	if r = result(func() C.int32_t { return C.epg_infer(a.call(c), nil, sizes, ranks, bytes) }); r.Code != C.EPG_OK {
		return nil, 0, r
	}
	all := unsafe.Slice((*int64)(sizes), C.EPG_MAX_OUTPUTS*C.EPG_MAX_RANK)
	for i, rank := range unsafe.Slice((*int32)(ranks), C.EPG_MAX_OUTPUTS) {
		var shape []int64
		if rank >= 0 {
			shape = append([]int64{}, all[i*C.EPG_MAX_RANK:i*C.EPG_MAX_RANK+int(rank)]...)
		}
		shapes = append(shapes, shape)
	}
	return shapes, uint64(*bytes), r
}

// Plan is an epg_plan.
type Plan int64

// CreatePlan is epg_plan_create with no strides fixed.
func CreatePlan(c *Call) (Plan, Result) {
	var a arena
	defer a.free()
	plan := (*C.epg_plan)(a.alloc(8))
	r := result(func() C.int32_t { return C.epg_plan_create(a.call(c), nil, plan) })
	return Plan(*plan), r
}

// Run is epg_plan_run.
func (p Plan) Run(c *Call) Result {
	var a arena
	defer a.free()
	return result(func() C.int32_t { return C.epg_plan_run(C.epg_plan(p), a.call(c)) })
}

// Workspace is epg_plan_workspace.
func (p Plan) Workspace() (uint64, Result) {
	var a arena
	defer a.free()
	bytes := (*C.uint64_t)(a.alloc(8))
	r := result(func() C.int32_t { return C.epg_plan_workspace(C.epg_plan(p), bytes) })
	return uint64(*bytes), r
}

// Query is epg_plan_query with a struct_size that is so many bytes too large: the texts, and the
// numbers in their order.
func (p Plan) Query(more int) (texts []string, numbers []int32, r Result) {
	var a arena
	defer a.free()
	f := (*C.epg_plan_facts)(a.alloc(C.sizeof_epg_plan_facts))
	f.struct_size = C.uint32_t(C.sizeof_epg_plan_facts + more)
	if r = result(func() C.int32_t { return C.epg_plan_query(C.epg_plan(p), f) }); r.Code == C.EPG_OK {
		for _, text := range []*C.char{f.op, f.kind, f.dtype, f.accumulator, f.math_precision, f.backend, f.arch, f.kernel, f.layout} {
			texts = append(texts, C.GoString(text))
		}
		numbers = []int32{int32(f.vector_width), int32(f.deterministic), int32(f.bit_stable_on_same_hardware), int32(f.batch_invariant)}
	}
	return texts, numbers, r
}

// Destroy is epg_plan_destroy.
func (p Plan) Destroy() Result {
	return result(func() C.int32_t { return C.epg_plan_destroy(C.epg_plan(p)) })
}

// Backends is epg_backends with room for capacity bytes.
func Backends(capacity int) (text string, needed uint64, r Result) {
	return written(capacity, func(text *C.char, needed *C.uint64_t) C.int32_t {
		return C.epg_backends(text, C.uint64_t(capacity), needed)
	})
}

func written(capacity int, write func(text *C.char, needed *C.uint64_t) C.int32_t) (text string, needed uint64, r Result) {
	var a arena
	defer a.free()
	buffer, size := (*C.char)(a.alloc(uintptr(capacity))), (*C.uint64_t)(a.alloc(8))
	r = result(func() C.int32_t { return write(buffer, size) })
	return C.GoString(buffer), uint64(*size), r
}

// SetLastError is what the Go half of the bridge calls with a failure's message; it returns what
// the thread then reads.
func SetLastError(text string) string {
	var a arena
	defer a.free()
	return result(func() C.int32_t {
		C.epg_set_last_error(a.text(text), C.size_t(len(text)), 0, 0)
		return C.EPG_INTERNAL
	}).Message
}

// StatusClass is epg_status_class.
func StatusClass(code int32) string { return C.GoString(C.epg_status_class(C.int32_t(code))) }

// Version is epg_version and epg_abi_version, and the header's.
func Version() (library string, abi int32, header string, headerABI int32) {
	return C.GoString(C.epg_version()), int32(C.epg_abi_version()), C.EPG_VERSION, C.EPG_ABI_VERSION
}

// Statuses are the header's codes by name.
var Statuses = map[string]int32{
	"OK": C.EPG_OK, "InvalidProblem": C.EPG_INVALID_PROBLEM, "DTypeMismatch": C.EPG_DTYPE, "Unsupported": C.EPG_UNSUPPORTED,
	"DeviceMismatch": C.EPG_DEVICE_MISMATCH, "MisalignedOperand": C.EPG_MISALIGNED_OPERAND, "WorkspaceTooSmall": C.EPG_WORKSPACE_TOO_SMALL,
	"BufferTooSmall": C.EPG_BUFFER_TOO_SMALL, "BackendUnavailable": C.EPG_BACKEND_UNAVAILABLE, "DeviceFailure": C.EPG_DEVICE_ERROR,
	"Internal": C.EPG_INTERNAL,
}
