package portable_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/kernels/portable"
)

func TestGated(t *testing.T) {
	value, gate, gradOutput := []float64{2, -3, 0.5}, []float64{0.25, -1.5, 40}, []float64{1, 0.5, -4}
	for _, kind := range activation.AllGated() {
		f := formula(t, kind.Activation)
		out, gradValue, gradGate := make([]float64, 3), make([]float64, 3), make([]float64, 3)
		portable.Gated(f, out, value, gate)
		portable.GatedBackward(f, gradValue, gradGate, gradOutput, value, gate)
		for i := range out {
			assert.Equal(t, value[i]*f.Value(gate[i]), out[i], kind.Name)
			assert.Equal(t, gradOutput[i]*f.Value(gate[i]), gradValue[i], kind.Name)
			assert.Equal(t, f.Gradient(gradOutput[i]*value[i], gate[i]), gradGate[i], kind.Name)
		}
	}
}

func TestGatedBackwardComputesWhatIsAskedFor(t *testing.T) {
	f := formula(t, "sigmoid")
	value, gate, gradOutput := []float64{2}, []float64{0}, []float64{3}
	gradValue, gradGate := []float64{7}, []float64{7}
	portable.GatedBackward(f, gradValue, nil, gradOutput, value, gate)
	portable.GatedBackward(f, nil, gradGate, gradOutput, value, gate)
	portable.GatedBackward(f, nil, nil, gradOutput, value, gate)
	assert.Equal(t, []float64{1.5}, gradValue)
	assert.Equal(t, []float64{1.5}, gradGate)
}

// TestGLUTail is the defect of s(b)(1 - s(b)): it is zero from b = 37 on.
func TestGLUTail(t *testing.T) {
	gradGate := make([]float64, 1)
	portable.GatedBackward(formula(t, "sigmoid"), nil, gradGate, []float64{1}, []float64{1}, []float64{60})
	assert.LessOrEqual(t, ulps(gradGate[0], 8.75651076269652e-27, 8.75651076269652e-27), float64(maxULP))
}

// TestReGLUNaN is the defect of a comparison that sends a NaN gate to zero.
func TestReGLUNaN(t *testing.T) {
	f := formula(t, "relu")
	out, gradValue, gradGate := make([]float64, 1), make([]float64, 1), make([]float64, 1)
	nan := []float64{math.NaN()}
	portable.Gated(f, out, []float64{2}, nan)
	portable.GatedBackward(f, gradValue, gradGate, []float64{3}, []float64{2}, nan)
	assert.True(t, math.IsNaN(out[0]))
	assert.True(t, math.IsNaN(gradValue[0]))
	assert.Equal(t, 6.0, gradGate[0], "relu'(NaN) passes the gradient on, as in PyTorch")
}
