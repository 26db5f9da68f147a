// Package openmp runs work on the threads that PyTorch has for its own.
//
// An OpenMP runtime keeps its threads spinning for milliseconds after a parallel region, so that
// the next one starts quickly. Goroutines on other threads share the processors with them: on two
// processors, half of one is spent on waiting. In a process where PyTorch is, its runtime is asked
// for the team that it has for the calling thread, as PyTorch's own operators do. Elsewhere, and
// where EPIGRAD_CPU_THREADS=goroutines says so, there is no team.
package openmp

import (
	"fmt"
	"os"
	"sync"
	"unsafe"
)

const (
	variable   = "EPIGRAD_CPU_THREADS"
	goroutines = "goroutines"
)

// Check refuses a value of EPIGRAD_CPU_THREADS that means nothing.
func Check() error {
	if value := os.Getenv(variable); value != "" && value != goroutines {
		return fmt.Errorf("%s: got %q, want %s, or unset it: PyTorch's threads are used if PyTorch is loaded", variable, value, goroutines)
	}
	return nil
}

// Threads says what work runs on in this process.
func Threads() string {
	if Entry() != nil {
		return "PyTorch's threads"
	}
	return goroutines
}

// Run calls member once on each of `threads` threads, the caller's among them, and returns when all
// calls have; false if there is no team, and nothing was called. A member must not panic.
//
// The number is PyTorch's: with a smaller one its runtime would end the threads that are left over,
// only to start them again for its next operator.
func Run(threads int, member func()) bool {
	if Entry() == nil {
		return false
	}
	run(threads, member)
	return true
}

// Entry is the runtime's function that starts a parallel region, GOMP_parallel, for callers that
// are C; nil if there is no team. It is looked for once.
var Entry = sync.OnceValue(func() unsafe.Pointer {
	if os.Getenv(variable) == goroutines {
		return nil
	}
	return find()
})
