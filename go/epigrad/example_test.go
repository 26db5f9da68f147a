package epigrad_test

import (
	"errors"
	"fmt"

	"gonum.org/v1/gonum/mat"

	"github.com/epigrad/epigrad/go/epigrad"
)

// A layer on gonum matrices: the results are written into them.
func ExampleLinear() {
	x := mat.NewDense(2, 3, []float64{1, 2, 3, -1, 0, 1})
	weight := mat.NewDense(2, 3, []float64{1, 0, 1, 0, 1, -1})
	out, pre := mat.NewDense(2, 2, nil), mat.NewDense(2, 2, nil)

	layer := epigrad.Linear[float64]{
		Input: epigrad.FromMat(x), Weight: epigrad.FromMat(weight),
		Bias: epigrad.Of([]float64{1, 1}, 2), Activation: "relu",
	}
	if err := layer.Forward(epigrad.FromMat(out), epigrad.FromMat(pre)); err != nil {
		fmt.Println(err)
		return
	}
	gradOutput, gradWeight := mat.NewDense(2, 2, []float64{1, 1, 1, 1}), mat.NewDense(2, 3, nil)
	err := layer.Backward(epigrad.FromMat(gradOutput), epigrad.Saved[float64]{Preactivation: epigrad.FromMat(pre)},
		epigrad.LinearGradients[float64]{Weight: epigrad.FromMat(gradWeight)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(mat.Formatted(out))
	fmt.Println(mat.Formatted(gradWeight))
	// Output:
	// ⎡5  0⎤
	// ⎣1  0⎦
	// ⎡0  2  4⎤
	// ⎣0  0  0⎦
}

// Batch dimensions broadcast, as in torch.matmul.
func ExampleMatmul() {
	a := epigrad.Of([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 2, 2)
	b := epigrad.Of([]float32{1, 0, 0, -1}, 2, 2)
	out := epigrad.New[float32](2, 2, 2)
	err := epigrad.Matmul[float32]{A: a, B: b, Activation: "none"}.Forward(out, nil)
	fmt.Println(out.Data, err)
	// Output: [1 -2 3 -4 5 -6 7 -8] <nil>
}

func ExampleGatedActivation() {
	problem := epigrad.GatedActivation[float32]{Input: epigrad.Of([]float32{2, 3}, 2), Kind: "bilinear"}
	out, grad := epigrad.New[float32](1), epigrad.New[float32](2)
	fmt.Println(problem.Forward(out), out.Data)
	fmt.Println(problem.Backward(epigrad.Of([]float32{1}, 1), grad), grad.Data)
	// Output:
	// <nil> [6]
	// <nil> [3 2]
}

// Where the gates are is a word; docs/upgrade.md shows this line.
func ExampleGatedActivation_gate() {
	input, out := epigrad.Of([]float32{0, 3}, 2), epigrad.New[float32](1)
	problem := epigrad.GatedActivation[float32]{Input: input, Kind: "glu", Gate: "first"}
	fmt.Println(problem.Forward(out), out.Data)
	// Output: <nil> [1.5]
}

// Gradients are read from the caller's tensors; docs/upgrade.md shows these lines.
func ExampleLinearGradients() {
	layer := epigrad.Linear[float32]{Input: epigrad.Of([]float32{1, 2, 3}, 1, 3), Weight: epigrad.New[float32](2, 3)}
	gradOutput := epigrad.Of([]float32{1, -1}, 1, 2)

	weight := epigrad.New[float32](2, 3)
	gradients := epigrad.LinearGradients[float32]{Weight: weight}
	err := layer.Backward(gradOutput, epigrad.Saved[float32]{}, gradients)
	fmt.Println(weight.Data, err)
	// Output: [1 2 3 -1 -2 -3] <nil>
}

func ExampleGatedProduct() {
	problem := epigrad.GatedProduct[float64]{Value: epigrad.Of([]float64{2, 2}, 2), Gate: epigrad.Of([]float64{3, -3}, 2), Kind: "reglu"}
	gradValue, gradGate := epigrad.New[float64](2), epigrad.New[float64](2)
	err := problem.Backward(epigrad.Of([]float64{1, 1}, 2), gradValue, gradGate)
	fmt.Println(gradValue.Data, gradGate.Data, err)
	// Output: [3 0] [2 0] <nil>
}

// Half types are slices of their bits.
func ExampleLerp() {
	start, end := epigrad.New[epigrad.BFloat16](2), epigrad.New[epigrad.BFloat16](2)
	for i := range end.Data {
		end.Data[i] = epigrad.ToBFloat16(float64(4 * (i + 1)))
	}
	out := epigrad.New[epigrad.BFloat16](2)
	err := epigrad.Lerp[epigrad.BFloat16]{Start: start, End: end, Factor: 0.25}.Forward(out)
	fmt.Println(out.Data[0].Float64(), out.Data[1].Float64(), err)
	// Output: 1 2 <nil>
}

func ExampleError() {
	x, weight := epigrad.New[float32](2, 3), epigrad.New[float32](4, 5)
	err := epigrad.Linear[float32]{Input: x, Weight: weight}.Forward(epigrad.New[float32](2, 4), nil)
	fmt.Println(errors.Is(err, epigrad.ErrInvalidProblem))
	// Output: true
}
