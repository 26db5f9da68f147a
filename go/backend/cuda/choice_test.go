//go:build cgo

package cuda

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
)

func TestWhichGPUsFuseLayers(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         bool
	}{{8, 0, false}, {8, 6, true}, {8, 9, true}, {9, 0, false}, {10, 0, false}, {10, 3, false}, {12, 0, true}} {
		require.Equal(t, c.want, fusesLayers(c.major, c.minor), "%+v", c)
	}
}

// A layer takes the program of all GPUs where its depth is short and TF32 is allowed to float32,
// and outside of batch_invariant.
func TestLayersWithoutHopper(t *testing.T) {
	all := func(string) bool { return true }
	for _, c := range []struct {
		what                       string
		fuses, invariant, tf32, ok bool
		dt                         dtype.DType
		depth                      int64
	}{
		{what: "short", fuses: true, dt: dtype.BFloat16, depth: 1024, ok: true},
		{what: "long", fuses: true, dt: dtype.BFloat16, depth: 1040},
		{what: "odd", fuses: true, dt: dtype.Float16, depth: 777, ok: true},
		{what: "another GPU", dt: dtype.BFloat16, depth: 1024},
		{what: "invariant", fuses: true, invariant: true, dt: dtype.BFloat16, depth: 1024},
		{what: "float32", fuses: true, dt: dtype.Float32, depth: 1024},
		{what: "TF32", fuses: true, tf32: true, dt: dtype.Float32, depth: 1024, ok: true},
	} {
		header := backend.Header{DType: c.dt, Formula: "gelu", BatchInvariant: c.invariant, AllowTF32: c.tf32}
		p := &backend.GemmEpilogue{Header: header, A: view(c.dt, 8192, c.depth), B: view(c.dt, c.depth, 3072), Out: view(c.dt, 8192, 3072)}
		b := (&Backend{}).builder(&device{processors: 128, fuses: c.fuses, compiled: all}, p)
		_, ok := b.onePassOf(lower.Forward(p))
		require.Equal(t, c.ok, ok, c.what)
	}
}

// The program of all GPUs loads the value's weight and the gate's with one stride.
func TestGatedWeightsOfTwoStrides(t *testing.T) {
	const dt = dtype.BFloat16
	for _, wide := range []int64{512, 640} {
		gate := view(dt, 3072, 512)
		gate.Strides[0] = wide
		p := &backend.GatedLinear{
			Header: backend.Header{DType: dt, Formula: "swish"}, Input: view(dt, 8192, 512), WeightValue: view(dt, 3072, 512), WeightGate: gate, Out: view(dt, 8192, 3072),
		}
		b := (&Backend{Program: sm80.name}).builder(&device{processors: 128, compiled: func(string) bool { return true }}, p)
		b.plan(p)
		require.Equal(t, wide == 512, b.refused == nil, "%d", wide)
	}
}

// On Hopper groups whose formula its program lacks have its product and a pass.
func TestFormulasThatHopperLacks(t *testing.T) {
	compiled := func(name string) bool { return !slices.Contains([]string{"grouped_linear_sm90_gelu_bf16_nt"}, name) }
	for _, boxes := range []bool{false, true} {
		p := &backend.GemmEpilogue{Header: backend.Header{DType: dtype.BFloat16}}
		b := (&Backend{}).builder(&device{processors: 132, boxes: boxes, compiled: compiled}, p)
		require.Equal(t, boxes, b.groupedKernel(sm80, "linear_", []string{"gelu"}, "nt") == "")
		require.Equal(t, "linear_sm80_none_bf16_nt", b.groupedKernel(sm80, "linear_", []string{"none"}, "nt"))
	}
}
