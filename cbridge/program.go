package cbridge

/*
#cgo CFLAGS: -I${SRCDIR}/../go/backend
#include "bridge.h"
*/
import "C"

import (
	"runtime/cgo"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tuning"
)

// In a tuning block, and after one, other kernels are chosen than before; and kernels that are to be forgotten are not to be held.
func init() {
	tuning.Watch(func() { C.epg_programs_grow_old() })
	op.WatchCache(func() { C.epg_programs_grow_old() })
}

//export epgGoPrepare
func epgGoPrepare(c *C.epg_call, prepared *C.epg_prepared) (code C.int32_t) {
	var err error
	defer func() { finish(&code, &err, recover()) }()
	var call decoded
	if err = call.decode(c); err != nil {
		return code
	}
	program, kernel, alignment, failure := op.Program(&call.call)
	if err = failure; err == nil && program != nil {
		prepared.program, prepared.kernel = (*C.epg_program)(program), C.uintptr_t(cgo.NewHandle(kernel))
		prepared.workspace_nbytes, prepared.workspace_alignment = C.uint64_t(kernel.WorkspaceBytes()), C.uint64_t(alignment)
	}
	return code
}

//export epgGoRelease
func epgGoRelease(kernel C.uintptr_t) (code C.int32_t) {
	var err error
	defer func() { finish(&code, &err, recover()) }()
	cgo.Handle(kernel).Delete()
	return code
}

// epgGoFailed makes a program's failure the thread's last error.
//
//export epgGoFailed
func epgGoFailed(name *C.char, f *C.epg_failure) (code C.int32_t) {
	err := backend.Failed(C.GoString(name), C.GoString(&f.call[0]), C.GoString(&f.name[0]), int(f.code), C.GoString(&f.text[0]))
	finish(&code, &err, nil)
	return code
}
