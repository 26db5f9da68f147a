package cuda

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// workspaceAlignment is what PyTorch's allocator gives, and what every region of a workspace starts at.
const workspaceAlignment = 256

// vectorBytes is the width of a vector access.
const vectorBytes = 16

// none is the place of a run-time value that a launch does not have.
const none = -1

// launch is one kernel launch, complete but for what a run brings: addresses, lerp's weight and whether to accumulate.
type launch struct {
	function    string // the kernel's symbol
	grid, block [3]uint32
	params      []byte // the kernel's only parameter, a struct
	pointers    []pointer
	weight      int // where in params Run.Weight goes, a float64; none
	accumulate  int // where in params Run.Accumulate goes, an int32; none
}

// pointer is an address in a launch's parameters.
type pointer struct {
	at   int // bytes into params
	view *tensor.View
}

// step is one kernel launch in two forms: vector where all its pointers are multiples of vectorBytes (nil if strides forbid it), general
// otherwise.
type step struct{ vector, general *launch }

func (step) compile(*compiler) error { return nil }

// builder collects a problem's steps and its workspace.
type builder struct {
	device  *device
	dt      dtype.DType
	program []operation
	scratch int64
}

// operation is one thing that a program does in its turn: a step, a product or a fill.
type operation interface{ compile(c *compiler) error }

// region is a contiguous tensor in the workspace.
func (b *builder) region(dt dtype.DType, shape ...int64) *tensor.View {
	v := &tensor.View{
		Operand: backend.WorkspaceOperand, DType: dt, Device: tensor.Device{Type: tensor.CUDA}, Offset: b.scratch,
		Shape: shape, Strides: tensor.ContiguousStrides(shape),
	}
	bytes := v.Numel() * dt.Size()
	b.scratch += (bytes + workspaceAlignment - 1) / workspaceAlignment * workspaceAlignment
	return v
}

// launch adds a step.
func (b *builder) launch(s step) { b.program = append(b.program, s) }

// bytesOf is the memory of a kernel's parameter struct, copied.
func bytesOf[T any](params *T) []byte {
	return append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(params)), unsafe.Sizeof(*params))...)
}
