package portable_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/kernels/portable"
)

// gated is the formula of a gated kind, with the default parameters or with those given.
func gated(t testing.TB, name string, parameters ...float64) *portable.GatedFormula {
	t.Helper()
	row, ok := activation.LookupGated(name)
	require.True(t, ok, name)
	values, err := activation.Complete(row.Parameters, parameters)
	require.NoError(t, err)
	kernel, numbers := row.Kernel(values)
	made, ok := portable.LookupGated(kernel)
	require.True(t, ok, name)
	return made(numbers)
}

// at returns a gated kind's output and gradients at one place.
func at(f *portable.GatedFormula, gradOutput, value, gate float64) (out, gradValue, gradGate float64) {
	results := [3][]float64{{0}, {0}, {0}}
	f.Values(results[0], []float64{value}, []float64{gate})
	f.Gradients(results[1], results[2], []float64{gradOutput}, []float64{value}, []float64{gate})
	return results[0][0], results[1][0], results[2][0]
}

// TestGated: without limits a gated kind is a product with the activation, to the sign of zeros.
func TestGated(t *testing.T) {
	zero := math.Copysign(0, -1)
	for _, kind := range activation.AllGated() {
		if kind.Activation == "" {
			continue
		}
		act, f := formula(t, kind.Activation), gated(t, kind.Name)
		for _, c := range [][3]float64{{1, 2, 0.25}, {0.5, -3, -1.5}, {-4, 0.5, 40}, {1, 0, -2}, {-1, zero, 2}, {zero, 1, 2}} {
			g, value, gate := c[0], c[1], c[2]
			out, gradValue, gradGate := at(f, g, value, gate)
			assertSame(t, value*act.Value(gate), out, kind.Name)
			assertSame(t, g*act.Value(gate), gradValue, kind.Name)
			assertSame(t, act.Gradient(g*value, gate), gradGate, kind.Name)
		}
	}
}

// TestLimits has the cases in which PyTorch's clamp, slope of it at the bound, and order of steps
// show. swiglu's alpha of 0 makes the activation gate/2, and its slope 1/2.
func TestLimits(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		limit, after, offset     float64
		value, gate              float64
		out, gradValue, gradGate float64 // of grad_output 2
	}{
		{inf, inf, 0, 3, 8, 12, 8, 3},
		{inf, inf, 1, 3, 8, 16, 8, 4},
		{6, inf, 0, 3, 4, 6, 4, 3},
		{6, inf, 0, 3, 6, 9, 6, 0}, // at the bound
		{6, inf, 0, 3, 8, 9, 6, 0},
		{6, inf, 0, 3, -8, -12, -8, 3}, // the gate has no lower limit
		{6, inf, 0, 6, 4, 12, 0, 6},
		{6, inf, 0, 8, 4, 12, 0, 6},
		{6, inf, 0, -6, 4, -12, 0, -6},
		{6, inf, 1, -8, 4, -10, 0, -5}, // the offset after the limit
		{inf, 6, 0, 3, 4, 6, 4, 3},
		{inf, 6, 0, 3, 12, 18, 12, 0},
		{inf, 6, 0, 3, 16, 18, 12, 0},
		{inf, 6, 0, 8, 4, 12, 0, 6},
		{inf, 6, 1, -8, 4, -10, 0, -5},
		{8, 2, 0, 3, 6, 4, 0, 0}, // both: the gate by the second, the value by the second
		{8, 2, 0, 1, 16, 2, 4, 0},
		{4, 3, 0, 5, 6, 6, 0, 0},
		{6, 6, 0, nan, 4, nan, 4, nan},
		{6, 6, 0, 3, nan, nan, nan, nan},
		{6, inf, 0, inf, 4, 12, 0, 6},
		{6, 6, 0, 3, inf, 9, 6, 0},
	} {
		f := gated(t, "swiglu", c.limit, c.after, c.offset, 0)
		out, gradValue, gradGate := at(f, 2, c.value, c.gate)
		assertSame(t, c.out, out, "%v", c)
		assertSame(t, c.gradValue, gradValue, "value's gradient of %v", c)
		assertSame(t, c.gradGate, gradGate, "gate's gradient of %v", c)
	}
}

// TestClampsSelect: where a factor is clamped, not even NaN comes back.
func TestClampsSelect(t *testing.T) {
	for _, g := range []float64{math.Inf(1), math.NaN()} {
		_, gradValue, gradGate := at(gated(t, "swiglu", 6, math.Inf(1), 0, 1), g, 7, 8)
		assertSame(t, 0, gradValue, "%g", g)
		assertSame(t, 0, gradGate, "%g", g)
	}
}

// TestSitu has 40-digit numbers by mpmath.
func TestSitu(t *testing.T) {
	for _, c := range []struct{ value, gate, out, gradValue, gradGate float64 }{
		{0.5, 0.25, 0.07017134934196312, 0.14030528094904646, 0.31067844179067183},
		{-3.0, -1.0, 0.7866529639484646, -0.2597171792128288, -0.1797177898296241},
		{30.0, 5.5, 73.04862511896245, 1.0690898206200394, 4.986323224911209},
		{1.0, -40.0, -1.6984359592072635e-17, -1.696625645981742e-17, -1.698435955706526e-17},
		{100.0, 60.0, 99.93292997388801, 0.005363802732102583, 9.351346808672387e-12},
		{1e-09, -1e-09, -4.999999997500001e-19, -4.9999999975e-10, 4.999999995000001e-10},
		{2.0, -700.0, -7.870957019987802e-304, -3.918737150240338e-304, -7.870957019987802e-304},
		{400.0, 200.0, 99.99999999999747, 2.0262664878550168e-13, 3.720075976020742e-42},
	} {
		out, gradValue, gradGate := at(gated(t, "situ_glu"), 1, c.value, c.gate)
		for i, pair := range [][2]float64{{out, c.out}, {gradValue, c.gradValue}, {gradGate, c.gradGate}} {
			assert.LessOrEqual(t, ulps(pair[0], pair[1], pair[1]), float64(maxULP), "%d of %v: %g", i, c, pair[0])
		}
	}
}

func TestGatedBackwardComputesWhatIsAskedFor(t *testing.T) {
	f := gated(t, "glu")
	value, gate, gradOutput := []float64{2}, []float64{0}, []float64{3}
	gradValue, gradGate := []float64{7}, []float64{7}
	f.Gradients(gradValue, nil, gradOutput, value, gate)
	f.Gradients(nil, gradGate, gradOutput, value, gate)
	f.Gradients(nil, nil, gradOutput, value, gate)
	assert.Equal(t, []float64{1.5}, gradValue)
	assert.Equal(t, []float64{1.5}, gradGate)
}

// TestGLUTail is the defect of s(b)(1 - s(b)): it is zero from b = 37 on.
func TestGLUTail(t *testing.T) {
	_, _, gradGate := at(gated(t, "glu"), 1, 1, 60)
	assert.LessOrEqual(t, ulps(gradGate, 8.75651076269652e-27, 8.75651076269652e-27), float64(maxULP))
}

// TestReGLUNaN is the defect of a comparison that sends a NaN gate to zero.
func TestReGLUNaN(t *testing.T) {
	out, gradValue, gradGate := at(gated(t, "reglu"), 3, 2, math.NaN())
	assert.True(t, math.IsNaN(out))
	assert.True(t, math.IsNaN(gradValue))
	assert.Equal(t, 6.0, gradGate, "relu'(NaN) passes the gradient on, as in PyTorch")
}
