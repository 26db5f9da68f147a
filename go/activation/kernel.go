package activation

import (
	"cmp"
	"math"
	"slices"
)

// kernel computes a row: the name of a formula (kernels/*/activation.*), and what its
// numbers are. "" is the formula of the row's name, of its parameters as they are.
type kernel struct {
	name    string
	numbers []number
}

// number is one of a kernel's: a parameter of the row, or always the same.
type number struct {
	parameter int // its place; -1 for none
	value     float64
}

func parameter(place int) number { return number{parameter: place} }

func constant(value float64) number { return number{parameter: -1, value: value} }

func (k kernel) of(values []float64) []float64 {
	numbers := make([]float64, len(k.numbers))
	for i, n := range k.numbers {
		if numbers[i] = n.value; n.parameter >= 0 {
			numbers[i] = values[n.parameter]
		}
	}
	return numbers
}

// Kernel returns the formula that computes an activation, and its numbers, from the values of all
// its parameters.
//
//	swish     beta:             x s(beta x)
//	elu       scale, c, a:      scale x if x > 0 else c (exp(x / a) - 1)
//	hardtanh  low, high
//
// and the rest as the rows of their names have them.
func (a *Info) Kernel(values []float64) (name string, numbers []float64) {
	if a.kernel.name == "" {
		return a.Name, values
	}
	return a.kernel.name, a.kernel.of(values)
}

// Kernel returns the formula that computes a gated kind's gate, and the numbers of the kind, from
// the values of all its parameters:
//
//	situ   gate_cap, value_cap
//	other  limit, limit_after, offset, and those of the gate's formula; of silu that of swish
//
// A limit that is none is NaN, with which every comparison is false. An offset that is none is -0:
// a sum with it is the other term, also where that is -0.
func (g *GatedInfo) Kernel(values []float64) (name string, numbers []float64) {
	if name = g.kernel.name; name == "situ" {
		return name, values
	}
	numbers = append(numbers, values[:len(limits)]...)
	for i := range numbers {
		switch {
		case math.IsInf(numbers[i], 1):
			numbers[i] = math.NaN()
		case numbers[i] == 0:
			numbers[i] = math.Copysign(0, -1)
		}
	}
	// With the defaults of what a kind has besides, its row's activation computes the gate: by
	// fewer numbers, but a kernel may have none of its own for it.
	own := g.Parameters[len(limits):]
	numbers = append(numbers, g.kernel.of(values)...)
	if name == "" || len(own) > 0 && AreDefaults(own, values[len(limits):]) {
		return g.Activation, numbers
	}
	return name, numbers
}

// Kernels lists the formulas that activations are computed by, in the table's order.
func Kernels() []string {
	var names []string
	for _, a := range activations {
		if a.kernel.name == "" || a.kernel.name == a.Name {
			names = append(names, a.Name)
		}
	}
	return names
}

// OtherKernels are the formulas that are not frequent.
func OtherKernels() []string {
	return slices.DeleteFunc(Kernels(), func(name string) bool {
		a, _ := Lookup(name)
		return a.Frequent
	})
}

// GatedKernels lists the formulas that gates are computed by, each once.
func GatedKernels() []string {
	var names []string
	for _, g := range gatedKinds {
		gate, _ := Lookup(g.Activation)
		for _, name := range []string{cmp.Or(gate.kernel.name, gate.Name), g.kernel.name} {
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// GateKernels lists the formulas that compute an activation's gate, from the numbers of its gated
// kinds: its own, and those that have it as a default.
func GateKernels(activation string) []string {
	names := []string{activation}
	for _, g := range gatedKinds {
		if g.Activation == activation && g.kernel.name != "" {
			names = append(names, g.kernel.name)
		}
	}
	return names
}

// Quotient is a number of a formula where kernels have no float64: the quotient of two of its
// numbers, by their places, with -1 for 1. A bounded one stays within float32's range, since 0
// times an infinite factor would give NaN.
type Quotient struct {
	Over    int  `json:"over"`
	Under   int  `json:"under"`
	Bounded bool `json:"bounded"`
}

// Of is the quotient of these numbers.
func (q Quotient) Of(numbers []float64) float64 {
	at := func(place int) float64 {
		if place < 0 {
			return 1
		}
		return numbers[place]
	}
	x := at(q.Over) / at(q.Under)
	if q.Bounded {
		x = max(-math.MaxFloat32, min(x, math.MaxFloat32))
	}
	return x
}

// Quotients has the formulas whose numbers are others there. Those of the rest are as they are.
var Quotients = map[string][]Quotient{
	"swish":    {{0, -1, true}},
	"elu":      {{0, -1, false}, {1, -1, false}, {-1, 2, true}, {1, 2, true}},
	"softplus": {{0, -1, true}, {1, -1, false}, {-1, 0, true}},
	"softcap":  {{0, -1, true}, {-1, 0, true}},
	"situ":     {{0, -1, true}, {1, -1, true}, {-1, 0, true}, {-1, 1, true}},
}
