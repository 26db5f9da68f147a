//go:build cgo && amd64

package cpu_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/kernels/cpu"
)

// The largest cache is the one that Linux finds; a container may hide that, and a hypervisor may hide both.
func TestCacheBytes(t *testing.T) {
	files, err := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*/size")
	require.NoError(t, err)
	largest := int64(0)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"), 10, 64)
		require.NoError(t, err, file)
		largest = max(largest, kib<<10)
	}
	if largest == 0 {
		require.Less(t, cpu.CacheBytes(), int64(1)<<40)
		return
	}
	require.Equal(t, largest, cpu.CacheBytes())
}
