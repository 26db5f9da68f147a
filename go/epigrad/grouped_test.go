package epigrad_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/epigrad"
)

// normal is a tensor of normal numbers.
func normal(r *rand.Rand, shape ...int) *epigrad.Tensor[float64] {
	t := epigrad.New[float64](shape...)
	for i := range t.Data {
		t.Data[i] = r.NormFloat64()
	}
	return t
}

// Rows 0 and 1 are of the first group, row 2 of the second, and row 3 of none.
func ExampleGroupedLinear() {
	layer := epigrad.GroupedLinear[float32]{
		Input:  epigrad.Of([]float32{1, 2, 3, 4}, 4, 1),
		Weight: epigrad.Of([]float32{10, 100}, 2, 1, 1), Bias: epigrad.Of([]float32{1, 2}, 2, 1),
		Offsets: epigrad.Of([]int64{2, 3}, 2),
	}
	out := epigrad.New[float32](4, 1)
	err := layer.Forward(out, nil)
	fmt.Println(out.Data, err)
	// Output: [11 21 302 0] <nil>
}

// Three tokens, of which each is seen by one or two of two experts, the second of which doubles.
func ExampleExperts() {
	layer := epigrad.Experts[float32]{
		Input:    epigrad.Of([]float32{1, 2, 3}, 3, 1),
		Index:    epigrad.Of([]int64{0, 1, 1, -1, 0, -1}, 3, 2), // -1 selects nothing
		Scale:    epigrad.Of([]float32{1, 1, 1, 0, 0.5, 0}, 3, 2),
		WeightIn: epigrad.Of([]float32{1, 2}, 2, 1, 1), WeightOut: epigrad.Of([]float32{1, 1}, 2, 1, 1),
		Kind: "relu",
	}
	out := epigrad.New[float32](3, 1)
	err := layer.Forward(out, nil)
	fmt.Println(out.Data, err)
	// Output: [3 4 1.5] <nil>
}

func TestGroupedLinearGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	for _, activation := range epigrad.Activations() {
		t.Run(activation, func(t *testing.T) {
			layer := epigrad.GroupedLinear[float64]{
				Input: normal(r, 7, 3), Weight: normal(r, 4, 5, 3), Bias: normal(r, 4, 5),
				Offsets: epigrad.Of([]int64{2, 2, 5, 6}, 4), Activation: activation,
			}
			out, pre, g := epigrad.New[float64](7, 5), epigrad.New[float64](7, 5), normal(r, 7, 5)
			got := epigrad.GroupedLinearGradients[float64]{Input: epigrad.New[float64](7, 3), Weight: normal(r, 4, 5, 3), Bias: epigrad.New[float64](4, 5)}
			require.NoError(t, layer.Forward(out, pre))
			assert.Equal(t, make([]float64, 5), out.Data[30:], "a row of no group")
			require.NoError(t, layer.Backward(g, pre, got))
			assert.Equal(t, make([]float64, 15), double(got.Weight).Data[15:30], "a group without rows")
			gradients(t, g, out, func() error { return layer.Forward(out, nil) },
				map[epigrad.Operand]epigrad.Operand{layer.Input: got.Input, layer.Weight: got.Weight, layer.Bias: got.Bias})
		})
	}
}

func TestExpertsGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 20))
	for _, kind := range epigrad.GatedKinds() {
		for _, gate := range []string{"second", "first", "odd", "even"} {
			t.Run(kind+" "+gate, func(t *testing.T) {
				layer := epigrad.Experts[float64]{
					Input: normal(r, 4, 3), Index: epigrad.Of([]int64{0, 2, 2, 0, 9, 2, 0, -1}, 4, 2), Scale: normal(r, 4, 2),
					WeightIn: normal(r, 3, 4, 3), BiasIn: normal(r, 3, 4), WeightOut: normal(r, 3, 3, 2), BiasOut: normal(r, 3, 3),
					Kind: kind, Gate: gate,
				}
				out, pre, g := epigrad.New[float64](4, 3), epigrad.New[float64](8, 4), normal(r, 4, 3)
				got := epigrad.ExpertsGradients[float64]{
					Input: normal(r, 4, 3), Scale: normal(r, 4, 2),
					WeightIn: normal(r, 3, 4, 3), BiasIn: normal(r, 3, 4), WeightOut: normal(r, 3, 3, 2), BiasOut: normal(r, 3, 3),
				}
				require.NoError(t, layer.Forward(out, pre))
				require.NoError(t, layer.Backward(g, pre, got))
				gradients(t, g, out, func() error { return layer.Forward(out, nil) },
					map[epigrad.Operand]epigrad.Operand{
						layer.Input: got.Input, layer.Scale: got.Scale,
						layer.WeightIn: got.WeightIn, layer.BiasIn: got.BiasIn, layer.WeightOut: got.WeightOut, layer.BiasOut: got.BiasOut,
					})

				again := epigrad.ExpertsGradients[float64]{WeightOut: epigrad.New[float64](3, 3, 2), Accumulate: true}
				for range 2 {
					require.NoError(t, layer.Backward(g, nil, again))
				}
				for i, once := range double(got.WeightOut).Data {
					assert.InDelta(t, 2*once, double(again.WeightOut).Data[i], 1e-12)
				}
			})
		}
	}
}

// TestExpertsOfFewerRows: slots that the preactivation has no row for select nothing. The first one
// without a row is the last token's, of the last expert.
func TestExpertsOfFewerRows(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	layer := epigrad.Experts[float64]{
		Input: normal(r, 4, 3), Index: epigrad.Of([]int64{0, 2, 2, 0, -1, 1, 0, 2}, 4, 2), Scale: normal(r, 4, 2),
		WeightIn: normal(r, 3, 4, 3), BiasIn: normal(r, 3, 4), WeightOut: normal(r, 3, 3, 2), BiasOut: normal(r, 3, 3),
		Kind: "swiglu",
	}
	g := normal(r, 4, 3)
	results := func(rows int) [][]float64 {
		out, pre := epigrad.New[float64](4, 3), epigrad.New[float64](rows, 4)
		got := epigrad.ExpertsGradients[float64]{
			Input: epigrad.New[float64](4, 3), Scale: epigrad.New[float64](4, 2), WeightIn: epigrad.New[float64](3, 4, 3),
			BiasIn: epigrad.New[float64](3, 4), WeightOut: epigrad.New[float64](3, 3, 2), BiasOut: epigrad.New[float64](3, 3),
		}
		require.NoError(t, layer.Forward(out, pre))
		require.NoError(t, layer.Backward(g, pre, got))
		return [][]float64{
			out.Data, pre.Data[:16], double(got.Input).Data, double(got.Scale).Data,
			double(got.WeightIn).Data, double(got.BiasIn).Data, double(got.WeightOut).Data, double(got.BiasOut).Data,
		}
	}
	for rows, index := range map[int][]int64{
		6: {0, 2, 2, 0, -1, 1, 0, -1},
		5: {0, 2, -1, 0, -1, 1, 0, -1},
		4: {0, -1, -1, 0, -1, 1, 0, -1},
	} {
		fewer := results(rows)
		whole := layer.Index
		layer.Index = epigrad.Of(index, 4, 2)
		require.Equal(t, results(8), fewer, "%d rows", rows)
		layer.Index = whole
	}
	err := layer.Forward(epigrad.New[float64](4, 3), epigrad.New[float64](9, 4))
	require.ErrorContains(t, err, "preactivation: shape [9, 4], want the result's [8, 4]")
}

func TestGroupedErrors(t *testing.T) {
	out := epigrad.New[float32](4, 2)
	for i := range out.Data {
		out.Data[i] = float32(math.NaN())
	}
	for _, c := range []struct {
		offsets []int64
		message string
	}{
		{[]int64{3, 2}, "grouped_linear: offsets"},
		{[]int64{-1, 2}, "grouped_linear: offsets"},
		{[]int64{2, 5}, "grouped_linear: offsets"},
		{[]int64{2}, "grouped_linear: offsets"},
	} {
		layer := epigrad.GroupedLinear[float32]{
			Input: epigrad.New[float32](4, 3), Weight: epigrad.New[float32](2, 2, 3), Offsets: epigrad.Of(c.offsets, len(c.offsets)),
		}
		err := layer.Forward(out, nil)
		require.ErrorIs(t, err, epigrad.ErrInvalidProblem)
		require.ErrorContains(t, err, c.message)
	}
	layer := epigrad.Experts[float32]{
		Input: epigrad.New[float32](4, 2), Index: epigrad.New[int64](4, 2), Scale: epigrad.New[float32](4, 2),
		WeightIn: epigrad.New[float32](3, 4, 2), WeightOut: epigrad.New[float32](3, 2, 3), Kind: "swiglu",
	}
	require.ErrorContains(t, layer.Forward(out, nil), "experts: weight_out")
	layer.WeightOut, layer.Index = epigrad.New[float32](3, 2, 2), epigrad.New[int64](4, 1)
	require.ErrorContains(t, layer.Forward(out, nil), "experts: ")
	for _, x := range out.Data {
		assert.True(t, math.IsNaN(float64(x)), "nothing is written")
	}
}

// A scale, weight gradients and offsets may have other elements than the rest.
func TestOperandsOfOtherElements(t *testing.T) {
	one, third := epigrad.ToBFloat16(1), epigrad.ToBFloat16(1.0/3)
	fill := func(value epigrad.BFloat16, shape ...int) *epigrad.Tensor[epigrad.BFloat16] {
		t := epigrad.New[epigrad.BFloat16](shape...)
		for i := range t.Data {
			t.Data[i] = value
		}
		return t
	}
	layer := epigrad.GroupedLinear[epigrad.BFloat16]{
		Input: fill(third, 3, 1), Weight: fill(one, 2, 1, 1), Offsets: epigrad.Of([]int32{1, 3}, 2),
	}
	weight := epigrad.New[float32](2, 1, 1)
	require.NoError(t, layer.Backward(fill(third, 3, 1), nil, epigrad.GroupedLinearGradients[epigrad.BFloat16]{Weight: weight}))
	square := float32(third.Float64() * third.Float64()) // which 16 bits do not hold
	assert.Equal(t, []float32{square, 2 * square}, weight.Data)

	mixture := epigrad.Experts[epigrad.BFloat16]{
		Input: fill(one, 1, 1), Index: epigrad.Of([]int64{0}, 1, 1), Scale: epigrad.Of([]float32{1 + 1.0/1024}, 1, 1),
		WeightIn: fill(one, 1, 1, 1), WeightOut: fill(one, 1, 1, 1),
	}
	scale := epigrad.New[float32](1, 1)
	down := epigrad.New[float32](1, 1, 1)
	gradients := epigrad.ExpertsGradients[epigrad.BFloat16]{Scale: scale, WeightOut: down}
	require.NoError(t, mixture.Backward(fill(one, 1, 1), nil, gradients))
	assert.Equal(t, []float32{1}, scale.Data)
	gradients.Scale = fill(one, 1, 1)
	require.ErrorIs(t, mixture.Backward(fill(one, 1, 1), nil, gradients), epigrad.ErrDTypeMismatch)
}
