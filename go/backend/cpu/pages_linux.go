package cpu

import (
	"syscall"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

const (
	hugePage = 2 << 20
	// leastHinted is the size from which results are fresh every time: glibc's allocator keeps what is smaller.
	leastHinted = 32 << 20
	adviseHuge  = 14 // MADV_HUGEPAGE
)

// hintPages asks the kernel for huge pages under large results that are about to be written: where they are fresh, that makes a few hundred page faults
// of one. It is a hint only, and what is not wholly within a result is not touched.
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
		start := uintptr(r.At(v))
		first := (start + hugePage - 1) &^ (hugePage - 1)
		end := (start + uintptr(elements*v.DType.Size())) &^ (hugePage - 1)
		if first < end {
			syscall.RawSyscall(syscall.SYS_MADVISE, first, end-first, adviseHuge) // fails where a kernel has none
		}
	}
}
