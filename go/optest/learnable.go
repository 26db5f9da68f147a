package optest

import (
	"math"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

// learnable is an activation of an input and of small tensors, element by element: its value and
// its gradients for a grad_output of 1, and the sizes of the terms that each is made of.
type learnable struct {
	op         string
	small      int
	parameters []float64
	// out, then the gradients
	formula func(x float64, small []float64) (values, sizes [4]float64)
}

var learnables = []learnable{
	{op: "prelu", small: 1, formula: func(x float64, small []float64) (values, sizes [4]float64) {
		values = [4]float64{small[0] * x, small[0], x}
		if x > 0 {
			values = [4]float64{x, 1, 0}
		}
		return values, values
	}},
	{op: "xielu", small: 2, formula: xielu(0.5)},
	{op: "xielu", small: 2, parameters: []float64{-0.25}, formula: xielu(-0.25)},
}

func xielu(beta float64) func(x float64, small []float64) (values, sizes [4]float64) {
	softplus := func(x float64) float64 { return math.Log1p(math.Exp(x)) }
	slope := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	return func(x float64, small []float64) (values, sizes [4]float64) {
		p, n := softplus(small[0]), beta+softplus(small[1])
		if x > 0 {
			values = [4]float64{p*x*x + beta*x, 2*p*x + beta, slope(small[0]) * x * x, 0}
			return values, [4]float64{p*x*x + math.Abs(beta*x), 2*p*x + math.Abs(beta), values[2], 0}
		}
		one, rest := math.Expm1(x), math.Expm1(x)-x
		values = [4]float64{n*rest + beta*x, n*one + beta, 0, slope(small[1]) * rest}
		n = softplus(small[1]) + math.Abs(beta)
		return values, [4]float64{n*rest + math.Abs(beta*x), n*math.Abs(one) + math.Abs(beta), 0, math.Abs(x)}
	}
}

// learnableCases are an input's shape, and how many elements prelu's weight has.
var learnableCases = []struct {
	shape    []int64
	channels int64
}{
	{[]int64{}, 1},
	{[]int64{9}, 1},
	{[]int64{3, 5}, 1},
	{[]int64{3, 5}, 5},
	{[]int64{2, 3, 4}, 3},
	{[]int64{2, 3, 4, 5}, 3},
	{[]int64{2, 1, 5}, 1},
	{[]int64{0, 4}, 4},
	{[]int64{2, 0, 3}, 1},
	{[]int64{37, 130}, 130},
	{[]int64{3, 260}, 1},
}

// TestLearnable: prelu and xielu, forward and backward, and each gradient by itself.
func (s *opSuite) TestLearnable() {
	pick := &picker{}
	for _, l := range learnables {
		for _, dt := range s.dtypes() {
			s.Run(l.op+"/"+dt.String(), func() {
				for i, c := range learnableCases {
					for turn := range some(inputLayouts, i) {
						pick.next++
						s.learnable(l, dt, c.shape, c.channels, turn, pick)
					}
				}
			})
		}
	}
}

func (s *opSuite) learnable(l learnable, dt dtype.DType, shape []int64, channels int64, turn int, pick *picker) {
	x, g := newArray(dt, shape, pick.input()).fill(s.normal(2)), newArray(dt, shape, pick.input()).fill(s.normal(1))
	inputs, small := []*array{x}, [][]float64{}
	for range l.small {
		if l.op != "prelu" {
			channels = 1
		}
		a := newArray(dt, []int64{channels}, pick.input()).fill(s.normal(1))
		inputs, small = append(inputs, a), append(small, a.values())
	}
	limits, xs, gs := s.boundsOf(dt), x.values(), g.values()
	inner := int64(1) // elements that share a channel, next to each other
	for d := 2; d < len(shape); d++ {
		inner *= shape[d]
	}
	count := len(inputs) + 1
	want, bounds := make([][]float64, count), make([][]float64, count)
	for i := range want {
		n := len(xs)
		if i > 1 {
			n = int(channels)
		}
		want[i], bounds[i] = make([]float64, n), make([]float64, n)
	}
	for i, value := range xs {
		channel := int64(i) / inner % channels
		var here []float64
		for _, values := range small {
			here = append(here, values[channel])
		}
		values, sizes := l.formula(value, here)
		for j := range want {
			at, factor := i, gs[i]
			if j == 0 {
				factor = 1
			}
			if j > 1 {
				at = int(channel)
			}
			want[j][at] += factor * values[j]
			bounds[j][at] += math.Abs(factor*sizes[j]) * 16 * max(limits.elementwise, limits.formula)
		}
	}
	for j := range bounds[2:] {
		for i := range bounds[2+j] {
			bounds[2+j][i] *= float64(len(xs) + 4)
		}
	}
	outputs := func(needs uint) []*array {
		list := make([]*array, count-1)
		for i, in := range inputs {
			if needs>>i&1 == 1 {
				list[i] = newArray(dt, in.view.Shape, pick.output())
			}
		}
		return list
	}
	backward := func(needs uint) []*array {
		c := call{Call: op.Call{Op: l.op + "_backward", Parameters: l.parameters}, inputs: append([]*array{g}, inputs...), outputs: outputs(needs)}
		c.Threads = 1 + turn%4
		s.run(c)
		return c.outputs
	}
	out := newArray(dt, shape, pick.output())
	s.run(call{Call: op.Call{Op: l.op, Parameters: l.parameters}, inputs: inputs, outputs: []*array{out}})
	all := backward(7)
	for i, got := range append([]*array{out}, all...) {
		s.within(got.values(), want[i], limits.allStored(want[i], bounds[i]), "result %d of %s of %v with %d channels in %v", i, l.op, x, channels, got)
	}
	for needs := uint(1); needs < 1<<len(inputs)-1; needs++ {
		for i, got := range backward(needs) {
			if got != nil {
				s.same(got, all[i], "gradient %d with needs %b of %s of %v", i, needs, l.op, x)
			}
		}
	}
}
