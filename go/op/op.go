// Package op is what epigrad computes: each operation's shapes, what its arguments must satisfy,
// and how a call becomes a problem for a backend.
//
// A Call names an operation and its tensors. Infer tells the shapes of its outputs and the
// workspace it needs, Validate everything that Run would refuse, and Run does the work. Problems
// are validated and kernels chosen once for each geometry (plan.go); what depends on addresses is
// checked on every call.
package op

import (
	"slices"
	"unsafe"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// Gate is where the gates are: along the dimension of a gated activation's input that it splits, or
// among the rows of weight_in of gated_mlp and experts.
type Gate int

// The places. The values are those of epigrad.h.
const (
	GateSecond Gate = iota // the second half, as in torch.nn.functional.glu
	GateFirst              // the first half
	GateOdd                // every other one, from the second on
	GateEven               // every other one, from the first on
	gates
)

var gateNames = [gates]string{"second", "first", "odd", "even"}

// ParseGate returns the place of a name; "" is "second".
func ParseGate(op, name string) (Gate, error) {
	if name == "" {
		return GateSecond, nil
	}
	for gate, known := range gateNames {
		if known == name {
			return Gate(gate), nil
		}
	}
	return 0, check.OneOf(op, "gate", name, gateNames[:])
}

// Call is one use of an operation. The fields are in the order of epg_call and of Python's Call.
type Call struct {
	// Op is the operation's name; Signatures lists them.
	Op string
	// Kind is the activation or the gated kind; "" is the activation "none".
	Kind string
	// Parameters are the kind's, in the order of its row in go/activation; empty for the defaults.
	// Of lerp it is the weight, where no tensor gives it, and of xielu beta.
	Parameters []float64
	// Dim is the dimension that a gated activation splits; it may count from the end.
	Dim int
	// Gate is where the gates are, of gated_activation, gated_mlp and experts.
	Gate Gate
	// Accumulate adds into the gradients of weights, biases and adapters in place of overwriting
	// them.
	Accumulate bool
	// AllowTF32 lets float32 products be computed in TF32 where the hardware has it.
	AllowTF32 bool
	// BatchInvariant makes bits of a row of an operation with a product (of the output, and of the
	// gradients to the input and to the preactivation) depend neither on other rows nor on how many
	// there are.
	BatchInvariant bool
	// Backend names the backend that runs tensors in the host's memory; "" is the CPU's.
	Backend string
	// Inputs and Outputs are in the signature's order; nil is absent, and trailing absent ones may
	// be left out.
	Inputs, Outputs []*tensor.View
	// Workspace is caller-owned scratch of WorkspaceBytes bytes.
	Workspace      unsafe.Pointer
	WorkspaceBytes int64
	// AssumeWorkspace makes Validate take a sufficient workspace for granted; Run clears it.
	AssumeWorkspace bool
	// Stream is the device stream's handle.
	Stream uintptr
	// Threads is the most CPU threads to use; 0 lets the backend choose.
	Threads int
}

// operation is a signature with its rules.
type operation struct {
	Signature
	// kinds is the table that its kind is in; nil for an operation that has none, and a formula of
	// its own (backend.Pointwise).
	kinds   *kinds
	formula string
	// defaultKind is what a caller of PyTorch's operator may leave out; "" for none.
	defaultKind string
	// parameters are those of that formula.
	parameters []activation.Parameter
	// factor: a number of the call may stand for an operand, lerp's weight.
	factor bool
	// What the operation has, and so which fields of a call it takes:
	//
	//   halves        a gate, which is half of a dimension (Gate)
	//   splits        that dimension (Dim)
	//   multiplies    a product (AllowTF32, BatchInvariant)
	//   accumulates   gradients of weights and biases to add to (Accumulate)
	halves, splits, multiplies, accumulates bool
	// shapes validates the geometry of a call's inputs and returns each output's shape; nil for one
	// that cannot exist.
	shapes func(c *Call, inputs []*tensor.View) ([][]int64, error)
	// problem turns a valid call into one problem.
	problem func(c *Call, h backend.Header) backend.Problem
	// problems turns it into several, in order (steps.go). Tensors between them come from the
	// region. Where it is nil or returns nil, problem makes the only one.
	problems func(c *Call, h backend.Header, w *region) []backend.Problem
}

var operations = slices.Concat([]operation{
	matmul, matmulBackward, linear, linearBackward, activationForward, activationBackward, activationCurvature,
	gatedActivation, gatedActivationBackward, gatedActivationCurvature,
	gatedProduct, gatedProductBackward, gatedProductCurvature, lerp, lerpBackward,
}, learnableOperations(), []operation{
	gatedLinear, gatedLinearBackward, mlp, mlpBackward, gatedMLP, gatedMLPBackward,
	groupedLinear, groupedLinearBackward, experts, expertsBackward,
})

func learnableOperations() (all []operation) {
	for _, l := range learnables {
		all = append(all, l.operations()...)
	}
	return all
}

// Signatures lists every operation.
func Signatures() []Signature {
	all := make([]Signature, len(operations))
	for i := range operations {
		all[i] = operations[i].Signature
	}
	return all
}

// resolve finds a call's operation, and completes its kind and parameters.
func resolve(c *Call) (*operation, error) {
	if o := lookup(c.Op); o != nil {
		return o.completed(c)
	}
	return nil, Unknown(c.Op)
}

// lookup finds an operation, or a move of rows; nil for another name.
func lookup(name string) *operation {
	for _, list := range [][]operation{operations, moves} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func (o *operation) completed(c *Call) (*operation, error) {
	if err := o.meaningful(c); err != nil {
		return nil, err
	}
	return o, o.complete(c)
}

// Unknown is the error for a name that is no operation's.
func Unknown(name string) error {
	names := make([]string, len(operations))
	for i := range operations {
		names[i] = operations[i].Name
	}
	return check.OneOf("epigrad", "op", name, names)
}

// meaningful refuses what the operation does not have: nothing is ignored.
func (o *operation) meaningful(c *Call) error {
	switch {
	case c.Dim != 0 && !o.splits:
		return check.Invalid(o.Name, "dim", "got %d, want 0: this operation splits no dimension", c.Dim)
	case c.Gate != GateSecond && !o.halves:
		return check.Invalid(o.Name, "gate", "got %d, want 0: this operation takes no gate", c.Gate)
	case c.Gate < 0 || c.Gate >= gates:
		return check.Invalid(o.Name, "gate", "got %d, want 0 (the second half), 1 (the first), 2 (odd places) or 3 (even places)", c.Gate)
	case c.AllowTF32 && !o.multiplies:
		return check.Invalid(o.Name, "allow_tf32", "got true, want false: this operation has no matrix product")
	case c.BatchInvariant && !o.multiplies:
		return check.Invalid(o.Name, "batch_invariant", "got true, want false: this operation has no matrix product")
	}
	return nil
}

// input returns an input, nil where it is absent.
func (c *Call) input(i int) *tensor.View { return at(c.Inputs, i) }

// output returns an output, nil where it is absent.
func (c *Call) output(i int) *tensor.View { return at(c.Outputs, i) }

func at(views []*tensor.View, i int) *tensor.View {
	if i < len(views) {
		return views[i]
	}
	return nil
}

// operands pairs the call's tensors with their names.
func (o *operation) operands(c *Call) (inputs, outputs []check.Operand, err error) {
	if inputs, err = named(o.Name, "inputs", o.Inputs, c.Inputs, true); err != nil {
		return nil, nil, err
	}
	outputs, err = named(o.Name, "outputs", o.Outputs, c.Outputs, false)
	return inputs, outputs, err
}

func named(op, what string, args []Argument, views []*tensor.View, required bool) ([]check.Operand, error) {
	if len(views) > len(args) {
		return nil, check.Invalid(op, what, "got %d, want at most %d", len(views), len(args))
	}
	list := make([]check.Operand, len(args))
	for i, a := range args {
		list[i] = check.Operand{Name: a.Name, View: at(views, i), Replaces: a.Replaces, Types: a.Types}
		if list[i].View == nil && required && !a.Optional {
			return nil, check.Invalid(op, a.Name, "missing, want a tensor")
		}
	}
	return list, nil
}

// resolved is the valid geometry of a call.
type resolved struct {
	shapes [][]int64 // of the outputs; nil for one that cannot exist
	dtype  dtype.DType
	device tensor.Device
}

// geometry validates all that does not depend on addresses.
func (o *operation) geometry(c *Call) (r resolved, err error) {
	inputs, outputs, err := o.operands(c)
	if err != nil {
		return r, err
	}
	all := slices.Concat(inputs, outputs)
	if r.dtype, err = check.DType(o.Name, all); err != nil {
		return r, err
	}
	if r.device, err = check.Device(o.Name, all); err != nil {
		return r, err
	}
	if r.shapes, err = o.shapes(c, c.Inputs); err != nil {
		return r, err
	}
	if err := o.checkAdapters(c.Inputs); err != nil {
		return r, err
	}
	for i, out := range outputs {
		switch {
		case out.View == nil:
		case r.shapes[i] == nil:
			return r, check.Invalid(o.Name, out.Name, "got a tensor, want none: the call has no input that it belongs to")
		default:
			if err = check.Shape(o.Name, out.Name, out.View.Shape, r.shapes[i], "the result's"); err != nil {
				return r, err
			}
			if like := o.Outputs[i].Like; like != "" {
				if err = check.Like(o.Name, out, like, o.outputDType(c, i, r.dtype)); err != nil {
					return r, err
				}
			}
		}
	}
	if c.Accumulate && !o.accumulates {
		return r, check.Invalid(o.Name, "accumulate", "got true, want false: this operation has no weight or bias gradient")
	}
	return r, check.SelfOverlap(o.Name, outputs)
}

// filled returns the call's outputs with contiguous ones in the place of those that it leaves out;
// wanted has a flag for each, and nil is for all.
func (o *operation) filled(c *Call, r resolved, wanted []bool) ([]*tensor.View, error) {
	outputs := make([]*tensor.View, len(o.Outputs))
	for i, shape := range r.shapes {
		if shape == nil || wanted != nil && (i >= len(wanted) || !wanted[i]) {
			continue
		}
		if outputs[i] = c.output(i); outputs[i] != nil {
			continue
		}
		v, err := tensor.New(nil, 0, o.outputDType(c, i, r.dtype), r.device, shape, nil, len(o.Inputs)+i)
		if err != nil {
			return nil, check.Wrap(o.Name, o.Outputs[i].Name, err)
		}
		outputs[i] = &v
	}
	return outputs, nil
}

// Infer returns the shapes of the outputs, nil for those that cannot exist or that wanted says are
// not, and the bytes of workspace that a run needs, with the outputs that c gives and contiguous
// ones for the rest. It reads no memory.
func Infer(c *Call, wanted []bool) (shapes [][]int64, workspaceBytes int64, err error) {
	o, err := resolve(c)
	if err != nil {
		return nil, 0, err
	}
	r, err := o.geometry(c)
	if err != nil {
		return nil, 0, err
	}
	filled := *c
	if filled.Outputs, err = o.filled(c, r, wanted); err != nil {
		return nil, 0, err
	}
	shapes = make([][]int64, len(o.Outputs))
	for i, v := range filled.Outputs {
		if v != nil {
			shapes[i] = r.shapes[i]
		}
	}
	if r.device.Type == tensor.Meta {
		return shapes, 0, nil
	}
	k, err := o.kernel(&filled)
	if err != nil {
		return nil, 0, err
	}
	return shapes, k.WorkspaceBytes(), nil
}

// outputDType is the dtype of an output that a call of a dtype does not give.
func (o *operation) outputDType(c *Call, output int, dt dtype.DType) dtype.DType {
	for i, a := range o.Inputs {
		if v := c.input(i); v != nil && a.Name == o.Outputs[output].Like {
			return v.DType
		}
	}
	return dt
}

// Validate returns the error that Run would, and touches nothing.
func Validate(c *Call) error {
	o, err := resolve(c)
	if err != nil {
		return err
	}
	_, err = o.prepare(c)
	return err
}

// Run validates a call and computes it.
func Run(c *Call) error {
	o, err := resolve(c)
	if err != nil {
		return err
	}
	c.AssumeWorkspace = false
	k, err := o.prepare(c)
	if err != nil {
		return err
	}
	return k.Run(o.execution(c))
}

// Prepared is the state that calls of one geometry share, for a caller that repeats them: they
// need no more checks if their outputs overlap nothing, their addresses are multiples of their
// elements, and their workspace is as Run needs it.
type Prepared struct {
	Kernel backend.Kernel
	// Inputs are how many operands the kernel has before the outputs.
	Inputs int
	// Parameters are its formula's; none where it has none, or where each call gives them.
	Parameters []float64
	// Program is the kernel's, nil where it is Go's to run. It lives as long as the kernel.
	Program            unsafe.Pointer
	WorkspaceAlignment int64
}

// Prepare returns what a valid call shares with those like it; nil where each has to be checked.
func Prepare(c *Call) (*Prepared, error) {
	o, err := resolve(c)
	if err != nil {
		return nil, err
	}
	k, err := o.prepare(c)
	if err != nil {
		return nil, err
	}
	for _, v := range slices.Concat(c.Inputs, c.Outputs) {
		if v != nil && v.IsEmpty() { // it may have an invalid address
			return nil, nil
		}
	}
	b, err := c.runsOn()
	if err != nil {
		return nil, err
	}
	if _, ok := b.(backend.Keeper); ok { // it has to look up addresses in each call
		return nil, nil
	}
	p := &Prepared{Kernel: k, Inputs: len(o.Inputs), WorkspaceAlignment: b.WorkspaceAlignment()}
	if o.hasDefaults() {
		_, p.Parameters = o.computes(c)
	}
	if programmed, ok := k.(backend.Programmed); ok {
		p.Program = programmed.Program()
	}
	return p, nil
}

// runsOn is the backend that runs a valid call.
func (c *Call) runsOn() (backend.Backend, error) {
	// no operation has an optional first input
	return backend.ForTensors(c.Backend, c.Inputs[0].Device)
}

// prepare returns the kernel of a call in which everything is valid.
func (o *operation) prepare(c *Call) (backend.Kernel, error) {
	k, err := o.kernel(c)
	if err != nil {
		return nil, err
	}
	return k, o.memory(c, k.WorkspaceBytes())
}

// memory checks what depends on addresses.
func (o *operation) memory(c *Call, workspaceBytes int64) error {
	inputs, outputs, err := o.operands(c)
	if err != nil {
		return err
	}
	if err := check.Memory(o.Name, inputs); err != nil {
		return err
	}
	if err := check.Memory(o.Name, outputs); err != nil {
		return err
	}
	if err := check.Aliasing(o.Name, inputs, outputs); err != nil {
		return err
	}
	if err := o.held(inputs, outputs); err != nil {
		return err
	}
	if device := c.Inputs[0].Device; c.Stream != 0 && device.Type != tensor.CUDA {
		return check.Invalid(o.Name, "stream", "got %#x, want 0: tensors on %v have no streams", c.Stream, device)
	}
	if workspaceBytes == 0 || c.AssumeWorkspace {
		return nil
	}
	b, err := c.runsOn()
	if err != nil {
		return err
	}
	address, alignment := uintptr(c.Workspace), b.WorkspaceAlignment()
	if err := check.Workspace(o.Name, address, c.WorkspaceBytes, workspaceBytes, alignment, inputs); err != nil {
		return err
	}
	return check.Workspace(o.Name, address, c.WorkspaceBytes, workspaceBytes, alignment, outputs)
}

// held returns an error for a tensor outside of the memory that its backend gave out.
func (o *operation) held(lists ...[]check.Operand) error {
	for _, operands := range lists {
		for _, operand := range operands {
			v := operand.View
			if v == nil || v.IsEmpty() || v.Device.Type == tensor.CPU || v.Device.Type == tensor.CUDA {
				continue
			}
			b, err := backend.ForDevice(v.Device)
			if err != nil {
				return err
			}
			keeper, ok := b.(backend.Keeper)
			if !ok {
				continue
			}
			lo, hi, err := v.Extent()
			if err == nil {
				err = keeper.Holds(uintptr(v.Base)+uintptr(v.Offset+lo), hi-lo)
			}
			if err != nil {
				return check.Wrap(o.Name, operand.Name, err)
			}
		}
	}
	return nil
}

// execution binds a call's buffers.
func (o *operation) execution(c *Call) *backend.Run {
	inputs := len(o.Inputs)
	r := &backend.Run{
		Bases: make([]unsafe.Pointer, inputs+len(c.Outputs)), Workspace: c.Workspace,
		Stream: c.Stream, Threads: c.Threads, Accumulate: c.Accumulate,
	}
	_, parameters := o.computes(c)
	copy(r.Parameters[:], parameters)
	bind := func(views []*tensor.View, first int) {
		for i, v := range views {
			if v != nil && !v.IsEmpty() { // an empty tensor may have an invalid address
				r.Bases[first+i] = unsafe.Add(v.Base, v.Offset)
			}
		}
	}
	bind(c.Inputs, 0)
	bind(c.Outputs, inputs)
	return r
}

// unavailable is the error for tensors on a device without memory.
func unavailable(op string) error {
	return status.Errorf(status.Unsupported, "%s: inputs: got meta tensors, which have no data, want tensors on another device", op)
}

// SignatureOf returns an operation's signature and whether there is such an operation.
func SignatureOf(name string) (Signature, bool) {
	if o := lookup(name); o != nil {
		return o.Signature, true
	}
	return Signature{}, false
}
