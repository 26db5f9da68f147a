package optest

import (
	"math"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
)

// second is a backward that has a backward of its own, and the shapes of its tensors.
type second struct {
	op.Call
	inputs, outputs [][]int64
}

// seconds are those of a kind, each with the gates in another place.
func seconds(kind string, gated bool) []second {
	flat, wide := []int64{5, 7, 6}, []int64{5, 14, 6}
	if !gated {
		return []second{{op.Call{Op: "activation_backward", Kind: kind}, [][]int64{flat, flat}, [][]int64{flat}}}
	}
	list := []second{{op.Call{Op: "gated_product_backward", Kind: kind}, [][]int64{flat, flat, flat}, [][]int64{flat, flat}}}
	for _, gate := range []op.Gate{op.GateSecond, op.GateFirst, op.GateOdd} {
		list = append(list, second{op.Call{Op: "gated_activation_backward", Kind: kind, Dim: 1, Gate: gate}, [][]int64{flat, wide}, [][]int64{wide}})
	}
	return list
}

// curvatureRoundings is how often a result rounds at most: 19 times in the longest formula of a
// second derivative (CURVATURE_ROUNDINGS in tests/support/ulp.py), and 4 times around it.
const curvatureRoundings = 23

// TestCurvature: the backward of a gradient is the transpose of its derivative, which differences
// give. In other dtypes than float64 it is that of float64, rounded. Every result is the same bits
// alone. A backend without float64 has none.
func (s *opSuite) TestCurvature() {
	pick := &picker{}
	for _, gated := range []bool{false, true} {
		list := kinds()
		if gated {
			list = gatedKinds()
		}
		s.forEachKind(list, func(kind string, dt dtype.DType) {
			for _, c := range seconds(kind, gated) {
				s.curvatureOf(c, dt, pick)
			}
		})
	}
}

func (s *opSuite) curvatureOf(c second, dt dtype.DType, pick *picker) {
	var cotangents, inputs, outputs []*array
	for _, shape := range c.outputs {
		cotangents = append(cotangents, newArray(dt, shape, pick.input()).fill(s.normal(1)))
	}
	for i, shape := range c.inputs {
		size := 3.
		if i == 0 { // grad_output
			size = 1
		}
		inputs, outputs = append(inputs, newArray(dt, shape, pick.input()).fill(s.normal(size))), append(outputs, newArray(dt, shape, pick.output()))
	}
	backward := call{Call: c.Call, inputs: append(cotangents, inputs...), outputs: outputs}
	backward.Op += "_backward"
	if !s.computes(dtype.Float64) {
		s.Require().ErrorIs(s.tryRun(backward), &status.Error{Code: status.Unsupported})
		return
	}
	s.run(backward)
	exact := s.exactly(backward)
	for i, want := range exact {
		bound := make([]float64, len(want))
		for j, x := range want { // whose terms may cancel
			bound[j] = curvatureRoundings * unit(dt) * (math.Abs(x) + largest(want))
		}
		s.within(outputs[i].values(), want, bound, "%s of %s, result %d of %v", backward.Op, c.Kind, i, inputs[i])
		alone := backward
		alone.outputs = make([]*array, len(outputs))
		alone.outputs[i] = newArray(dt, c.inputs[i], pick.output())
		s.run(alone)
		s.same(alone.outputs[i], outputs[i], "%s of %s, result %d alone", backward.Op, c.Kind, i)
	}
	if dt == dtype.Float64 {
		s.transposes(c, cotangents, inputs, exact)
	}
}

// exactly is a call's results in float64.
func (s *opSuite) exactly(c call) (results [][]float64) {
	exact := call{Call: c.Call}
	for _, input := range c.inputs {
		exact.inputs = append(exact.inputs, wide(input, 0, nil))
	}
	for _, output := range c.outputs {
		exact.outputs = append(exact.outputs, newArray(dtype.Float64, output.view.Shape, contiguous))
	}
	s.run(exact)
	for _, output := range exact.outputs {
		results = append(results, output.values())
	}
	return results
}

// transposes compares the sum of results times a direction with that of cotangents times the
// difference of first gradients in this direction. By the step, their rounding becomes 2^-33 and a
// third derivative counts 2^-40: eight times the former is allowed.
func (s *opSuite) transposes(c second, cotangents, inputs []*array, results [][]float64) {
	const step = 0x1p-20
	var directions [][]float64
	got, want, size := 0., 0., 0.
	for i, input := range inputs {
		direction := newArray(dtype.Float64, input.view.Shape, contiguous).fill(s.normal(1)).values()
		directions = append(directions, direction)
		for j, x := range results[i] {
			got += x * direction[j]
			size += math.Abs(x * direction[j])
		}
	}
	for _, sign := range []float64{1, -1} {
		first := call{Call: c.Call}
		for i, input := range inputs {
			first.inputs = append(first.inputs, wide(input, sign*step, directions[i]))
		}
		for _, shape := range c.outputs {
			first.outputs = append(first.outputs, newArray(dtype.Float64, shape, contiguous))
		}
		s.run(first)
		for i, output := range first.outputs {
			v := cotangents[i].values()
			for j, x := range output.values() {
				want += sign * v[j] * x / (2 * step)
				size += math.Abs(v[j] * x)
			}
		}
	}
	s.Require().InDelta(want, got, 0x1p-30*size, "%s of %s, along a direction", c.Op, c.Kind)
}

// wide is an array in float64, moved by a step in a direction.
func wide(a *array, step float64, direction []float64) *array {
	values := a.values()
	return newArray(dtype.Float64, a.view.Shape, contiguous).fill(func(i int) float64 {
		if direction == nil {
			return values[i]
		}
		return values[i] + step*direction[i]
	})
}

func largest(values []float64) (most float64) {
	for _, x := range values {
		most = max(most, math.Abs(x))
	}
	return most
}
