package optest

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/diff/fd"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/op"
)

// reference is what the tests know of an activation.
type reference struct {
	// value is by the standard library's functions, to within valueError.
	value func(x float64) float64
	// kinks are where a derivative jumps, of any order: differences must not straddle them.
	kinks []kink
	// slopeOfNaN is the slope at NaN of an activation that chooses a branch, as PyTorch has it; nil
	// for NaN.
	slopeOfNaN *float64
	// exactOutput: the output has all that the slope needs, with no digit lost.
	exactOutput bool
}

// kink is a point where a derivative jumps. The slope there is that of the left side or, where
// fromRight says so, of the right.
type kink struct {
	at        float64
	fromRight bool
}

// references are by name, which has the default parameters, or by name and parameters (named).
var references = map[string]reference{
	"none":      {value: func(x float64) float64 { return x }},
	"relu":      {value: func(x float64) float64 { return max(x, 0) }, kinks: []kink{{at: 0}}, slopeOfNaN: at(1), exactOutput: true},
	"gelu":      {value: func(x float64) float64 { return 0.5 * x * math.Erfc(-x/math.Sqrt2) }},
	"gelu_tanh": {value: func(x float64) float64 { return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) }},
	"silu":      {value: func(x float64) float64 { return x / (1 + math.Exp(-x)) }},
	"sigmoid":   {value: func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }},
	"tanh":      {value: math.Tanh},

	"relu2":           {value: func(x float64) float64 { return max(x, 0) * max(x, 0) }, kinks: []kink{{at: 0}}},
	"leaky_relu":      leakyRelu(0.01),
	"leaky_relu -0.3": leakyRelu(-0.3),
}

func leakyRelu(slope float64) reference {
	return reference{
		value: func(x float64) float64 { return max(x, 0) + slope*min(x, 0) },
		kinks: []kink{{at: 0}}, slopeOfNaN: at(slope),
	}
}

func at(x float64) *float64 { return &x }

// kinds are the keys of references in a fixed order.
func kinds() []string { return slices.Sorted(maps.Keys(references)) }

// named is a call whose kind is a key of references, with the name and the parameters apart.
func named(c op.Call) op.Call {
	name, numbers, parameterised := strings.Cut(c.Kind, " ")
	if !parameterised {
		return c
	}
	c.Kind = name
	for _, text := range strings.Fields(numbers) {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			panic(err) // the key is this package's own
		}
		c.Parameters = append(c.Parameters, value)
	}
	return c
}

const (
	// valueError is the absolute error of the reference's values, and of the fixed part of a
	// formula, for arguments of size 10.
	valueError = 1e-14
	// differenceError bounds the error of the reference's slopes where values are no larger than
	// arguments: the stencil's fourth-order error and the rounding of differences over a step.
	differenceError = 2e-11
	// differenceRounding is what the rounding adds for larger values, for each unit of what they
	// are larger by.
	differenceRounding = 1e-12
	step               = 1e-3
	stencilEnd         = 2 * step
)

// fivePoint is the central difference of fourth order.
var fivePoint = &fd.Settings{Formula: fd.Formula{
	Stencil:    []fd.Point{{Loc: -2, Coeff: 1. / 12}, {Loc: -1, Coeff: -8. / 12}, {Loc: 1, Coeff: 8. / 12}, {Loc: 2, Coeff: -1. / 12}},
	Derivative: 1, Step: step,
}}

// oneSided is the difference of fourth order to the right, or with -1 to the left.
func oneSided(sign float64) *fd.Settings {
	stencil := []fd.Point{{Loc: 0, Coeff: -25. / 12}, {Loc: 1, Coeff: 4}, {Loc: 2, Coeff: -3}, {Loc: 3, Coeff: 4. / 3}, {Loc: 4, Coeff: -1. / 4}}
	for i := range stencil {
		stencil[i].Loc *= sign
		stencil[i].Coeff *= sign
	}
	return &fd.Settings{Formula: fd.Formula{Stencil: stencil, Derivative: 1, Step: step}}
}

// slope is an activation's derivative by differences of its values, beside a kink by those of the
// argument's own side.
func slope(kind string, x float64) float64 {
	r, settings := references[kind], fivePoint
	for _, k := range r.kinks {
		if math.Abs(x-k.at) > stencilEnd {
			continue
		}
		settings = oneSided(-1)
		if x > k.at || x == k.at && k.fromRight {
			settings = oneSided(1)
		}
	}
	return fd.Derivative(r.value, x, settings)
}

// slopeError bounds the error of slope, and of a formula for the slope that has this error for
// slopes up to 2.
func slopeError(kind string, x, formula float64) float64 {
	excess := max(0, math.Abs(references[kind].value(x))-1-math.Abs(x))
	return differenceError + differenceRounding*excess + formula*max(2, math.Abs(slope(kind, x)))
}

// formulaError bounds the error of the reference's value, and of a formula that has this error for
// values of size 1.
func formulaError(kind string, x, formula float64) float64 {
	return (valueError + formula) * max(1+math.Abs(x), math.Abs(references[kind].value(x)))
}

// spread is how far the value may be from that at x where the argument is off by as much as err.
func spread(kind string, x, err float64) float64 {
	value := references[kind].value
	return max(math.Abs(value(x+err)-value(x)), math.Abs(value(x-err)-value(x)))
}

// nearKink tells whether an argument is within a distance of a kink.
func nearKink(kind string, x, distance float64) bool {
	return slices.ContainsFunc(references[kind].kinks, func(k kink) bool { return math.Abs(x-k.at) < distance })
}

// gateActivation is the activation of a gated kind, from the table.
func gateActivation(kind string) string {
	info, _ := activation.LookupGated(kind)
	return info.Activation
}

// gateOf is where the gate is.
func gateOf(first bool) op.Gate {
	if first {
		return op.GateFirst
	}
	return op.GateSecond
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
