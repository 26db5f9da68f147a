package optest

import (
	"fmt"
	"math"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// lerpCase is the shapes of start, end and weight; a nil weight is a number.
type lerpCase struct{ start, end, weight []int64 }

var lerpCases = []lerpCase{
	{[]int64{}, []int64{}, nil},
	{[]int64{7}, []int64{7}, nil},
	{[]int64{3, 5}, []int64{3, 5}, nil},
	{[]int64{3, 5}, []int64{3, 5}, []int64{3, 5}},
	{[]int64{3, 5}, []int64{3, 5}, []int64{}},
	{[]int64{3, 5}, []int64{3, 5}, []int64{5}},
	{[]int64{3, 5}, []int64{3, 5}, []int64{3, 1}},
	{[]int64{3, 5}, []int64{3, 5}, []int64{1, 1}},
	{[]int64{5}, []int64{3, 5}, []int64{3, 1}},
	{[]int64{3, 1}, []int64{5}, nil},
	{[]int64{3, 1}, []int64{1, 5}, []int64{2, 1, 1}},
	{[]int64{}, []int64{2, 3}, []int64{4, 1, 3}},
	{[]int64{2, 3, 4, 5}, []int64{3, 1, 5}, []int64{2, 1, 4, 1}},
	{[]int64{1, 3, 1}, []int64{2, 3, 4}, []int64{1}},
	{[]int64{2, 1, 2, 1, 2}, []int64{1, 2, 1, 2, 1}, []int64{2, 2, 1, 1, 2}},
	{[]int64{0}, []int64{1}, []int64{1}},
	{[]int64{3, 0}, []int64{3, 1}, []int64{}},
	{[]int64{1}, []int64{0, 1}, nil},
	{[]int64{2, 0, 3}, []int64{3}, []int64{2, 1, 1}},
	{[]int64{40, 300}, []int64{300}, []int64{40, 1}},
	{[]int64{257, 33}, []int64{257, 1}, []int64{}},
}

// numbers are weights on both sides of one half, at both ends and beyond them.
var numbers = []float64{0.3, 0.5, 0.75, 0, 1, -0.25, 1.5}

// interpolation is a case with its tensors, and its values broadcast to the result's shape.
type interpolation struct {
	dt                       dtype.DType
	shape                    []int64
	operands                 [3]*array // start, end, weight
	grad                     *array
	number                   float64
	start, end, weight, grow []float64
}

func (s *opSuite) interpolation(c lerpCase, dt dtype.DType, number float64, pick *picker) *interpolation {
	p := &interpolation{dt: dt, number: number}
	p.shape, _ = tensor.BroadcastShapes(c.start, c.end, c.weight)
	broadcast := func(a *array) []float64 {
		list, stored := make([]float64, size(p.shape)), a.values()
		for i, at := range broadcastIndex(a.view.Shape, p.shape) {
			list[i] = stored[at]
		}
		return list
	}
	p.operands[0] = newArray(dt, c.start, pick.input()).fill(s.normal(2))
	p.operands[1] = newArray(dt, c.end, pick.input()).fill(s.normal(2))
	p.grad = newArray(dt, p.shape, pick.input()).fill(s.normal(1))
	p.start, p.end, p.grow = broadcast(p.operands[0]), broadcast(p.operands[1]), p.grad.values()
	if c.weight != nil {
		p.operands[2] = newArray(dt, c.weight, pick.input()).fill(s.normal(1))
		p.weight = broadcast(p.operands[2])
		return p
	}
	for range p.start {
		p.weight = append(p.weight, number)
	}
	return p
}

// call is an operation on the case with its weight.
func (p *interpolation) call(name string, outputs ...*array) call {
	c := call{Call: op.Call{Op: name}, inputs: p.operands[:], outputs: outputs}
	if p.operands[2] == nil {
		c.Parameters = []float64{p.number}
	}
	return c
}

// backward is the call of the gradients.
func (p *interpolation) backward(outputs ...*array) call {
	c := p.call("lerp_backward", outputs...)
	c.inputs = append([]*array{p.grad}, p.operands[:]...)
	return c
}

func (p *interpolation) String() string {
	if p.operands[2] == nil {
		return fmt.Sprintf("lerp(%v, %v, %v)", p.operands[0], p.operands[1], p.number)
	}
	return fmt.Sprintf("lerp(%v, %v, %v)", p.operands[0], p.operands[1], p.operands[2])
}

// forward is start + weight (end - start), known up to the rounding of its terms.
func (p *interpolation) forward(limits bounds) expectation {
	e := expectation{make([]float64, len(p.start)), make([]float64, len(p.start))}
	for i, w := range p.weight {
		difference := p.end[i] - p.start[i]
		e.value[i] = p.start[i] + w*difference
		terms := math.Abs(p.start[i]) + math.Abs(p.end[i]) + (1+math.Abs(w))*math.Abs(difference)
		e.bound[i] = limits.stored(e.value[i], 8*limits.elementwise*terms)
	}
	return e
}

// gradients are (1 - weight) g, weight g and (end - start) g, each summed to its operand's shape.
func (p *interpolation) gradients(limits bounds) [3]expectation {
	var terms [3][]float64
	for i, g := range p.grow {
		terms[0] = append(terms[0], (1-p.weight[i])*g)
		terms[1] = append(terms[1], p.weight[i]*g)
		terms[2] = append(terms[2], (p.end[i]-p.start[i])*g)
	}
	var all [3]expectation
	for i, operand := range p.operands {
		if operand == nil {
			continue
		}
		to := operand.view.Shape
		all[i].value = sumTo(terms[i], p.shape, to)
		errs := sumTo(magnitudes(terms[i]), p.shape, to)
		for j := range errs {
			errs[j] *= 4 * limits.elementwise * float64(len(p.grow)+4)
		}
		all[i].bound = limits.allStored(all[i].value, errs)
	}
	return all
}

// gradientArrays makes an output for each operand that wanted names.
func (p *interpolation) gradientArrays(wanted [3]bool, pick *picker) []*array {
	list := make([]*array, 3)
	for i, operand := range p.operands {
		if operand != nil && wanted[i] {
			list[i] = newArray(p.dt, operand.view.Shape, pick.output())
		}
	}
	return list
}

// forEachLerp visits dtypes x cases x layouts, with a number that rotates where the weight is one.
func (s *opSuite) forEachLerp(visit func(p *interpolation, turn int, pick *picker)) {
	pick := &picker{}
	for _, dt := range s.dtypes() {
		s.Run(dt.String(), func() {
			for i, c := range lerpCases {
				for turn := range some(inputLayouts, i) {
					pick.next++
					visit(s.interpolation(c, dt, numbers[(i+turn)%len(numbers)], pick), turn, pick)
					if s.T().Failed() {
						return
					}
				}
			}
		})
	}
}

func (s *opSuite) TestLerp() {
	s.forEachLerp(func(p *interpolation, turn int, pick *picker) {
		out := newArray(p.dt, p.shape, pick.output())
		s.run(p.call("lerp", out))
		want := p.forward(s.boundsOf(p.dt))
		s.within(out.values(), want.value, want.bound, "%v in %v", p, out)
		again, c := newArray(p.dt, p.shape, pick.output()), p.call("lerp")
		c.outputs, c.Threads = []*array{again}, 1+turn%4
		s.run(c)
		s.same(again, out, "%v in %v on %d threads", p, again, c.Threads)
	})
}

func (s *opSuite) TestLerpBackward() {
	s.forEachLerp(func(p *interpolation, turn int, pick *picker) {
		all := p.gradientArrays(everything, pick)
		s.run(p.backward(all...))
		for i, want := range p.gradients(s.boundsOf(p.dt)) {
			if all[i] != nil {
				s.within(all[i].values(), want.value, want.bound, "gradient %d of %v in %v", i, p, all[i])
			}
		}
		for mask := range 7 {
			needs := [3]bool{mask&1 != 0, mask&2 != 0, mask&4 != 0}
			c := p.backward(p.gradientArrays(needs, pick)...)
			c.Threads = 1 + (turn+mask)%4
			// start and end are then of no use but for their shapes, which the outputs have too
			if !needs[2] {
				c.inputs = []*array{p.grad, nil, nil, p.operands[2]}
			}
			s.run(c)
			for i, got := range c.outputs {
				if got != nil {
					s.same(got, all[i], "gradient %d with needs %v of %v on %d threads", i, needs, p, c.Threads)
				}
			}
		}
	})
}

// TestLerpSumsAreExact: numbers that cancel, of which an accumulator of the storage dtype would
// lose the small ones.
func (s *opSuite) TestLerpSumsAreExact() {
	if s.narrow {
		s.T().Skip("sums are kept in the accumulator's dtype")
	}
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
		large := map[dtype.DType]float64{dtype.Float32: 1 << 24, dtype.Float64: 1 << 60}[dt]
		for _, pattern := range [][]float64{{large, 1, -large, 1}, {1, large, 1, -large}} {
			const count = 1 << 18
			grad := newArray(dt, []int64{count}, contiguous).fill(func(i int) float64 { return pattern[i%4] })
			end := newArray(dt, []int64{1}, contiguous)
			s.run(call{
				Call: op.Call{Op: "lerp_backward", Parameters: []float64{1}}, inputs: []*array{grad}, outputs: []*array{nil, end},
			})
			s.Equal([]float64{count / 2}, end.values(), "%v %v", dt, pattern)
		}
	}
}
