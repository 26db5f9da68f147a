package optest

import (
	"fmt"
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
)

// groupsCase is a grouped linear layer's sizes, and where the rows of each group end.
type groupsCase struct {
	rows, n, k int64
	ends       []int64
}

// groups without rows, rows of no group, one group that has all, and sizes that are 0.
var groupsCases = []groupsCase{
	{9, 6, 5, []int64{2, 2, 7, 7}},
	{7, 4, 3, []int64{0, 7, 7}},
	{6, 8, 16, []int64{1, 6}},
	{5, 3, 4, []int64{0, 0}},
	{5, 3, 4, nil},
	{0, 3, 4, []int64{0, 0}},
	{5, 3, 0, []int64{2, 4}},
	{5, 0, 4, []int64{2, 5}},
	{1, 1, 1, []int64{1}},
}

// largeGroupsCases have several tiles of a group in every direction.
var largeGroupsCases = []groupsCase{
	{150, 70, 37, []int64{70, 70, 71, 141}},
	{67, 24, 72, []int64{67}},
	{300, 9, 8, []int64{3, 280, 280}},
}

var groupedKinds = []string{"none", "gelu", "relu", "swish -0.7"}

// nanBeside makes a matrix with NaN in the rows that `is` does not name, where the layout has
// places of their own for these.
func (s *opSuite) nanBeside(dt dtype.DType, shape []int64, l layout, size float64, is func(row int) bool) *array {
	a, normal := newArray(dt, shape, l), s.normal(size)
	columns := int(shape[1])
	a.fill(func(i int) float64 {
		if !is(i / columns) {
			return nan
		}
		return normal(i)
	})
	for i, x := range a.values() {
		if math.IsNaN(x) && is(i/columns) {
			return a.fill(normal)
		}
	}
	return a
}

// groupedLayer is a grouped linear layer and its arrays.
type groupedLayer struct {
	groupsCase
	kind                                        string
	dt                                          dtype.DType
	x, weight, bias, offsets, grad              *array
	out, pre                                    *array
	gradientInput, gradientWeight, gradientBias layout
}

func (g *groupedLayer) String() string {
	return fmt.Sprintf("grouped_linear %s, rows of %v, weight=%v bias=%v offsets=%v %v", g.kind, g.x, g.weight, g.bias, g.offsets, g.ends)
}

// groupedLayer makes the inputs of a case, and runs its forward.
func (s *opSuite) groupedLayer(c groupsCase, kind string, dt dtype.DType, turn int, pick *picker) *groupedLayer {
	g := &groupedLayer{groupsCase: c, kind: kind, dt: dt}
	groups, offsets := int64(len(c.ends)), []dtype.DType{dtype.Int64, dtype.Int32}[turn%2]
	g.offsets = newArray(offsets, []int64{groups}, pick.input()).fill(func(i int) float64 { return float64(c.ends[i]) })
	g.ends = nil
	for _, end := range g.offsets.values() { // which share memory in some layouts
		g.ends = append(g.ends, int64(end))
	}
	owned := func(row int) bool { return int64(row) < g.owned() }
	g.x = s.nanBeside(dt, []int64{c.rows, c.k}, pick.input(), 1.5, owned)
	g.grad = s.nanBeside(dt, []int64{c.rows, c.n}, pick.input(), 1, owned)
	g.weight = newArray(dt, []int64{groups, c.n, c.k}, pick.input()).fill(s.normal(1 / math.Sqrt(float64(max(1, c.k)))))
	if turn%3 != 0 {
		g.bias = newArray(dt, []int64{groups, c.n}, pick.input()).fill(s.normal(1))
	}
	g.out, g.pre = newArray(dt, g.grad.view.Shape, pick.output()), newArray(dt, g.grad.view.Shape, pick.output())
	s.run(call{Call: op.Call{Op: "grouped_linear", Kind: kind, Threads: 1 + turn%4}, inputs: g.inputs(), outputs: []*array{g.out, g.pre}})
	g.out.before, g.pre.before = slices.Clone(g.out.memory), slices.Clone(g.pre.memory)
	g.gradientInput, g.gradientWeight, g.gradientBias = pick.output(), pick.output(), pick.output()
	return g
}

func (g *groupedLayer) inputs() []*array { return []*array{g.x, g.weight, g.bias, g.offsets} }

// owned is how many rows are of groups.
func (g *groupedLayer) owned() int64 {
	if len(g.ends) == 0 {
		return 0
	}
	return g.ends[len(g.ends)-1]
}

// group is the rows of a group.
func (g *groupedLayer) group(e int) (first, end int64) {
	if e > 0 {
		first = g.ends[e-1]
	}
	return first, g.ends[e]
}

// visit calls a function for each group with its product, and the values of its operands.
func (g *groupedLayer) visit(of func(e int, first, end int64, p *product, x, weight, bias []float64)) {
	for e := range g.ends {
		first, end := g.group(e)
		p := newProduct(gemmCase{[]int64{end - first, g.k}, []int64{g.k, g.n}})
		size := g.n * g.k
		var bias []float64
		if g.bias != nil {
			bias = g.bias.values()[int64(e)*g.n:][:g.n]
		}
		of(e, first, end, p, g.x.values()[first*g.k:end*g.k], turn(g.weight.values()[int64(e)*size:][:size], int(g.n), int(g.k)), bias)
	}
}

// zerosFrom checks the rows from one on.
func (s *opSuite) zerosFrom(row, columns int64, a *array, format string, args ...any) {
	s.T().Helper()
	for _, x := range a.values()[row*columns:] {
		if x != 0 {
			s.Failf("not zero", format+": got %v", append(args, x)...)
			return
		}
	}
}

func (s *opSuite) checkGroupedForward(g *groupedLayer) {
	s.T().Helper()
	g.visit(func(e int, first, end int64, p *product, x, weight, bias []float64) {
		out, pre := p.forward(g.kind, s.boundsOf(g.dt), x, weight, bias)
		s.within(g.pre.values()[first*g.n:end*g.n], pre.value, pre.bound, "preactivation of group %d of %v in %v", e, g, g.pre)
		s.within(g.out.values()[first*g.n:end*g.n], out.value, out.bound, "output of group %d of %v in %v", e, g, g.out)
	})
	s.zerosFrom(g.owned(), g.n, g.out, "output in rows of no group of %v", g)
	s.zerosFrom(g.owned(), g.n, g.pre, "preactivation in rows of no group of %v", g)
}

// groupedBackward runs the backward for the gradients of a mask.
func (s *opSuite) groupedBackward(g *groupedLayer, saved bool, mask int, adjust func(c *call)) []*array {
	c := call{Call: op.Call{Op: "grouped_linear_backward", Kind: g.kind, Threads: 1 + mask%3}, outputs: make([]*array, 3)}
	c.inputs = slices.Concat([]*array{g.grad}, g.inputs(), []*array{nil})
	if saved {
		c.inputs[5] = g.pre
	}
	layouts := []layout{g.gradientInput, g.gradientWeight, g.gradientBias}
	for i, like := range []*array{g.x, g.weight, g.bias} {
		if like != nil && mask>>i&1 == 1 {
			c.outputs[i] = newArray(g.dt, like.view.Shape, layouts[i])
		}
	}
	if adjust != nil {
		adjust(&c)
	}
	s.run(c)
	return c.outputs
}

func (s *opSuite) checkGroupedBackward(g *groupedLayer, got []*array) {
	s.T().Helper()
	g.visit(func(e int, first, end int64, p *product, x, weight, _ []float64) {
		pre, grad := g.pre.values()[first*g.n:end*g.n], g.grad.values()[first*g.n:end*g.n]
		gradA, gradB, gradBias := p.backward(g.kind, s.boundsOf(g.dt), grad, x, weight, pre, 0)
		size := g.n * g.k
		s.within(got[0].values()[first*g.k:end*g.k], gradA.value, gradA.bound, "grad_input of group %d of %v in %v", e, g, got[0])
		s.within(got[1].values()[int64(e)*size:][:size], turn(gradB.value, int(g.k), int(g.n)), turn(gradB.bound, int(g.k), int(g.n)),
			"grad_weight of group %d of %v in %v", e, g, got[1])
		if got[2] != nil {
			s.within(got[2].values()[int64(e)*g.n:][:g.n], gradBias.value, gradBias.bound, "grad_bias of group %d of %v in %v", e, g, got[2])
		}
	})
	s.zerosFrom(g.owned(), g.k, got[0], "grad_input in rows of no group of %v", g)
}

// checkGrouped checks all that a layer gives: each result by itself, and gradients from a
// preactivation that was saved or is formed again, and added to others.
func (s *opSuite) checkGrouped(g *groupedLayer) {
	s.T().Helper()
	s.checkGroupedForward(g)
	all := s.groupedBackward(g, true, 7, nil)
	s.checkGroupedBackward(g, all)
	if s.T().Failed() {
		return
	}
	for i, both := range []*array{g.out, g.pre} {
		outputs := make([]*array, 2)
		outputs[i] = newArray(g.dt, both.view.Shape, g.gradientInput)
		s.run(call{Call: op.Call{Op: "grouped_linear", Kind: g.kind}, inputs: g.inputs(), outputs: outputs})
		s.same(outputs[i], both, "output %d alone of %v", i, g)
	}
	for mask := 1; mask < 8; mask++ {
		for i, got := range s.groupedBackward(g, mask%2 == 1, mask, nil) {
			if got != nil {
				s.sameOrBias(got, all[i], i == 2 && mask%2 == 0, "gradient %d of %v, mask %b", i, g, mask)
			}
		}
	}
	var olds [3][]float64
	sums := s.groupedBackward(g, true, 7, func(c *call) {
		c.Accumulate = true
		for i, out := range c.outputs {
			if out != nil {
				olds[i] = out.fill(s.normal(1)).values()
			}
		}
	})
	s.same(sums[0], all[0], "grad_input, which is overwritten, of %v", g)
	for i := 1; i < 3; i++ {
		s.checkAdded(sums[i], all[i], olds[i], "accumulated gradient %d of %v", i, g)
	}
}

// sameOrBias compares two arrays bit by bit, or sums whose order may follow their terms' layout.
func (s *opSuite) sameOrBias(got, want *array, isBias bool, format string, args ...any) {
	s.T().Helper()
	if !isBias {
		s.same(got, want, format, args...)
		return
	}
	bound := magnitudes(want.values())
	for i := range bound {
		bound[i] = 2 * unit(got.view.DType) * (1 + bound[i])
	}
	s.within(got.values(), want.values(), bound, format, args...)
}

// checkAdded compares gradients that were added to others with both: the sum is rounded once, from
// accumulators that the gradients alone are the roundings of.
func (s *opSuite) checkAdded(got, alone *array, old []float64, format string, args ...any) {
	s.T().Helper()
	if got == nil {
		return
	}
	limits, want := s.boundsOf(got.view.DType), alone.values()
	bound := make([]float64, len(want))
	for i := range want {
		bound[i] = limits.stored(want[i]+old[i], limits.stored(want[i], 4*limits.accumulator*math.Abs(old[i])))
		want[i] += old[i]
	}
	s.within(got.values(), want, bound, format, args...)
}

// groupTurns is how many layouts a case meets: neighbouring cases and kinds meet the others.
func (s *opSuite) groupTurns() int {
	if s.takesPairs() {
		return 1
	}
	return 2
}

// largeDTypes are those that a large case meets.
func (s *opSuite) largeDTypes(i int) []dtype.DType {
	if s.takesPairs() {
		return some(s.dtypes(), i)[:1]
	}
	return s.dtypes()
}

// TestGroupedLinear: each group's layer is that of its rows alone.
func (s *opSuite) TestGroupedLinear() {
	pick := &picker{}
	s.forEachKind(groupedKinds, func(kind string, dt dtype.DType) {
		for i, c := range groupsCases {
			for turn := range s.groupTurns() {
				pick.next++
				if s.checkGrouped(s.groupedLayer(c, kind, dt, turn+i, pick)); s.T().Failed() {
					return
				}
			}
		}
	})
	for i, c := range largeGroupsCases {
		for j, dt := range s.largeDTypes(i) {
			s.checkGrouped(s.groupedLayer(c, groupedKinds[(i+j)%len(groupedKinds)], dt, 1+j, pick))
		}
	}
}

// TestOffsetsThatMakeNoSense are an error, which leaves all results alone, or are taken for what is
// next to them.
func (s *opSuite) TestOffsetsThatMakeNoSense() {
	clamping, ok := s.backend.(Clamping)
	clamps := ok && clamping.ClampsOffsets()
	const rows, n, k = 6, 3, 4
	for _, c := range []struct{ offsets, ends []float64 }{
		{[]float64{4, 2, 5}, []float64{4, 4, 5}},
		{[]float64{-3, 2, 6}, []float64{0, 2, 6}},
		{[]float64{1, 7, 3}, []float64{1, 6, 6}},
		{[]float64{math.MinInt32, math.MaxInt32, -1}, []float64{0, rows, rows}},
	} {
		for _, offsets := range []dtype.DType{dtype.Int32, dtype.Int64} {
			dt := s.dtypes()[0]
			x, weight := newArray(dt, []int64{rows, k}, contiguous).fill(s.normal(1)), newArray(dt, []int64{3, n, k}, contiguous).fill(s.normal(1))
			run := func(ends []float64) (*array, error) {
				out := newArray(dt, []int64{rows, n}, contiguous)
				c := call{Call: op.Call{Op: "grouped_linear"}, inputs: []*array{x, weight, nil, list(offsets, []int64{3}, ends...)}, outputs: []*array{out}}
				return out, s.tryRun(c)
			}
			got, err := run(c.offsets)
			if !clamps {
				s.Equal(status.InvalidProblem, status.Of(err).Code)
				s.True(isPoison(got.memory), "an output was written to")
				continue
			}
			s.Require().NoError(err)
			want, err := run(c.ends)
			s.Require().NoError(err)
			s.same(got, want, "output with offsets %v", c.offsets)
		}
	}
	if wide := []float64{math.MinInt64, 1 << 62, 3}; clamps {
		x, weight := newArray(s.dtypes()[0], []int64{rows, k}, contiguous).fill(s.normal(1)), newArray(s.dtypes()[0], []int64{3, n, k}, contiguous).fill(s.normal(1))
		out := newArray(s.dtypes()[0], []int64{rows, n}, contiguous)
		s.run(call{Call: op.Call{Op: "grouped_linear"}, inputs: []*array{x, weight, nil, list(dtype.Int64, []int64{3}, wide...)}, outputs: []*array{out}})
	}
}
