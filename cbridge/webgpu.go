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
func epgGoWebGPUConfigure(library, adapter *C.char, memory C.uint64_t) C.int32_t {
	return guarded(func() error {
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
		return nil
	})
}

//export epgGoWebGPUAlloc
func epgGoWebGPUAlloc(bytes C.uint64_t, data *unsafe.Pointer) C.int32_t {
	return guarded(func() error {
		if data == nil {
			return nullPointer("epg_webgpu_alloc", "data", "a place for the address")
		}
		address, err := webgpu.Allocate(signed(uint64(bytes)))
		if err == nil {
			*(*uintptr)(unsafe.Pointer(data)) = address
		}
		return err
	})
}

//export epgGoWebGPUFree
func epgGoWebGPUFree(data C.uintptr_t) C.int32_t {
	return guarded(func() error {
		if data == 0 {
			return nil
		}
		return webgpu.Free(uintptr(data))
	})
}

//export epgGoWebGPUWrite
func epgGoWebGPUWrite(data C.uintptr_t, from unsafe.Pointer, bytes C.uint64_t) C.int32_t {
	return guarded(func() error {
		if from == nil && bytes > 0 {
			return nullPointer("epg_webgpu_write", "from", "memory to read")
		}
		return webgpu.Write(uintptr(data), from, signed(uint64(bytes)))
	})
}

//export epgGoWebGPURead
func epgGoWebGPURead(data C.uintptr_t, to unsafe.Pointer, bytes C.uint64_t) C.int32_t {
	return guarded(func() error {
		if to == nil && bytes > 0 {
			return nullPointer("epg_webgpu_read", "to", "memory to write")
		}
		return webgpu.Read(uintptr(data), to, signed(uint64(bytes)))
	})
}
