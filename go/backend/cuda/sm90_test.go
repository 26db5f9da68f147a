//go:build cgo

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Hopper's instructions are in no processor before or after it.
func TestHopperAlone(t *testing.T) {
	for _, c := range []struct{ major, minor int }{{8, 0}, {8, 6}, {8, 9}, {10, 0}, {10, 3}, {12, 0}} {
		require.False(t, isHopper(c.major, c.minor), "%d.%d", c.major, c.minor)
	}
	require.True(t, isHopper(9, 0))
}

// The tile whose last round leaves fewer processors idle is taken; the wider one where they are
// alike.
func TestTileColumns(t *testing.T) {
	for _, c := range []struct{ rows, columns, want int64 }{
		{8192, 14336, 192}, {4096, 4096, 128}, {2048, 3072, 192}, {128, 128, 128}, {128, 192, 128},
	} {
		o := onePass{rows: c.rows, columns: c.columns}
		require.Equal(t, c.want, o.tileColumns(132), "%d x %d", c.rows, c.columns)
	}
}

// What the copy engine cannot reach is no matrix of boxes.
func TestBoxed(t *testing.T) {
	for _, c := range []struct {
		m    matrix
		want bool
	}{
		{matrix{3, 16, 16, 1}, true},
		{matrix{3, 24, 16, 1}, true},
		{matrix{1, 1, 13, 1}, true},
		{matrix{3, 13, 13, 1}, false},       // rows do not start at multiples of 16 bytes
		{matrix{3, 8, 16, 1}, false},        // rows overlap
		{matrix{3, 16, 16, 2}, false},       // columns are apart
		{matrix{3, 0, 16, 1}, false},        // one row for all
		{matrix{1 << 31, 16, 16, 1}, false}, // 32 bits
		{matrix{2, 1 << 40, 16, 1}, false},
	} {
		require.Equal(t, c.want, c.m.boxed(), "%+v", c.m)
	}
}
