package optest

import (
	"maps"
	"math"
	"slices"
)

// gatedReference is a gated kind's definition in the tests:
//
//	(psi(value) + offset) phi(gate)
//
// with the gate at most limit and phi of it at most after, and the value between -limit and limit,
// and between -after and after.
type gatedReference struct {
	phi                  *reference
	psi                  *reference // nil for the identity
	limit, after, offset float64
}

// gatedReferences are by name or by name and parameters, as references are.
var gatedReferences = map[string]*gatedReference{
	"glu":         unlimited("sigmoid"),
	"reglu":       unlimited("relu"),
	"swiglu":      unlimited("silu"),
	"geglu":       unlimited("gelu"),
	"geglu_tanh":  unlimited("gelu_tanh"),
	"bilinear":    unlimited("none"),
	"sreglu":      unlimited("relu2"),
	"quick_geglu": unlimited("quick_gelu"),
	"situ_glu":    situ(4, 25),
	"swiglu_oai":  {phi: swish(1.702), limit: 7, after: inf, offset: 1},

	"swiglu 2 +Inf -0.5 0.75": {phi: swish(0.75), limit: 2, after: inf, offset: -0.5},
	"geglu +Inf 1.5 0":        {phi: references["gelu"], limit: inf, after: 1.5},
	"reglu 3 2 1":             {phi: references["relu"], limit: 3, after: 2, offset: 1},
	"situ_glu 1.5 2":          situ(1.5, 2),
}

// unlimited is a product with an activation of the gate.
func unlimited(kind string) *gatedReference {
	return &gatedReference{phi: references[kind], limit: inf, after: inf}
}

func situ(gateCap, valueCap float64) *gatedReference {
	phi := &reference{value: func(x float64) float64 { return gateCap * math.Tanh(x/gateCap) / (1 + math.Exp(-x)) }}
	return &gatedReference{phi: phi, psi: softcap(valueCap), limit: inf, after: inf}
}

// gatedKinds are the keys of gatedReferences in a fixed order.
func gatedKinds() []string { return slices.Sorted(maps.Keys(gatedReferences)) }

// number is a reference's, with the error of that and of a formula.
type number struct{ value, err float64 }

// product is the number a b.
func (a number) product(b number) number {
	return number{a.value * b.value, math.Abs(a.value)*b.err + a.err*math.Abs(b.value) + a.err*b.err}
}

// ofGate is the factor that a gate becomes.
func (r *gatedReference) ofGate(limits bounds, gate float64) number {
	x := min(gate, r.limit)
	return number{min(r.phi.value(x), r.after), r.phi.formulaError(x, limits.formula)}
}

// slopeOfGate is that factor's slope. Where phi is as near to its bound as its error, it may or may
// not be clamped.
func (r *gatedReference) slopeOfGate(limits bounds, gate float64) number {
	x := min(gate, r.limit)
	f, err := r.phi.value(x), r.phi.formulaError(x, limits.formula)
	if gate >= r.limit || f >= r.after+err {
		return number{}
	}
	slope := number{r.phi.slope(x), r.phi.slopeError(x, limits.formula)}
	if f >= r.after-err {
		slope.err += math.Abs(slope.value)
	}
	return slope
}

// ofValue is the factor that a value becomes, and slopeOfValue its slope.
func (r *gatedReference) ofValue(limits bounds, value float64) number {
	if r.psi != nil {
		return number{r.psi.value(value), r.psi.formulaError(value, limits.formula)}
	}
	bound := min(r.limit, r.after)
	v := min(max(value, -bound), bound) + r.offset
	return number{v, limits.elementwise * math.Abs(v)}
}

func (r *gatedReference) slopeOfValue(limits bounds, value float64) number {
	switch {
	case r.psi != nil:
		return number{r.psi.slope(value), r.psi.slopeError(value, limits.formula)}
	case math.Abs(value) >= min(r.limit, r.after):
		return number{}
	}
	return number{value: 1}
}

// gatedForward is a gated kind's output, with bounds.
func gatedForward(kind string, limits bounds, value, gate []float64) expectation {
	r := gatedReferences[kind]
	return expected(limits, len(value), func(i int) number {
		return r.ofValue(limits, value[i]).product(r.ofGate(limits, gate[i]))
	})
}

// gatedBackward is the gradients of value and gate, with bounds.
func gatedBackward(kind string, limits bounds, gradOutput, value, gate []float64) (gradValue, gradGate expectation) {
	r := gatedReferences[kind]
	gradValue = expected(limits, len(value), func(i int) number {
		return r.slopeOfValue(limits, value[i]).product(r.ofGate(limits, gate[i])).product(number{value: gradOutput[i]})
	})
	gradGate = expected(limits, len(value), func(i int) number {
		return r.ofValue(limits, value[i]).product(r.slopeOfGate(limits, gate[i])).product(number{value: gradOutput[i]})
	})
	return gradValue, gradGate
}

// expected is a list of numbers that are stored.
func expected(limits bounds, length int, of func(i int) number) expectation {
	e := expectation{make([]float64, length), make([]float64, length)}
	for i := range length {
		n := of(i)
		e.value[i], e.bound[i] = n.value, limits.stored(n.value, n.err)
	}
	return e
}
