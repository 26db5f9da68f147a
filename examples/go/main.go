// A linear layer with GELU on gonum matrices: forward, backward, and a gradient checked by finite
// differences. It exits with 1 if that is off.
//
//	go run ./examples/go
package main

import (
	"errors"
	"fmt"
	"math"
	"os"

	"gonum.org/v1/gonum/diff/fd"
	"gonum.org/v1/gonum/mat"

	"github.com/epigrad/epigrad/go/epigrad"
)

// layer writes out = gelu(x weightᵀ), and the gradient of sum(gradOutput out) to the weight.
func layer(x, weight, gradOutput, out, gradWeight *mat.Dense) error {
	linear := epigrad.Linear[float64]{Input: epigrad.FromMat(x), Weight: epigrad.FromMat(weight), Activation: "gelu"}
	pre := epigrad.New[float64](out.Dims())
	if err := linear.Forward(epigrad.FromMat(out), pre); err != nil {
		return err
	}
	return linear.Backward(epigrad.FromMat(gradOutput), epigrad.Saved[float64]{Preactivation: pre},
		epigrad.LinearGradients[float64]{Weight: epigrad.FromMat(gradWeight)})
}

const rows, in, out = 4, 3, 5

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	x, weight, gradOutput := waves(rows, in, 1.3), waves(out, in, 0.7), waves(rows, out, 0.9)
	y, gradWeight := mat.NewDense(rows, out, nil), mat.NewDense(out, in, nil)
	if err := layer(x, weight, gradOutput, y, gradWeight); err != nil {
		return err
	}
	differences := mat.NewDense(out, in, fd.Gradient(nil, func(at []float64) float64 {
		moved := mat.NewDense(rows, out, nil)
		if err := layer(x, mat.NewDense(out, in, at), gradOutput, moved, mat.NewDense(out, in, nil)); err != nil {
			return math.NaN()
		}
		moved.MulElem(moved, gradOutput)
		return mat.Sum(moved)
	}, weight.RawMatrix().Data, &fd.Settings{Formula: fd.Central}))
	fmt.Printf("epigrad %s: the gradient to the weight is\n%.4f\n", epigrad.Version(), mat.Formatted(gradWeight))
	differences.Sub(differences, gradWeight)
	if worst := mat.Norm(differences, math.Inf(1)); !(worst < 1e-6) {
		return fmt.Errorf("it differs from finite differences by %g", worst)
	}

	err := layer(x, weight, gradOutput, mat.NewDense(rows, out+1, nil), gradWeight)
	fmt.Println("an error:", err)
	if !errors.Is(err, epigrad.ErrInvalidProblem) {
		return fmt.Errorf("expected an invalid problem, got %v", err)
	}
	return nil
}

// waves is a matrix of sines.
func waves(rows, columns int, frequency float64) *mat.Dense {
	m := mat.NewDense(rows, columns, nil)
	m.Apply(func(i, j int, _ float64) float64 { return math.Sin(frequency * float64(i*columns+j+1)) }, m)
	return m
}
