// Decoding: an epg_call in Go's terms, or the error of one that cannot be read.

package cbridge

/*
#include "bridge.h"
*/
import "C"

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// maxInputs is the most inputs of an operation.
const maxInputs = C.EPG_MAX_INPUTS

// decoded is an epg_call in Go's terms. Its views look at the caller's shapes and strides, which
// stay valid for the call.
type decoded struct {
	call    op.Call
	views   [maxInputs + maxOutputs]tensor.View
	inputs  [maxInputs]*tensor.View
	outputs [maxOutputs]*tensor.View
}

// flags are the bits of epg_call.flags by their names.
var flags = []struct {
	name string
	bit  C.uint32_t
}{
	{"EPG_ACCUMULATE", C.EPG_ACCUMULATE},
	{"EPG_ALLOW_TF32", C.EPG_ALLOW_TF32},
	{"EPG_ASSUME_WORKSPACE", C.EPG_ASSUME_WORKSPACE},
	{"EPG_BATCH_INVARIANT", C.EPG_BATCH_INVARIANT},
}

// decode reads a call of the operation that it names.
func (d *decoded) decode(c *C.epg_call) error {
	if err := readable(c); err != nil {
		return err
	}
	signature, known := op.SignatureOf(name(c.op))
	if !known {
		return op.Unknown(name(c.op))
	}
	return d.decodeFor(c, signature)
}

// readable asks for a call of this header's layout.
func readable(c *C.epg_call) error {
	if c == nil {
		return status.Errorf(status.InvalidProblem, "call: a null pointer, want an epg_call")
	}
	return sized("call", uintptr(c.struct_size), unsafe.Sizeof(*c))
}

// sized asks for a struct of this header's size.
func sized(what string, got, want uintptr) error {
	if got != want {
		return status.Errorf(status.InvalidProblem, "%s: struct_size %d, want %d: the program was built with another epigrad.h", what, got, want)
	}
	return nil
}

// decodeFor reads a call of an operation, whatever the call itself says of that.
func (d *decoded) decodeFor(c *C.epg_call, signature op.Signature) error {
	if err := readable(c); err != nil {
		return err
	}
	if err := knownFlags(signature.Name, c.flags); err != nil {
		return err
	}
	if c.num_threads < 0 {
		return check.Invalid(signature.Name, "num_threads", "got %d, want a number of threads, or 0 for epigrad's choice", int(c.num_threads))
	}
	if c.num_parameters < 0 || c.num_parameters > 0 && c.parameters == nil {
		return check.Invalid(signature.Name, "parameters", "got %d at address %#x, want a number >= 0 and an array", int(c.num_parameters), uintptr(unsafe.Pointer(c.parameters)))
	}
	d.call = op.Call{
		Op: signature.Name, Kind: name(c.kind), Parameters: unsafe.Slice((*float64)(c.parameters), int(c.num_parameters)),
		Dim: int(c.dim), Gate: op.Gate(c.gate),
		Accumulate: c.flags&C.EPG_ACCUMULATE != 0, AllowTF32: c.flags&C.EPG_ALLOW_TF32 != 0, Backend: name(c.backend),
		AssumeWorkspace: c.flags&C.EPG_ASSUME_WORKSPACE != 0, BatchInvariant: c.flags&C.EPG_BATCH_INVARIANT != 0,
		Workspace: c.workspace, WorkspaceBytes: signed(uint64(c.workspace_nbytes)), Stream: uintptr(c.stream), Threads: int(c.num_threads),
	}
	inputs, outputs := int(c.num_inputs), int(c.num_outputs)
	if inputs < 0 || inputs > maxInputs || outputs < 0 || outputs > maxOutputs {
		return status.Errorf(status.InvalidProblem, "%s: operands: got %d inputs and %d outputs, want at most %d and %d",
			d.call.Op, inputs, outputs, maxInputs, maxOutputs)
	}
	if inputs > 0 && c.inputs == nil || outputs > 0 && c.outputs == nil {
		return status.Errorf(status.InvalidProblem, "%s: operands: got a null pointer for %d inputs and %d outputs, want their arrays",
			d.call.Op, inputs, outputs)
	}
	var nbytes []uint64
	if c.nbytes != nil {
		nbytes = unsafe.Slice((*uint64)(c.nbytes), inputs+outputs)
	}
	decode := func(tensors **C.DLTensor, arguments []op.Argument, first int, views []*tensor.View) error {
		for i, t := range unsafe.Slice(tensors, len(views)) {
			a := op.Argument{Name: "tensor"}
			if i < len(arguments) {
				a = arguments[i]
			}
			view, err := d.view(t, first+i, nbytes, a.Types)
			if err != nil {
				return check.Wrap(d.call.Op, a.Name, err)
			}
			views[i] = view
		}
		return nil
	}
	d.call.Inputs, d.call.Outputs = d.inputs[:inputs], d.outputs[:outputs]
	if err := decode((**C.DLTensor)(unsafe.Pointer(c.inputs)), signature.Inputs, 0, d.call.Inputs); err != nil {
		return err
	}
	return decode((**C.DLTensor)(unsafe.Pointer(c.outputs)), signature.Outputs, inputs, d.call.Outputs)
}

// knownFlags asks for bits that the header has.
func knownFlags(operation string, given C.uint32_t) error {
	unknown := given
	for _, f := range flags {
		unknown &^= f.bit
	}
	if unknown == 0 {
		return nil
	}
	names := make([]string, len(flags))
	for i, f := range flags {
		names[i] = fmt.Sprintf("%s (%#x)", f.name, uint32(f.bit))
	}
	return check.Invalid(operation, "flags", "got unknown bits %#x, want only %s", uint32(unknown), strings.Join(names, ", "))
}

// view decodes one tensor; nil stays nil.
func (d *decoded) view(t *C.DLTensor, operand int, nbytes []uint64, types check.Types) (*tensor.View, error) {
	if t == nil {
		return nil, nil
	}
	dt, ok := dtype.FromDLPack(uint8(t.dtype.code), uint8(t.dtype.bits), uint16(t.dtype.lanes))
	if !ok {
		return nil, status.Errorf(status.DTypeMismatch, "dtype %s, want %s",
			dtype.DescribeDLPack(uint8(t.dtype.code), uint8(t.dtype.bits), uint16(t.dtype.lanes)), types.Names())
	}
	rank := int(t.ndim)
	if rank < 0 || rank > 0 && t.shape == nil {
		return nil, status.Errorf(status.InvalidProblem, "got %d dimensions and a null pointer for shape, want a shape", rank)
	}
	shape := unsafe.Slice((*int64)(t.shape), rank)
	var strides []int64
	if t.strides != nil {
		strides = unsafe.Slice((*int64)(t.strides), rank)
	}
	device := tensor.Device{Type: int32(t.device.device_type), Index: int32(t.device.device_id)}
	if device.Type == tensor.CPU {
		device.Index = 0 // there is one CPU
	}
	if uint64(t.byte_offset) > math.MaxInt64 {
		return nil, status.Errorf(status.InvalidProblem, "byte_offset %d, want less than 2^63", uint64(t.byte_offset))
	}
	view, err := tensor.New(t.data, int64(t.byte_offset), dt, device, shape, strides, operand)
	if err != nil {
		return nil, err
	}
	if operand < len(nbytes) {
		view.NBytes = signed(nbytes[operand])
	}
	d.views[operand] = view
	return &d.views[operand], nil
}

// signed is a number of bytes as Go counts them; more than that is as good as the most.
func signed(bytes uint64) int64 { return int64(min(bytes, math.MaxInt64)) }

// name reads a C string; NULL is "".
func name(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}
