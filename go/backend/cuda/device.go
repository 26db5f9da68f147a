package cuda

/*
#include <stdlib.h>
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/status"
	kernels "github.com/epigrad/epigrad/kernels/cuda"
)

// device is one GPU in its primary context. Its kernels are loaded when the first of their image is
// asked for.
type device struct {
	processors int  // streaming multiprocessors
	boxes      bool // whether it can run product_sm90.cuh
	fuses      bool // whether product_sm80.cuh has its layers of a short depth
	compiled   func(symbol string) bool
	handle     *C.epg_device

	mutex     sync.Mutex
	hasBLAS   bool
	libraries map[string]C.epg_library  // by image
	functions map[string]C.epg_function // by symbol
}

var devices = struct {
	sync.Mutex
	open map[int]*device
}{open: map[int]*device{}}

// deviceOf returns the GPU with an ordinal.
func deviceOf(ordinal int) (*device, error) {
	if err := requireLibraries(); err != nil {
		return nil, err
	}
	devices.Lock()
	defer devices.Unlock()
	if d, ok := devices.open[ordinal]; ok {
		return d, nil
	}
	handle := (*C.epg_device)(C.calloc(1, C.sizeof_epg_device)) // kept: a device is never closed
	var failure C.epg_failure
	err := requireKnown(ordinal, handle)
	if err == nil && C.epg_cuda_device(C.int(ordinal), handle, &failure) != 0 {
		err = failed(&failure)
	}
	if err != nil {
		C.free(unsafe.Pointer(handle))
		return nil, err
	}
	d := &device{
		processors: int(handle.processors), boxes: canBox(handle), fuses: fusesLayers(int(handle.major), int(handle.minor)), compiled: kernels.Has, handle: handle,
		libraries: map[string]C.epg_library{}, functions: map[string]C.epg_function{},
	}
	devices.open[ordinal] = d
	return d, nil
}

// fusesLayers reports whether product_sm80.cuh may be faster than BLAS and a pass: its warps keep
// the tensor cores of an A100 (8.0) less busy than BLAS does, and those of 8.6, 8.9 and 12.0 do
// half as much in a clock. No such GPU has been measured.
func fusesLayers(major, minor int) bool { return major == 8 && minor > 0 || major == 12 }

// countDevices is how many GPUs the driver sees.
func countDevices() (int, error) {
	var failure C.epg_failure
	count := int(C.epg_cuda_count(&failure))
	if count < 0 {
		return 0, failed(&failure)
	}
	return count, nil
}

// requireKnown refuses a device that is not there, or that kernels cannot run on, before a context
// takes memory there.
func requireKnown(ordinal int, handle *C.epg_device) error {
	count, err := countDevices()
	if err != nil {
		return err
	}
	if ordinal < 0 || ordinal >= count {
		return status.Errorf(status.BackendUnavailable, "cuda: device: got cuda:%d, want an index below %d, the number of GPUs that NVIDIA's driver sees", ordinal, count)
	}
	var failure C.epg_failure
	if C.epg_cuda_describe(C.int(ordinal), handle, &failure) != 0 {
		return failed(&failure)
	}
	return requireDevice(handle)
}

func (d *device) name() string { return nameOf(d.handle) }
func (d *device) arch() string { return archOf(d.handle) }

// nameOf is the driver's name of a device.
func nameOf(d *C.epg_device) string { return C.GoString(&d.name[0]) }

// archOf is a device's architecture as nvcc spells it.
func archOf(d *C.epg_device) string { return fmt.Sprintf("sm_%d%d", int(d.major), int(d.minor)) }

// startsEarly reports whether a launch may start early: on GPUs whose machine code for it is in
// every image, and with drivers that also record it in graphs.
func (d *device) startsEarly() bool { return d.handle.major == 9 && d.handle.driver >= 12040 }

// function finds a kernel by its symbol.
func (d *device) function(symbol string) (C.epg_function, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if f, ok := d.functions[symbol]; ok {
		return f, nil
	}
	image, ok := kernels.ImageOf(symbol)
	if !ok {
		return nil, status.Errorf(status.Unsupported, "cuda: this build has no kernel %s", symbol)
	}
	var failure C.epg_failure
	library, ok := d.libraries[image.Name]
	if !ok {
		var pin runtime.Pinner
		pin.Pin(&image.Data[0])
		defer pin.Unpin()
		if C.epg_cuda_load(d.handle, unsafe.Pointer(&image.Data[0]), &library, &failure) != 0 {
			return nil, failed(&failure)
		}
		d.libraries[image.Name] = library
	}
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	var f C.epg_function
	if C.epg_cuda_function(library, name, &f, &failure) != 0 {
		return nil, failed(&failure)
	}
	d.functions[symbol] = f
	return f, nil
}

// blas makes the device's cuBLASLt handle on first use.
func (d *device) blas() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.hasBLAS {
		return nil
	}
	var failure C.epg_failure
	if C.epg_blas_create(d.handle, &failure) != 0 {
		return failed(&failure)
	}
	d.hasBLAS = true
	return nil
}
