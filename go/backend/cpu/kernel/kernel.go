// Package kernel has what the kernels of both CPU engines share: the facts that one states of
// itself, and kernels of several steps. It is no part of epigrad's API and may change in any
// release.
package kernel

import (
	"runtime"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// anyStrides is the layout of every kernel of the CPU: each walks whatever strides it is given.
const anyStrides = "strided"

// Facts are what a kernel says of itself.
type Facts struct {
	sku       backend.Sku
	precision backend.Precision
}

// Sku implements backend.Kernel.
func (f *Facts) Sku() backend.Sku { return f.sku }

// Precision implements backend.Kernel.
func (f *Facts) Precision() backend.Precision { return f.precision }

// FactsOf describes a portable kernel. product names what multiplies in front of the epilogue, if
// anything does.
func FactsOf(p backend.Problem, product string) Facts {
	op, kind, dt := p.Describe()
	name := op
	if kind != "" {
		name += "_" + kind
	}
	name += "_" + dt.Short()
	if product != "" {
		name = product + "+" + name
	}
	// sums over broadcast dimensions and bias sums are kept in more than that
	accumulator := dt.Accumulator()
	return Facts{
		backend.Sku{
			Op: op, Kind: kind, DType: dt.String(), Accumulator: accumulator.String(), Backend: "cpu", Arch: runtime.GOARCH,
			Kernel: name, Layout: anyStrides, VectorWidth: 1,
		},
		backend.Precision{
			MathPrecision: dtype.Float64.String(), Accumulator: accumulator.String(),
			Deterministic: true, BitStableOnSameHardware: true, BatchInvariant: true,
		},
	}
}

// On describes the same kernel of an engine, whose formulas run in a dtype.
func (f Facts) On(engine string, vectorBytes int, math dtype.DType) Facts {
	f.precision.MathPrecision = math.String()
	f.sku.Arch, f.sku.VectorWidth = engine, vectorBytes/int(math.Size())
	return f
}

// Of describes the same kernel, as one that has another compute.
func (f Facts) Of(other backend.Kernel) Facts {
	sku := other.Sku()
	f.precision, f.sku.Arch, f.sku.VectorWidth = other.Precision(), sku.Arch, sku.VectorWidth
	return f
}

// Step is one part of a kernel: a product, or a pass over the operands.
type Step func(r *backend.Run) error

// Sequence is a kernel of several steps, one after the other.
type Sequence struct {
	Facts
	Steps     []Step
	Workspace int64 // bytes
}

// WorkspaceBytes implements backend.Kernel.
func (k *Sequence) WorkspaceBytes() int64 { return k.Workspace }

// Run implements backend.Kernel.
func (k *Sequence) Run(r *backend.Run) error {
	for _, step := range k.Steps {
		if err := step(r); err != nil {
			return err
		}
	}
	return nil
}

// InWorkspace is a tensor at the workspace's start.
func InWorkspace(dt dtype.DType, shape ...int64) *tensor.View {
	return &tensor.View{Operand: backend.WorkspaceOperand, DType: dt, Shape: shape, Strides: tensor.ContiguousStrides(shape)}
}

// Bytes is the size of a contiguous tensor.
func Bytes(v *tensor.View) int64 { return v.Numel() * v.DType.Size() }
