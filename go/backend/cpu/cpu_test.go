package cpu_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/go/optest/openmptest"
	"github.com/epigrad/epigrad/go/tensor"
)

func forEachEngine(t *testing.T, visit func(t *testing.T, b *cpu.Backend)) {
	optest.ForEachEngine(t, cpu.Engines(), func(name string) (*cpu.Backend, error) {
		b := cpu.NewOn(name)
		if info := b.Info(); !info.Available {
			return nil, errors.New(info.Reason)
		}
		return b, nil
	}, visit)
}

// The default engine meets all layouts, the others some, unless all are asked for.
func TestBackend(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		if b.EngineName() != cpu.New().EngineName() {
			defer optest.Hurry(t)()
		}
		optest.Run(t, b)
	})
}

func TestAnEngineThatCannotRunSaysWhy(t *testing.T) {
	t.Setenv("EPIGRAD_CPU_ENGINE", "sse")
	info := cpu.New().Info()
	require.False(t, info.Available)
	require.Contains(t, info.Reason, `EPIGRAD_CPU_ENGINE: there is no engine "sse"`)
	require.Contains(t, info.Reason, "avx2")
	t.Setenv("EPIGRAD_CPU_ENGINE", "go")
	require.Equal(t, "go", cpu.New().EngineName())
}

// C can run a small pass by itself, as long as its kernel is there; what several threads share, or
// what sums, is Go's.
func TestProgramsOfSmallPasses(t *testing.T) {
	vector := func(operand int, n int64) *tensor.View {
		return &tensor.View{Operand: operand, DType: dtype.Float32, Shape: []int64{n}, Strides: []int64{1}}
	}
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		for n, programmed := range map[int64]bool{1: true, 1000: true, 1 << 16: false} {
			p := &backend.Activation{Header: backend.Header{Op: "activation", Kind: "silu", Formula: "silu", DType: dtype.Float32}, Input: vector(0, n), Out: vector(1, n)}
			k, err := b.Select(p)
			require.NoError(t, err)
			_, has := k.(backend.Programmed)
			require.Equal(t, programmed && b.EngineName() != "go", has, "%d elements", n)
		}
		sums := &backend.ActivationBackward{
			Header:     backend.Header{Op: "activation_backward", Kind: "silu", Formula: "silu", DType: dtype.Float32},
			GradOutput: vector(0, 8), Input: vector(1, 8), GradInput: vector(2, 8), GradBias: vector(3, 8),
		}
		k, err := b.Select(sums)
		require.NoError(t, err)
		_, has := k.(backend.Programmed)
		require.False(t, has, "sums")
	})
}

// Run with GODEBUG=cpu.avx2=off, which hides the instructions from the choice of an engine as an
// older processor would.
func TestWithoutVectorInstructions(t *testing.T) {
	if !strings.Contains(os.Getenv("GODEBUG"), "cpu.avx2=off") {
		t.Skip("a run of its own: make portable")
	}
	require.Equal(t, "go", cpu.New().EngineName())
	info := cpu.NewOn("avx2").Info()
	require.False(t, info.Available)
	require.Contains(t, info.Reason, "AVX2")
}

// Engines compute the same on a team. A runtime may have fewer threads than it is asked for, or
// more.
func TestOnATeam(t *testing.T) {
	run := openmptest.Process(t)
	run("TestAnyNumberOfThreads")
	run("TestPlainResults", "TEAM=1")
	run("TestPlainResults", "TEAM=12")
}

func TestThreadsThatThereAreNot(t *testing.T) {
	t.Setenv("EPIGRAD_CPU_THREADS", "fibers")
	for _, engine := range cpu.Engines() {
		info := cpu.NewOn(engine).Info()
		require.False(t, info.Available)
		require.True(t, strings.HasPrefix(info.Reason, `EPIGRAD_CPU_THREADS: got "fibers", want goroutines`), info.Reason)
	}
}
