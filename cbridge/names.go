package cbridge

/*
#include "bridge.h"
*/
import "C"

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/op"
)

// epgGoArgument writes the name of an operation's argument, for messages of bindings that find a bad argument before the call.
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
