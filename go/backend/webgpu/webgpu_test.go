//go:build cgo

package webgpu

import (
	"flag"
	"math"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// hurried: -short was given, as it is under the race detector, where kernels are no faster.
var hurried bool

// TestMain has the suite take fewer layouts unless EPIGRAD_TEST_FULL asks for all: a software
// adapter is slow.
func TestMain(m *testing.M) {
	flag.Parse()
	hurried = testing.Short()
	if !optest.Full() {
		if err := flag.Set("test.short", "true"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// slow tells the suite that a kernel is compiled for each kind and dtype: on a software adapter
// that takes longer than to run it.
type slow struct{ *Backend }

func (slow) IsSlow() bool { return true }

// TestBackend runs the suite of all backends on whatever adapter there is: Mesa's lavapipe on a
// machine without a GPU.
func TestBackend(t *testing.T) {
	op.ClearCache()
	if hurried {
		defer optest.OnlyMethods(t, "^TestActivation$|^TestGemmEpilogueForward$|^TestLerp$")()
	}
	optest.Run(t, slow{New()})
}

// TestBackendOfNarrowLimits runs some of it on a device that claims to allow so little that
// everything is cut: operands, grids and loops. (Where a sum is cut depends on layouts then, and so
// do its bits.)
func TestBackendOfNarrowLimits(t *testing.T) {
	if os.Getenv("EPIGRAD_TEST_NIGHTLY") == "" {
		t.Skip("half a minute or more: EPIGRAD_TEST_NIGHTLY=1 runs it, as make nightly does")
	}
	op.ClearCache()
	defer op.ClearCache()
	defer optest.OnlyMethods(t, "^TestActivation|^TestGated|^TestGemmEpilogue(AtBlockEdges|Backward|Forward)$|^TestLerp|^TestNaN|^TestSums")()
	optest.Run(t, slow{&Backend{limits: limits{bindingBytes: 16 << 10, groups: 7, trips: 2, wideTiles: 1}}})
}

// TestDividedSumsAreNotBatchInvariant: where a sum is longer than a binding, how it is divided
// follows from the rows too.
func TestDividedSumsAreNotBatchInvariant(t *testing.T) {
	if _, err := theDevice(); err != nil {
		t.Skip(err)
	}
	const rows, depth, columns = 2, 1 << 13, 3
	view := func(operand int, shape ...int64) *tensor.View {
		return &tensor.View{Operand: operand, DType: dtype.Float32, Shape: shape, Strides: tensor.ContiguousStrides(shape)}
	}
	narrow := &Backend{limits: limits{bindingBytes: 16 << 10, groups: 7, trips: 2, wideTiles: 1}}
	for _, c := range []struct {
		backend *Backend
		holds   bool
	}{{New(), true}, {narrow, false}} {
		p := &backend.GemmEpilogue{
			Header: backend.Header{Op: "linear", Kind: "none", Formula: "none", DType: dtype.Float32},
			A:      view(0, rows, depth), B: view(1, depth, columns), Out: view(2, rows, columns),
		}
		k, err := c.backend.Select(p)
		require.NoError(t, err)
		require.Equal(t, c.holds, k.Precision().BatchInvariant)
		p.BatchInvariant = true
		_, err = c.backend.Select(p)
		if c.holds {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, status.Unsupported, status.Of(err).Code)
		require.Contains(t, err.Error(), "linear: batch_invariant: ")
	}
}

// TestALostDevice: calls and arrays on a device that is gone are errors, and the process lives.
func TestALostDevice(t *testing.T) {
	before, err := theDevice()
	if err != nil {
		t.Skip(err)
	}
	lost, err := open(FromEnvironment())
	require.NoError(t, err)
	the.device = lost
	op.ClearCache()
	defer func() { the.device = before; op.ClearCache() }()
	backend.Register(New())
	run := func() error { return op.Run(lerpCall(t)) }
	require.NoError(t, run())
	address, err := Allocate(16)
	require.NoError(t, err)
	lost.lose()
	host := make([]byte, 16)
	for range 3 {
		for _, err := range []error{run(), Write(address, unsafe.Pointer(&host[0]), 16), Read(address, unsafe.Pointer(&host[0]), 16)} {
			require.Error(t, err)
			require.Equal(t, status.DeviceFailure, status.Of(err).Code)
			require.Contains(t, err.Error(), "DEVICE_LOST (3): Parent device is lost")
		}
	}
	require.NoError(t, Free(address))
}

// TestWhatIsNotValidIsNotSubmitted: a run that the library finds fault with is an error that writes
// nothing, and calls go on as before.
func TestWhatIsNotValidIsNotSubmitted(t *testing.T) {
	if _, err := theDevice(); err != nil {
		t.Skip(err)
	}
	op.ClearCache()
	backend.Register(New())
	for name, spoil := range map[string]func(s *step){
		"more groups than there can be":   func(s *step) { s.groups[0] = 1 << 20 },
		"a binding beyond its buffer":     func(s *step) { s.bindings[0].to = 1 << 20 },
		"a binding of nothing":            func(s *step) { s.bindings[0].to = 0 },
		"a binding that the kernel lacks": func(s *step) { s.bindings = s.bindings[:2] },
	} {
		t.Run(name, func(t *testing.T) {
			problem, run, out := lerpProblem()
			selected, err := New().Select(problem)
			require.NoError(t, err)
			require.NoError(t, selected.Run(run))
			require.Equal(t, []float32{2, 2, 2, 2, 2, 2, 2, 2}, out)
			copy(out, []float32{9, 9, 9, 9, 9, 9, 9, 9})
			spoil(selected.(*kernel).steps[0])
			for range 3 {
				err = selected.Run(run)
				require.Error(t, err)
				require.Equal(t, status.DeviceFailure, status.Of(err).Code)
				require.Contains(t, err.Error(), "encode: VALIDATION (1)")
				require.Equal(t, []float32{9, 9, 9, 9, 9, 9, 9, 9}, out)
				require.NoError(t, op.Run(lerpCall(t)))
			}
		})
	}
}

// TestWhatDoesNotCompile: a kernel that the library refuses is an error, and calls go on as before.
func TestWhatDoesNotCompile(t *testing.T) {
	d, err := theDevice()
	if err != nil {
		t.Skip(err)
	}
	for name, source := range map[string]string{
		"not WGSL":       "fn main() { this is not WGSL }",
		"no entry point": "@compute @workgroup_size(1) fn other() {}",
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				d.mutex.Lock()
				_, err := d.compile(source)
				d.mutex.Unlock()
				require.Equal(t, status.DeviceFailure, status.Of(err).Code)
				require.Contains(t, err.Error(), "compile a kernel: VALIDATION (1)")
			}
			require.NoError(t, op.Run(lerpCall(t)))
		})
	}
}

// lerpProblem is half way from 1 to 3, eight times.
func lerpProblem() (*backend.Pointwise, *backend.Run, []float32) {
	start, end, out := make([]float32, 8), make([]float32, 8), make([]float32, 8)
	run := &backend.Run{Parameters: [activation.MostParameters]float64{0.5}}
	views := make([]*tensor.View, 3)
	for i, memory := range [][]float32{start, end, out} {
		for j := range memory {
			memory[j] = float32(1 + 2*i)
		}
		views[i] = &tensor.View{Operand: i, DType: dtype.Float32, Device: tensor.Device{Type: tensor.CPU}, Shape: []int64{8}, Strides: []int64{1}}
		run.Bases = append(run.Bases, unsafe.Pointer(&memory[0]))
	}
	header := backend.Header{Op: "lerp", Formula: "lerp", DType: dtype.Float32}
	return &backend.Pointwise{Header: header, Inputs: []*tensor.View{views[0], views[1], nil}, Out: views[2]}, run, out
}

// lerpCall is a small call on the host's memory.
func lerpCall(t *testing.T) *op.Call {
	t.Helper()
	view := func() *tensor.View {
		memory := make([]float32, 8)
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, []int64{8}, nil, 0)
		require.NoError(t, err)
		return &v
	}
	return &op.Call{Op: "lerp", Parameters: []float64{0}, Backend: backendName, Inputs: []*tensor.View{view(), view()}, Outputs: []*tensor.View{view()}}
}

// TestSumsDoNotDependOnHowThreadsMeet: in subgroups, through the group's memory, and with terms
// that lie one way or the other, in fours or not, the bits are the same.
func TestSumsDoNotDependOnHowThreadsMeet(t *testing.T) {
	d, err := theDevice()
	if err != nil {
		t.Skip(err)
	}
	defer func() { op.ClearCache(); backend.Register(New()) }()
	for _, columns := range []int64{1, 3, 1000, 1001} {
		for _, kept := range [][]int64{{1, 1}, {7, 1}, {1, columns}} {
			sums := func(portable, transposed bool) []float32 {
				op.ClearCache()
				backend.Register(&Backend{portable: portable})
				return sumsOf(t, 7, columns, kept, transposed)
			}
			want := sums(false, false)
			require.Equal(t, want, sums(true, false), "%d columns to %v", columns, kept)
			transposed := sums(false, true)
			require.Equal(t, transposed, sums(true, true), "%d columns to %v, transposed", columns, kept)
			if kept[0] != 1 || kept[1] != 1 { // one sum takes what there is in the order of memory
				require.Equal(t, want, transposed, "%d columns to %v", columns, kept)
			}
		}
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for name, groups := range probeGroups {
		if known, ok := d.probed[name]; ok && !known {
			continue // an adapter without the feature
		}
		words, err := d.probe(name, groups, [2]uint32{})
		require.NoError(t, err)
		require.Equal(t, groups*groupThreads, words[1], "%s looks at everything", name)
		if !d.writesOut {
			require.Zero(t, words[0], "%s: lavapipe passes it, or both ways above were one", name)
		}
	}
}

// sumsOf is lerp's grad_weight, which is the sum of grad_output for a start of 0 and an end of 1.
func sumsOf(t *testing.T, rows, columns int64, kept []int64, transposed bool) []float32 {
	t.Helper()
	tensorOf := func(shape, strides []int64, at func(i int) float32) (*tensor.View, []float32) {
		memory := make([]float32, shape[0]*shape[1])
		for i := range memory {
			memory[i] = at(i)
		}
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, shape, strides, 0)
		require.NoError(t, err)
		return &v, memory
	}
	constant := func(x float32) func(int) float32 { return func(int) float32 { return x } }
	whole := []int64{rows, columns}
	strides := []int64{columns, 1}
	if transposed {
		strides = []int64{1, rows}
	}
	grad, _ := tensorOf(whole, strides, func(i int) float32 {
		row, column := i/int(columns), i%int(columns)
		if transposed {
			row, column = i%int(rows), i/int(rows)
		}
		return float32(math.Sin(float64(1000*row + column)))
	})
	start, _ := tensorOf(whole, nil, constant(0))
	end, _ := tensorOf(whole, nil, constant(1))
	weight, _ := tensorOf(kept, nil, constant(0.5))
	out, sums := tensorOf(kept, nil, constant(float32(math.NaN())))
	require.NoError(t, op.Run(&op.Call{Op: "lerp_backward", Backend: backendName, Inputs: []*tensor.View{grad, start, end, weight}, Outputs: []*tensor.View{nil, nil, out}}))
	return sums
}

// TestExpertsOnArrays: what lies on the adapter gives the bits of what lies in the host's memory.
func TestExpertsOnArrays(t *testing.T) {
	if _, err := theDevice(); err != nil {
		t.Skip(err)
	}
	op.ClearCache()
	backend.Register(New())
	const tokens, each, groups, features, hidden = 5, 2, 3, 4, 6
	results := func(onDevice bool) [][]byte {
		device := tensor.Device{Type: tensor.CPU}
		if onDevice {
			device.Type = tensor.WebGPU
		}
		var list []func() []byte
		view := func(dt dtype.DType, at func(i int) uint64, shape ...int64) *tensor.View {
			memory := make([]byte, tensor.Elements(shape)*dt.Size())
			for i := range memory {
				memory[i] = byte(at(i/int(dt.Size())) >> (8 * (i % int(dt.Size()))))
			}
			base := unsafe.Pointer(&memory[0])
			read := func() []byte { return memory }
			if onDevice {
				address, err := Allocate(int64(len(memory)))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, Free(address)) })
				require.NoError(t, Write(address, base, int64(len(memory))))
				read = func() []byte {
					require.NoError(t, Read(address, unsafe.Pointer(&memory[0]), int64(len(memory))))
					return memory
				}
				base = unsafe.Add(unsafe.Pointer(nil), address)
			}
			v, err := tensor.New(base, 0, dt, device, shape, nil, 0)
			require.NoError(t, err)
			list = append(list, read)
			return &v
		}
		numbers := func(shape ...int64) *tensor.View {
			return view(dtype.Float32, func(i int) uint64 { return uint64(math.Float32bits(float32(math.Sin(float64(100*len(list) + i))))) }, shape...)
		}
		index := view(dtype.Int64, func(i int) uint64 { return uint64(int64(i*7%5) - 1) }, tokens, each)
		inputs := []*tensor.View{
			numbers(tokens, features), index, numbers(tokens, each), numbers(groups, 2*hidden, features), numbers(groups, 2*hidden),
			numbers(groups, features, hidden), numbers(groups, features),
		}
		grad, first := numbers(tokens, features), len(list)
		run := func(name string, inputs, outputs []*tensor.View) {
			c := &op.Call{Op: name, Kind: "swiglu", Backend: backendName, Inputs: inputs, Outputs: outputs}
			wanted := make([]bool, len(outputs))
			for i := range wanted {
				wanted[i] = true
			}
			_, bytes, err := op.Infer(c, wanted)
			require.NoError(t, err)
			workspace := make([]byte, bytes+1)
			c.Workspace, c.WorkspaceBytes = unsafe.Pointer(&workspace[0]), bytes
			require.NoError(t, op.Run(c))
		}
		out, pre := numbers(tokens, features), numbers(tokens*each, 2*hidden)
		run("experts", inputs, []*tensor.View{out, pre})
		gradients := make([]*tensor.View, 0, len(inputs)-1)
		for i, like := range inputs {
			if i != 1 {
				gradients = append(gradients, numbers(like.Shape...))
			}
		}
		run("experts_backward", append(append([]*tensor.View{grad}, inputs...), pre), gradients)
		var all [][]byte
		for _, read := range list[first:] {
			all = append(all, read())
		}
		return all
	}
	require.Equal(t, results(false), results(true))
}

// TestProductsOfGroupsAreCut: operands that exceed a binding, and depths that exceed a loop, give
// the products of each group's rows too.
func TestProductsOfGroupsAreCut(t *testing.T) {
	if _, err := theDevice(); err != nil {
		t.Skip(err)
	}
	const rows, depth, columns, groups = 60, 40, 16, 4
	var bases []unsafe.Pointer
	var memories [][]float32
	view := func(shape ...int64) *tensor.View {
		memory := make([]float32, tensor.Elements(shape))
		for i := range memory {
			memory[i] = float32(math.Sin(float64(1000*len(bases) + i)))
		}
		bases, memories = append(bases, unsafe.Pointer(&memory[0])), append(memories, memory)
		return &tensor.View{
			Operand: len(bases) - 1, DType: dtype.Float32, Device: tensor.Device{Type: tensor.CPU}, Shape: shape, Strides: tensor.ContiguousStrides(shape),
		}
	}
	ends := view(groups)
	for e, end := range []int32{10, 10, 50, 59} {
		*(*int32)(unsafe.Pointer(&memories[0][e])) = end
	}
	ends.DType = dtype.Int32
	a, b, bias, grad := view(rows, depth), view(groups, depth, columns), view(groups, columns), view(rows, columns)
	out, pre, gradA, gradB, gradBias := view(rows, columns), view(rows, columns), view(rows, depth), view(groups, depth, columns), view(groups, columns)
	header := backend.Header{Op: "linear", Kind: "silu", Formula: "silu", DType: dtype.Float32, Groups: ends}
	results := func(b *Backend, problems ...backend.Problem) (all []float32) {
		for _, p := range problems {
			k, err := b.Select(p)
			require.NoError(t, err)
			require.NoError(t, k.Run(&backend.Run{Bases: bases}))
		}
		for i, v := range []*tensor.View{out, pre, gradA} { // without the row of no group
			all = append(all, memories[v.Operand][:59*[]int64{columns, columns, depth}[i]]...)
		}
		return append(append(all, memories[gradB.Operand]...), memories[gradBias.Operand]...)
	}
	problems := []backend.Problem{
		&backend.GemmEpilogue{Header: header, A: a, B: b, Bias: bias, Out: out, Preactivation: pre},
		&backend.GemmEpilogueBackward{Header: header, GradOutput: grad, A: a, B: b, Bias: bias, GradA: gradA, GradB: gradB, GradBias: gradBias},
	}
	want := results(New(), problems...)
	got := results(&Backend{limits: limits{bindingBytes: 8 << 10, groups: 7, trips: 2, wideTiles: 1}}, problems...)
	for i := range want {
		require.InDelta(t, want[i], got[i], 1e-4, "element %d of %d", i, len(want))
	}
}
