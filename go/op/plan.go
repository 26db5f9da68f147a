package op

import (
	"encoding/binary"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/go/tuning"
)

// cacheCapacity bounds the kernels that are remembered. A program has a few hundred geometries;
// past the bound the cache starts anew.
const cacheCapacity = 4096

// cache remembers the kernel of each geometry: all that validation and choice depend on, and no
// address.
var cache = struct {
	sync.RWMutex
	kernels      map[string]backend.Kernel
	hits, misses atomic.Int64
}{kernels: map[string]backend.Kernel{}}

// CacheFacts returns how many kernels are remembered, and how often one was found and not found.
func CacheFacts() (size int, hits, misses int64) {
	cache.RLock()
	defer cache.RUnlock()
	return len(cache.kernels), cache.hits.Load(), cache.misses.Load()
}

// watchers are called when the cache was cleared.
var watchers []func()

// WatchCache has a function called whenever ClearCache has forgotten every kernel. It is for
// packages' initialisation.
func WatchCache(cleared func()) { watchers = append(watchers, cleared) }

// ClearCache forgets every kernel.
func ClearCache() {
	cache.Lock()
	cache.kernels = map[string]backend.Kernel{}
	cache.Unlock()
	for _, cleared := range watchers {
		cleared()
	}
}

// kernel validates a call's geometry and chooses its kernel, or finds both done.
func (o *operation) kernel(c *Call) (backend.Kernel, error) {
	var buffer [512]byte
	choices := tuning.Current()
	key := o.key(c, buffer[:0], choices)
	cache.RLock()
	k, ok := cache.kernels[string(key)]
	cache.RUnlock()
	if ok {
		cache.hits.Add(1)
		return k, nil
	}
	cache.misses.Add(1)
	k, err := o.choose(c, choices)
	if err != nil {
		return nil, err
	}
	cache.Lock()
	defer cache.Unlock()
	if len(cache.kernels) >= cacheCapacity {
		cache.kernels = map[string]backend.Kernel{}
	}
	cache.kernels[string(key)] = k
	return k, nil
}

// choose is kernel without the cache, with the choices of the tuning block that the call is in; nil
// for none.
func (o *operation) choose(c *Call, choices *tuning.File) (backend.Kernel, error) {
	r, err := o.geometry(c)
	if err != nil {
		return nil, err
	}
	dt, device := r.dtype, r.device
	if device.Type == tensor.Meta {
		return nil, unavailable(o.Name)
	}
	b, err := backend.ForTensors(c.Backend, device)
	if err != nil {
		return nil, check.In(o.Name, err)
	}
	if o.asksNothing(c) {
		if info := b.Info(); !info.Available {
			return nil, status.Errorf(status.BackendUnavailable, "%s: %s: %s", o.Name, info.Name, info.Reason)
		}
		return idle{backend.Sku{
			Op: o.Name, Kind: c.Kind, DType: dt.String(), Accumulator: dt.Accumulator().String(), Backend: b.Name(), Kernel: "none",
		}}, nil
	}
	owned, h := c.owned(len(o.Inputs)), o.header(c, dt, choices)
	for i := range owned.Outputs {
		if !o.asks(owned, i) {
			owned.Outputs[i] = nil
		}
	}
	_, parameters := o.computes(owned)
	w := &region{dt: dt, device: device, operand: len(o.Inputs) + len(c.Outputs)}
	w.reader, _ = b.(backend.TokenReader)
	if o.problems != nil {
		if problems := o.problems(owned, h, w); problems != nil {
			return kernelOf(problems, b, w, parameters, o.Name, c.Kind)
		}
	}
	return selected(o.problem(owned, h), b, w, parameters)
}

func (o *operation) header(c *Call, dt dtype.DType, choices *tuning.File) backend.Header {
	formula, _ := o.computes(c)
	return backend.Header{Op: o.Name, Kind: c.Kind, Formula: formula, DType: dt, AllowTF32: c.AllowTF32, BatchInvariant: c.BatchInvariant, Choices: choices}
}

// asks reports whether a call wants something in an output: not if it is absent, or the gradient of
// an adapter of rank 0.
func (o *operation) asks(c *Call, output int) bool {
	out := c.Outputs[output]
	return out != nil && !(o.Outputs[output].IsAdapters() && out.IsEmpty())
}

// asksNothing reports whether there is no such output.
func (o *operation) asksNothing(c *Call) bool {
	for i := range c.Outputs {
		if o.asks(c, i) {
			return false
		}
	}
	return true
}

// idle is the kernel of a valid call that asks for no output; backends never see one.
type idle struct{ sku backend.Sku }

func (k idle) Sku() backend.Sku { return k.sku }

func (k idle) Precision() backend.Precision {
	return backend.Precision{
		MathPrecision: k.sku.DType, Accumulator: k.sku.Accumulator, Deterministic: true, BitStableOnSameHardware: true, BatchInvariant: true,
	}
}

func (idle) WorkspaceBytes() int64  { return 0 }
func (idle) Run(*backend.Run) error { return nil }

// owned copies the call's views without their addresses: a kernel outlives the call, whose shapes
// belong to the caller.
func (c *Call) owned(inputs int) *Call {
	clone := func(views []*tensor.View, first int) []*tensor.View {
		list := make([]*tensor.View, len(views))
		for i, v := range views {
			if v != nil {
				list[i] = &tensor.View{
					Operand: first + i, DType: v.DType, Device: v.Device,
					Shape: append([]int64{}, v.Shape...), Strides: append([]int64{}, v.Strides...),
				}
			}
		}
		return list
	}
	o := *c
	o.Parameters = slices.Clone(c.Parameters)
	o.Inputs, o.Outputs = clone(c.Inputs, 0), clone(c.Outputs, inputs)
	return &o
}

// key writes all that a kernel follows from: what is computed, the tensors' geometry, and in which
// file's choices the kernel is.
func (o *operation) key(c *Call, key []byte, choices *tuning.File) []byte {
	// with its length: a name may hold any byte
	for _, name := range [3]string{c.Op, c.Kind, c.Backend} {
		key = binary.AppendUvarint(key, uint64(len(name)))
		key = append(key, name...)
	}
	key = binary.AppendUvarint(key, uint64(len(c.Parameters)))
	if o.kinds != nil { // any number may be a parameter of the others, with any kernel
		for _, value := range c.Parameters {
			key = binary.LittleEndian.AppendUint64(key, math.Float64bits(value))
		}
	}
	key = append(key, byte(c.Gate), flag(c.Accumulate), flag(c.AllowTF32), flag(c.BatchInvariant))
	key = binary.AppendVarint(key, int64(c.Dim))
	key = binary.AppendVarint(key, choices.Generation())
	for _, views := range [2][]*tensor.View{c.Inputs, c.Outputs} {
		key = binary.AppendUvarint(key, uint64(len(views)))
		for _, v := range views {
			if v == nil {
				key = append(key, 0xff)
				continue
			}
			key = append(key, byte(len(v.Shape)), byte(v.DType))
			key = binary.AppendVarint(key, int64(v.Device.Type))
			key = binary.AppendVarint(key, int64(v.Device.Index))
			for d := range v.Shape {
				key = binary.AppendVarint(key, v.Shape[d])
				key = binary.AppendVarint(key, v.Strides[d])
			}
		}
	}
	return key
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Plan is one problem, validated, with its kernel chosen, for callers who manage their own buffers.
type Plan struct {
	operation                 *operation
	kernel                    backend.Kernel
	call                      Call // geometry only
	exactInputs, exactOutputs []bool
	workspaceBytes            int64 // for any strides that run accepts
}

// NewPlan validates the problem that c describes and chooses a kernel for it; addresses are
// ignored, and outputs that c leaves out are taken as contiguous. exactInputs and exactOutputs tell
// whether run's tensor must have the described strides; any strides do otherwise.
func NewPlan(c *Call, exactInputs, exactOutputs []bool) (*Plan, error) {
	o, err := resolve(c)
	if err != nil {
		return nil, err
	}
	p := &Plan{operation: o, call: *c.owned(len(o.Inputs)), exactInputs: exactInputs, exactOutputs: exactOutputs}
	r, err := o.geometry(&p.call)
	if err != nil {
		return nil, err
	}
	if p.call.Outputs, err = o.filled(&p.call, r, nil); err != nil {
		return nil, err
	}
	if p.kernel, err = o.kernel(&p.call); err != nil {
		return nil, err
	}
	p.workspaceBytes, err = p.mostWorkspace()
	return p, err
}

// mostWorkspace returns a workspace that is enough for every run: the kernel's own, or, on a
// backend that copies operands which its libraries cannot read in place, that of the layout
// furthest from contiguous, with each choice of optional operands.
func (p *Plan) mostWorkspace() (int64, error) {
	bytes := p.kernel.WorkspaceBytes()
	if _, copies := p.kernel.(backend.Stager); !copies {
		return bytes, nil
	}
	for given, worst := range p.operation.withSomeOptional(p.call) {
		worst.Accumulate = p.operation.accumulates // then no output's memory serves as scratch
		worst.Inputs, worst.Outputs = spread(worst.Inputs, p.exactInputs), spread(worst.Outputs, p.exactOutputs)
		// a bound on what may be chosen: nothing is timed for it
		k, err := p.operation.choose(&worst, nil)
		if err != nil {
			if given == nothingLeftOut || status.Of(err).Code != status.InvalidProblem {
				return 0, err
			}
			continue // no run can leave these out
		}
		if stager, copies := k.(backend.Stager); copies {
			bytes = max(bytes, stager.MostWorkspaceBytes())
		}
	}
	return bytes, nil
}

// nothingLeftOut is the first of withSomeOptional's numbers.
const nothingLeftOut = 0

// withSomeOptional returns the call, and then without each choice of what a run may leave out and
// may then need memory for: optional inputs, with their gradients, and what a forward keeps for
// backward. Both tensors of an adapter are one choice. A choice has a number.
func (o *operation) withSomeOptional(c Call) iter.Seq2[int, Call] {
	var optional, kept []int
	for i, input := range o.Inputs {
		if input.Optional && at(c.Inputs, i) != nil && !strings.HasSuffix(input.Name, ".b") {
			optional = append(optional, i)
		}
	}
	for i, output := range o.Outputs {
		if i > 0 && at(c.Outputs, i) != nil && !strings.HasPrefix(output.Name, "grad_") {
			kept = append(kept, i)
		}
	}
	return func(yield func(int, Call) bool) {
		for left := range 1 << (len(optional) + len(kept)) {
			some := c
			some.Inputs, some.Outputs = slices.Clone(c.Inputs), slices.Clone(c.Outputs)
			for bit, i := range kept {
				if left>>(len(optional)+bit)&1 != 0 {
					some.Outputs[i] = nil
				}
			}
			for bit, i := range optional {
				if left>>bit&1 == 0 {
					continue
				}
				without := []string{o.Inputs[i].Name}
				if name, is := strings.CutSuffix(o.Inputs[i].Name, ".a"); is {
					without = append(without, name+".b")
				}
				for _, name := range without {
					leave(some.Inputs, o.Inputs, name)
					leave(some.Outputs, o.Outputs, "grad_"+name)
				}
			}
			if !yield(left, some) {
				return
			}
		}
	}
}

// leave makes the tensor of a name absent, if there is one.
func leave(views []*tensor.View, args []Argument, name string) {
	for i := range views {
		if args[i].Name == name {
			views[i] = nil
		}
	}
}

// spread returns the views with other strides where a run may change them. In every dimension it
// leaves a gap of another size, so that no two dimensions are walked as one.
func spread(views []*tensor.View, exact []bool) []*tensor.View {
	all := append([]*tensor.View{}, views...)
	for i, v := range all {
		if v == nil || i < len(exact) && exact[i] {
			continue
		}
		wide := *v
		wide.Strides = make([]int64, len(v.Shape))
		next := int64(2)
		for d := range slices.Backward(wide.Strides) {
			wide.Strides[d] = next
			next = next*max(v.Shape[d], 1) + 2
		}
		all[i] = &wide
	}
	return all
}

// Signature returns the arguments that the plan's calls have.
func (p *Plan) Signature() Signature { return p.operation.Signature }

// Sku says what runs.
func (p *Plan) Sku() backend.Sku {
	sku := p.kernel.Sku()
	sku.Kind = p.operation.describe(&p.call)
	return sku
}

// Precision says what the kernel guarantees.
func (p *Plan) Precision() backend.Precision { return p.kernel.Precision() }

// WorkspaceBytes is the scratch that a run needs.
func (p *Plan) WorkspaceBytes() int64 { return p.workspaceBytes }

// Validate returns the error that Run would, and touches nothing. c gives tensors, workspace,
// stream, threads and accumulate; the rest is the plan's.
func (p *Plan) Validate(c *Call) error {
	_, _, err := p.prepare(c)
	return err
}

// Run computes the outputs that c gives.
func (p *Plan) Run(c *Call) error {
	c.AssumeWorkspace = false
	full, k, err := p.prepare(c)
	if err != nil {
		return err
	}
	return k.Run(p.operation.execution(full))
}

func (p *Plan) prepare(c *Call) (*Call, backend.Kernel, error) {
	o := p.operation
	full := *c
	full.Op, full.Kind, full.Parameters, full.Dim, full.Gate = o.Name, p.call.Kind, p.call.Parameters, p.call.Dim, p.call.Gate
	full.AllowTF32, full.BatchInvariant, full.Backend = p.call.AllowTF32, p.call.BatchInvariant, p.call.Backend
	inputs, outputs, err := o.operands(&full)
	if err != nil {
		return nil, nil, err
	}
	for i, in := range inputs {
		if err := p.matches(in, at(p.call.Inputs, i), o.Inputs[i].Broadcasts, i < len(p.exactInputs) && p.exactInputs[i]); err != nil {
			return nil, nil, err
		}
	}
	for i, out := range outputs {
		if err := p.matches(out, at(p.call.Outputs, i), o.Outputs[i].Broadcasts, i < len(p.exactOutputs) && p.exactOutputs[i]); err != nil {
			return nil, nil, err
		}
	}
	k, err := o.kernel(&full)
	if err != nil {
		return nil, nil, err
	}
	// A caller sizes the workspace once for the plan, so the plan's size is asked for whatever
	// outputs this run gives, and never less than they need.
	return &full, k, o.memory(&full, max(p.workspaceBytes, k.WorkspaceBytes()))
}

// matches compares a run's tensor with the one that the plan was selected for.
func (p *Plan) matches(got check.Operand, want *tensor.View, anyShape, exact bool) error {
	if got.View == nil || want == nil {
		return nil // what may be absent, and what cannot exist, the operation itself decides
	}
	name := p.operation.Name
	if got.View.DType != want.DType {
		return status.Errorf(status.DTypeMismatch, "%s: %s: dtype %v, want the plan's %v", name, got.Name, got.View.DType, want.DType)
	}
	if got.View.Device != want.Device {
		return status.Errorf(status.DeviceMismatch, "%s: %s: on %v, want the plan's %v", name, got.Name, got.View.Device, want.Device)
	}
	if anyShape {
		if _, err := got.View.Expand(want.Shape); err != nil {
			return check.Invalid(name, got.Name, "shape %s, want one that broadcasts to the plan's %s",
				check.Sizes(got.View.Shape), check.Sizes(want.Shape))
		}
		return nil
	}
	if err := check.Shape(name, got.Name, got.View.Shape, want.Shape, "the plan's shape"); err != nil {
		return err
	}
	if !exact || want.IsEmpty() {
		return nil
	}
	for d, n := range want.Shape {
		if n != 1 && got.View.Strides[d] != want.Strides[d] {
			return check.Invalid(name, got.Name, "strides %s, want %s, of the plan's leading dimension",
				check.Sizes(got.View.Strides), check.Sizes(want.Strides))
		}
	}
	return nil
}
