package optest

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/op"
)

// TestSlopesKeepToOneSideOfAKink takes a function that is flat at both ends, and one that outgrows
// its argument.
func TestSlopesKeepToOneSideOfAKink(t *testing.T) {
	flat, square := clip(0, 6), references["relu2"]
	for _, c := range []struct {
		kind     *reference
		x, slope float64
	}{
		{flat, -1e-6, 0},
		{flat, 0, 0},
		{flat, 1e-6, 1},
		{flat, 3, 1},
		{flat, 6 - 1e-6, 1},
		{flat, 6, 0},
		{flat, 6 + 1e-6, 0},
		{square, -1e-6, 0},
		{square, 0, 0},
		{square, 1e-6, 2e-6},
		{square, 40, 80},
		{square, 1000, 2000},
	} {
		assert.InDelta(t, c.slope, c.kind.slope(c.x), c.kind.slopeError(c.x, 0), "%g", c.x)
	}
	assert.InDelta(t, 1e-9, flat.slopeError(3, 1e-9/2), 3e-11, "the error of a small slope is absolute")
	assert.InDelta(t, 2e-6, square.slopeError(1000, 1e-9), 2e-6, "that of a large one grows with it")
	assert.InDelta(t, 1e-3*2*40, square.spread(40, 1e-3), 2e-6)
	assert.InDelta(t, valueError*1e6, square.formulaError(1000, 0), 1e-20)
	assert.True(t, flat.nearKink(5.99, 0.05) && flat.nearKink(-0.01, 0.05) && !flat.nearKink(3, 0.05))
}

// TestReferencesAreComplete: every kind, preset and formula has a reference.
func TestReferencesAreComplete(t *testing.T) {
	hasKey := func(keys []string, name string) bool {
		return slices.ContainsFunc(keys, func(key string) bool { return named(op.Call{Kind: key}).Kind == name })
	}
	for _, name := range activation.Names() {
		assert.True(t, hasKey(kinds(), name), "no reference of %s", name)
	}
	for _, name := range activation.GatedNames() {
		assert.True(t, hasKey(gatedKinds(), name), "no reference of %s", name)
	}
	assert.Len(t, firstOfFormulas(kinds()), len(activation.Kernels()))
	assert.Len(t, firstOfFormulas(gatedKinds()), len(activation.GatedKernels()))
}

// TestKinksAreTheTables compares the kinks of the references with those that the table has for
// tests of other languages.
func TestKinksAreTheTables(t *testing.T) {
	for _, kind := range kinds() {
		c := named(op.Call{Kind: kind})
		row, _ := activation.Lookup(c.Kind)
		values, err := activation.Complete(row.Parameters, c.Parameters)
		require.NoError(t, err)
		number := func(text string) float64 {
			for i, p := range row.Parameters {
				if p.Name == text {
					return values[i]
				}
			}
			x, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			return x
		}
		var want, got []float64
		for _, text := range row.Kinks {
			over, under, quotient := strings.Cut(text, "/")
			x := number(over)
			if quotient {
				x /= number(under)
			}
			want = append(want, x)
		}
		for _, k := range references[kind].kinks {
			got = append(got, k.at)
		}
		assert.Equal(t, want, got, kind)
	}
}
