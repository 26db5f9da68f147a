package op_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImportsNoBackend: operations know the interface of backends and none of them.
func TestImportsNoBackend(t *testing.T) {
	const module = "github.com/epigrad/epigrad/"
	list, err := exec.Command("go", "list", "-deps", module+"go/op").Output()
	if err != nil {
		t.Skipf("go list: %v", err) // a test binary that was built elsewhere
	}
	packages := strings.Fields(string(list))
	require.Contains(t, packages, module+"go/backend")
	for _, name := range packages {
		if name != module+"go/backend/lower" { // what problems are made of, on every backend
			require.False(t, strings.HasPrefix(name, module+"go/backend/"), "go/op imports %s", name)
		}
		require.False(t, strings.HasPrefix(name, module+"kernels/"), "go/op imports %s", name)
	}
}
