package optest

import (
	"math"

	"gonum.org/v1/gonum/diff/fd"

	"github.com/epigrad/epigrad/go/activation"
)

// values are the activations by the standard library's functions. Their own error is within valueError.
var values = map[string]func(x float64) float64{
	"none":      func(x float64) float64 { return x },
	"relu":      func(x float64) float64 { return max(x, 0) },
	"gelu":      func(x float64) float64 { return 0.5 * x * math.Erfc(-x/math.Sqrt2) },
	"gelu_tanh": func(x float64) float64 { return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) },
	"silu":      func(x float64) float64 { return x / (1 + math.Exp(-x)) },
	"sigmoid":   func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	"tanh":      math.Tanh,
}

const (
	// valueError is the absolute error of the reference's values, and of the fixed part of a formula, for arguments of size 10.
	valueError = 1e-14
	// steepest bounds every activation's slope, and curvatures likewise.
	steepest = 1.2
	// slopeError bounds the reference's slopes: the stencil's fourth-order error and the rounding of differences over a step.
	slopeError = 2e-11
	stencilEnd = 2 * step
	step       = 1e-3
)

// fivePoint is the central difference of fourth order.
var fivePoint = &fd.Settings{Formula: fd.Formula{
	Stencil:    []fd.Point{{Loc: -2, Coeff: 1. / 12}, {Loc: -1, Coeff: -8. / 12}, {Loc: 1, Coeff: 8. / 12}, {Loc: 2, Coeff: -1. / 12}},
	Derivative: 1, Step: step,
}}

// slope is an activation's derivative by differences of its values; relu's kink, which the stencil must not straddle, is as documented.
func slope(kind string, x float64) float64 {
	if kind == "relu" && math.Abs(x) <= stencilEnd {
		if x > 0 {
			return 1
		}
		return 0
	}
	return fd.Derivative(values[kind], x, fivePoint)
}

// gateActivation is the activation of a gated kind, from the table.
func gateActivation(kind string) string {
	info, _ := activation.LookupGated(kind)
	return info.Activation
}

// normal draws numbers around 0 of about the size given.
func (s *opSuite) normal(size float64) func(int) float64 {
	return func(int) float64 { return size * s.random.NormFloat64() }
}

// within compares results with a reference, element by element, and reports the worst.
func (s *opSuite) within(got, want, bound []float64, format string, args ...any) {
	s.T().Helper()
	s.Require().Lenf(got, len(want), format, args...)
	for i := range want {
		if difference := math.Abs(got[i] - want[i]); !(difference <= bound[i]) {
			s.Failf("outside the error bound", format+": element %d: got %v, want %v, off by %.3g, at most %.3g is right",
				append(args, i, got[i], want[i], difference, bound[i])...)
			return
		}
	}
}

// same compares two arrays bit by bit.
func (s *opSuite) same(got, want *array, format string, args ...any) {
	s.T().Helper()
	if string(got.bits()) != string(want.bits()) {
		s.Failf("not bitwise equal", format+": got %v, want %v", append(args, head(got.values()), head(want.values()))...)
	}
}

func head(values []float64) []float64 { return values[:min(len(values), 8)] }
