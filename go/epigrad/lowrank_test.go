package epigrad_test

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/epigrad"
)

// updated is a layer with updates of its weights, and where its gradients go.
type updated struct {
	out, grad *epigrad.Tensor[float64]
	forward   func(out, preactivation *epigrad.Tensor[float64]) error
	backward  func() error
	// gradients by what they are of
	of map[epigrad.Operand]epigrad.Operand
}

// TestUpdatesHaveTheGradientsOfDifferences: weights are frozen, as they are where updates are
// trained.
func TestUpdatesHaveTheGradientsOfDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 30))
	const k, n, h, rank, groups = 3, 5, 4, 2, 3
	low := func(in, out int, leading ...int) (epigrad.LowRank[float64], epigrad.LowRankGradients, map[epigrad.Operand]epigrad.Operand) {
		shape := func(rows, columns int) *epigrad.Tensor[float64] { return normal(r, append(leading, rows, columns)...) }
		u, g := epigrad.LowRank[float64]{A: shape(rank, in), B: shape(out, rank)}, epigrad.LowRankGradients{A: shape(rank, in), B: shape(out, rank)}
		return u, g, map[epigrad.Operand]epigrad.Operand{u.A: g.A, u.B: g.B}
	}
	for name, layer := range map[string]func() updated{
		"linear": func() updated {
			u, g, of := low(k, n)
			p := epigrad.Linear[float64]{Input: normal(r, 6, k), Weight: normal(r, n, k), Bias: normal(r, n), Adapter: u, Activation: "gelu"}
			to := epigrad.LinearGradients[float64]{Input: normal(r, 6, k), Adapter: g}
			of[p.Input] = to.Input
			grad := normal(r, 6, n)
			return updated{normal(r, 6, n), grad, p.Forward, func() error { return p.Backward(grad, epigrad.Saved[float64]{}, to) }, of}
		},
		"gated_linear": func() updated {
			u, g, of := low(k, h)
			v, f, more := low(k, h)
			maps.Copy(of, more)
			p := epigrad.GatedLinear[float64]{Input: normal(r, 6, k), WeightValue: normal(r, h, k), WeightGate: normal(r, h, k), AdapterValue: u, AdapterGate: v, Kind: "swiglu"}
			to := epigrad.GatedLinearGradients[float64]{Input: normal(r, 6, k), AdapterValue: g, AdapterGate: f}
			of[p.Input] = to.Input
			grad := normal(r, 6, h)
			return updated{normal(r, 6, h), grad, p.Forward, func() error { return p.Backward(grad, nil, to) }, of}
		},
		"mlp": func() updated {
			u, g, of := low(k, h)
			v, f, more := low(h, n)
			maps.Copy(of, more)
			p := epigrad.MLP[float64]{Input: normal(r, 6, k), Weight1: normal(r, h, k), Bias1: normal(r, h), Weight2: normal(r, n, h), Adapter1: u, Adapter2: v, Activation: "silu"}
			to := epigrad.MLPGradients[float64]{Input: normal(r, 6, k), Adapter1: g, Adapter2: f}
			of[p.Input] = to.Input
			grad := normal(r, 6, n)
			return updated{normal(r, 6, n), grad, p.Forward, func() error { return p.Backward(grad, nil, to) }, of}
		},
		"gated_mlp": func() updated {
			u, g, of := low(k, 2*h)
			v, f, more := low(h, n)
			maps.Copy(of, more)
			p := epigrad.GatedMLP[float64]{Input: normal(r, 6, k), WeightIn: normal(r, 2*h, k), WeightOut: normal(r, n, h), AdapterIn: u, AdapterOut: v, Kind: "geglu", Gate: "even"}
			to := epigrad.GatedMLPGradients[float64]{Input: normal(r, 6, k), AdapterIn: g, AdapterOut: f}
			of[p.Input] = to.Input
			grad := normal(r, 6, n)
			return updated{normal(r, 6, n), grad, p.Forward, func() error { return p.Backward(grad, nil, to) }, of}
		},
		"grouped_linear": func() updated {
			u, g, of := low(k, n, groups)
			p := epigrad.GroupedLinear[float64]{
				Input: normal(r, 6, k), Weight: normal(r, groups, n, k), Offsets: epigrad.Of([]int64{2, 2, 5}, groups), Adapter: u, Activation: "tanh",
			}
			to := epigrad.GroupedLinearGradients[float64]{Input: normal(r, 6, k), Adapter: g}
			of[p.Input] = to.Input
			grad := normal(r, 6, n)
			return updated{normal(r, 6, n), grad, p.Forward, func() error { return p.Backward(grad, nil, to) }, of}
		},
		"experts": func() updated {
			u, g, of := low(k, 2*h, groups)
			v, f, more := low(h, k, groups)
			maps.Copy(of, more)
			p := epigrad.Experts[float64]{
				Input: normal(r, 4, k), Index: epigrad.Of([]int64{0, 2, 2, 0, 9, 2, 0, -1}, 4, 2), Scale: normal(r, 4, 2),
				WeightIn: normal(r, groups, 2*h, k), WeightOut: normal(r, groups, k, h), AdapterIn: u, AdapterOut: v, Kind: "swiglu", Gate: "odd",
			}
			scale := normal(r, 4, 2)
			to := epigrad.ExpertsGradients[float64]{Input: normal(r, 4, k), Scale: scale, AdapterIn: g, AdapterOut: f}
			of[p.Input], of[p.Scale] = to.Input, scale
			grad := normal(r, 4, k)
			return updated{normal(r, 4, k), grad, p.Forward, func() error { return p.Backward(grad, nil, to) }, of}
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := layer()
			require.NoError(t, u.forward(u.out, nil))
			require.NoError(t, u.backward())
			gradients(t, u.grad, u.out, func() error { return u.forward(u.out, nil) }, u.of)
		})
	}
}

func TestAnUpdateOfAnotherShapeIsNamed(t *testing.T) {
	layer := epigrad.GatedMLP[float32]{
		Input: epigrad.New[float32](5, 3), WeightIn: epigrad.New[float32](8, 3), WeightOut: epigrad.New[float32](2, 4), Kind: "swiglu",
		AdapterOut: epigrad.LowRank[float32]{A: epigrad.New[float32](2, 4), B: epigrad.New[float32](4, 2)},
	}
	out := epigrad.New[float32](5, 2)
	require.ErrorContains(t, layer.Forward(out, nil), "gated_mlp: adapter_out.b: shape [4, 2], want [n, r] = [2, 2]")
	layer.AdapterOut.B = nil
	require.ErrorContains(t, layer.Forward(out, nil), "gated_mlp: adapter_out.b: missing, want a tensor beside adapter_out.a")
}
