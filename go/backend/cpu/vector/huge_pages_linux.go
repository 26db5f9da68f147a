package vector

import (
	"syscall"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

const (
	hugePage = 2 << 20
	// leastHinted is the size from which results may be fresh: glibc's allocator gives back what is
	// left at its end.
	leastHinted = 4 << 20
	adviseHuge  = 14 // MADV_HUGEPAGE
)

// hintPages asks the kernel for huge pages under large results that are about to be written: where
// they are fresh, that saves a few hundred page faults for each (docs/design/cpu.md). It is a hint
// only, and what is not wholly within a result is not touched.
func hintPages(r *backend.Run, results ...*tensor.View) {
	for _, v := range results {
		if v == nil || v.Numel()*v.DType.Size() < leastHinted {
			continue
		}
		elements := int64(1)
		for d, n := range v.Shape {
			if v.Strides[d] < 0 {
				elements = 0
				break
			}
			elements += (n - 1) * v.Strides[d]
		}
		if elements <= 0 || elements > 2*v.Numel() {
			continue // mostly memory that is not the result's
		}
		hintMemory(r.At(v), elements*v.DType.Size())
	}
}

// hintMemory asks for huge pages wholly within a range.
func hintMemory(at unsafe.Pointer, bytes int64) {
	first := (uintptr(at) + hugePage - 1) &^ (hugePage - 1)
	end := (uintptr(at) + uintptr(bytes)) &^ (hugePage - 1)
	if first < end {
		// fails where a kernel has none
		syscall.RawSyscall(syscall.SYS_MADVISE, first, end-first, adviseHuge)
	}
}
