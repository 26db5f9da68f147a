package webgpu

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/optest"
)

// TestMain has the suite take fewer layouts unless EPIGRAD_TEST_FULL asks for all: a software adapter is slow.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv("EPIGRAD_TEST_FULL") == "" {
		if err := flag.Set("test.short", "true"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// TestBackend runs the suite of all backends on whatever adapter there is: Mesa's lavapipe on a machine without a GPU.
func TestBackend(t *testing.T) {
	op.ClearCache()
	optest.Run(t, New())
}

// TestBackendOfNarrowLimits runs some of it on a device that claims to allow so little that everything is cut: operands, grids and loops. (Where a sum is cut depends on
// layouts then, and so do its bits.)
func TestBackendOfNarrowLimits(t *testing.T) {
	op.ClearCache()
	defer op.ClearCache()
	methods := flag.Lookup("testify.m")
	defer func(before string) { require.NoError(t, methods.Value.Set(before)) }(methods.Value.String())
	require.NoError(t, methods.Value.Set("^TestActivation|^TestGated|^TestGemmEpilogue(AtBlockEdges|Backward|Forward)$|^TestLerp|^TestNaN|^TestSums"))
	optest.Run(t, &Backend{limits: limits{bindingBytes: 16 << 10, groups: 7, trips: 2}})
}
