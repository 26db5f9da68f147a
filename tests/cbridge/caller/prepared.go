package caller

/*
#cgo CFLAGS: -I${SRCDIR}/../../../cbridge -I${SRCDIR}/../../../go/backend
#include <stdlib.h>
#include <string.h>
#include "bridge.h"

// recorder is a program that keeps what it is run with, or fails.
typedef struct {
	epg_program program;
	uint64_t bases[EPG_MAX_INPUTS + EPG_MAX_OUTPUTS];
	epg_run_arguments arguments;
	int32_t code, runs;
} recorder;

static int record(const epg_program *program, const uint64_t *bases, const epg_run_arguments *arguments, epg_failure *failure) {
	recorder *r = (recorder *)program;
	r->runs++;
	if (r->code) {
		failure->code = r->code;
		strcpy(failure->call, "call");
		strcpy(failure->name, "NAME");
		strcpy(failure->text, "text");
		return -1;
	}
	memcpy(r->bases, bases, 4 * sizeof *bases);
	r->arguments = *arguments;
	return 0;
}

static void recorder_init(recorder *r) { r->program = (epg_program){"fake", record}; }
*/
import "C"

import "unsafe"

// Recorder is a program, as a backend's kernel may have one, that keeps what it is run with.
type Recorder struct{ c *C.recorder }

// NewRecorder returns a program that fails with a code, unless that is 0.
func NewRecorder(code int) *Recorder {
	r := &Recorder{(*C.recorder)(C.calloc(1, C.sizeof_recorder))}
	C.recorder_init(r.c)
	r.c.code = C.int32_t(code)
	return r
}

// Program is the epg_program.
func (r *Recorder) Program() unsafe.Pointer { return unsafe.Pointer(r.c) }

// Runs counts its runs; the other fields are the last run's.
func (r *Recorder) Runs() int         { return int(r.c.runs) }
func (r *Recorder) Base(i int) uint64 { return uint64(r.c.bases[i]) }
func (r *Recorder) Weight() float64   { return float64(r.c.arguments.parameters[0]) }
func (r *Recorder) Workspace() uint64 { return uint64(r.c.arguments.workspace) }
func (r *Recorder) Threads() int      { return int(r.c.arguments.threads) }
func (r *Recorder) Accumulate() bool  { return r.c.arguments.accumulate != 0 }

// Address is where a tensor's first element is.
func (t *Tensor) Address() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(t.Data)))) + t.ByteOffset
}

// Prepared is an epg_prepared.
type Prepared struct{ c C.epg_prepared }

// Prepare is epg_prepare.
func Prepare(c *Call) (*Prepared, Result) {
	var a arena
	defer a.free()
	p := (*C.epg_prepared)(a.alloc(C.sizeof_epg_prepared))
	r := result(func() C.int32_t { return C.epg_prepare(a.call(c), p) })
	return &Prepared{*p}, r
}

// Holds tells whether it has a kernel for such calls.
func (p *Prepared) Holds() bool { return p.c.kernel != 0 }

// HasProgram tells whether C can run such calls.
func (p *Prepared) HasProgram() bool { return p.c.program != nil }

// Current tells whether the same kernel would be chosen now.
func (p *Prepared) Current() bool { return p.c.generation == C.epg_prepared_generation() }

// Run is epg_prepared_run.
func (p *Prepared) Run(c *Call) Result {
	var a arena
	defer a.free()
	return result(func() C.int32_t {
		prepared := (*C.epg_prepared)(a.alloc(C.sizeof_epg_prepared))
		*prepared = p.c
		return C.epg_prepared_run(prepared, a.call(c))
	})
}

// Release is epg_prepared_release.
func (p *Prepared) Release() { C.epg_prepared_release(&p.c) }
