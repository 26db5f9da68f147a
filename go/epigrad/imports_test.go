package epigrad_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOpensNoNetwork: nothing in epigrad can open a connection or start a program, as SECURITY.md
// says.
func TestOpensNoNetwork(t *testing.T) {
	list, err := exec.Command("go", "list", "-deps", "github.com/epigrad/epigrad/go/epigrad", "github.com/epigrad/epigrad/cbridge").Output()
	if err != nil {
		t.Skipf("go list: %v", err) // a test binary that was built elsewhere
	}
	packages := strings.Fields(string(list))
	require.Contains(t, packages, "github.com/epigrad/epigrad/go/backend/cuda")
	for _, name := range []string{"net", "net/http", "os/exec"} {
		require.NotContains(t, packages, name)
	}
}
