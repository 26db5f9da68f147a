package op_test

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// TestGradientsOfRankZeroAskForNothing: beside another gradient, backends see the problems of a
// call without adapters. A GPU's driver refuses a launch that has nothing to compute.
func TestGradientsOfRankZeroAskForNothing(t *testing.T) {
	a := inPlaceOfCPU(t, func(cpu backend.Backend) *asked { return &asked{Backend: cpu} })
	sizes := map[string]int64{"...": 3, "T": 3, "J": 1, "K": 2, "H": 4, "2H": 8, "N": 5, "E": 2, "R": 0, "S": 0}
	kinds := map[string]string{"activation": "gelu", "gated": "swiglu", "either": "swiglu"}
	types := map[check.Types]dtype.DType{check.Offsets: dtype.Int32, check.Indices: dtype.Int64}
	var memory [64]int64
	view := func(argument op.Argument) *tensor.View {
		var shape []int64
		for _, symbol := range strings.Split(strings.Trim(argument.Shape, "[]"), ", ") {
			shape = append(shape, sizes[symbol])
		}
		dt, isInteger := types[argument.Types]
		if !isInteger {
			dt = dtype.Float32
		}
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dt, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
		require.NoError(t, err)
		return &v
	}
	tried := 0
	for _, row := range op.Rows() {
		if row.Adapted == nil || !strings.HasSuffix(row.Name, "_backward") {
			continue
		}
		tried++
		selected := func(adapters bool) int {
			call := op.Call{Op: row.Name, Kind: kinds[row.Kinds]}
			for _, argument := range row.Adapted.Inputs {
				if argument.IsAdapters() && adapters || !argument.Optional {
					call.Inputs = append(call.Inputs, view(argument))
				} else {
					call.Inputs = append(call.Inputs, nil)
				}
			}
			wanted := make([]bool, len(row.Adapted.Outputs))
			for i, gradient := range row.Adapted.Outputs {
				wanted[i] = gradient.IsAdapters() && adapters
			}
			wanted[slices.IndexFunc(row.Adapted.Outputs, func(a op.Argument) bool { return strings.HasPrefix(a.Name, "grad_weight") })] = true
			a.selected = 0
			_, _, err := op.Infer(&call, wanted)
			require.NoError(t, err, row.Name)
			return a.selected
		}
		require.Equal(t, selected(false), selected(true), row.Name)
	}
	require.Positive(t, tried)
}
