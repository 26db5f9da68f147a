// Package cpu is the portable CPU backend: Go kernels, correct before fast, which every faster engine is tested against.
//
// Formulas run on float64 blocks whatever the storage dtype, so an element is rounded once. Products go through gonum's BLAS interfaces
// on packed tiles (gemm.go). Results do not depend on the number of threads: work is cut by shapes alone.
package cpu

import (
	"fmt"
	"runtime"

	"gonum.org/v1/gonum/blas/gonum"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/kernels/portable"
)

// workspaceAlignment is a cache line; CPU allocators (PyTorch's among them) give it.
const workspaceAlignment = 64

// anyStrides is the layout of every kernel here: each walks whatever strides it is given.
const anyStrides = "strided"

// Backend is the portable CPU backend.
type Backend struct{ blas level3 }

// New returns the backend on gonum's own products.
func New() *Backend {
	return &Backend{level3{name: "gonum", f32: gonum.Implementation{}, f64: gonum.Implementation{}}}
}

// Name implements backend.Backend.
func (*Backend) Name() string { return "cpu" }

// Info implements backend.Backend: this backend can run everywhere.
func (*Backend) Info() backend.Info {
	return backend.Info{
		Name: "cpu", Available: true, Device: "cpu",
		Detail: fmt.Sprintf("portable Go kernels and gonum's products on %s, %d CPUs", runtime.GOARCH, runtime.NumCPU()),
	}
}

// TakesHostMemory implements backend.HostBackend.
func (*Backend) TakesHostMemory() bool { return true }

// WorkspaceAlignment implements backend.Backend.
func (*Backend) WorkspaceAlignment() int64 { return workspaceAlignment }

// Select implements backend.Backend.
func (b *Backend) Select(p backend.Problem) (backend.Kernel, error) {
	switch p := p.(type) {
	case *backend.Activation:
		return b.selectActivation(p)
	case *backend.ActivationBackward:
		return b.selectActivationBackward(p)
	case *backend.Gated:
		return b.selectGated(p)
	case *backend.GatedBackward:
		return b.selectGatedBackward(p)
	case *backend.Lerp:
		return b.selectLerp(p)
	case *backend.LerpBackward:
		return b.selectLerpBackward(p)
	case *backend.GemmEpilogue:
		return b.selectGemmEpilogue(p)
	case *backend.GemmEpilogueBackward:
		return b.selectGemmEpilogueBackward(p)
	default:
		op, _, _ := p.Describe()
		return nil, status.Errorf(status.Unsupported, "%s: the cpu backend has no kernel for it", op)
	}
}

// facts are what a kernel says of itself.
type facts struct {
	sku       backend.Sku
	precision backend.Precision
}

func (f *facts) Sku() backend.Sku             { return f.sku }
func (f *facts) Precision() backend.Precision { return f.precision }

// newFacts describes a kernel. product names the BLAS routine in front of the epilogue, if there is one.
func newFacts(p backend.Problem, product string) facts {
	op, kind, dt := p.Describe()
	kernel := op
	if kind != "" {
		kernel += "_" + kind
	}
	kernel += "_" + dt.Short()
	if product != "" {
		kernel = product + "+" + kernel
	}
	accumulator := dt.Accumulator() // sums over broadcast dimensions and bias sums are kept in more than that
	return facts{
		backend.Sku{
			Op: op, Kind: kind, DType: dt.String(), Accumulator: accumulator.String(), Backend: "cpu", Arch: runtime.GOARCH,
			Kernel: kernel, Layout: anyStrides, VectorWidth: 1,
		},
		backend.Precision{
			MathPrecision: dtype.Float64.String(), Accumulator: accumulator.String(),
			Deterministic: true, BitStableOnSameHardware: true,
		},
	}
}

func formulaOf(activation string) (*portable.Formula, error) {
	formula, ok := portable.Lookup(activation)
	if !ok {
		return nil, status.Errorf(status.Unsupported, "the cpu backend has no formula for the activation %q", activation)
	}
	return formula, nil
}
