package optest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ForEachEngine visits the CPU's engines of these names. One that cannot be opened here is skipped,
// unless EPIGRAD_REQUIRE_ENGINES=avx512,avx2 names it.
func ForEachEngine[T any](t *testing.T, names []string, open func(name string) (T, error), visit func(t *testing.T, engine T)) {
	// which runs without any kernels in C
	required, err := required("EPIGRAD_REQUIRE_ENGINES", append([]string{"go"}, names...))
	require.NoError(t, err)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			engine, err := open(name)
			if err != nil {
				if slices.Contains(required, name) {
					t.Fatalf("the engine %s is required: %s", name, err)
				}
				t.Skip(err)
			}
			visit(t, engine)
		})
	}
}

// required is the list of names in an environment variable. A name that is none of the known ones
// would require nothing, and is an error.
func required(variable string, known []string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(os.Getenv(variable), ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: got %q, want some of %s", variable, name, strings.Join(known, ", "))
		}
		names = append(names, name)
	}
	return names, nil
}
