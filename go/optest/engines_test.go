package optest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequiredNamesAreKnown(t *testing.T) {
	const variable = "EPIGRAD_REQUIRE_ENGINES"
	known := []string{"go", "avx2", "avx512"}
	t.Setenv(variable, "")
	got, err := required(variable, known)
	require.NoError(t, err)
	require.Empty(t, got)
	t.Setenv(variable, "avx512, go,")
	got, err = required(variable, known)
	require.NoError(t, err)
	require.Equal(t, []string{"avx512", "go"}, got)
	t.Setenv(variable, "avx2,axv512")
	_, err = required(variable, known)
	require.EqualError(t, err, `EPIGRAD_REQUIRE_ENGINES: got "axv512", want some of go, avx2, avx512`)
}
