// Plans: what a program outside Go holds of go/op's.

package cbridge

/*
#include <stdlib.h>
#include "bridge.h"
*/
import "C"

import (
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
)

// plans are the open plans by their handles, which are never used twice: a stale one is an error,
// never another caller's plan.
var (
	plans    sync.Map
	lastPlan atomic.Int64
)

// openPlan is a plan with its facts, whose texts are one block of C's memory, at which op begins.
type openPlan struct {
	*op.Plan
	facts C.epg_plan_facts
}

func open(p *op.Plan) C.epg_plan {
	sku, precision := p.Sku(), p.Precision()
	facts := C.epg_plan_facts{
		struct_size: C.sizeof_epg_plan_facts, vector_width: C.int32_t(sku.VectorWidth), deterministic: flag(precision.Deterministic),
		bit_stable_on_same_hardware: flag(precision.BitStableOnSameHardware), batch_invariant: flag(precision.BatchInvariant),
	}
	texts := []string{sku.Op, sku.Kind, sku.DType, sku.Accumulator, precision.MathPrecision, sku.Backend, sku.Arch, sku.Kernel, sku.Layout}
	places := []**C.char{
		&facts.op, &facts.kind, &facts.dtype, &facts.accumulator, &facts.math_precision, &facts.backend, &facts.arch, &facts.kernel, &facts.layout,
	}
	next := unsafe.Pointer(C.CString(strings.Join(texts, "\x00")))
	for i, place := range places {
		*place = (*C.char)(next)
		next = unsafe.Add(next, len(texts[i])+1)
	}
	handle := C.epg_plan(lastPlan.Add(1))
	plans.Store(handle, &openPlan{p, facts})
	return handle
}

func flag(on bool) C.int32_t {
	if on {
		return 1
	}
	return 0
}

func planOf(handle C.epg_plan) (*openPlan, error) {
	if p, ok := plans.Load(handle); ok {
		return p.(*openPlan), nil
	}
	return nil, noPlan(handle)
}

func noPlan(handle C.epg_plan) error {
	return status.Errorf(status.InvalidProblem, "plan: handle %d is not an open plan", int64(handle))
}

//export epgGoPlanCreate
func epgGoPlanCreate(c *C.epg_call, exactStrides *C.uint8_t, plan *C.epg_plan) C.int32_t {
	return guarded(func() error {
		if plan == nil {
			return nullPointer("epg_plan_create", "plan", "a place for the plan")
		}
		var call decoded
		if err := call.decode(c); err != nil {
			return err
		}
		inputs := len(call.call.Inputs)
		exact := make([]bool, inputs+len(call.call.Outputs))
		if exactStrides != nil {
			for i, e := range unsafe.Slice((*uint8)(exactStrides), len(exact)) {
				exact[i] = e != 0
			}
		}
		p, err := op.NewPlan(&call.call, exact[:inputs], exact[inputs:])
		if err == nil {
			*plan = open(p)
		}
		return err
	})
}

//export epgGoPlanWorkspace
func epgGoPlanWorkspace(plan C.epg_plan, bytes *C.uint64_t) C.int32_t {
	return guarded(func() error {
		if bytes == nil {
			return nullPointer("epg_plan_workspace", "workspace_nbytes", "a place for the number")
		}
		p, err := planOf(plan)
		if err == nil {
			*bytes = C.uint64_t(p.WorkspaceBytes())
		}
		return err
	})
}

//export epgGoPlanQuery
func epgGoPlanQuery(plan C.epg_plan, facts *C.epg_plan_facts) C.int32_t {
	return guarded(func() error {
		if facts == nil {
			return nullPointer("epg_plan_query", "facts", "an epg_plan_facts")
		}
		if err := sized("epg_plan_query", uintptr(facts.struct_size), unsafe.Sizeof(*facts)); err != nil {
			return err
		}
		p, err := planOf(plan)
		if err == nil {
			*facts = p.facts
		}
		return err
	})
}

//export epgGoPlanRun
func epgGoPlanRun(plan C.epg_plan, c *C.epg_call) C.int32_t { return withPlan(plan, c, (*op.Plan).Run) }

//export epgGoPlanValidate
func epgGoPlanValidate(plan C.epg_plan, c *C.epg_call) C.int32_t {
	return withPlan(plan, c, (*op.Plan).Validate)
}

func withPlan(plan C.epg_plan, c *C.epg_call, do func(*op.Plan, *op.Call) error) C.int32_t {
	return guarded(func() error {
		p, err := planOf(plan)
		if err != nil {
			return err
		}
		var call decoded
		if err := call.decodeFor(c, p.Signature()); err != nil {
			return err
		}
		return do(p.Plan, &call.call)
	})
}

//export epgGoPlanDestroy
func epgGoPlanDestroy(plan C.epg_plan) C.int32_t {
	return guarded(func() error {
		p, open := plans.LoadAndDelete(plan)
		if !open {
			return noPlan(plan)
		}
		C.free(unsafe.Pointer(p.(*openPlan).facts.op))
		return nil
	})
}
