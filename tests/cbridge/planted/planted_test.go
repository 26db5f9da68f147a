//go:build cgo

package planted_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/tests/cbridge/planted"
)

// TestEachIsReported runs a defect of each sanitizer that EPIGRAD_REQUIRE_SANITIZERS names, in a
// process that must end by its report.
func TestEachIsReported(t *testing.T) {
	if name := os.Getenv("EPIGRAD_PLANTED"); name != "" {
		planted.Defects[name].Plant()
		return
	}
	names := os.Getenv("EPIGRAD_REQUIRE_SANITIZERS")
	if names == "" {
		t.Skip("built without sanitizers: make sanitize")
	}
	for name := range strings.SplitSeq(names, ",") {
		require.Contains(t, planted.Defects, name, "EPIGRAD_REQUIRE_SANITIZERS")
		run := exec.Command(os.Args[0], "-test.run=^TestEachIsReported$")
		run.Env = append(os.Environ(), "EPIGRAD_PLANTED="+name)
		output, err := run.CombinedOutput()
		require.Error(t, err, "the defect for the sanitizer %s went by: %s", name, output)
		require.Contains(t, string(output), planted.Defects[name].Report)
	}
}
