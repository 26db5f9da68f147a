//go:build cgo

package cuda

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/go/tensor"
)

// The kernels' own sources, compiled for the CPU (tests/cuda/emulator), run what the planner
// plans: pairs of choices, unless all are asked for. With -short, as under the race
// detector, every operation runs and its invariants do not: the emulator does one thing at a time.
func TestEmulatedKernels(t *testing.T) {
	if testing.Short() {
		defer optest.OnlyMethods(t, "^Test(Activation|Blocks|Curvature|Experts$|Gated|GemmEpilogue|GroupedLinear|Learnable|Lerp)|NaN")()
	}
	defer optest.Hurry(t)()
	optest.Run(t, newEmulated(t))
}

// TestEmulatedLayers runs layers of half types by the kernels that have a product and its epilogue.
func TestEmulatedLayers(t *testing.T) {
	defer optest.OnlyMethods(t, "^Test(GatedLinear$|GemmEpilogueForward|GemmEpilogueIsExact)")()
	defer optest.Hurry(t)()
	e := newEmulated(t)
	e.planner = Backend{OneKernel: true, Program: sm80.name}
	optest.Run(t, e)
}

// TestBlocksHoldTwoHiddenTensors: the hidden activation and its gradient, which becomes that of the
// preactivation, are all that lies between a block's steps.
func TestBlocksHoldTwoHiddenTensors(t *testing.T) {
	backend.Register(newEmulated(t))
	const rows, features, hidden = 2048, 64, 512
	var memory [16]byte // that nothing is read from
	view := func(shape ...int64) *tensor.View {
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.BFloat16, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
		require.NoError(t, err)
		return &v
	}
	input, weight1, weight2 := view(rows, features), view(hidden, features), view(features, hidden)
	c := op.Call{Op: "mlp_backward", Kind: "gelu", Inputs: []*tensor.View{view(rows, features), input, weight1, nil, weight2, nil, view(rows, hidden)}}
	_, workspace, err := op.Infer(&c, []bool{true, true, false, true, false})
	require.NoError(t, err)
	require.InDelta(t, 2*rows*hidden*2, workspace, 1024)
}

// TestAPlantedDefectIsReported: a kernel that reads behind its memory ends the emulator by
// AddressSanitizer's report. `make sanitize-emulated` would find nothing without that.
func TestAPlantedDefectIsReported(t *testing.T) {
	if !Sanitized {
		t.Skip("built without sanitizers: make sanitize-emulated")
	}
	e, err := startEmulator()
	require.NoError(t, err)
	backend.Register(&emulated{Backend: cpu.New(), t: t, emulator: e, device: &device{processors: 3, compiled: e.has}, beyond: true})
	view := func() *tensor.View {
		memory := make([]float32, 300)
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, []int64{300}, nil, 0)
		require.NoError(t, err)
		return &v
	}
	err = op.Run(&op.Call{Op: "gated_product", Kind: "swiglu", Inputs: []*tensor.View{view(), view()}, Outputs: []*tensor.View{view()}})
	require.ErrorContains(t, err, "AddressSanitizer: heap-buffer-overflow")
}

// TestThreadsDoAllVectors: the planner knows how many vectors a thread of each kernel does. Each
// call is of several blocks, with vectors and without any.
func TestThreadsDoAllVectors(t *testing.T) {
	backend.Register(newEmulated(t))
	const count = 5 * vectorThreads * 8
	for _, dt := range dtype.All() {
		view := func(value float64) *tensor.View {
			memory := slices.Repeat([]float64{value}, count)
			v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dt, tensor.Device{Type: tensor.CPU}, []int64{count}, nil, 0)
			require.NoError(t, err)
			return &v
		}
		in := func() *tensor.View { return view(1.5) } // whose leading half is not 0 in any dtype
		out := func() *tensor.View { return view(0) }
		for _, info := range activation.All() {
			for _, c := range []op.Call{
				{Op: "activation", Kind: info.Name, Inputs: []*tensor.View{in()}, Outputs: []*tensor.View{out()}},
				{Op: "activation_backward", Kind: info.Name, Inputs: []*tensor.View{in(), in()}, Outputs: []*tensor.View{out(), nil, nil}},
			} {
				require.NoError(t, op.Run(&c), "%s %s %v", c.Op, c.Kind, dt)
			}
		}
		for _, kind := range activation.AllGated() {
			c := op.Call{Op: "gated_product", Kind: kind.Name, Inputs: []*tensor.View{in(), in()}, Outputs: []*tensor.View{out()}}
			require.NoError(t, op.Run(&c), "%s %v", kind.Name, dt)
		}
	}
}

// emulator is a running emulator process.
type emulator struct {
	sync.Mutex
	command *exec.Cmd
	input   io.Writer
	output  io.Reader
	errors  *bytes.Buffer
	kernels map[string]bool
}

var theEmulator = sync.OnceValues(startEmulator)

func startEmulator() (*emulator, error) {
	program, _, err := BuildEmulator()
	if err != nil {
		return nil, err
	}
	names, err := exec.Command(program, "names").Output()
	if err != nil {
		return nil, err
	}
	e := &emulator{command: exec.Command(program), errors: &bytes.Buffer{}, kernels: map[string]bool{}}
	for _, name := range strings.Fields(string(names)) {
		e.kernels[name] = true
	}
	e.command.Stderr = e.errors
	if e.input, err = e.command.StdinPipe(); err != nil {
		return nil, err
	}
	if e.output, err = e.command.StdoutPipe(); err != nil {
		return nil, err
	}
	return e, e.command.Start()
}

// ended is the error of a call in which the emulator ended, with all that it said.
func (e *emulator) ended(err error) error {
	_ = e.command.Wait()
	return fmt.Errorf("%w: %s", err, e.errors)
}

// BuildEmulator compiles the emulator where a source is newer than it, and returns the program and
// its library, libcuda.so.1. tests/cuda/emulator.py compiles the program where it is missing.
func BuildEmulator() (program, library string, err error) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		return "", "", err
	}
	kernels, tests := filepath.Join(root, "kernels", "cuda"), filepath.Join(root, "tests", "cuda")
	emulator, folder := filepath.Join(tests, "emulator"), filepath.Join(root, "build", emulatorName+"-library")
	program, library = filepath.Join(root, "build", emulatorName), filepath.Join(folder, "libcuda.so.1")
	built, err := os.Stat(program)
	if _, missing := os.Stat(library); err == nil && missing == nil {
		stale := false
		newer := func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.Contains(".cu .cuh .h .cpp", filepath.Ext(path)) {
				return err
			}
			info, err := entry.Info()
			stale = stale || err == nil && info.ModTime().After(built.ModTime())
			return err
		}
		if err := cmp.Or(filepath.WalkDir(kernels, newer), filepath.WalkDir(emulator, newer)); err != nil || !stale {
			return program, library, err
		}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", "", err
	}
	scratch, err := os.MkdirTemp(folder, "")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(scratch)
	compiler := strings.Fields(cmp.Or(os.Getenv("CXX"), "g++"))
	flags := append(compiler[1:], "-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-I"+kernels, "-I"+tests)
	flags = append(flags, emulatorFlags...)
	made := []string{filepath.Join(scratch, "libcuda.so.1"), filepath.Join(scratch, "emulator")}
	for _, arguments := range [][]string{
		{"-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", filepath.Join(emulator, "libraries.cpp"), "-o", made[0]},
		{"-DEPIGRAD_LIBRARY", filepath.Join(emulator, "emulator.cpp"), made[0], "-Wl,-rpath," + folder, "-o", made[1]},
	} {
		if output, err := exec.Command(compiler[0], slices.Concat(flags, arguments)...).CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("%w: %s", err, output)
		}
	}
	// The program last: its time tells whether both are up to date.
	for i, to := range []string{library, program} {
		if err := os.Rename(made[i], to); err != nil {
			return "", "", err
		}
	}
	return program, library, nil
}

// run does launches on a copy of memory and returns it. place gives a view's address in it.
func (e *emulator) run(memory []byte, launches []*launch, r *backend.Run, place func(*tensor.View) int64) ([]byte, error) {
	little := binary.LittleEndian
	job := little.AppendUint64(nil, uint64(len(memory)))
	job = append(job, memory...)
	job = little.AppendUint64(job, uint64(len(launches)))
	for _, l := range launches {
		if l.grid[0] == 0 {
			return nil, fmt.Errorf("%s has no blocks, which drivers refuse", l.function)
		}
		job = little.AppendUint32(job, uint32(len(l.function)))
		job = append(job, l.function...)
		job = little.AppendUint32(little.AppendUint32(job, uint32(l.grid[0])), l.block[0])
		params := bytes.Clone(l.params)
		for i := 0; i < len(r.Parameters) && l.parameters != none; i++ {
			little.PutUint64(params[l.parameters+8*i:], math.Float64bits(r.Parameters[i]))
		}
		if l.accumulate != none && r.Accumulate {
			little.PutUint32(params[l.accumulate:], 1)
		}
		job = little.AppendUint32(job, uint32(len(params)))
		job = append(job, params...)
		job = little.AppendUint32(job, uint32(len(l.pointers)))
		for _, p := range l.pointers {
			job = little.AppendUint32(job, uint32(p.at))
			job = little.AppendUint64(job, uint64(place(p.view)))
		}
	}
	e.Lock()
	defer e.Unlock()
	if _, err := e.input.Write(job); err != nil {
		return nil, e.ended(err)
	}
	after := make([]byte, len(memory))
	if _, err := io.ReadFull(e.output, after); err != nil {
		return nil, e.ended(err)
	}
	return after, nil
}

// emulated is a backend for host memory that plans as the CUDA backend does and runs the kernels in
// the emulator, those of products that BLAS does aside: the CPU backend has these.
type emulated struct {
	*cpu.Backend
	t        *testing.T
	emulator *emulator
	planner  Backend
	device   *device
	// beyond has all operands begin where the memory ends: a defect.
	beyond bool
}

func newEmulated(t *testing.T) *emulated {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil && os.Getenv("CXX") == "" {
		t.Skip("the emulator of the CUDA kernels needs a C++ compiler: apt-get install g++ (or name yours in CXX)")
	}
	e, err := theEmulator()
	require.NoError(t, err)
	return &emulated{Backend: cpu.New(), t: t, emulator: e, planner: Backend{Program: sm80.name}, device: &device{processors: 3, compiled: e.has}}
}

func (e *emulator) has(kernel string) bool { return e.kernels[kernel] }

func (*emulated) WorkspaceAlignment() int64 { return workspaceAlignment }

// ComputesInAccumulator implements optest.Narrow.
func (*emulated) ComputesInAccumulator() bool { return true }

// ClampsOffsets implements optest.Clamping.
func (*emulated) ClampsOffsets() bool { return true }

// ReadsTokens implements backend.TokenReader.
func (*emulated) ReadsTokens(h backend.Header, features int64, backward bool) bool {
	return (*Backend)(nil).ReadsTokens(h, features, backward)
}

// IsSlow implements optest.Slow.
func (*emulated) IsSlow() bool { return true }

func (e *emulated) Select(p backend.Problem) (backend.Kernel, error) {
	op, kind, dt := p.Describe()
	b := e.planner.builder(e.device, p)
	if b.plan(p); b.refused != nil {
		return nil, b.refused
	}
	launches := func(o operation) bool { return o.symbol() != "" && o.symbol() != blasName }
	multiplies := func(o operation) bool {
		return strings.Contains(o.symbol(), "_small_") || strings.Contains(o.symbol(), "_sm80_")
	}
	all, some := !slices.ContainsFunc(b.program, func(o operation) bool { return !launches(o) }), slices.ContainsFunc(b.program, multiplies)
	switch p.(type) {
	case *backend.GemmEpilogue, *backend.GemmEpilogueBackward:
		all = all && some // of one problem's results the sums would have other bits
	}
	if p.Grouping() == nil && !all {
		return e.Backend.Select(p)
	}
	// The CPU's backend may have kernels of the parts alone.
	facts, err := e.Backend.Select(&backend.ZeroRows{Header: backend.Header{Op: op, Kind: kind, DType: dt}})
	return &emulatedKernel{facts, e, backend.Views(p), p.Grouping() != nil, b}, err
}

// emulatedKernel is a program that runs in the emulator.
type emulatedKernel struct {
	backend.Kernel // what it says of itself
	emulated       *emulated
	views          []*tensor.View
	grouped        bool
	*builder
}

func (k *emulatedKernel) WorkspaceBytes() int64 { return k.scratch }

// Run runs the program twice, with vectors where there can be some and without any, and has both
// write the same bits.
func (k *emulatedKernel) Run(r *backend.Run) error {
	withVectors, err := k.run(r, true)
	if err != nil {
		return err
	}
	without, err := k.run(r, false)
	if err != nil {
		return err
	}
	for operand, region := range withVectors.regions {
		require.True(k.emulated.t, k.same(without.of(without.regions[operand]), withVectors.of(region)),
			"operand %d differs with the form of %v", operand, k.program)
	}
	for operand, region := range withVectors.regions {
		copy(unsafe.Slice((*byte)(unsafe.Add(r.Bases[operand], region.low)), region.bytes), withVectors.of(region))
	}
	return nil
}

// same compares bytes. Passes over the rows of all groups also compute rows of no group, which may
// hold anything: there NaN is NaN, whatever its sign and payload.
func (k *emulatedKernel) same(a, b []byte) bool {
	if !k.grouped {
		return bytes.Equal(a, b)
	}
	number := func(list []byte, at int) float64 { return optest.Get(k.dt, unsafe.Pointer(&list[at])) }
	size := int(k.dt.Size())
	for at := 0; at+size <= len(a); at += size {
		if !bytes.Equal(a[at:at+size], b[at:at+size]) && !(math.IsNaN(number(a, at)) && math.IsNaN(number(b, at))) {
			return false
		}
	}
	return true
}

// image is the emulator's memory: a region for each operand.
type image struct {
	memory  []byte
	regions map[int]region
}

// region is where a part of an operand's buffer is in the emulator's memory.
type region struct{ at, low, bytes int64 }

func (i *image) of(r region) []byte { return i.memory[r.at : r.at+r.bytes] }

func (k *emulatedKernel) run(r *backend.Run, vectors bool) (*image, error) {
	i := &image{regions: map[int]region{}}
	ends := map[int]int64{}
	// An output that replaces an input is the same memory.
	operandOf := func(v *tensor.View) int { return slices.Index(r.Bases, r.Bases[v.Operand]) }
	for _, v := range k.views {
		low, high, _ := v.Extent()
		if low == high {
			continue
		}
		low, high = low+v.Offset, high+v.Offset
		operand := operandOf(v)
		if known, ok := i.regions[operand]; ok {
			low, high = min(low, known.low), max(high, ends[operand])
		}
		i.regions[operand], ends[operand] = region{low: low, bytes: high - low}, high
	}
	for operand, region := range i.regions {
		region.at = int64(len(i.memory))
		i.regions[operand] = region
		i.memory = append(i.memory, unsafe.Slice((*byte)(unsafe.Add(r.Bases[operand], region.low)), region.bytes)...)
		i.memory = append(i.memory, bytes.Repeat([]byte{0xff}, 512-len(i.memory)%256)...)
	}
	workspace := int64(len(i.memory))
	i.memory = append(i.memory, bytes.Repeat([]byte{0xff}, int(k.scratch))...)
	end := int64(len(i.memory)+255) &^ 255 // of what the emulator allocates
	place := func(v *tensor.View) int64 {
		if k.emulated.beyond {
			return end
		}
		if v.Operand == backend.WorkspaceOperand {
			return workspace + v.Offset
		}
		region := i.regions[operandOf(v)]
		return region.at - region.low + v.Offset
	}
	var launches []*launch
	for _, operation := range k.program {
		if c, ok := operation.(conditional); ok {
			if r.Accumulate == (c.unless == accumulating) {
				continue
			}
			operation = c.operation
		}
		s := operation.(step)
		chosen := s.general
		if vectors && s.vector != nil {
			chosen = s.vector
			for _, p := range chosen.pointers {
				if place(p.view)%vectorBytes != 0 {
					chosen = s.general
				}
			}
		}
		launches = append(launches, chosen)
	}
	var err error
	i.memory, err = k.emulated.emulator.run(i.memory, launches, r, place)
	return i, err
}
