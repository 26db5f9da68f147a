package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKeptFilesAreCurrent: `make generate` has run since a table was changed.
func TestKeptFilesAreCurrent(t *testing.T) {
	for path, written := range kept {
		text, err := os.ReadFile(filepath.Join("../..", path))
		require.NoError(t, err)
		require.Equal(t, string(text), written(string(text)), path)
	}
}
