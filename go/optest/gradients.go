package optest

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/diff/fd"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

// checkGradients compares a backward with differences of its forward, both run by the backend in
// float64. forward and backward lack their tensors; shapes are the inputs'. keepAway tells whether
// inputs are too near a kink for differences.
func (s *opSuite) checkGradients(what string, forward op.Call, backward string, shapes [][]int64, keepAway func(inputs []*array) bool) {
	s.needs(dtype.Float64)
	make64 := func(shape []int64) *array { return newArray(dtype.Float64, shape, contiguous) }
	inputs := make([]*array, len(shapes))
	for ready := false; !ready; ready = !keepAway(inputs) {
		for i, shape := range shapes {
			inputs[i] = make64(shape).fill(s.normal(1))
		}
	}
	geometry := named(forward)
	geometry.Inputs, geometry.Backend = views(inputs), s.host()
	described, _, err := op.Infer(&geometry, []bool{true})
	s.Require().NoError(err)
	grad := make64(described[0]).fill(s.normal(1))
	upstream := grad.values()
	loss := func(at int) func(x []float64) float64 {
		return func(x []float64) float64 {
			moved, out := append([]*array(nil), inputs...), make64(described[0])
			moved[at] = make64(shapes[at]).fill(func(i int) float64 { return x[i] })
			s.run(call{Call: forward, inputs: moved, outputs: []*array{out}})
			sum := 0.
			for i, y := range out.values() {
				sum += upstream[i] * y
			}
			return sum
		}
	}
	outputs := make([]*array, len(shapes))
	for i, shape := range shapes {
		outputs[i] = make64(shape)
	}
	backwardCall := call{Call: forward, inputs: append([]*array{grad}, inputs...), outputs: outputs}
	backwardCall.Op = backward
	s.run(backwardCall)
	for i, input := range inputs {
		want := fd.Gradient(nil, loss(i), input.values(), fivePoint)
		bound := make([]float64, len(want))
		for j := range bound {
			bound[j] = 1e-9 * (1 + math.Abs(want[j]))
		}
		s.within(outputs[i].values(), want, bound, "%s: gradient of input %d", what, i)
	}
}

func anywhere([]*array) bool { return false }

func (s *opSuite) TestGradientsAreThoseOfTheForward() {
	gemms := []gemmCase{
		{[]int64{3, 4}, []int64{4, 2}},
		{[]int64{2, 3, 4}, []int64{4, 2}},
		{[]int64{2, 1, 3, 4}, []int64{2, 4, 2}},
		{[]int64{3, 4}, []int64{2, 4, 2}},
		{[]int64{4}, []int64{4, 3}},
		{[]int64{3, 4}, []int64{4}},
		{[]int64{4}, []int64{4}},
		{[]int64{1, 3, 4}, []int64{2, 4, 2}},
	}
	for _, kind := range firstOfFormulas(kinds()) {
		for _, c := range gemms {
			for _, sp := range spellings {
				if !sp.fits(c) {
					continue
				}
				p := newProduct(c)
				kinked := func(inputs []*array) bool {
					near := false
					for _, x := range p.pre(inputs[0].values(), sp.matmulOrder(p, inputs[1].values()), inputs[2].values()) {
						near = near || references[kind].nearKink(x, 0.05)
					}
					return near
				}
				s.checkGradients(fmt.Sprintf("%s %s %v", sp.op, kind, c), op.Call{Op: sp.op, Kind: kind}, sp.op+"_backward",
					[][]int64{c.a, sp.shape(c.b), p.bias}, kinked)
			}
		}
	}
	for _, kind := range gatedKinds() {
		kinked := func(inputs []*array) bool {
			return slices.ContainsFunc(inputs, func(input *array) bool {
				return slices.ContainsFunc(input.values(), func(x float64) bool { return gatedReferences[kind].nearKink(x, 3*stencilEnd) })
			})
		}
		for _, c := range []gatedCase{{[]int64{6}, 0}, {[]int64{3, 4}, 1}, {[]int64{2, 4, 3}, 1}} {
			for _, first := range []bool{false, true} {
				s.checkGradients(kind, op.Call{Op: "gated_activation", Kind: kind, Dim: c.dim, Gate: gateOf(first)}, "gated_activation_backward",
					[][]int64{c.shape}, kinked)
			}
		}
		s.checkGradients(kind, op.Call{Op: "gated_product", Kind: kind}, "gated_product_backward", [][]int64{{2, 3}, {2, 3}}, kinked)
	}
	for _, c := range lerpCases {
		if shapes := [][]int64{c.start, c.end, c.weight}; size(c.start)*size(c.end) < 300 && c.weight != nil {
			s.checkGradients(fmt.Sprint("lerp ", c), op.Call{Op: "lerp"}, "lerp_backward", shapes, anywhere)
		}
	}
	for _, number := range numbers {
		s.checkGradients(fmt.Sprint("lerp by ", number), op.Call{Op: "lerp", Parameters: []float64{number}}, "lerp_backward",
			[][]int64{{3, 1}, {2, 1, 4}}, anywhere)
	}
}
