package cuda_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend/cuda"
	"github.com/epigrad/epigrad/go/optest"
	kernels "github.com/epigrad/epigrad/kernels/cuda"
)

// emulated tells a test binary that it runs on the emulator's libraries.
const emulated = "EPIGRAD_EMULATED_GPU"

// TestOnTheEmulator builds libraries that stand in for the driver's and for cuBLASLt (kernels/cuda/emulator), and runs the suite of all backends in a process
// that finds them: the kernels, the programs and what is asked of the libraries are those of a GPU, on a machine that has none.
func TestOnTheEmulator(t *testing.T) {
	if !kernels.Built() {
		t.Skip("this tree's CUDA kernels are not built, and with them their names: make kernels")
	}
	compiler, err := exec.LookPath("g++")
	if err != nil {
		t.Skip("the emulator needs g++")
	}
	folder := t.TempDir()
	source := filepath.Join("..", "..", "..", "kernels", "cuda", "emulator", "libraries.cpp")
	build := exec.Command(compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unknown-pragmas", source,
		"-o", filepath.Join(folder, "libcuda.so.1"))
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.NoError(t, os.Symlink("libcuda.so.1", filepath.Join(folder, "libcublasLt.so.13")))
	arguments := []string{"-test.run=^TestBackend$"}
	if testing.Short() {
		arguments = append(arguments, "-test.short")
	}
	run := exec.Command(os.Args[0], arguments...)
	run.Env = append(os.Environ(), emulated+"=1", "LD_LIBRARY_PATH="+folder, "EPIGRAD_REQUIRE_BACKENDS=cuda")
	output, err = run.CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// TestBackend runs the suite on the emulator. A GPU's memory is not the host's, which optest's arrays are in: there the Python suite is what tests.
func TestBackend(t *testing.T) {
	if os.Getenv(emulated) == "" {
		t.Skip("TestOnTheEmulator runs it")
	}
	optest.Run(t, cuda.New())
}
