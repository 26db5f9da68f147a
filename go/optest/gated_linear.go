package optest

import (
	"fmt"
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

// gatedLayer is a gated linear layer and the arrays of its operands. Arrays of two are of the value
// and of the gate.
type gatedLayer struct {
	x, grad              *array
	weights, biases, pre [2]*array
}

func (s *opSuite) gatedLayer(dt dtype.DType, rows []int64, bias bool, pick *picker) *gatedLayer {
	const inputs, hidden = 5, 6
	g := &gatedLayer{
		x:    newArray(dt, append(slices.Clone(rows), inputs), pick.input()).fill(s.normal(1)),
		grad: newArray(dt, append(slices.Clone(rows), hidden), pick.input()).fill(s.normal(1)),
	}
	for i := range g.weights {
		g.weights[i] = newArray(dt, []int64{hidden, inputs}, pick.input()).fill(s.normal(0.5))
		g.pre[i] = newArray(dt, g.grad.view.Shape, contiguous)
		if bias {
			g.biases[i] = newArray(dt, []int64{hidden}, pick.input()).fill(s.normal(1))
		}
	}
	return g
}

func (g *gatedLayer) operands() []*array {
	return []*array{g.x, g.weights[0], g.weights[1], g.biases[0], g.biases[1]}
}

// separately computes the layer by the calls of other operations: its output, and all gradients but
// that of the input, in whose place are those of value and gate.
func (s *opSuite) separatelyGated(g *gatedLayer, kind string) (out *array, grads [2]*array, gradients []*array) {
	out = fresh(g.grad)
	for i := range g.weights {
		s.next(op.Call{Op: "linear", Kind: "none"}, []*array{g.x, g.weights[i], g.biases[i]}, []*array{g.pre[i], nil})
		grads[i] = fresh(g.pre[i])
	}
	s.next(op.Call{Op: "gated_product", Kind: kind}, g.pre[:], []*array{out})
	gradients = []*array{nil, fresh(g.weights[0]), fresh(g.weights[1]), fresh(g.biases[0]), fresh(g.biases[1])}
	s.next(op.Call{Op: "gated_product_backward", Kind: kind}, []*array{g.grad, g.pre[0], g.pre[1]}, []*array{grads[0], grads[1], gradients[3], gradients[4]})
	for i := range g.weights {
		s.next(op.Call{Op: "linear_backward", Kind: "none"}, []*array{grads[i], g.x, g.weights[i], nil, nil, nil}, []*array{nil, gradients[1+i], nil})
	}
	return out, grads, gradients
}

// gradInput is the sum of the products of the gradients to value and gate, with its bounds. CUDA
// rounds the first product before it adds the second.
func (g *gatedLayer) gradInput(limits bounds, grads [2]*array, roundsEach bool) expectation {
	var e expectation
	for i, weight := range g.weights {
		rows, shape := int64(len(grads[i].at))/weight.view.Shape[0], weight.view.Shape
		p := newProduct(gemmCase{[]int64{rows, shape[0]}, shape})
		values, weights := grads[i].values(), weight.values()
		sums, sizes := p.pre(values, weights, nil), p.pre(magnitudes(values), magnitudes(weights), nil)
		if i == 0 {
			e = expectation{make([]float64, len(sums)), make([]float64, len(sums))}
		}
		for j, sum := range sums {
			e.value[j] += sum
			e.bound[j] += limits.sum(p.k, sizes[j]+math.Abs(e.value[j]))
			if roundsEach || i == 1 {
				e.bound[j] = limits.stored(e.value[j], e.bound[j])
			}
		}
	}
	return e
}

func (s *opSuite) TestGatedLinearIsItsCalls() {
	pick := &picker{}
	for i, kind := range []string{"swiglu 2 +Inf -0.5 0.75", "bilinear"} {
		for _, dt := range s.dtypes() {
			for _, rows := range [][]int64{{}, {7}, {2, 3}, {0}} {
				g := s.gatedLayer(dt, rows, i == 0 || len(rows) != 1, pick)
				what := fmt.Sprintf("%s %v, rows %v", kind, dt, rows)
				want, grads, gradients := s.separatelyGated(g, kind)
				shape := slices.Clone(g.grad.view.Shape)
				shape[len(shape)-1] *= 2
				out, pre := newArray(dt, g.grad.view.Shape, pick.output()), newArray(dt, shape, pick.output())
				forward := call{Call: op.Call{Op: "gated_linear", Kind: kind}, inputs: g.operands(), outputs: []*array{out, pre}}
				s.run(forward)
				s.same(out, want, "output of %s", what)
				s.checkHalves(pre, g, "preactivation of %s", what)
				for j := range forward.outputs { // of which only one is wanted
					alone := []*array{nil, nil}
					alone[j] = fresh(forward.outputs[j])
					s.run(call{Call: forward.Call, inputs: forward.inputs, outputs: alone})
					s.same(alone[j], forward.outputs[j], "output %d alone of %s", j, what)
				}
				s.checkGatedGradients(g, kind, pre, g.gradInput(s.boundsOf(dt), grads, s.backend.Name() == "cuda"), gradients, what)
			}
		}
	}
}

// checkHalves compares a preactivation with the separate ones of value and gate.
func (s *opSuite) checkHalves(pre *array, g *gatedLayer, format string, args ...any) {
	s.T().Helper()
	joined := gatedCase{pre.view.Shape, -1}.join(g.pre[0].values(), g.pre[1].values(), false)
	s.True(slices.Equal(pre.values(), joined), fmt.Sprintf(format, args...))
}

// checkGatedGradients checks the gradients, of which want has all but that of the input, for every
// set of them, from a preactivation that was saved or is formed again, and added to others.
func (s *opSuite) checkGatedGradients(g *gatedLayer, kind string, pre *array, gradInput expectation, want []*array, what string) {
	pre.before = slices.Clone(pre.memory)
	backward := call{Call: op.Call{Op: "gated_linear_backward", Kind: kind}}
	pick := &picker{}
	for mask := 1<<len(want) - 1; mask > 0; mask-- {
		if s.takesPairs() && mask != 31 && mask != 1<<(mask%5) {
			continue
		}
		saved := pre
		if mask%2 == 0 {
			saved = nil
		}
		got := make([]*array, len(want))
		for place, like := range g.operands() {
			if like != nil && mask>>place&1 == 1 {
				got[place] = newArray(like.view.DType, like.view.Shape, pick.output())
			}
		}
		backward.inputs, backward.outputs = slices.Concat([]*array{g.grad}, g.operands(), []*array{saved}), got
		backward.Threads = 1 + mask%3
		s.run(backward)
		if got[0] != nil && want[0] == nil {
			s.within(got[0].values(), gradInput.value, gradInput.bound, "input's gradient of %s", what)
			want[0] = got[0]
		}
		for place, gradient := range got {
			if gradient != nil {
				s.same(gradient, want[place], "gradient %d of %s, mask %b", place, what, mask)
			}
		}
	}
	s.checkAddedGradients(g, backward, want, what)
}

// checkAddedGradients: runs that accumulate add to the gradients of weights and biases, and
// overwrite the input's.
func (s *opSuite) checkAddedGradients(g *gatedLayer, backward call, want []*array, what string) {
	limits := s.boundsOf(g.x.view.DType)
	backward.Accumulate, backward.outputs = true, make([]*array, len(want))
	var olds [5][]float64
	for place, like := range g.operands() {
		if like != nil {
			backward.outputs[place] = fresh(like).fill(s.normal(1))
			olds[place] = backward.outputs[place].values()
		}
	}
	s.run(backward)
	s.same(backward.outputs[0], want[0], "input's gradient, which is overwritten, of %s", what)
	for place, got := range backward.outputs[1:] {
		if got == nil {
			continue
		}
		sums, old := want[1+place].values(), olds[1+place]
		bound := make([]float64, len(sums))
		for j := range sums {
			bound[j] = limits.stored(sums[j]+old[j], limits.stored(sums[j], 4*limits.accumulator*math.Abs(old[j])))
			sums[j] += old[j]
		}
		s.within(got.values(), sums, bound, "accumulated gradient %d of %s", 1+place, what)
	}
}
