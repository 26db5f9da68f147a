//go:build cgo && amd64

package cpu

// #cgo CFLAGS: -std=c11 -O2
// #cgo noescape epg_elementwise
// #cgo nocallback epg_elementwise
// #cgo noescape epg_sum_rows
// #cgo nocallback epg_sum_rows
// #cgo noescape epg_sum_all
// #cgo nocallback epg_sum_all
// #include "calls.h"
import "C"

import "unsafe"

const (
	built       = true
	whyNotBuilt = ""
)

type table = *C.epg_engine

// Kernel is one of an engine's kernels.
type Kernel struct{ run *C.epg_kernel }

// Go's constants and structs have the values and layouts of C's.
var (
	_ [C.EPG_OUTPUTS]struct{}   = [Outputs]struct{}{}
	_ [C.EPG_INPUTS]struct{}    = [Inputs]struct{}{}
	_ [C.EPG_MOST_RANK]struct{} = [MostRank]struct{}{}
	_ [C.EPG_GROUP]struct{}     = [Group]struct{}{}
	_ [C.EPG_BLOCK]struct{}     = [Block]struct{}{}

	_ [C.sizeof_epg_loops]struct{} = [unsafe.Sizeof(Loops{})]struct{}{}
	_ [C.sizeof_epg_run]struct{}   = [unsafe.Sizeof(Row{})]struct{}{}
)

func newEngine(name string, vectorBytes int) *Engine {
	e := &Engine{Name: name, VectorBytes: vectorBytes, kernels: map[string]Kernel{}}
	switch name {
	case "avx512":
		e.table = &C.epg_engine_avx512
	case "avx2":
		e.table = &C.epg_engine_avx2
	}
	for _, list := range e.table.kernels {
		for _, entry := range unsafe.Slice(list.entries, list.count) {
			e.kernels[C.GoString(entry.name)] = Kernel{entry.run}
		}
	}
	return e
}

// Elementwise computes the elements [first, first+count) of a walk.
func (e *Engine) Elementwise(k Kernel, l *Loops, first, count int64, numbers *Numbers, at *Addresses) {
	C.epg_elementwise(e.table, k.run, (*C.epg_loops)(unsafe.Pointer(l)), C.int64_t(first), C.int64_t(count), (*C.double)(&numbers[0]),
		at[0], at[1], at[2], at[3], at[4], at[5], at[6])
}

// SumRows adds, for each row [first, first+count) of a walk, a run of terms to the columns of the sums: WholeGroups(row.Count) totals, and as many errors.
func (e *Engine) SumRows(k Kernel, rows *Loops, row *Row, first, count int64, numbers *Numbers, at *Addresses, sums *Sums) {
	to := sums.addresses()
	C.epg_sum_rows(e.table, k.run, (*C.epg_loops)(unsafe.Pointer(rows)), (*C.epg_run)(unsafe.Pointer(row)), C.int64_t(first), C.int64_t(count),
		(*C.double)(&numbers[0]), at[0], at[1], at[2], at[3], at[4], at[5], at[6], (*C.double)(to[0]), (*C.double)(to[1]), (*C.double)(to[2]))
}

// SumAll adds the terms [first, first+count) of a walk to Group lanes: as many totals, and as many errors.
func (e *Engine) SumAll(k Kernel, l *Loops, first, count int64, numbers *Numbers, at *Addresses, sums *Sums) {
	to := sums.addresses()
	C.epg_sum_all(e.table, k.run, (*C.epg_loops)(unsafe.Pointer(l)), C.int64_t(first), C.int64_t(count), (*C.double)(&numbers[0]),
		at[0], at[1], at[2], at[3], at[4], at[5], at[6], (*C.double)(to[0]), (*C.double)(to[1]), (*C.double)(to[2]))
}
