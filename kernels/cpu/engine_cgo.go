//go:build cgo && (amd64 || arm64)

package cpu

// #cgo CFLAGS: -std=c11 -O2
// #cgo noescape epg_elementwise
// #cgo nocallback epg_elementwise
// #cgo noescape epg_sum
// #cgo nocallback epg_sum
// #cgo noescape epg_product
// #cgo nocallback epg_product
// #cgo noescape epg_pass
// #cgo nocallback epg_pass
// #cgo noescape epg_largest
// #cgo nocallback epg_largest
// #cgo noescape epg_lift
// #cgo nocallback epg_lift
// #include <stdlib.h>
// #include "tasks.h"
import "C"

import "unsafe"

const (
	built       = true
	whyNotBuilt = ""
)

type table = *C.epg_engine

// Kernel is one of an engine's kernels.
type Kernel struct{ run *C.epg_kernel }

// Go's constants have the values of C's, and its structs the sizes; internal/mirror compares their
// fields.
var (
	_ [C.EPG_OUTPUTS]struct{}   = [Outputs]struct{}{}
	_ [C.EPG_INPUTS]struct{}    = [Inputs]struct{}{}
	_ [C.EPG_MOST_RANK]struct{} = [MostRank]struct{}{}
	_ [C.EPG_GROUP]struct{}     = [Group]struct{}{}
	_ [C.EPG_BLOCK]struct{}     = [Block]struct{}{}

	_ [C.EPG_MOST_PARAMETERS]struct{} = [len(Parameters{})]struct{}{}

	_ [C.EPG_LEAST_EXPONENTS]struct{} = [LeastExponents]struct{}{}
	_ [C.EPG_PANELS]struct{}          = [StripPanels]struct{}{}
	_ [C.EPG_PAIRS]struct{}           = [MostPairs]struct{}{}

	_ [C.sizeof_epg_loops]struct{}   = [unsafe.Sizeof(Loops{})]struct{}{}
	_ [C.sizeof_epg_operand]struct{} = [unsafe.Sizeof(Operand{})]struct{}{}
	_ [C.sizeof_epg_tile]struct{}    = [unsafe.Sizeof(Tile{})]struct{}{}
	_ [C.sizeof_epg_cut]struct{}     = [unsafe.Sizeof(Cut{})]struct{}{}
	_ [C.sizeof_epg_sums]struct{}    = [unsafe.Sizeof(Sums{})]struct{}{}
	_ [C.sizeof_epg_crew]struct{}    = [unsafe.Sizeof(Crew{})]struct{}{}
	_ [C.EPG_FORMS]struct{}          = [forms]struct{}{}
)

func newEngine(name string, vectorBytes int) *Engine {
	e := &Engine{Name: name, VectorBytes: vectorBytes, table: tables[name], kernels: map[string]Kernel{}}
	for _, list := range e.table.kernels {
		for _, entry := range unsafe.Slice(list.entries, list.count) {
			e.kernels[C.GoString(entry.name)] = Kernel{entry.run}
		}
	}
	return e
}

// Elementwise computes the elements [first, first+count) of a walk, each at a time.
func (e *Engine) Elementwise(crew *Crew, k Kernel, l *Loops, first, count, each int64, parameters *Parameters, at *Addresses) {
	C.epg_elementwise(e.table, crew.c(), k.run, (*C.epg_loops)(unsafe.Pointer(l)), C.int64_t(first), C.int64_t(count), C.int64_t(each), (*C.double)(&parameters[0]), at.c())
}

// NewPass returns an epg_program of a walk of so many elements, nil if there is no memory for it.
// Operands lie Offset bytes behind the address of the call's operand of a number; that of absent
// ones is negative.
func (e *Engine) NewPass(k Kernel, l *Loops, count int64, operand, offset *[Operands]int64) unsafe.Pointer {
	return unsafe.Pointer(C.epg_pass(e.table, k.run, (*C.epg_loops)(unsafe.Pointer(l)), C.int64_t(count), (*C.int64_t)(&operand[0]), (*C.int64_t)(&offset[0])))
}

// FreePass ends what NewPass returned.
func FreePass(program unsafe.Pointer) { C.free(program) }

// Allocate returns memory that starts on a cache line, nil if there is none: Go would end the
// process then. It is not cleared.
func Allocate(bytes int64) unsafe.Pointer {
	const line = 64
	return unsafe.Pointer(C.aligned_alloc(line, C.size_t((max(bytes, 1)+line-1)&^(line-1))))
}

// Free gives back what Allocate returned.
func Free(memory unsafe.Pointer) { C.free(memory) }

// Sum sums a kernel's results into as many columns, which are pieces of an index over Outer: to the
// tensors at to, of the outputs that are summed. Totals have room for those of each member of the
// crew, or, if there are several chunks, of each task; done is then zeros, one for each column.
func (e *Engine) Sum(crew *Crew, k Kernel, s *Sums, columns int64, parameters *Parameters, at *Addresses, to *[Outputs]unsafe.Pointer, totals []float64, done []int32) {
	C.epg_sum(e.table, crew.c(), k.run, (*C.epg_sums)(unsafe.Pointer(s)), C.int64_t(columns), (*C.double)(&parameters[0]), at.c(),
		*(*C.epg_targets)(unsafe.Pointer(to)), (*C.double)(unsafe.SliceData(totals)), (*C.int32_t)(unsafe.SliceData(done)))
}

// Widths are the rows of a panel of the left and of the right operand, 0 where the engine lacks the
// form.
func (e *Engine) Widths(f Form) (left, right int64) {
	return int64(e.table.left_width[f]), int64(e.table.right_width[f])
}

// Product packs operands, and computes a block when all is packed; out, pre and bias are the
// matrices' addresses, nil where one is absent.
func (e *Engine) Product(crew *Crew, left, right *Packing, block *Tile, cut *Cut, sums, out, pre, bias unsafe.Pointer) {
	C.epg_product(e.table, crew.c(), left.c(), right.c(), (*C.epg_tile)(unsafe.Pointer(block)), (*C.epg_cut)(unsafe.Pointer(cut)),
		C.epg_memory{bytes(sums), bytes(out), bytes(pre), bytes(bias)})
}

// Largest returns the exponent of the largest magnitude, as it is stored: all ones where a number
// is not finite.
func (e *Engine) Largest(crew *Crew, p *Panels) int64 {
	return int64(C.epg_largest(e.table, crew.c(), C.int64_t(p.Form), bytes(p.At), C.int64_t(p.Rows), C.int64_t(p.Bytes), C.int64_t(p.Stride)))
}

// Lift multiplies numbers by a power of two.
func (e *Engine) Lift(crew *Crew, p *Panels, powers int64) {
	C.epg_lift(e.table, crew.c(), C.int64_t(p.Form), bytes(p.At), C.int64_t(p.Rows), C.int64_t(p.Bytes), C.int64_t(p.Stride), C.int64_t(powers))
}

func (c *Crew) c() *C.epg_crew { return (*C.epg_crew)(unsafe.Pointer(c)) }

func (a *Addresses) c() C.epg_addresses { return *(*C.epg_addresses)(unsafe.Pointer(a)) }

func (p *Packing) c() C.epg_packing {
	c := C.epg_packing{to: bytes(p.To), smallest: (*C.int16_t)(unsafe.SliceData(p.Smallest))}
	for i, o := range p.Operand {
		c.operand[i], c.from[i] = (*C.epg_operand)(unsafe.Pointer(o)), bytes(p.From[i])
	}
	return c
}

// bytes is memory in which cgo need not look for pointers.
func bytes(p unsafe.Pointer) *C.char { return (*C.char)(p) }
