// Package openmptest runs tests again in a process where a stand-in for PyTorch has a team of
// threads.
package openmptest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend/cpu/threads/openmp"
)

// onATeam is set in the environment of a process that has the stand-in.
const onATeam = "EPIGRAD_TEST_TEAM"

//go:embed testdata/team.c
var source []byte

// OnATeam reports whether this process has the stand-in.
func OnATeam() bool { return os.Getenv(onATeam) != "" }

// Process runs tests of this package's binary in processes with the stand-in; it skips the test
// where there can be no team. What it returns takes a test's name, and more of the environment, and
// requires that it passes.
func Process(t *testing.T) func(test string, environment ...string) {
	t.Helper()
	if !openmp.Built {
		t.Skip("teams are for Linux, with cgo")
	}
	folder := t.TempDir()
	library, written := filepath.Join(folder, "libtorch_cpu.so"), filepath.Join(folder, "team.c")
	require.NoError(t, os.WriteFile(written, source, 0o600))
	compile := exec.Command("cc", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libtorch_cpu.so", "-o", library, written)
	out, err := compile.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return func(test string, environment ...string) {
		t.Helper()
		again := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v", "-test.short", "-test.timeout=5m")
		again.Env = append(os.Environ(), append(environment, onATeam+"=1", "LD_PRELOAD="+library)...)
		out, err := again.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+test)
	}
}
