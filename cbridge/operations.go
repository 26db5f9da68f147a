// The tables that C looks names of operations and activations up in.

package cbridge

/*
#include "bridge.h"
*/
import "C"

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/op"
)

//export epgGoOperations
func epgGoOperations(table *C.epg_operation, capacity C.int32_t) C.int32_t {
	rows := unsafe.Slice(table, int(capacity))
	all := op.Rows()
	for i, s := range all {
		row := &rows[i]
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&row.name)), len(row.name)-1), s.Name)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&row.schema)), len(row.schema)-1), s.Schema)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&row.adapted)), len(row.adapted)-1), s.AdaptedSchema)
		row.own_inputs = C.int32_t(len(s.Inputs))
		if s.Adapted != nil {
			s.Signature = *s.Adapted
		}
		if s.Multiplies {
			row.multiplies = 1
		}
		if s.Factor {
			row.factor = 1
		}
		row.keeps = C.int32_t(s.Keeps)
		input := func(name string) int {
			return slices.IndexFunc(s.Inputs, func(a op.Argument) bool { return a.Name == name })
		}
		for j := range row.gradient_of {
			row.gradient_of[j] = -1
			if j >= len(s.Outputs) {
				continue
			}
			if of, is := strings.CutPrefix(s.Outputs[j].Name, "grad_"); is {
				row.gradient_of[j] = C.int32_t(input(of))
			}
			row.like[j] = C.int32_t(max(0, input(s.Outputs[j].Like)))
		}
	}
	return C.int32_t(len(all))
}

//export epgGoSlopes
func epgGoSlopes(table *C.epg_named_slope, capacity C.int32_t) C.int32_t {
	rows := unsafe.Slice(table, int(capacity))
	count := 0
	for _, name := range slices.Concat(activation.Names(), activation.Aliases()) {
		found, _ := activation.Lookup(name)
		slope := C.epg_slope(C.EPG_SLOPE_OF_OUTPUT)
		if found.Name == "none" {
			slope = C.EPG_SLOPE_OF_NOTHING
		} else if !found.FromOutput {
			continue
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&rows[count].name)), len(rows[count].name)-1), name)
		rows[count].slope = slope
		count++
	}
	return C.int32_t(count)
}
