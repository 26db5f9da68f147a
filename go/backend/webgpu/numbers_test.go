//go:build cgo

package webgpu

import (
	"encoding/binary"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// TestNumbersAreData: no kernel is compiled for the value of a parameter.
func TestNumbersAreData(t *testing.T) {
	d, err := theDevice()
	if err != nil {
		t.Skip(err)
	}
	op.ClearCache()
	backend.Register(New())
	view := func() *tensor.View {
		memory := make([]float32, 8)
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, []int64{8}, nil, 0)
		require.NoError(t, err)
		return &v
	}
	inf := math.Inf(1)
	for kind, calls := range map[string][][]float64{
		"swish":    {{1.5}, {-2}},
		"softplus": {{1, 20}, {2, -3}},
		"hardtanh": {{-1, 1}, {0, 6}},
		"softcap":  {{30}, {50}},
		"elu":      {{1}, {0.5}},
		"glu":      {{inf, inf, 0}, {7, inf, 1}, {inf, 2, 0}},
		"swiglu":   {{inf, inf, 0, 1.702}, {7, 2, 1, 1.5}},
		"situ_glu": {{4, 25}, {1, 2}},
	} {
		before := 0
		for i, parameters := range calls {
			call := &op.Call{Op: "activation", Kind: kind, Parameters: parameters, Backend: backendName, Inputs: []*tensor.View{view()}, Outputs: []*tensor.View{view()}}
			if len(calls[0]) > 2 || kind == "situ_glu" {
				call.Op, call.Inputs = "gated_product", []*tensor.View{view(), view()}
			}
			require.NoError(t, op.Run(call))
			if i > 0 {
				require.Len(t, d.pipelines, before, "%s of %v", kind, parameters)
			}
			before = len(d.pipelines)
		}
	}
}

// TestNumbersOfGatedKinds: limits go as bits, and none as bits that no number reaches; the gate's
// numbers have the digits that float32 leaves out.
func TestNumbersOfGatedKinds(t *testing.T) {
	params := make([]byte, paramShape)
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(params[at:]) }
	number := func(at int) float64 { return float64(math.Float32frombits(word(at))) }
	s := &step{template: &template{definitions: map[string]string{"FORMULA": "gated_backward", "KIND": "swish"}}}

	s.putNumbers(params, []float64{math.NaN(), 7, math.Copysign(0, -1), 1.702})
	require.Equal(t, uint32(noLimit), word(paramLimits))
	require.Equal(t, math.Float32bits(7), word(paramLimits+4))
	require.Equal(t, uint32(0x80000000), word(paramOffset))
	require.InDelta(t, 1.702, number(paramParameters)+number(paramLows), 0x1p-48)

	s.putNumbers(params, []float64{1e39, math.NaN(), 1, 1e300})
	require.Equal(t, math.Float32bits(float32(math.Inf(1))), word(paramLimits), "an infinity reaches it")
	require.Equal(t, uint32(noLimit), word(paramLimits+4))
	require.Equal(t, math.MaxFloat32, number(paramParameters))

	s.definitions["KIND"] = "situ"
	s.putNumbers(params, []float64{4, 25, 0, 0})
	for i, want := range []float64{4, 25, 0.25, 0.04} {
		require.InDelta(t, want, number(paramParameters+4*i)+number(paramLows+4*i), 0x1p-48)
	}
}
