// A network with one hidden layer learns a wave, with epigrad's gradients and plain gradient
// descent: docs/tutorials/go.md.
package main

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/epigrad/epigrad/go/epigrad"
)

const points, hidden, steps, rate = 64, 16, 3000, 0.1

func main() {
	if err := train(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func train() error {
	// The data: y = sin(3 x) for x between -1 and 1.
	x, y := epigrad.New[float64](points, 1), epigrad.New[float64](points, 1)
	for i := range x.Data {
		x.Data[i] = 2*float64(i)/(points-1) - 1
		y.Data[i] = math.Sin(3 * x.Data[i])
	}

	// The network: out = tanh(x weight1ᵀ + bias1) weight2ᵀ + bias2. It reads the parameters in
	// place: a step of training writes into them.
	network := epigrad.MLP[float64]{
		Input: x, Activation: "tanh",
		Weight1: epigrad.New[float64](hidden, 1), Bias1: epigrad.New[float64](hidden),
		Weight2: epigrad.New[float64](1, hidden), Bias2: epigrad.New[float64](1),
	}
	for i := range hidden {
		network.Weight1.Data[i] = 2 * math.Cos(float64(i))
		network.Bias1.Data[i] = math.Sin(float64(2 * i))
		network.Weight2.Data[i] = math.Sin(float64(3*i+1)) / 4
	}
	parameters := []*epigrad.Tensor[float64]{network.Weight1, network.Bias1, network.Weight2, network.Bias2}

	// Memory for the gradients, and for what forward and backward write.
	gradients := make([]*epigrad.Tensor[float64], len(parameters))
	for i, parameter := range parameters {
		gradients[i] = epigrad.New[float64](parameter.Shape...)
	}
	out, gradOutput := epigrad.New[float64](points, 1), epigrad.New[float64](points, 1)
	preactivation := epigrad.New[float64](points, hidden)

	for step := range steps + 1 {
		if err := network.Forward(out, preactivation); err != nil {
			return err
		}
		loss := 0.0 // the mean squared error, and its gradient
		for i := range out.Data {
			difference := out.Data[i] - y.Data[i]
			loss += difference * difference / points
			gradOutput.Data[i] = 2 * difference / points
		}
		if step%1000 == 0 {
			fmt.Printf("step %4d: loss %.4f\n", step, loss)
		}
		// Without Input among the gradients, the gradient to the input is not computed.
		err := network.Backward(gradOutput, preactivation, epigrad.MLPGradients[float64]{
			Weight1: gradients[0], Bias1: gradients[1], Weight2: gradients[2], Bias2: gradients[3],
		})
		if err != nil {
			return err
		}
		for i, parameter := range parameters {
			for j, gradient := range gradients[i].Data {
				parameter.Data[j] -= rate * gradient
			}
		}
	}
	for _, i := range []int{0, 21, 42, 63} {
		fmt.Printf("x = %5.2f: the network says %5.2f, sin(3 x) is %5.2f\n", x.Data[i], out.Data[i], y.Data[i])
	}

	// An error says what was given and what is accepted, and nothing has been written: here a bias
	// of the wrong size.
	network.Bias1 = network.Bias2
	err := network.Forward(out, nil)
	if !errors.Is(err, epigrad.ErrInvalidProblem) {
		return fmt.Errorf("expected an invalid problem, got %v", err)
	}
	fmt.Println("an error:", err)
	return nil
}
