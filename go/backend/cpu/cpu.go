// Package cpu is the CPU backend: portable Go kernels, correct before fast, and engines of vector kernels (kernels/cpu), which are tested against them.
//
// The Go kernels run formulas on float64 blocks whatever the storage dtype, so an element is rounded once. Products go through gonum's BLAS interfaces
// on packed tiles (product.go). Results do not depend on the number of threads: work is cut by shapes alone, and so it is where an engine has the kernel
// (vector.go). An engine leaves to the Go kernels what has more dimensions than it can walk.
package cpu

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"gonum.org/v1/gonum/blas/gonum"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/team"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
	"github.com/epigrad/epigrad/kernels/portable"
)

// workspaceAlignment is a cache line; CPU allocators (PyTorch's among them) give it.
const workspaceAlignment = 64

// anyStrides is the layout of every kernel here: each walks whatever strides it is given.
const anyStrides = "strided"

// Backend is the CPU backend with one engine, or with none.
type Backend struct {
	blas              level3
	engine            *kernels.Engine // nil for the Go kernels
	slowWithDenormals bool            // the processor is
	reason            string          // why the backend is not available: an engine was asked for that this machine cannot run, or threads that there are not
}

// portableEngine is the name of the engine that there is everywhere: the Go kernels.
const portableEngine = "go"

// New returns the backend on the engine that EPIGRAD_CPU_ENGINE names, or else on the best one that this machine can run.
func New() *Backend {
	name := os.Getenv("EPIGRAD_CPU_ENGINE")
	if name == "" {
		name = portableEngine
		if best := kernels.Best(); best != nil {
			name = best.Name
		}
	}
	return NewOn(name)
}

// Engines lists the names that NewOn takes, whether or not this machine can run them.
func Engines() []string { return append(kernels.Names(), portableEngine) }

// NewOn returns the backend on the engine of a name. One that cannot run here gives a backend that is not available, and says why.
func NewOn(name string) *Backend {
	b := &Backend{
		blas:              level3{name: "gonum", f32: gonum.Implementation{}, f64: gonum.Implementation{}},
		slowWithDenormals: kernels.SlowWithDenormals(),
	}
	if err := team.Check(); err != nil {
		b.reason = err.Error()
		return b
	}
	if name == portableEngine {
		return b
	}
	engine, err := kernels.Open(name)
	if err != nil {
		b.reason = fmt.Sprintf("EPIGRAD_CPU_ENGINE: %v; want one of %s, or unset it for the best one", err, strings.Join(Engines(), ", "))
	}
	b.engine = engine
	return b
}

// Name implements backend.Backend.
func (*Backend) Name() string { return "cpu" }

// Info implements backend.Backend.
func (b *Backend) Info() backend.Info {
	info := backend.Info{Name: "cpu", Device: "cpu", Available: b.reason == "", Reason: b.reason}
	if info.Available {
		info.Detail = fmt.Sprintf("engine %s on %s, %d CPUs, %s", b.EngineName(), runtime.GOARCH, runtime.NumCPU(), team.Threads())
	}
	return info
}

// FormulaError says how exact formulas are before they are rounded: an engine computes those of the half types in float32.
func (b *Backend) FormulaError(dt dtype.DType) float64 {
	if b.engine != nil && (dt == dtype.BFloat16 || dt == dtype.Float16) {
		return 0x1p-19
	}
	return 0
}

// EngineName is the name of the engine that kernels are taken from.
func (b *Backend) EngineName() string {
	if b.engine == nil {
		return portableEngine
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
	if k := b.selectVector(p); k != nil {
		return k, nil
	}
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

// selectVector returns the engine's kernel for a problem, or nil where there is none.
func (b *Backend) selectVector(p backend.Problem) backend.Kernel {
	if b.engine == nil {
		return nil
	}
	switch p := p.(type) {
	case *backend.Activation:
		return b.vectorActivation(p)
	case *backend.ActivationBackward:
		return b.vectorActivationBackward(p)
	case *backend.Gated:
		return b.vectorGated(p)
	case *backend.GatedBackward:
		return b.vectorGatedBackward(p)
	case *backend.Lerp:
		return b.vectorLerp(p)
	case *backend.LerpBackward:
		return b.vectorLerpBackward(p)
	case *backend.GemmEpilogue:
		return b.vectorGemmEpilogue(p)
	case *backend.GemmEpilogueBackward:
		return b.vectorGemmEpilogueBackward(p)
	}
	return nil
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

// vectorFacts describes a kernel of the engine. Formulas of float32 run in float64 there, those of the half types in float32.
func (b *Backend) vectorFacts(p backend.Problem, product string) facts {
	f := newFacts(p, product)
	_, _, dt := p.Describe()
	if dt == dtype.BFloat16 || dt == dtype.Float16 {
		f.precision.MathPrecision = dtype.Float32.String()
	}
	math, _ := dtype.Parse(f.precision.MathPrecision)
	f.sku.Arch, f.sku.VectorWidth = b.engine.Name, b.engine.VectorBytes/int(math.Size())
	return f
}

// formulaOf returns what makes an activation's formula of a run's parameters.
func formulaOf(activation string) (portable.Make, error) {
	formula, ok := portable.Lookup(activation)
	if !ok {
		return nil, status.Errorf(status.Unsupported, "the cpu backend has no formula for the activation %q", activation)
	}
	return formula, nil
}
