package portable

import (
	"maps"
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/activation"
)

// GatedFormula is what a gated kind makes of a value and a gate, in float64, by the formula of its
// gate.
type GatedFormula struct {
	value               func(value, gate float64) float64
	gradValue, gradGate func(g, value, gate float64) float64
	curvatures          func(u, v, g, value, gate float64) [3]float64
}

// MakeGated makes a gated kind's formula of its numbers (go/activation).
type MakeGated func(numbers []float64) *GatedFormula

var gatedFormulas = makeGatedFormulas()

func makeGatedFormulas() map[string]MakeGated {
	made := map[string]MakeGated{}
	for _, name := range activation.GatedKernels() {
		made[name] = limited(formulas[name])
	}
	made["situ"] = situ
	return made
}

// LookupGated returns what makes the gated kinds of a gate's formula, and whether there is one.
func LookupGated(gate string) (MakeGated, bool) {
	f, ok := gatedFormulas[gate]
	return f, ok
}

// GatedNames lists the formulas of gates, in no order.
func GatedNames() []string { return slices.Collect(maps.Keys(gatedFormulas)) }

// Values sets out[i] from value[i] and gate[i]. Slices have one length.
func (f *GatedFormula) Values(out, value, gate []float64) {
	for i := range out {
		out[i] = f.value(value[i], gate[i])
	}
}

// Gradients sets the gradients of value and gate. A nil gradient is not computed.
//
// They are products in the order that PyTorch's autograd has, so that infinities meet zeros in the
// same places.
func (f *GatedFormula) Gradients(gradValue, gradGate, gradOutput, value, gate []float64) {
	if gradValue != nil {
		for i, g := range gradOutput {
			gradValue[i] = f.gradValue(g, value[i], gate[i])
		}
	}
	if gradGate != nil {
		for i, g := range gradOutput {
			gradGate[i] = f.gradGate(g, value[i], gate[i])
		}
	}
}

// limited makes kinds that multiply a value by the activation of a gate, between limits. The
// numbers are limit, limit_after, offset, and those of the activation:
//
//	x  = min(gate, limit)
//	f  = min(act(x), limit_after)
//	v  = offset + value, which is between -limit and limit, then between -limit_after and limit_after
//	y  = v f
//
//	grad_value = grad_output f             0 where value was clamped
//	grad_gate  = act'(x) (grad_output v)   0 where gate or act(x) was clamped
//
// A bound itself counts as clamped. NaN passes: a comparison with it is false. A limit that is NaN
// is none.
func limited(make Make) MakeGated {
	return func(numbers []float64) *GatedFormula {
		l := &limits{limit: numbers[0], after: numbers[1], offset: numbers[2], act: make(numbers[3:])}
		return &GatedFormula{value: l.value, gradValue: l.gradValue, gradGate: l.gradGate, curvatures: l.curvatures}
	}
}

type limits struct {
	limit, after, offset float64
	act                  *Formula
}

func (l *limits) value(value, gate float64) float64 {
	v, _ := l.ofValue(value)
	return v * l.ofGate(gate)
}

func (l *limits) gradValue(g, value, gate float64) float64 {
	if _, clamped := l.ofValue(value); clamped {
		return 0
	}
	return g * l.ofGate(gate)
}

func (l *limits) gradGate(g, value, gate float64) float64 {
	x, clamped := below(gate, l.limit)
	if !clamped && !math.IsNaN(l.after) {
		_, clamped = below(l.act.Value(x), l.after)
	}
	if clamped {
		return 0
	}
	v, _ := l.ofValue(value)
	return l.act.Gradient(g*v, x)
}

// ofValue returns v, and whether the value was clamped.
func (l *limits) ofValue(value float64) (v float64, clamped bool) {
	value, before := between(value, l.limit)
	value, after := between(value, l.after)
	return value + l.offset, before || after
}

// ofGate returns f.
func (l *limits) ofGate(gate float64) float64 {
	x, _ := below(gate, l.limit)
	f, _ := below(l.act.Value(x), l.after)
	return f
}

// below returns min(x, limit), and whether that is the limit.
func below(x, limit float64) (least float64, clamped bool) {
	if x >= limit {
		return limit, true
	}
	return x, false
}

// between returns x between -limit and limit, and whether that is one of them.
func between(x, limit float64) (nearest float64, clamped bool) {
	if x <= -limit {
		return -limit, true
	}
	return below(x, limit)
}

// situ makes kinds of two factors, with the numbers gate_cap and value_cap:
//
//	y = psi(value) phi(gate),  psi(x) = value_cap tanh(x/value_cap)
//	                           phi(x) = gate_cap tanh(x/gate_cap) sigmoid(x)
//
// The sigmoid is multiplied by last, where it may be denormal.
func situ(numbers []float64) *GatedFormula {
	gateCap, valueCap := numbers[0], numbers[1]
	phi := func(h, x float64) float64 { return sigmoidTimes(h*softcap(x, gateCap), x) }
	phiGradient := func(g, x float64) float64 {
		slope := softcapSlope(x, gateCap) + sigmoidTimes(softcap(x, gateCap), -x)
		return sigmoidTimes(g*slope, x)
	}
	return &GatedFormula{
		value:     func(value, gate float64) float64 { return phi(softcap(value, valueCap), gate) },
		gradValue: func(g, value, gate float64) float64 { return phi(g, gate) * softcapSlope(value, valueCap) },
		gradGate:  func(g, value, gate float64) float64 { return phiGradient(g*softcap(value, valueCap), gate) },
		curvatures: func(u, v, g, value, gate float64) [3]float64 {
			psi, slope := softcap(value, valueCap), softcapSlope(value, valueCap)
			return [3]float64{
				phi(u, gate)*slope + phiGradient(v*psi, gate),
				phi(u*g, gate)*softcapCurvature(value, valueCap) + phiGradient(v*g, gate)*slope,
				phiGradient(u*g, gate)*slope + situCurvature(v*g*psi, gate, gateCap),
			}
		},
	}
}

// sigmoidTimes is y sigmoid(x).
func sigmoidTimes(y, x float64) float64 {
	d := pair{high: x}.decay()
	if x < 0 {
		return math.Ldexp(y*d.m/(1+d.e), d.k)
	}
	return y / (1 + d.e)
}
