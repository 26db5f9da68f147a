// Package cbridge is epigrad's C ABI (include/epigrad.h) over go/op.
//
// The public functions are in C (api.c), and refuse a forked child; what they call is exported
// here. Every export recovers: a panic becomes EPG_INTERNAL with its text. Tensors, workspace and
// results are the caller's memory, and no Go pointer is kept in it.
package cbridge

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -Wno-unused-parameter -I${SRCDIR}/include
#cgo LDFLAGS: -lpthread
#include "bridge.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"runtime/debug"
	"unsafe"

	_ "github.com/epigrad/epigrad/cbridge/include" // rebuild when a header changes
	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	_ "github.com/epigrad/epigrad/go/backend/builtin" // the backends of this build
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
)

// maxOutputs is the most outputs of an operation, for which epg_infer's caller has room.
const maxOutputs = C.EPG_MAX_OUTPUTS

// finish turns an error, or a panic, into a status and the thread's last error. It is deferred with
// recover's result.
func finish(code *C.int32_t, err *error, panicked any) {
	if panicked != nil {
		*err = status.Errorf(status.Internal, "epigrad: a defect: %v\n%s", panicked, debug.Stack())
	}
	if *err == nil {
		return
	}
	e := status.Of(*err)
	text := []byte(e.Message + "\x00")
	C.epg_set_last_error((*C.char)(unsafe.Pointer(&text[0])), C.size_t(len(text)-1), C.int64_t(e.Needed), C.int64_t(e.Got))
	*code = C.int32_t(e.Code)
}

// nullPointer is the error for a function's argument without which it has nowhere to put what it
// gives.
func nullPointer(function, argument, want string) error {
	return check.Invalid(function, argument, "a null pointer, want %s", want)
}

// guarded turns an error of an exported function, or a panic, into a status and the thread's last
// error.
func guarded(do func() error) (code C.int32_t) {
	var err error
	defer func() { finish(&code, &err, recover()) }()
	err = do()
	return code
}

//export epgGoRun
func epgGoRun(c *C.epg_call) C.int32_t { return withCall(c, op.Run) }

//export epgGoValidate
func epgGoValidate(c *C.epg_call) C.int32_t { return withCall(c, op.Validate) }

func withCall(c *C.epg_call, do func(*op.Call) error) C.int32_t {
	return guarded(func() error {
		var call decoded
		if err := call.decode(c); err != nil {
			return err
		}
		return do(&call.call)
	})
}

//export epgGoInfer
func epgGoInfer(c *C.epg_call, wanted *C.uint8_t, shapes *C.int64_t, ranks *C.int32_t, workspace *C.uint64_t) C.int32_t {
	return guarded(func() error {
		switch {
		case shapes == nil:
			return nullPointer("epg_infer", "shapes", "an array for the outputs' sizes")
		case ranks == nil:
			return nullPointer("epg_infer", "ranks", "an array for the outputs' ranks")
		}
		var call decoded
		if err := call.decode(c); err != nil {
			return err
		}
		signature, _ := op.SignatureOf(call.call.Op)
		want := [maxOutputs]bool{}
		for i := range signature.Outputs {
			want[i] = wanted == nil || unsafe.Slice((*uint8)(wanted), len(signature.Outputs))[i] != 0
		}
		inferred, bytes, err := op.Infer(&call.call, want[:])
		if err != nil {
			return err
		}
		rank := unsafe.Slice((*int32)(ranks), maxOutputs)
		sizes := unsafe.Slice((*int64)(shapes), maxOutputs*C.EPG_MAX_RANK)
		for i := range rank {
			rank[i] = -1
			if i < len(inferred) && inferred[i] != nil {
				rank[i] = int32(len(inferred[i]))
				copy(sizes[i*C.EPG_MAX_RANK:], inferred[i])
			}
		}
		if workspace != nil {
			*workspace = C.uint64_t(bytes)
		}
		return nil
	})
}

//export epgGoBackends
func epgGoBackends(text *C.char, capacity C.uint64_t, needed *C.uint64_t) C.int32_t {
	return guarded(func() error {
		infos, err := json.Marshal(backend.Infos())
		if err != nil {
			return err
		}
		return write(text, capacity, needed, string(infos))
	})
}

//export epgGoKinds
func epgGoKinds(text *C.char, capacity C.uint64_t, needed *C.uint64_t) C.int32_t {
	return guarded(func() error {
		tables, err := activation.Tables()
		if err != nil {
			return err
		}
		return write(text, capacity, needed, tables)
	})
}

// write copies text with its NUL into the caller's buffer.
func write(buffer *C.char, capacity C.uint64_t, needed *C.uint64_t, text string) error {
	size := uint64(len(text)) + 1
	if needed != nil {
		*needed = C.uint64_t(size)
	}
	if buffer == nil {
		capacity = 0
	}
	if uint64(capacity) < size {
		return &status.Error{
			Code: status.BufferTooSmall, Needed: int64(size), Got: int64(capacity),
			Message: fmt.Sprintf("text: got room for %d bytes, want %d", uint64(capacity), size),
		}
	}
	out := unsafe.Slice((*byte)(unsafe.Pointer(buffer)), size)
	copy(out, text)
	out[size-1] = 0
	return nil
}

// epgGoArgument writes the name of an operation's argument, for messages of bindings that find a
// bad argument before the call.
//
//export epgGoArgument
func epgGoArgument(name *C.char, index, isOutput C.int32_t, text *C.char, capacity C.size_t) {
	signature, _ := op.SignatureOf(C.GoString(name))
	list := signature.Inputs
	if isOutput != 0 {
		list = signature.Outputs
	}
	if i := int(index); i < len(list) && int(capacity) > len(list[i].Name) {
		out := unsafe.Slice((*byte)(unsafe.Pointer(text)), int(capacity))
		out[copy(out, list[i].Name)] = 0
	}
}
