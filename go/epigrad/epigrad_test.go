package epigrad_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/diff/fd"
	"gonum.org/v1/gonum/mat"

	"github.com/epigrad/epigrad/go/epigrad"
)

// random is a tensor of normal numbers on memory with a gap after each row and NaN in the gaps.
func random(r *rand.Rand, rows, columns, stride int) *epigrad.Tensor[float64] {
	data := make([]float64, rows*stride)
	for i := range data {
		data[i] = math.NaN()
		if i%stride < columns {
			data[i] = r.NormFloat64()
		}
	}
	return epigrad.Matrix(rows, columns, data, stride)
}

func general(t *epigrad.Tensor[float64]) blas64.General {
	return blas64.General{Rows: t.Shape[0], Cols: t.Shape[1], Data: t.Data, Stride: t.Strides[0]}
}

// dense copies a matrix.
func dense(t *epigrad.Tensor[float64]) *mat.Dense {
	var m, copied mat.Dense
	m.SetRawMatrix(general(t))
	copied.CloneFrom(&m)
	return &copied
}

func TestMatmulAgainstGonum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, size := range [][3]int{{1, 1, 1}, {3, 5, 7}, {64, 31, 65}} {
		m, n, k := size[0], size[1], size[2]
		a, b, g := random(r, m, k, k+2), random(r, k, n, n+1), random(r, m, n, n+3)
		out, gradA, gradB := random(r, m, n, n+1), random(r, m, k, k), random(r, k, n, n+4)
		bias, gradBias := epigrad.New[float64](n), epigrad.New[float64](n)
		for i := range bias.Data {
			bias.Data[i] = r.NormFloat64()
		}
		problem := epigrad.Matmul[float64]{A: a, B: b, Bias: bias, Activation: "none"}
		require.NoError(t, problem.Forward(out, nil))
		require.NoError(t, problem.Backward(g, epigrad.Saved[float64]{}, epigrad.MatmulGradients[float64]{A: gradA, B: gradB, Bias: gradBias}))

		var want mat.Dense
		want.Mul(dense(a), dense(b))
		want.Apply(func(_, j int, x float64) float64 { return x + bias.Data[j] }, &want)
		assert.True(t, mat.EqualApprox(&want, dense(out), 1e-12), "out for %v", size)
		want.Reset()
		want.Mul(dense(g), dense(b).T())
		assert.True(t, mat.EqualApprox(&want, dense(gradA), 1e-12), "grad_a for %v", size)
		want.Reset()
		want.Mul(dense(a).T(), dense(g))
		assert.True(t, mat.EqualApprox(&want, dense(gradB), 1e-12), "grad_b for %v", size)
		for j, got := range gradBias.Data {
			assert.InDelta(t, mat.Sum(dense(g).ColView(j)), got, 1e-12)
		}
		assert.True(t, math.IsNaN(out.Data[n]), "the gap between rows is not written")
	}
}

func double(t epigrad.Operand) *epigrad.Tensor[float64] { return t.(*epigrad.Tensor[float64]) }

// gradients checks backward's gradients of sum(gradOutput out) against finite differences.
func gradients(t *testing.T, gradOutput, out *epigrad.Tensor[float64], forward func() error, inputs map[epigrad.Operand]epigrad.Operand) {
	t.Helper()
	for operand, gradient := range inputs {
		input, got := double(operand), double(gradient)
		at := append([]float64{}, input.Data...)
		want := fd.Gradient(nil, func(x []float64) float64 {
			copy(input.Data, x)
			require.NoError(t, forward())
			sum := 0.0
			for i, y := range out.Data {
				sum += y * gradOutput.Data[i]
			}
			return sum
		}, at, &fd.Settings{Formula: fd.Central})
		copy(input.Data, at)
		assert.InDeltaSlice(t, want, got.Data, 1e-6)
	}
}

func TestLinearGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, activation := range epigrad.Activations() {
		t.Run(activation, func(t *testing.T) {
			x, w, g := random(r, 4, 3, 3), random(r, 5, 3, 3), random(r, 4, 5, 5)
			bias := epigrad.Of(random(r, 1, 5, 5).Data, 5)
			out, pre := epigrad.New[float64](4, 5), epigrad.New[float64](4, 5)
			got := epigrad.LinearGradients[float64]{Input: epigrad.New[float64](4, 3), Weight: epigrad.New[float64](5, 3), Bias: epigrad.New[float64](5)}
			layer := epigrad.Linear[float64]{Input: x, Weight: w, Bias: bias, Activation: activation}
			require.NoError(t, layer.Forward(out, pre))
			require.NoError(t, layer.Backward(g, epigrad.Saved[float64]{Preactivation: pre}, got))
			gradients(t, g, out, func() error { return layer.Forward(out, nil) },
				map[epigrad.Operand]epigrad.Operand{x: got.Input, w: got.Weight, bias: got.Bias})

			again := epigrad.LinearGradients[float64]{Weight: epigrad.New[float64](5, 3), Accumulate: true}
			for range 2 {
				require.NoError(t, layer.Backward(g, epigrad.Saved[float64]{}, again))
			}
			for i, once := range double(got.Weight).Data {
				assert.InDelta(t, 2*once, double(again.Weight).Data[i], 1e-12)
			}
		})
	}
}

func TestGatedGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, kind := range epigrad.GatedKinds() {
		t.Run(kind, func(t *testing.T) {
			x, g := random(r, 4, 3, 3), random(r, 2, 3, 3)
			out, grad := epigrad.New[float64](2, 3), epigrad.New[float64](4, 3)
			gated := epigrad.GatedActivation[float64]{Input: x, Kind: kind, Dim: -2, Gate: "first"}
			require.NoError(t, gated.Backward(g, grad))
			gradients(t, g, out, func() error { return gated.Forward(out) }, map[epigrad.Operand]epigrad.Operand{x: grad})

			value, gate := &epigrad.Tensor[float64]{Data: x.Data, Shape: []int{2, 3}, Offset: 6}, epigrad.Of(x.Data, 2, 3)
			product := epigrad.GatedProduct[float64]{Value: value, Gate: gate, Kind: kind}
			gradGate := epigrad.New[float64](2, 3)
			require.NoError(t, product.Backward(g, nil, gradGate))
			assert.Equal(t, grad.Data[:6], gradGate.Data)
		})
	}
}

func TestFeedForwardGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	x, g, out := random(r, 5, 3, 3), random(r, 5, 2, 2), epigrad.New[float64](5, 2)
	weight, bias := random(r, 2, 4, 4), epigrad.Of(random(r, 1, 2, 2).Data, 2)
	like := func(t *epigrad.Tensor[float64]) *epigrad.Tensor[float64] { return epigrad.New[float64](t.Shape...) }
	gradX, gradWeight, gradBias := like(x), like(weight), like(bias)
	t.Run("mlp", func(t *testing.T) {
		up, upBias := random(r, 4, 3, 3), epigrad.Of(random(r, 1, 4, 4).Data, 4)
		gradUp, gradUpBias, pre := like(up), like(upBias), epigrad.New[float64](5, 4)
		block := epigrad.MLP[float64]{Input: x, Weight1: up, Bias1: upBias, Weight2: weight, Bias2: bias, Activation: "gelu"}
		require.NoError(t, block.Forward(out, pre))
		into := epigrad.MLPGradients[float64]{Input: gradX, Weight1: gradUp, Bias1: gradUpBias, Weight2: gradWeight, Bias2: gradBias}
		for _, saved := range []*epigrad.Tensor[float64]{pre, nil} {
			require.NoError(t, block.Backward(g, saved, into))
			gradients(t, g, out, func() error { return block.Forward(out, nil) }, map[epigrad.Operand]epigrad.Operand{
				x: gradX, up: gradUp, upBias: gradUpBias, weight: gradWeight, bias: gradBias,
			})
		}
		once := append([]float64{}, gradUp.Data...)
		into.Accumulate = true
		require.NoError(t, block.Backward(g, pre, into))
		for i, value := range once {
			assert.InDelta(t, 2*value, gradUp.Data[i], 1e-12)
		}
	})
	t.Run("gated_linear", func(t *testing.T) {
		up, gate := random(r, 2, 3, 3), random(r, 2, 3, 3)
		upBias, gateBias := epigrad.Of(random(r, 1, 2, 2).Data, 2), epigrad.Of(random(r, 1, 2, 2).Data, 2)
		gradUp, gradGate, gradUpBias, gradGateBias, pre := like(up), like(gate), like(upBias), like(gateBias), epigrad.New[float64](5, 4)
		layer := epigrad.GatedLinear[float64]{Input: x, WeightValue: up, WeightGate: gate, BiasValue: upBias, BiasGate: gateBias, Kind: "geglu"}
		require.NoError(t, layer.Forward(out, pre))
		into := epigrad.GatedLinearGradients[float64]{
			Input: gradX, WeightValue: gradUp, WeightGate: gradGate, BiasValue: gradUpBias, BiasGate: gradGateBias,
		}
		for _, saved := range []*epigrad.Tensor[float64]{pre, nil} {
			require.NoError(t, layer.Backward(g, saved, into))
			gradients(t, g, out, func() error { return layer.Forward(out, nil) }, map[epigrad.Operand]epigrad.Operand{
				x: gradX, up: gradUp, gate: gradGate, upBias: gradUpBias, gateBias: gradGateBias,
			})
		}
		once := append([]float64{}, gradGate.Data...)
		into.Accumulate = true
		require.NoError(t, layer.Backward(g, pre, into))
		for i, value := range once {
			assert.InDelta(t, 2*value, gradGate.Data[i], 1e-12)
		}
		layer.WeightGate = weight
		require.ErrorIs(t, layer.Forward(out, nil), epigrad.ErrInvalidProblem)
	})
	t.Run("gated_mlp", func(t *testing.T) {
		in, inBias := random(r, 8, 3, 3), epigrad.Of(random(r, 1, 8, 8).Data, 8)
		gradIn, gradInBias, pre := like(in), like(inBias), epigrad.New[float64](5, 8)
		block := epigrad.GatedMLP[float64]{Input: x, WeightIn: in, BiasIn: inBias, WeightOut: weight, BiasOut: bias, Kind: "swiglu", Gate: "first"}
		require.NoError(t, block.Forward(out, pre))
		for _, saved := range []*epigrad.Tensor[float64]{pre, nil} {
			require.NoError(t, block.Backward(g, saved, epigrad.GatedMLPGradients[float64]{
				Input: gradX, WeightIn: gradIn, BiasIn: gradInBias, WeightOut: gradWeight, BiasOut: gradBias,
			}))
			gradients(t, g, out, func() error { return block.Forward(out, nil) }, map[epigrad.Operand]epigrad.Operand{
				x: gradX, in: gradIn, inBias: gradInBias, weight: gradWeight, bias: gradBias,
			})
		}
		block.Gate = "third"
		require.ErrorIs(t, block.Forward(out, nil), epigrad.ErrInvalidProblem)
	})
}

func TestLerpGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	start, end, weight, g := random(r, 2, 3, 3), random(r, 1, 3, 3), random(r, 2, 1, 1), random(r, 2, 3, 3)
	out := epigrad.New[float64](2, 3)
	gradStart, gradEnd, gradWeight := epigrad.New[float64](2, 3), epigrad.New[float64](1, 3), epigrad.New[float64](2, 1)
	problem := epigrad.Lerp[float64]{Start: start, End: end, Weight: weight}
	require.NoError(t, problem.Backward(g, gradStart, gradEnd, gradWeight))
	gradients(t, g, out, func() error { return problem.Forward(out) },
		map[epigrad.Operand]epigrad.Operand{start: gradStart, end: gradEnd, weight: gradWeight})
}

func TestActivationGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	x, g, out, gradX := random(r, 4, 3, 3), random(r, 4, 3, 3), epigrad.New[float64](4, 3), epigrad.New[float64](4, 3)
	problem := epigrad.Activation[float64]{Input: x, Activation: "softplus", Parameters: []float64{2, 20}}
	require.NoError(t, problem.Backward(g, gradX))
	gradients(t, g, out, func() error { return problem.Forward(out) }, map[epigrad.Operand]epigrad.Operand{x: gradX})
	require.NoError(t, problem.Backward(g, g))
	assert.Equal(t, gradX.Data, g.Data)
}

func TestLearnableGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	x, g, out, gradX := random(r, 4, 3, 3), random(r, 4, 3, 3), epigrad.New[float64](4, 3), epigrad.New[float64](4, 3)
	weight, gradWeight := random(r, 1, 3, 3), epigrad.New[float64](3)
	slopes := epigrad.Of(weight.Data, 3)
	leaky := epigrad.PReLU[float64]{Input: x, Weight: slopes}
	require.NoError(t, leaky.Backward(g, gradX, gradWeight))
	gradients(t, g, out, func() error { return leaky.Forward(out) }, map[epigrad.Operand]epigrad.Operand{x: gradX, slopes: gradWeight})

	alphaP, alphaN, gradP, gradN := epigrad.Of([]float64{0.3}, 1), epigrad.Of([]float64{-0.8}, 1), epigrad.New[float64](1), epigrad.New[float64](1)
	apertus := epigrad.XIELU[float64]{Input: x, AlphaP: alphaP, AlphaN: alphaN, Beta: 0.5}
	require.NoError(t, apertus.Backward(g, gradX, gradP, gradN))
	gradients(t, g, out, func() error { return apertus.Forward(out) },
		map[epigrad.Operand]epigrad.Operand{x: gradX, alphaP: gradP, alphaN: gradN})
}

func TestMatricesShareTheirMemory(t *testing.T) {
	single := blas32.General{Rows: 2, Cols: 2, Data: []float32{1, 2, 0, 3, 4}, Stride: 3}
	matrix := epigrad.FromBlas32(single)
	doubled := epigrad.New[float32](2, 2)
	require.NoError(t, epigrad.Lerp[float32]{Start: epigrad.New[float32](2, 2), End: matrix.Transposed(), Factor: 2}.Forward(doubled.Transposed()))
	assert.Equal(t, []float32{2, 4, 6, 8}, doubled.Data)

	table := mat.NewDense(2, 3, []float64{1, 2, 3, 4, 5, 6})
	column := epigrad.FromVec(table.ColView(1).(*mat.VecDense))
	ends := epigrad.Of([]float64{7, 8}, 2)
	require.NoError(t, epigrad.Lerp[float64]{Start: ends, End: ends, Factor: 1}.Forward(column))
	assert.Equal(t, []float64{1, 7, 3, 4, 8, 6}, table.RawMatrix().Data)
}

func TestHalfTypesRoundOnce(t *testing.T) {
	x := epigrad.Of([]epigrad.Float16{epigrad.ToFloat16(1.5), epigrad.ToFloat16(-65504)}, 2)
	out := epigrad.New[epigrad.Float16](2)
	one := epigrad.Of([]epigrad.Float16{epigrad.ToFloat16(1)}, 1)
	require.NoError(t, epigrad.Lerp[epigrad.Float16]{Start: one, End: x, Factor: 1}.Forward(out))
	assert.Equal(t, x.Data, out.Data)
	assert.Equal(t, epigrad.BFloat16(0x3f80), epigrad.ToBFloat16(1))
	assert.True(t, math.IsNaN(epigrad.ToFloat16(math.NaN()).Float64()))
}

func TestErrors(t *testing.T) {
	x, weight, out := epigrad.New[float32](2, 3), epigrad.New[float32](4, 3), epigrad.New[float32](2, 4)
	layer := epigrad.Linear[float32]{Input: x, Weight: weight}
	var details *epigrad.Error
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"shapes":          {layer.Forward(epigrad.New[float32](2, 5), nil), epigrad.ErrInvalidProblem},
		"activation":      {epigrad.Linear[float32]{Input: x, Weight: weight, Activation: "gelo"}.Forward(out, nil), epigrad.ErrInvalidProblem},
		"missing input":   {epigrad.Linear[float32]{Weight: weight}.Forward(out, nil), epigrad.ErrInvalidProblem},
		"negative size":   {layer.Forward(epigrad.New[float32](-2, 4), nil), epigrad.ErrInvalidProblem},
		"huge shape":      {layer.Forward(epigrad.New[float32](math.MaxInt, 4), nil), epigrad.ErrInvalidProblem},
		"rank of strides": {layer.Forward(&epigrad.Tensor[float32]{Data: out.Data, Shape: []int{2, 4}, Strides: []int{4}}, nil), epigrad.ErrInvalidProblem},
		"before the data": {layer.Forward(&epigrad.Tensor[float32]{Data: out.Data, Shape: []int{2, 4}, Strides: []int{-4, 1}}, nil), epigrad.ErrInvalidProblem},
		"negative offset": {layer.Forward(&epigrad.Tensor[float32]{Data: out.Data, Shape: []int{2, 4}, Offset: -1}, nil), epigrad.ErrInvalidProblem},
		"overlap":         {layer.Forward(&epigrad.Tensor[float32]{Data: out.Data, Shape: []int{2, 4}, Strides: []int{1, 1}}, nil), epigrad.ErrInvalidProblem},
		"short slice":     {layer.Forward(epigrad.Of(out.Data[:7], 2, 4), nil), epigrad.ErrBufferTooSmall},
		"offset too far":  {layer.Forward(&epigrad.Tensor[float32]{Data: out.Data, Shape: []int{2, 4}, Offset: 9}, nil), epigrad.ErrBufferTooSmall},
	} {
		require.ErrorIs(t, c.err, c.want, name)
		require.ErrorAs(t, c.err, &details, name)
		assert.Contains(t, c.err.Error(), "linear: ", name)
	}
	require.ErrorAs(t, layer.Forward(epigrad.Of(out.Data[:7], 2, 4), nil), &details)
	assert.Equal(t, [2]int64{32, 28}, [2]int64{details.Needed, details.Got})
	for _, y := range out.Data {
		assert.Zero(t, y, "nothing is written when an error is returned")
	}
}

func TestWorkspaceOfTheCaller(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	x, w, g := random(r, 8, 3, 3), random(r, 5, 3, 3), random(r, 8, 5, 5)
	backward := func(workspace []byte) ([]float64, error) {
		gradient := epigrad.New[float64](5, 3)
		layer := epigrad.Linear[float64]{Input: x, Weight: w, Activation: "gelu", Options: epigrad.Options{Workspace: workspace, Threads: 1}}
		return gradient.Data, layer.Backward(g, epigrad.Saved[float64]{}, epigrad.LinearGradients[float64]{Weight: gradient})
	}
	want, err := backward(nil)
	require.NoError(t, err)
	_, err = backward(make([]byte, 1))
	require.ErrorIs(t, err, epigrad.ErrWorkspaceTooSmall)
	var details *epigrad.Error
	require.ErrorAs(t, err, &details)
	got, err := backward(make([]byte, details.Needed))
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestVersion(t *testing.T) {
	assert.Regexp(t, `^\d+\.\d+\.\d+(\.dev\d+)?$`, epigrad.Version())
}
