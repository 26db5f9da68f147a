// The table of operations that C looks names up in.

package cbridge

/*
#include "bridge.h"
*/
import "C"

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/epigrad/epigrad/go/op"
)

//export epgGoOperations
func epgGoOperations(table *C.epg_operation, capacity C.int32_t) C.int32_t {
	rows := unsafe.Slice(table, int(capacity))
	signatures := op.Signatures()
	for i, s := range signatures {
		row := &rows[i]
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&row.name)), len(row.name)-1), s.Name)
		if op.Multiplies(s.Name) {
			row.multiplies = 1
		}
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
	return C.int32_t(len(signatures))
}
