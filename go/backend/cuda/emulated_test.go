//go:build cgo

package cuda_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cuda"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/go/tuning"
	kernels "github.com/epigrad/epigrad/kernels/cuda"
)

// emulated tells a test binary that it runs on the emulator's libraries.
const emulated = "EPIGRAD_EMULATED_GPU"

// TestOnTheEmulator builds libraries that stand in for the driver's and for cuBLASLt
// (tests/cuda/emulator), and runs the suite of all backends in a process that finds them: the
// kernels, the programs and what is asked of the libraries are those of a GPU, on a machine that
// has none.
func TestOnTheEmulator(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute or more")
	}
	skip := t.Skip
	// A test that is skipped would hide defects there.
	if os.Getenv("EPIGRAD_REQUIRE_SANITIZERS") != "" {
		require.True(t, cuda.Sanitized, "built without sanitizers: make sanitize-emulated")
		skip = t.Fatal
	}
	if !kernels.Built() {
		skip("this tree's CUDA kernels are not built, and with them their names: make kernels")
	}
	if _, err := exec.LookPath("g++"); err != nil && os.Getenv("CXX") == "" {
		skip("the emulator needs g++")
	}
	_, library, err := cuda.BuildEmulator()
	require.NoError(t, err)
	folder := t.TempDir()
	for _, name := range []string{"libcuda.so.1", "libcublasLt.so.13"} {
		require.NoError(t, os.Symlink(library, filepath.Join(folder, name)))
	}
	run := func(environment string, arguments ...string) string {
		run := exec.Command(os.Args[0], arguments...)
		run.Env = append(os.Environ(), emulated+"=1", "LD_LIBRARY_PATH="+folder, "EPIGRAD_REQUIRE_BACKENDS=cuda", environment)
		output, err := run.CombinedOutput()
		require.NoError(t, err, "%s: %s", environment, output)
		return string(output)
	}
	if cuda.Sanitized {
		run("", "-test.short", "-test.run=^TestBackend$", "-testify.m=^TestActivationBackward$|^TestGated|^TestGemmEpilogueForward$|^TestLearnable$|^TestLerpBackward$")
		run("EPIGRAD_EMULATED_FAULT_AT=41", "-test.run=^TestFaults$")
		return
	}
	// TestEmulatedKernels has met other layouts.
	run("", "-test.short", "-test.run=^TestBackend$|^TestFailuresOfTheDevice$|^TestTuning$|^TestSkus$|^TestBatchInvariance$|^TestBatchInvarianceOfOneColumn$|^TestBatchesThatDoNotMerge$|^TestPlansAreLargeEnough$|^TestPlansHaveWorkspaceForEveryRun$|^TestPlansWithoutTheirBias$")
	run("EPIGRAD_EMULATED_OLD_GPU=1", "-test.run=^TestSeveralDevices$")
	run("EPIGRAD_EMULATED_DRIVER=12020", "-test.run=^TestOldDriver$")
	run("EPIGRAD_CUBLASLT=/nowhere/libcublasLt.so", "-test.run=^TestNoBLAS$")
	// Some of the calls of the driver fail, each in a process, or all where all cases are wanted.
	for mode, each := range map[string]int{"plain": 3, "tuning": 41} {
		if optest.Full() {
			each = 1
		}
		for call := 1; ; call += each {
			at := fmt.Sprintf("EPIGRAD_EMULATED_FAULT_AT=%d", call)
			if !strings.Contains(run(at, "-test.run=^TestFaults$/^"+mode+"$"), "refuses") {
				require.Greater(t, call, 50)
				break
			}
			if call%8 == 1 {
				run(at+"+", "-test.run=^TestFaults$/^"+mode+"$")
			}
		}
	}
	// Most of the suite's products are small.
	run("EPIGRAD_CUDA_BLAS_ALONE=1", "-test.short", "-test.run=^TestBackend$", "-testify.m=Gemm|Products|NaN|Depth")
}

// TestBackend runs the suite on the emulator. A GPU's memory is not the host's, which optest's
// arrays are in: there the Python suite is what tests.
func TestBackend(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	optest.Run(t, slow{cuda.New()})
}

// slow tells the suite that the backend is emulated.
type slow struct{ *cuda.Backend }

func (slow) IsSlow() bool { return true }

// small is a call of lerp on the first emulated GPU.
func small(t *testing.T) *op.Call {
	t.Helper()
	return smallOn(t, 0)
}

// smallOn is a call of lerp on one of the emulated GPUs.
func smallOn(t *testing.T, index int32) *op.Call {
	t.Helper()
	view := func() *tensor.View {
		memory := make([]float32, 8)
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CUDA, Index: index}, []int64{8}, nil, 0)
		require.NoError(t, err)
		return &v
	}
	return &op.Call{Op: "lerp", Parameters: []float64{0}, Inputs: []*tensor.View{view(), view()}, Outputs: []*tensor.View{view()}}
}

// TestFailuresOfTheDevice: what the driver reports comes back with its code and name, and the next
// call works.
func TestFailuresOfTheDevice(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(cuda.New())
	require.NoError(t, op.Run(small(t)))
	t.Setenv("EPIGRAD_EMULATED_FAULT", "1")
	failure := status.Of(op.Run(small(t)))
	require.Equal(t, status.DeviceFailure, failure.Code)
	require.Equal(t, "cuda: cuLaunchKernel: CUDA_ERROR_EMULATED (700): the emulator refuses this", failure.Message)
	require.EqualValues(t, 700, failure.Got)
	require.NoError(t, os.Unsetenv("EPIGRAD_EMULATED_FAULT"))
	require.NoError(t, op.Run(small(t)))
}

// TestFaults: a call of the driver or of cuBLASLt that fails, whichever it is, is an error of its
// class. Each output is as it was or complete then, and the next call works. On a lost device all
// calls are such errors.
func TestFaults(t *testing.T) {
	fault := os.Getenv("EPIGRAD_EMULATED_FAULT_AT")
	if fault == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(&cuda.Backend{BLASAlone: true})
	t.Run("plain", func(t *testing.T) { testFaults(t, fault) })
	t.Run("tuning", func(t *testing.T) {
		require.NoError(t, tuning.Begin(filepath.Join(t.TempDir(), "choices.json")))
		defer tuning.End()
		testFaults(t, fault)
	})
}

func testFaults(t *testing.T, fault string) {
	t.Helper()
	const n = 8
	matrix := func(value float32) ([]float32, *tensor.View) {
		memory := slices.Repeat([]float32{value}, n*n)
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CUDA}, []int64{n, n}, nil, 0)
		require.NoError(t, err)
		return memory, &v
	}
	_, a := matrix(1)
	_, b := matrix(2)
	_, bias := matrix(3)
	bias.Shape, bias.Strides = []int64{n}, []int64{1}
	workspace := make([]byte, 64<<10)
	skipped := -uintptr(unsafe.Pointer(&workspace[0])) % 256
	for _, c := range []struct {
		name   string
		inputs []*tensor.View
		want   []float32
	}{
		{"gated_product", []*tensor.View{a, b}, []float32{2}},
		{"linear", []*tensor.View{a, b, bias}, []float32{2*n + 3}},
		{"linear_backward", []*tensor.View{a, a, b, bias}, []float32{2 * n, n, n}},
	} {
		call := op.Call{Op: c.name, Kind: "relu", Inputs: c.inputs, Outputs: make([]*tensor.View, len(c.want))}
		call.Workspace, call.WorkspaceBytes = unsafe.Pointer(&workspace[skipped]), int64(len(workspace)-256)
		if c.name == "gated_product" {
			call.Kind = "reglu"
		}
		for attempt := range 3 {
			results := make([][]float32, len(c.want))
			for i := range results {
				results[i], call.Outputs[i] = matrix(-1)
			}
			if c.name == "linear_backward" {
				call.Outputs[2].Shape, call.Outputs[2].Strides = []int64{n}, []int64{1}
			}
			err := op.Run(&call)
			for i, result := range results {
				result = result[:call.Outputs[i].Numel()]
				if first := result[0]; err == nil || first != -1 {
					require.Equal(t, slices.Repeat(c.want[i:i+1], len(result)), result, "%s, output %d", c.name, i)
				} else {
					require.Equal(t, slices.Repeat([]float32{-1}, len(result)), result, "%s, output %d", c.name, i)
				}
			}
			if err == nil {
				break
			}
			require.Contains(t, []status.Code{status.DeviceFailure, status.BackendUnavailable}, status.Of(err).Code, err.Error())
			require.True(t, attempt == 0 || strings.HasSuffix(fault, "+"), "the call after a fault: %v", err)
		}
	}
}

// TestSeveralDevices: of two GPUs, the first is too old for the kernels and the second is not;
// there is no third.
func TestSeveralDevices(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	info := cuda.New().Info()
	require.True(t, info.Available, info.Reason)
	require.Contains(t, info.Detail, "2 GPUs, cuda:1: emulated GPU (sm_90)")
	backend.Register(cuda.New())
	require.NoError(t, op.Run(smallOn(t, 1)))
	for index, told := range map[int32]string{
		0:  "cuda: emulated GPU has compute capability 7.0, want 8.0 or newer",
		2:  "cuda: device: got cuda:2, want an index below 2",
		-1: "cuda: device: got cuda:-1, want an index below 2",
	} {
		failure := status.Of(op.Run(smallOn(t, index)))
		require.Equal(t, status.BackendUnavailable, failure.Code)
		require.Contains(t, failure.Message, told)
	}
}

// unavailable checks what is said where the backend cannot run, before and when it is used.
func unavailable(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	info := cuda.New().Info()
	require.False(t, info.Available)
	require.Contains(t, info.Reason, reason)
	backend.Register(cuda.New())
	failure := status.Of(op.Run(small(t)))
	require.Equal(t, status.BackendUnavailable, failure.Code)
	require.Contains(t, failure.Message, reason)
}

func TestOldDriver(t *testing.T) {
	unavailable(t, "NVIDIA's driver is for CUDA 12.2, want one for 13.0: driver 580 or newer")
}

func TestNoBLAS(t *testing.T) {
	unavailable(t, "EPIGRAD_CUBLASLT names no library that can be opened (/nowhere/libcublasLt.so")
}

// TestPlansAreLargeEnough: a plan's workspace is enough for a run whose rows are not walked as one,
// however small the problem.
func TestPlansAreLargeEnough(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(cuda.New())
	view := func(shape, strides []int64) *tensor.View {
		memory := make([]float32, 256)
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CUDA}, shape, strides, 0)
		require.NoError(t, err)
		return &v
	}
	inputs := func(strides []int64) []*tensor.View {
		return []*tensor.View{view([]int64{2, 3, 4, 4}, strides), view([]int64{4, 5}, nil), view([]int64{5}, nil)}
	}
	call := op.Call{Op: "matmul_bias_activation", Kind: "gelu", Inputs: inputs(nil), Outputs: []*tensor.View{view([]int64{2, 3, 4, 5}, nil), nil}}
	plan, err := op.NewPlan(&call, nil, nil)
	require.NoError(t, err)
	call.Inputs = inputs([]int64{64, 32, 4, 1})
	call.Workspace, call.WorkspaceBytes = aligned(plan.WorkspaceBytes()), plan.WorkspaceBytes()
	require.NoError(t, plan.Run(&call))
}

// TestPlansHaveWorkspaceForEveryRun: so they do whatever optional inputs and outputs a run has, and
// where there are no rows, columns or terms.
func TestPlansHaveWorkspaceForEveryRun(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(cuda.New())
	some := func(views []*tensor.View, which int) []*tensor.View {
		chosen := make([]*tensor.View, len(views))
		for i, v := range views {
			if which>>i&1 == 1 {
				chosen[i] = v
			}
		}
		return chosen
	}
	sizes := []int64{0, 1, 3}
	for _, m := range sizes {
		for _, n := range sizes {
			for _, k := range sizes {
				for _, dt := range []dtype.DType{dtype.Float64, dtype.BFloat16} {
					view := func(shape ...int64) *tensor.View {
						v, err := tensor.New(nil, 0, dt, tensor.Device{Type: tensor.CUDA}, shape, nil, 0)
						require.NoError(t, err)
						return &v
					}
					for _, c := range []struct {
						call                        op.Call
						required, optional, outputs []*tensor.View
					}{
						{op.Call{Op: "linear", Kind: "silu"}, []*tensor.View{view(m, k), view(n, k)}, []*tensor.View{view(n)}, []*tensor.View{view(m, n), view(m, n)}},
						{
							op.Call{Op: "linear_backward", Kind: "silu"},
							[]*tensor.View{view(m, n), view(m, k), view(n, k)},
							[]*tensor.View{view(n), view(m, n)},
							[]*tensor.View{view(m, k), view(n, k), view(n)},
						},
						{op.Call{Op: "lerp"}, []*tensor.View{view(m, n), view(m, n)}, []*tensor.View{view(m, n)}, []*tensor.View{view(m, n)}},
						{
							op.Call{Op: "lerp_backward"},
							[]*tensor.View{view(m, n)},
							[]*tensor.View{view(m, n), view(m, n), view(m, n)},
							[]*tensor.View{view(m, n), view(m, n), view(m, n)},
						},
					} {
						call := c.call
						call.Inputs = slices.Concat(c.required, c.optional)
						plan, err := op.NewPlan(&call, nil, nil)
						require.NoError(t, err)
						for given := range 1 << len(c.optional) {
							for wanted := 1; wanted < 1<<len(c.outputs); wanted++ {
								run := c.call
								run.Inputs, run.Outputs = slices.Concat(c.required, some(c.optional, given)), some(c.outputs, wanted)
								asked := make([]bool, len(c.outputs))
								for i := range asked {
									asked[i] = run.Outputs[i] != nil
								}
								_, bytes, err := op.Infer(&run, asked)
								if err != nil {
									continue // such as the gradient of a bias that there is not
								}
								require.LessOrEqual(t, bytes, plan.WorkspaceBytes(), "%s m %d n %d k %d %v given %b wanted %b", run.Op, m, n, k, dt, given, wanted)
							}
						}
					}
				}
			}
		}
	}
}

// aligned makes workspace.
func aligned(bytes int64) unsafe.Pointer {
	memory := make([]byte, bytes+256)
	start := unsafe.Pointer(&memory[0])
	return unsafe.Add(start, -uintptr(start)%256)
}

// TestSkus: a plan tells whether vectors can run, whatever else its program has.
func TestSkus(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(cuda.New())
	const n = 320
	matrix := func(strides ...int64) *tensor.View {
		v, err := tensor.New(nil, 0, dtype.Float32, tensor.Device{Type: tensor.CUDA}, []int64{n, n}, strides, 0)
		require.NoError(t, err)
		return &v
	}
	bias := matrix()
	bias.Shape, bias.Strides = []int64{n}, []int64{1}
	for _, c := range []struct {
		call           op.Call
		kernel, layout string
		width          int
	}{
		{op.Call{Op: "activation", Kind: "silu", Inputs: []*tensor.View{matrix(n, 1)}}, "activation_silu_f32", "vector", 4},
		{op.Call{Op: "activation", Kind: "silu", Inputs: []*tensor.View{matrix(2*n+1, 2)}}, "activation_silu_f32_strided", "strided", 1},
		{
			op.Call{Op: "linear_backward", Kind: "silu", Inputs: []*tensor.View{matrix(n, 1), matrix(n, 1), matrix(n, 1), bias, matrix(n, 1)}},
			"grad_preactivation_columns_silu_f32+finish_columns_f32+cublaslt+cublaslt", "vector", 4,
		},
		{op.Call{Op: "linear_backward", Inputs: []*tensor.View{matrix(n, 1), matrix(n, 1), matrix(n, 1)}}, "cublaslt+cublaslt", "strided", 1},
	} {
		plan, err := op.NewPlan(&c.call, nil, nil)
		require.NoError(t, err)
		sku := plan.Sku()
		require.Equal(t, c.kernel, sku.Kernel)
		require.Equal(t, c.layout, sku.Layout, c.kernel)
		require.Equal(t, c.width, sku.VectorWidth, c.kernel)
	}
}

// TestBatchInvariance: in the mode the same kernels run for every number of rows.
func TestBatchInvariance(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(cuda.New())
	matrix := func(rows, columns int64) *tensor.View {
		v, err := tensor.New(nil, 0, dtype.Float32, tensor.Device{Type: tensor.CUDA}, []int64{rows, columns}, nil, 0)
		require.NoError(t, err)
		return &v
	}
	const features, wide = 60, 36
	kernels := func(invariant bool) map[string]bool {
		found := map[string]bool{}
		for _, rows := range []int64{1, 2, 100, 3000} {
			for _, call := range []op.Call{
				{Op: "linear", Inputs: []*tensor.View{matrix(rows, features), matrix(wide, features)}},
				{Op: "linear_backward", Kind: "silu", Inputs: []*tensor.View{
					matrix(rows, wide), matrix(rows, features), matrix(wide, features), nil, matrix(rows, wide),
				}},
			} {
				call.BatchInvariant = invariant
				plan, err := op.NewPlan(&call, nil, nil)
				require.NoError(t, err)
				require.Equal(t, invariant, plan.Precision().BatchInvariant)
				found[call.Op+": "+plan.Sku().Kernel] = true
			}
		}
		return found
	}
	require.Len(t, kernels(false), 4) // small problems have kernels of their own
	// The pass of a linear layer without an activation copies its preactivation to the output.
	require.Equal(t, map[string]bool{
		"linear: cublaslt+activation_none_f32":                           true,
		"linear_backward: grad_preactivation_silu_f32+cublaslt+cublaslt": true,
	}, kernels(true))
}

// TestBatchInvarianceOfOneColumn: cuBLASLt's algorithm for a vector and a bias refuses one row. In
// the mode no number of rows has it.
func TestBatchInvarianceOfOneColumn(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(cuda.New())
	view := func(memory []float64, shape ...int64) *tensor.View {
		v, err := tensor.New(unsafe.Pointer(unsafe.SliceData(memory)), 0, dtype.Float64, tensor.Device{Type: tensor.CUDA}, shape, nil, 0)
		require.NoError(t, err)
		return &v
	}
	x := []float64{1, 2, 3, 4, 5, 6}
	for rows := range int64(3) {
		rows++
		out := []float64{7, 7, 7}
		call := op.Call{Op: "linear", BatchInvariant: true, Inputs: []*tensor.View{view(x, rows, 2), view([]float64{10, 1}, 1, 2), view([]float64{100}, 1)}}
		plan, err := op.NewPlan(&call, nil, nil)
		require.NoError(t, err)
		call.Outputs, call.Workspace, call.WorkspaceBytes = []*tensor.View{view(out, rows, 1)}, aligned(plan.WorkspaceBytes()), plan.WorkspaceBytes()
		require.NoError(t, plan.Run(&call))
		require.Equal(t, []float64{112, 134, 156}[:rows], out[:rows])
	}
}

// TestPlansWithoutTheirBias: a plan that has a bias has workspace for runs that leave it out. A sum
// of no terms is zeros then, which come from the workspace.
func TestPlansWithoutTheirBias(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(cuda.New())
	const m, n = 3, 5
	out := slices.Repeat([]float32{7}, m*n)
	view := func(memory []float32, shape ...int64) *tensor.View {
		v, err := tensor.New(unsafe.Pointer(unsafe.SliceData(memory)), 0, dtype.Float32, tensor.Device{Type: tensor.CUDA}, shape, nil, 0)
		require.NoError(t, err)
		return &v
	}
	call := op.Call{Op: "linear", Kind: "sigmoid", Inputs: []*tensor.View{view(nil, m, 0), view(nil, n, 0), view(make([]float32, n), n)}}
	plan, err := op.NewPlan(&call, nil, nil)
	require.NoError(t, err)
	call.Inputs[2], call.Outputs = nil, []*tensor.View{view(out, m, n)}
	call.Workspace, call.WorkspaceBytes = aligned(plan.WorkspaceBytes()), plan.WorkspaceBytes()
	require.NoError(t, plan.Run(&call))
	require.Equal(t, slices.Repeat([]float32{0.5}, m*n), out)
}

// TestBatchesThatDoNotMerge: of two batch dimensions that no stride walks as one, the longer is the
// batch of a call, wherever it stands.
func TestBatchesThatDoNotMerge(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(&cuda.Backend{BLASAlone: true})
	const long, short, m = 5, 2, 3
	contiguous := []int64{short * m * m, m * m, m, 1}
	view := func(memory []float32, strides []int64) *tensor.View {
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CUDA}, []int64{long, short, m, m}, strides, 0)
		require.NoError(t, err)
		return &v
	}
	left, exchanged, right := make([]float32, long*short*m*m), make([]float32, long*short*m*m), make([]float32, long*short*m*m)
	for i := range left {
		left[i], right[i] = float32(i%7), float32(i%5)
		batch, rest := i/(m*m), i%(m*m)
		exchanged[(batch%short*long+batch/short)*m*m+rest] = left[i]
	}
	results := [2][]float32{make([]float32, len(left)), make([]float32, len(left))}
	for i, a := range []*tensor.View{view(left, contiguous), view(exchanged, []int64{m * m, long * m * m, m, 1})} {
		call := op.Call{Op: "matmul_bias_activation", Inputs: []*tensor.View{a, view(right, contiguous)}, Outputs: []*tensor.View{view(results[i], contiguous)}}
		plan, err := op.NewPlan(&call, nil, nil)
		require.NoError(t, err)
		require.Equal(t, []int{1, short}[i], strings.Count(plan.Sku().Kernel, "cublaslt"))
		require.NoError(t, op.Run(&call))
	}
	require.Equal(t, results[0], results[1])
	require.NotZero(t, results[0][len(left)-1])
}

// TestTuning: inside a block the fastest algorithm is found, kept, and found again; outside it the
// choice is the heuristic's.
func TestTuning(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	backend.Register(&cuda.Backend{BLASAlone: true})
	matrix := func() *tensor.View {
		memory := make([]float32, 64)
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CUDA}, []int64{8, 8}, nil, 0)
		require.NoError(t, err)
		return &v
	}
	workspace := func() int64 {
		_, bytes, err := op.Infer(&op.Call{Op: "matmul_bias_activation", Inputs: []*tensor.View{matrix(), matrix()}}, []bool{true})
		require.NoError(t, err)
		return bytes
	}
	// the bytes that the emulator's fastest algorithm takes; its first takes none
	const fastest = 1000
	path := filepath.Join(t.TempDir(), "choices.json")
	require.Zero(t, workspace())
	require.NoError(t, tuning.Begin(path))
	require.EqualValues(t, fastest, workspace())
	tuning.End()
	require.Zero(t, workspace())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), "emulated GPU cublaslt 130100: type 0")
	op.ClearCache()
	require.NoError(t, tuning.Begin(path))
	require.EqualValues(t, fastest, workspace(), "from the file")
	tuning.End()
	choices := map[string][]byte{}
	require.NoError(t, json.Unmarshal(text, &choices))
	for key, choice := range choices {
		copy(choice[len(choice)-8:], bytes.Repeat([]byte{0xff}, 8)) // the bytes of workspace
		choices[key] = choice
	}
	damaged, err := json.Marshal(choices)
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "damaged.json")
	require.NoError(t, os.WriteFile(path, damaged, 0o600))
	require.NoError(t, tuning.Begin(path))
	require.EqualValues(t, fastest, workspace(), "what cannot have been chosen is chosen anew")
	tuning.End()
}
