// Package backend is the seam between operations and the machines that run them.
//
// go/op turns a call into a Problem, normalised and known to be valid; a Backend chooses a Kernel
// for it without touching data; the Kernel runs on any buffers of that geometry. go/op imports this
// package and no backend.
package backend

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/go/tuning"
)

// Info says whether a backend can run here.
type Info struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
	// Device is the device of the backend's tensors: "cpu", "cuda".
	Device string `json:"device"`
	// Detail describes the machine; empty when the backend is not available.
	Detail string `json:"detail"`
	// Reason says why the backend is not available and what would fix it, without its name; empty
	// when it is.
	Reason string `json:"reason"`
}

// Sku says what really runs for a problem.
type Sku struct {
	Op, Kind, DType, Accumulator, Backend, Arch, Kernel, Layout string

	VectorWidth int
}

// Precision says what a kernel guarantees about its numbers.
type Precision struct {
	// MathPrecision is the dtype that formulas are evaluated in, or "tf32" where products of
	// float32 are.
	MathPrecision string
	// Accumulator is the dtype that sums are kept in.
	Accumulator string
	// Deterministic: the same inputs give the same bits, run after run, for any number of threads.
	Deterministic bool
	// BitStableOnSameHardware: also from process to process on one kind of machine.
	BitStableOnSameHardware bool
	// BatchInvariant: bits of a row of the output, of the gradient to the input and of that to the
	// preactivation depend neither on other rows nor on how many there are.
	BatchInvariant bool
}

// Run is one execution of a kernel.
type Run struct {
	// Bases are the operands' buffers, indexed by View.Operand; nil where an operand is absent.
	Bases []unsafe.Pointer
	// Workspace is scratch of at least Kernel.WorkspaceBytes bytes, aligned to
	// Backend.WorkspaceAlignment.
	Workspace unsafe.Pointer
	// Stream is the device stream's handle; CPU kernels return when they are done.
	Stream uintptr
	// Threads is the most goroutines to use; 0 lets the backend choose.
	Threads int
	// Accumulate adds into the gradients of weights, biases and adapters in place of overwriting
	// them.
	Accumulate bool
	// Parameters are the numbers of the problem's formula (go/activation); or lerp's weight, where
	// no tensor gives it; or xielu's beta.
	Parameters [activation.MostParameters]float64
}

// WorkspaceOperand is the Operand of views into the workspace.
const WorkspaceOperand = -1

// At returns the address of a view's element [0, 0, ...].
func (r *Run) At(v *tensor.View) unsafe.Pointer {
	if v.Operand == WorkspaceOperand {
		return unsafe.Add(r.Workspace, v.Offset)
	}
	return unsafe.Add(r.Bases[v.Operand], v.Offset)
}

// Kernel is a chosen way to solve one problem. It may be run from several goroutines at once.
type Kernel interface {
	Sku() Sku
	Precision() Precision
	WorkspaceBytes() int64
	Run(r *Run) error
}

// Programmed is a Kernel that C can run by itself: Go's part ends when it is chosen.
type Programmed interface {
	Kernel
	// Program is an epg_program (program.h), which lives as long as the kernel does.
	Program() unsafe.Pointer
}

// Stager is a Kernel whose workspace depends on layouts: operands that its libraries cannot read in
// place are copied there.
type Stager interface {
	Kernel
	// MostWorkspaceBytes bounds the workspace of every kernel for the same operands, a saved
	// preactivation or none, in layouts no less contiguous.
	MostWorkspaceBytes() int64
}

// Backend chooses kernels.
type Backend interface {
	// Name is the word that users write. Asking for it opens nothing.
	Name() string
	// Info says whether the backend can run here, which may open a driver.
	Info() Info
	// WorkspaceAlignment is the alignment in bytes that workspaces need; at most 256.
	WorkspaceAlignment() int64
	// Select returns a kernel, or an Unsupported error for a meaningful problem that the backend
	// has no kernel for. At least one output is wanted.
	Select(p Problem) (Kernel, error)
}

// HostBackend is a Backend that can say that it also runs tensors in the host's memory, where a
// call names it.
type HostBackend interface {
	Backend
	TakesHostMemory() bool
}

// TokenReader is a Backend that can say whether a mixture with this number of hidden features reads
// the rows of tokens where they lie (GroupedLayer with Places). Others copy them first.
type TokenReader interface {
	Backend
	ReadsTokens(h Header, features int64, backward bool) bool
}

// Keeper is a Backend whose tensors are in memory that it gave out itself, by addresses that mean
// nothing elsewhere.
type Keeper interface {
	Backend
	// Holds returns an error unless these bytes from an address on lie in one piece of memory that
	// was given out and not given back.
	Holds(address uintptr, bytes int64) error
}

// Allocator is a Keeper that gives out memory.
type Allocator interface {
	Keeper
	Allocate(bytes int64) (address uintptr, err error)
	Free(address uintptr) error
}

// Problem is one of the types of problem.go and grouped.go.
type Problem interface {
	// Describe returns the op's name, its kind and its dtype.
	Describe() (op, kind string, dt dtype.DType)
	// Computes is Header.Formula.
	Computes() string
	// Tuning returns where the choices of the tuning block that the call is in are kept; nil
	// outside of blocks.
	Tuning() *tuning.File
	// IsBatchInvariant is Header.BatchInvariant.
	IsBatchInvariant() bool
	// AllowsTF32 is Header.AllowTF32.
	AllowsTF32() bool
	// Grouping is Header.Groups.
	Grouping() *tensor.View
}
