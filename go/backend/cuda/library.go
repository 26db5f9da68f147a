package cuda

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra
#cgo LDFLAGS: -ldl -lpthread -lm
#include <stdlib.h>
#include "cuda.h"
*/
import "C"

import (
	"os"
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/status"
)

// reasonBytes is the room for what a library says of itself.
const reasonBytes = 512

// openDriver opens NVIDIA's driver, once.
var openDriver = sync.OnceValue(func() error {
	var reason [reasonBytes]C.char
	if C.epg_cuda_open(&reason[0], reasonBytes) != 0 {
		return status.Errorf(status.BackendUnavailable, "cuda: %s", C.GoString(&reason[0]))
	}
	return nil
})

// openBLAS opens cuBLASLt: on the first call that succeeds, since PyTorch may be imported in between.
var openBLAS = struct {
	sync.Mutex
	done bool
}{}

func requireBLAS() error {
	openBLAS.Lock()
	defer openBLAS.Unlock()
	if openBLAS.done {
		return nil
	}
	path := C.CString(os.Getenv("EPIGRAD_CUBLASLT"))
	defer C.free(unsafe.Pointer(path))
	var reason [reasonBytes]C.char
	if C.epg_blas_open(path, &reason[0], reasonBytes) != 0 {
		return status.Errorf(status.BackendUnavailable, "cuda: %s", C.GoString(&reason[0]))
	}
	openBLAS.done = true
	return nil
}

// failed is the error of a library's call: the driver's or cuBLASLt's code and name, which DeviceError carries.
func failed(f *C.epg_failure) error {
	e := status.Errorf(status.DeviceFailure, "cuda: %s: %s (%d): %s",
		C.GoString(&f.call[0]), C.GoString(&f.name[0]), int(f.code), C.GoString(&f.text[0]))
	e.Got = int64(f.code)
	return e
}
