// Package cpu is the CPU backend. Its best engine that the processor can run computes (vector, on
// kernels/cpu); what that engine cannot compute, and everything where there is none, is the
// portable engine's (reference), which the others are tested against. Results do not depend on the
// number of threads.
//
//	layout     how operands lie in memory: axes, matrices, walks
//	threads    tasks on PyTorch's OpenMP threads, or on goroutines
//	kernel     what kernels of both engines share
//	elements   elements of any dtype, in memory and as numbers
//	grouped    problems whose rows belong to groups, by either engine
//	reference  the portable engine, in Go
//	vector     the engines of vector instructions
package cpu

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/grouped"
	"github.com/epigrad/epigrad/go/backend/cpu/reference"
	"github.com/epigrad/epigrad/go/backend/cpu/threads/openmp"
	"github.com/epigrad/epigrad/go/backend/cpu/vector"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// workspaceAlignment is a cache line; CPU allocators (PyTorch's among them) give it.
const workspaceAlignment = 64

// Backend is the CPU backend with one engine.
type Backend struct {
	engine *vector.Engine // nil for the portable one
	reason string         // why the backend is not available; empty where it is
}

// New returns the backend on the engine that EPIGRAD_CPU_ENGINE names, or else on the best one that
// this machine can run.
func New() *Backend {
	name := os.Getenv("EPIGRAD_CPU_ENGINE")
	if name == "" {
		name = reference.Name
		if best := kernels.Best(); best != nil {
			name = best.Name
		}
	}
	return NewOn(name)
}

// Engines lists the names that NewOn takes, whether or not this machine can run them.
func Engines() []string { return append(kernels.Names(), reference.Name) }

// NewOn returns the backend on the engine of a name. One that cannot run here gives a backend that
// is not available, and says why.
func NewOn(name string) *Backend {
	if err := openmp.Check(); err != nil {
		return &Backend{reason: err.Error()}
	}
	if name == reference.Name {
		return &Backend{}
	}
	engine, err := vector.Open(name)
	if err != nil {
		return &Backend{reason: fmt.Sprintf(
			"EPIGRAD_CPU_ENGINE: %v; want one of %s, or unset it for the best one", err, strings.Join(Engines(), ", "),
		)}
	}
	return &Backend{engine: engine}
}

// Name implements backend.Backend.
func (*Backend) Name() string { return "cpu" }

// Info implements backend.Backend.
func (b *Backend) Info() backend.Info {
	info := backend.Info{Name: "cpu", Device: "cpu", Available: b.reason == "", Reason: b.reason}
	if info.Available {
		info.Detail = fmt.Sprintf(
			"engine %s on %s, %d CPUs, %s", b.EngineName(), runtime.GOARCH, runtime.NumCPU(), openmp.Threads(),
		)
	}
	return info
}

// FormulaError says how exact formulas are before they are rounded: an engine computes those of
// float32 and the half types in float32. Float32's are off by 2 ULP.
func (b *Backend) FormulaError(dt dtype.DType) float64 {
	switch {
	case b.engine == nil || dt == dtype.Float64:
		return 0
	case dt == dtype.Float32:
		return 0x1p-22
	default:
		return 0x1p-19
	}
}

// EngineName is the name of the engine that kernels are taken from.
func (b *Backend) EngineName() string {
	if b.engine == nil {
		return reference.Name
	}
	return b.engine.Name
}

// TakesHostMemory implements backend.HostBackend.
func (*Backend) TakesHostMemory() bool { return true }

// WorkspaceAlignment implements backend.Backend.
func (*Backend) WorkspaceAlignment() int64 { return workspaceAlignment }

// Select implements backend.Backend.
func (b *Backend) Select(p backend.Problem) (backend.Kernel, error) {
	if b.reason != "" {
		return nil, status.Errorf(status.BackendUnavailable, "cpu: %s", b.reason)
	}
	if k, err := grouped.Select(p, b.engineKernel); k != nil || err != nil {
		return k, err
	}
	return b.engineKernel(p)
}

// engineKernel chooses a kernel of a problem without groups.
func (b *Backend) engineKernel(p backend.Problem) (backend.Kernel, error) {
	if b.engine != nil {
		if k := b.engine.Select(p); k != nil {
			return k, nil
		}
	}
	return reference.Select(p)
}
