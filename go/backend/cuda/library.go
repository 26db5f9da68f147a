package cuda

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -I${SRCDIR}/..
#cgo LDFLAGS: -ldl -lpthread -lm
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/status"
	kernels "github.com/epigrad/epigrad/kernels/cuda"
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

// openBLAS opens cuBLASLt: on the first call that succeeds, since PyTorch may be imported in
// between.
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
	var reason [reasonBytes]C.char
	if C.epg_blas_open(&reason[0], reasonBytes) != 0 {
		return status.Errorf(status.BackendUnavailable, "cuda: %s", C.GoString(&reason[0]))
	}
	openBLAS.done = true
	return nil
}

// requireLibraries says all that is missing here: compiled kernels, the driver, cuBLASLt.
func requireLibraries() error {
	var missing []string
	if !kernels.Built() {
		missing = append(missing, withoutKernels())
	}
	for _, err := range []error{openDriver(), requireBLAS()} {
		if err != nil {
			missing = append(missing, strings.TrimPrefix(err.Error(), "cuda: "))
		}
	}
	if missing == nil {
		return nil
	}
	return status.Errorf(status.BackendUnavailable, "cuda: %s", strings.Join(missing, "; and "))
}

// withoutKernels is the reason why a build cannot use its kernels.
func withoutKernels() string {
	if stale := kernels.Stale(); len(stale) > 0 {
		return fmt.Sprintf("this build's CUDA kernels (%s) are of other sources than the rest of it: run 'make kernels' in the repository and build again",
			strings.Join(stale, ", "))
	}
	return "this build of epigrad lacks CUDA kernels: run 'make kernels' in the repository and build again, or install a wheel that has them"
}

const (
	leastDriver = 13000 // CUDA 13.0: what the kernels are compiled with
	leastMajor  = 8     // compute capability 8.0: the oldest that they are compiled for
)

// requireDevice refuses a driver or a GPU that the kernels cannot run on.
func requireDevice(d *C.epg_device) error {
	if d.driver < leastDriver {
		return status.Errorf(status.BackendUnavailable, "cuda: NVIDIA's driver is for CUDA %s, want one for 13.0: %s", driverOf(d), C.EPG_WANTED_DRIVER)
	}
	if d.major < leastMajor {
		return status.Errorf(status.BackendUnavailable, "cuda: %s has compute capability %d.%d, want 8.0 or newer", nameOf(d), int(d.major), int(d.minor))
	}
	return nil
}

// driverOf is the release of CUDA that the driver is for.
func driverOf(d *C.epg_device) string {
	return fmt.Sprintf("%d.%d", int(d.driver)/1000, int(d.driver)%1000/10)
}

// failed is the error of a library's call: the driver's or cuBLASLt's code and name, which
// DeviceError carries.
func failed(f *C.epg_failure) error {
	return backend.Failed(backendName, C.GoString(&f.call[0]), C.GoString(&f.name[0]), int(f.code), C.GoString(&f.text[0]))
}
