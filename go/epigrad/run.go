package epigrad

import (
	"runtime/debug"
	"unsafe"

	"github.com/epigrad/epigrad/cbridge/include"
	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	_ "github.com/epigrad/epigrad/go/backend/builtin" // the CPU backend
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// Options say how to compute; they never change a result.
type Options struct {
	// Threads is the most goroutines to use; 0 is GOMAXPROCS.
	Threads int
	// Workspace is scratch memory to use, for callers who avoid allocations. It is used from its
	// first address that suits; nil lets the call allocate. ErrWorkspaceTooSmall tells the bytes
	// that a problem needs.
	Workspace []byte
}

// Version returns epigrad's version.
func Version() string { return include.Version() }

// Activations lists the names that the field Activation takes.
func Activations() []string { return activation.Names() }

// GatedKinds lists the names that the field Kind takes.
func GatedKinds() []string { return activation.GatedNames() }

// ParametersOf lists the names of the parameters of an activation or a gated kind, in their order;
// nil for none.
func ParametersOf(kind string) []string {
	row, known := activation.Lookup(kind)
	parameters := row.Parameters
	if !known {
		gated, _ := activation.LookupGated(kind)
		parameters = gated.Parameters
	}
	var names []string
	for _, p := range parameters {
		names = append(names, p.Name)
	}
	return names
}

// run binds the tensors to the operation's arguments and computes.
func run(c op.Call, o Options, inputs, outputs []Operand) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = status.Errorf(status.Internal, "%s: panic: %v\n%s", c.Op, r, debug.Stack())
		}
	}()
	signature, _ := op.SignatureOf(c.Op)
	if c.Inputs, err = views(c.Op, signature.Inputs, inputs, 0); err != nil {
		return err
	}
	if c.Outputs, err = views(c.Op, signature.Outputs, outputs, len(inputs)); err != nil {
		return err
	}
	wanted := make([]bool, len(outputs))
	for i, v := range c.Outputs {
		wanted[i] = v != nil
	}
	_, needed, err := op.Infer(&c, wanted)
	if err != nil {
		return err
	}
	if needed > 0 {
		if c.Workspace, c.WorkspaceBytes, err = o.workspace(c.Op, needed, c.Inputs[0].Device); err != nil {
			return err
		}
	}
	c.Threads = o.Threads
	return op.Run(&c)
}

// Operand is a Tensor of any elements, where a call takes more than one type: weight gradients in
// float32 beside half types, a float32 scale, offsets of int32 or int64. Nil is none.
type Operand interface {
	view(op, argument string, operand int) (*tensor.View, error)
}

func views(name string, arguments []op.Argument, tensors []Operand, first int) ([]*tensor.View, error) {
	list := make([]*tensor.View, len(tensors))
	for i, t := range tensors {
		if t == nil {
			continue
		}
		v, err := t.view(name, arguments[i].Name, first+i)
		if err != nil {
			return nil, err
		}
		list[i] = v
	}
	return list, nil
}

// workspace returns aligned scratch of the caller's, or new.
func (o Options) workspace(name string, needed int64, device tensor.Device) (unsafe.Pointer, int64, error) {
	b, err := backend.ForDevice(device)
	if err != nil {
		return nil, 0, err
	}
	alignment := b.WorkspaceAlignment()
	given := o.Workspace
	if given == nil {
		given = make([]byte, needed+alignment-1)
	}
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(given))) % uintptr(alignment))
	if got := int64(len(given)) - skip; got < needed {
		e := status.Errorf(status.WorkspaceTooSmall, "%s: workspace: got %d bytes, want at least %d", name, len(given), needed+alignment-1)
		e.Needed, e.Got = needed+alignment-1, int64(len(given))
		return nil, 0, e
	}
	return unsafe.Pointer(&given[skip]), needed, nil
}
