// The Go half of epg_webgpu_*: the device's settings, and arrays on it.

package cbridge

/*
#include "bridge.h"
*/
import "C"

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend/webgpu"
)

//export epgGoWebGPUConfigure
func epgGoWebGPUConfigure(library, adapter *C.char, memory C.uint64_t) (code C.int32_t) {
	var err error
	defer func() { finish(&code, &err, recover()) }()
	settings := webgpu.FromEnvironment()
	if library != nil {
		settings.Library = name(library)
	}
	if adapter != nil {
		settings.Adapter = name(adapter)
	}
	if memory != 0 {
		settings.MemoryBytes = signed(uint64(memory))
	}
	webgpu.Configure(settings)
	return code
}

//export epgGoWebGPUAlloc
func epgGoWebGPUAlloc(bytes C.uint64_t, data *unsafe.Pointer) (code C.int32_t) {
	var err error
	defer func() { finish(&code, &err, recover()) }()
	if data == nil {
		err = nullPointer("epg_webgpu_alloc", "data", "a place for the address")
		return code
	}
	var address uintptr
	if address, err = webgpu.Allocate(signed(uint64(bytes))); err == nil {
		*(*uintptr)(unsafe.Pointer(data)) = address
	}
	return code
}

//export epgGoWebGPUFree
func epgGoWebGPUFree(data C.uintptr_t) (code C.int32_t) {
	var err error
	defer func() { finish(&code, &err, recover()) }()
	if data != 0 {
		err = webgpu.Free(uintptr(data))
	}
	return code
}

//export epgGoWebGPUWrite
func epgGoWebGPUWrite(data C.uintptr_t, from unsafe.Pointer, bytes C.uint64_t) (code C.int32_t) {
	var err error
	defer func() { finish(&code, &err, recover()) }()
	if from == nil && bytes > 0 {
		err = nullPointer("epg_webgpu_write", "from", "memory to read")
		return code
	}
	err = webgpu.Write(uintptr(data), from, signed(uint64(bytes)))
	return code
}

//export epgGoWebGPURead
func epgGoWebGPURead(data C.uintptr_t, to unsafe.Pointer, bytes C.uint64_t) (code C.int32_t) {
	var err error
	defer func() { finish(&code, &err, recover()) }()
	if to == nil && bytes > 0 {
		err = nullPointer("epg_webgpu_read", "to", "memory to write")
		return code
	}
	err = webgpu.Read(uintptr(data), to, signed(uint64(bytes)))
	return code
}
