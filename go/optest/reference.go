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

// reference is an activation's definition in the tests.
type reference struct {
	// value is by the standard library's functions, to within valueError.
	value func(x float64) float64
	// kinks are where a derivative jumps, of any order: differences must not straddle them.
	kinks []kink
	// slopeOfNaN is the slope at NaN of an activation that chooses a branch, as PyTorch has it for
	// single numbers; nil for NaN.
	slopeOfNaN *float64
	// selects: a slope that is 0 or 1 over an interval stops what comes from above, or passes it,
	// and does not multiply it.
	selects bool
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
var references = map[string]*reference{
	"none":      {value: func(x float64) float64 { return x }},
	"relu":      {value: func(x float64) float64 { return max(x, 0) }, kinks: []kink{{at: 0}}, slopeOfNaN: at(1), selects: true, exactOutput: true},
	"gelu":      {value: func(x float64) float64 { return 0.5 * x * math.Erfc(-x/math.Sqrt2) }},
	"gelu_tanh": {value: func(x float64) float64 { return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) }},
	"silu":      {value: func(x float64) float64 { return x / (1 + math.Exp(-x)) }},
	"sigmoid":   {value: func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }},
	"tanh":      {value: math.Tanh},

	"relu2":           {value: func(x float64) float64 { return max(x, 0) * max(x, 0) }, kinks: []kink{{at: 0}}},
	"leaky_relu":      leakyRelu(0.01),
	"leaky_relu -0.3": leakyRelu(-0.3),
	"quick_gelu":      swish(1.702),
	"swish -0.7":      swish(-0.7),
	"elu":             elu(1, 1, 1),
	"elu -0.5":        elu(1, -0.5, 1),
	"selu":            elu(1.0507009873554805, 1.0507009873554805*1.6732632423543772, 1),
	"celu 0.75":       elu(1, 0.75, 0.75),
	"softplus":        softplus(1, 20),
	"softplus 2 3":    softplus(2, 3),
	"mish":            {value: func(x float64) float64 { return x * math.Tanh(softplus(1, inf).value(x)) }},
	"hardswish": {
		value: func(x float64) float64 { return x * min(max(x+3, 0), 6) / 6 },
		kinks: []kink{{at: -3}, {at: 3, fromRight: true}}, slopeOfNaN: at(1), selects: true,
	},
	"hardsigmoid": {
		value: func(x float64) float64 { return min(max(x+3, 0), 6) / 6 },
		kinks: []kink{{at: -3}, {at: 3, fromRight: true}}, slopeOfNaN: at(0), selects: true,
	},
	"relu6":           clip(0, 6),
	"hardtanh -0.5 3": clip(-0.5, 3),
	"softcap":         softcap(30),
	"softcap 3":       softcap(3),
}

func leakyRelu(slope float64) *reference {
	return &reference{
		value: func(x float64) float64 { return max(x, 0) + slope*min(x, 0) },
		kinks: []kink{{at: 0}}, slopeOfNaN: at(slope),
	}
}

func swish(beta float64) *reference {
	return &reference{value: func(x float64) float64 { return x / (1 + math.Exp(-beta*x)) }}
}

// elu is scale x for positive x, else c (e^(x/a) - 1).
func elu(scale, c, a float64) *reference {
	return &reference{
		value: func(x float64) float64 { return scale*max(x, 0) + c*math.Expm1(min(x, 0)/a) },
		kinks: []kink{{at: 0}}, slopeOfNaN: at(scale),
	}
}

func softplus(beta, threshold float64) *reference {
	return &reference{
		value: func(x float64) float64 {
			if beta*x > threshold {
				return x
			}
			return max(x, 0) + math.Log1p(math.Exp(-math.Abs(beta*x)))/beta
		},
		kinks: []kink{{at: threshold / beta}},
	}
}

func clip(low, high float64) *reference {
	return &reference{
		value: func(x float64) float64 { return min(max(x, low), high) },
		kinks: []kink{{at: low}, {at: high, fromRight: true}}, slopeOfNaN: at(1), selects: true,
	}
}

func softcap(bound float64) *reference {
	return &reference{value: func(x float64) float64 { return bound * math.Tanh(x/bound) }}
}

func at(x float64) *float64 { return &x }

// kinds are the keys of references in a fixed order.
func kinds() []string { return slices.Sorted(maps.Keys(references)) }

// firstOfFormulas are the first kinds of each formula. Others differ from them by numbers alone,
// and meet fewer cases.
func firstOfFormulas(kinds []string) []string {
	var first []string
	met := map[string]bool{}
	for _, kind := range kinds {
		if formula := formulaOf(kind); !met[formula] {
			met[formula], first = true, append(first, kind)
		}
	}
	return first
}

// formulaOf names the formula of a kind, or of its gate.
func formulaOf(kind string) string {
	c := named(op.Call{Kind: kind})
	if preset, ok := activation.LookupPreset(c.Kind); ok {
		c.Kind, c.Parameters = preset.Kind, preset.Values()
	}
	parameters, kernel := []activation.Parameter(nil), func([]float64) (string, []float64) { return "", nil }
	if row, ok := activation.Lookup(c.Kind); ok {
		parameters, kernel = row.Parameters, row.Kernel
	} else if row, ok := activation.LookupGated(c.Kind); ok {
		parameters, kernel = row.Parameters, row.Kernel
	}
	values, err := activation.Complete(parameters, c.Parameters)
	if err != nil {
		panic(err) // the key is this package's own
	}
	formula, _ := kernel(values)
	return formula
}

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
func (r *reference) slope(x float64) float64 {
	settings := fivePoint
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
func (r *reference) slopeError(x, formula float64) float64 {
	excess := max(0, math.Abs(r.value(x))-1-math.Abs(x))
	return differenceError + differenceRounding*excess + formula*max(2, math.Abs(r.slope(x)))
}

// formulaError bounds the error of the reference's value, and of a formula that has this error for
// values of size 1.
func (r *reference) formulaError(x, formula float64) float64 {
	return (valueError + formula) * max(1+math.Abs(x), math.Abs(r.value(x)))
}

// spread is how far the value may be from that at x where the argument is off by as much as err.
func (r *reference) spread(x, err float64) float64 {
	value := r.value(x)
	return max(math.Abs(r.value(x+err)-value), math.Abs(r.value(x-err)-value))
}

// nearKink reports whether an argument is within a distance of a kink.
func (r *reference) nearKink(x, distance float64) bool {
	return slices.ContainsFunc(r.kinks, func(k kink) bool { return math.Abs(x-k.at) < distance })
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
