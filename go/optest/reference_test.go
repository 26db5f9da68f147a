package optest

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestSlopesKeepToOneSideOfAKink takes functions that no table has: one that is flat at both ends,
// and one that outgrows its argument.
func TestSlopesKeepToOneSideOfAKink(t *testing.T) {
	references["clip"] = reference{
		value: func(x float64) float64 { return min(max(x, 0), 6) }, kinks: []kink{{at: 0}, {at: 6, fromRight: true}},
	}
	references["square"] = reference{value: func(x float64) float64 { return max(x, 0) * max(x, 0) }, kinks: []kink{{at: 0}}}
	t.Cleanup(func() {
		delete(references, "clip")
		delete(references, "square")
	})
	for _, c := range []struct {
		kind     string
		x, slope float64
	}{
		{"clip", -1e-6, 0},
		{"clip", 0, 0},
		{"clip", 1e-6, 1},
		{"clip", 3, 1},
		{"clip", 6 - 1e-6, 1},
		{"clip", 6, 0},
		{"clip", 6 + 1e-6, 0},
		{"square", -1e-6, 0},
		{"square", 0, 0},
		{"square", 1e-6, 2e-6},
		{"square", 40, 80},
		{"square", 1000, 2000},
	} {
		assert.InDelta(t, c.slope, slope(c.kind, c.x), slopeError(c.kind, c.x, 0), "%s'(%g)", c.kind, c.x)
	}
	assert.InDelta(t, 1e-9, slopeError("clip", 3, 1e-9/2), 3e-11, "the error of a small slope is absolute")
	assert.InDelta(t, 2e-6, slopeError("square", 1000, 1e-9), 2e-6, "that of a large one grows with it")
	assert.InDelta(t, 1e-3*2*40, spread("square", 40, 1e-3), 2e-6)
	assert.InDelta(t, valueError*1e6, formulaError("square", 1000, 0), 1e-20)
	assert.True(t, nearKink("clip", 5.99, 0.05) && nearKink("clip", -0.01, 0.05) && !nearKink("clip", 3, 0.05))
}
