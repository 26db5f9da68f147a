package op_test

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// TestGradientsOfRankZeroAskForNothing: beside another gradient, backends see the problems of a
// call without adapters. A GPU's driver refuses a launch that has nothing to compute.
func TestGradientsOfRankZeroAskForNothing(t *testing.T) {
	a := inPlaceOfCPU(t, func(cpu backend.Backend) *asked { return &asked{Backend: cpu} })
	var memory [64]float32
	view := func(shape ...int64) *tensor.View {
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
		require.NoError(t, err)
		return &v
	}
	const m, k, h, n = 3, 2, 4, 5
	for name, c := range map[string]struct {
		kind             string
		inputs, adapters []*tensor.View
	}{
		"linear_backward":       {"gelu", []*tensor.View{view(m, n), view(m, k), view(n, k), nil, nil, nil}, []*tensor.View{view(0, k), view(n, 0)}},
		"gated_linear_backward": {"swiglu", []*tensor.View{view(m, n), view(m, k), view(n, k), view(n, k), nil, nil, nil}, []*tensor.View{view(0, k), view(n, 0), view(0, k), view(n, 0)}},
		"mlp_backward":          {"gelu", []*tensor.View{view(m, n), view(m, k), view(h, k), nil, view(n, h), nil, nil}, []*tensor.View{view(0, k), view(h, 0), view(0, h), view(n, 0)}},
		"gated_mlp_backward":    {"swiglu", []*tensor.View{view(m, n), view(m, k), view(2*h, k), nil, view(n, h), nil, nil}, []*tensor.View{view(0, k), view(2*h, 0), view(0, h), view(n, 0)}},
	} {
		signature, known := op.SignatureOf(name)
		require.True(t, known, name)
		wanted := make([]bool, len(signature.Outputs))
		wanted[1] = true // the gradient of a weight
		selected := func(adapters []*tensor.View) int {
			a.selected = 0
			_, _, err := op.Infer(&op.Call{Op: name, Kind: c.kind, Inputs: slices.Concat(c.inputs, adapters)}, wanted)
			require.NoError(t, err, name)
			return a.selected
		}
		without := selected(make([]*tensor.View, len(c.adapters)))
		for i := range c.adapters {
			wanted[len(wanted)-1-i] = true
		}
		require.Equal(t, without, selected(c.adapters), name)
	}
}
