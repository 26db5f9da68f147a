// The Go half of prepared calls (prepared.c): it chooses a kernel, runs one that has no program,
// and lets it go.

package cbridge

/*
#cgo CFLAGS: -I${SRCDIR}/../go/backend
#include "bridge.h"
*/
import "C"

import (
	"runtime/cgo"
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tuning"
)

// In a tuning block, and after one, other kernels are chosen than before; and kernels that are to
// be forgotten are not to be held.
func init() {
	tuning.Watch(func() { C.epg_prepared_next_generation() })
	op.WatchCache(func() { C.epg_prepared_next_generation() })
}

//export epgGoPrepare
func epgGoPrepare(c *C.epg_call, prepared *C.epg_prepared) C.int32_t {
	return withCall(c, func(call *op.Call) error {
		p, err := op.Prepare(call)
		if err != nil || p == nil {
			return err
		}
		prepared.program, prepared.kernel = (*C.epg_program)(p.Program), C.uintptr_t(cgo.NewHandle(p.Kernel))
		prepared.num_inputs = C.int32_t(p.Inputs)
		prepared.num_parameters = C.int32_t(len(p.Parameters))
		for i, value := range p.Parameters {
			prepared.parameters[i] = C.double(value)
		}
		prepared.workspace_nbytes, prepared.workspace_alignment = C.uint64_t(p.Kernel.WorkspaceBytes()), C.uint64_t(p.WorkspaceAlignment)
		return nil
	})
}

// freeRuns are what kernels are told, by themselves: a call that is made again and again leaves no
// garbage.
var freeRuns = sync.Pool{New: func() any { return new(backend.Run) }}

// epgGoRunPrepared runs a kernel without a program on the operands' addresses.
//
//export epgGoRunPrepared
func epgGoRunPrepared(kernel C.uintptr_t, bases *C.uint64_t, count C.int32_t, a *C.epg_run_arguments) (code C.int32_t) {
	var err error
	run := freeRuns.Get().(*backend.Run)
	defer func() {
		finish(&code, &err, recover())
		*run = backend.Run{}
		freeRuns.Put(run)
	}()
	*run = backend.Run{
		Bases:     unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(bases)), count),
		Workspace: address(a.workspace), Stream: uintptr(a.stream), Threads: int(a.threads), Accumulate: a.accumulate != 0,
	}
	for i := range run.Parameters {
		run.Parameters[i] = float64(a.parameters[i])
	}
	k, _ := cgo.Handle(kernel).Value().(backend.Kernel)
	err = k.Run(run)
	return code
}

// address is memory of C's that a number names.
func address(number C.uint64_t) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&number)) }

//export epgGoRelease
func epgGoRelease(kernel C.uintptr_t) C.int32_t {
	return guarded(func() error {
		cgo.Handle(kernel).Delete()
		return nil
	})
}

// epgGoFailed makes a program's failure the thread's last error.
//
//export epgGoFailed
func epgGoFailed(name *C.char, f *C.epg_failure) (code C.int32_t) {
	err := backend.Failed(C.GoString(name), C.GoString(&f.call[0]), C.GoString(&f.name[0]), int(f.code), C.GoString(&f.text[0]))
	finish(&code, &err, nil)
	return code
}
