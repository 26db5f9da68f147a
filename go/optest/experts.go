package optest

import (
	"fmt"
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

// mixtureCase is a mixture's sizes and the experts that its slots name, over and over.
type mixtureCase struct {
	tokens, each, groups, features, hidden int64
	index                                  []float64
	// whether the preactivation has fewer rows than there are slots
	fewer bool
}

// experts that no slot selects, one that all do, indices that are no expert's, sizes that are 0,
// weights whose gradients have room for other tensors until they are formed, and last a
// preactivation with rows for slots that select something, and at most one more.
var mixtureCases = []mixtureCase{
	{7, 2, 4, 5, 6, []float64{0, 3, 3, 0, 1, 3, -1, 3, 4, -1, 3, 1, 1 << 62, math.MinInt64}, false},
	{5, 3, 2, 4, 8, []float64{1}, false},
	{6, 1, 5, 16, 8, []float64{4, 2, -7, 0}, false},
	{3, 2, 3, 4, 2, []float64{-1, 3}, false},
	{4, 4, 2, 3, 1, []float64{0, 0, 1, 0, 1}, false},
	{0, 2, 3, 4, 3, []float64{0}, false},
	{4, 0, 3, 4, 3, []float64{0}, false},
	{4, 2, 0, 4, 3, []float64{0, 1}, false},
	{4, 2, 3, 0, 3, []float64{0, 1, 5}, false},
	{4, 2, 3, 4, 0, []float64{2, 1, 5}, false},
	{3, 2, 6, 4, 5, []float64{5, 1, 2, -1, 5, 2}, false},
	{6, 3, 4, 5, 6, []float64{0, -1, 7, 2, -1, 3, -1}, true},
	{6, 3, 4, 16, 8, []float64{0, 1, -1, 2, 1, -1}, true},
}

// largeMixtureCases have several tiles of an expert, and slots of several blocks.
var largeMixtureCases = []mixtureCase{
	{150, 3, 4, 24, 40, []float64{0, 2, 0, 0, 2, 1, -1}, false},
	{300, 4, 67, 8, 3, []float64{0, 5, 66, 12, 66, 64, 70, 31, 30, 7, 66, 11}, false},
	{300, 4, 67, 8, 3, []float64{0, 5, -1, 12, -1, 64, 70, 31, -1, 7, 66, 11}, true},
}

// mixtureKinds are gated kinds and activations, and where gates are.
var mixtureKinds = []struct {
	kind string
	gate op.Gate
}{
	{"swiglu", op.GateSecond},
	{"swiglu_oai", op.GateEven},
	{"geglu +Inf 1.5 0", op.GateFirst},
	{"bilinear", op.GateOdd},
	{"gelu", op.GateSecond},
	{"relu2", op.GateSecond},
}

// mixture is a mixture of experts, its arrays, and the slots of each row.
type mixture struct {
	mixtureCase
	call
	gated                                                       bool
	dt                                                          dtype.DType
	x, index, scale, weightIn, biasIn, weightOut, biasOut, grad *array
	out, pre                                                    *array
	slots                                                       []int // by row
	places                                                      []int // by slot, -1 for none
	experts                                                     []int // by row
	gradientLayouts                                             [6]layout
}

func (m *mixture) String() string {
	return fmt.Sprintf("%s, gate %d, %d of %d experts, x=%v index=%v scale=%v weight_in=%v bias_in=%v weight_out=%v bias_out=%v",
		m.Kind, m.Gate, m.each, m.groups, m.x, m.index, m.scale, m.weightIn, m.biasIn, m.weightOut, m.biasOut)
}

// columns is how many the preactivation has.
func (m *mixture) columns() int64 {
	if m.gated {
		return 2 * m.hidden
	}
	return m.hidden
}

// mixture makes the inputs of a case, and runs its forward.
func (s *opSuite) mixture(c mixtureCase, kind string, gate op.Gate, dt dtype.DType, turn int, pick *picker) *mixture {
	m := &mixture{mixtureCase: c, dt: dt, call: call{Call: op.Call{Op: "experts", Kind: kind, Gate: gate, Threads: 1 + turn%4}}}
	_, m.gated = activation.LookupGated(named(m.Call).Kind)
	if _, preset := activation.LookupPreset(kind); preset {
		m.gated = true
	}
	m.index = newArray(dtype.Int64, []int64{c.tokens, c.each}, pick.input()).fill(func(i int) float64 { return c.index[i%len(c.index)] })
	m.route()
	wide := dt
	if turn%2 == 0 {
		wide = dt.Accumulator()
	}
	slots := newArray(wide, []int64{c.tokens * c.each, 1}, contiguous).fill(s.normal(1)).values()
	placed := func(slot int) bool { return m.places[slot] >= 0 }
	seen := func(token int) bool {
		return slices.ContainsFunc(m.places[token*int(c.each):(token+1)*int(c.each)], func(place int) bool { return place >= 0 })
	}
	m.scale = newArray(wide, []int64{c.tokens, c.each}, pick.input())
	m.scale.fill(func(i int) float64 {
		if !placed(i) {
			return nan
		}
		return slots[i]
	})
	for i, x := range m.scale.values() {
		if math.IsNaN(x) && placed(i) { // both share their memory
			m.scale.fill(func(i int) float64 { return slots[i] })
			break
		}
	}
	m.x = s.nanBeside(dt, []int64{c.tokens, c.features}, pick.input(), 1, seen)
	m.grad = s.nanBeside(dt, []int64{c.tokens, c.features}, pick.input(), 1, seen)
	m.weightIn = newArray(dt, []int64{c.groups, m.columns(), c.features}, pick.input()).fill(s.normal(1 / math.Sqrt(float64(max(1, c.features)))))
	m.weightOut = newArray(dt, []int64{c.groups, c.features, c.hidden}, pick.input()).fill(s.normal(1 / math.Sqrt(float64(max(1, c.hidden)))))
	if turn%3 != 0 {
		m.biasIn = newArray(dt, []int64{c.groups, m.columns()}, pick.input()).fill(s.normal(1))
	}
	if turn%3 != 1 {
		m.biasOut = newArray(dt, []int64{c.groups, c.features}, pick.input()).fill(s.normal(1))
	}
	m.out = newArray(dt, []int64{c.tokens, c.features}, pick.output())
	rows := c.tokens * c.each
	if c.fewer {
		rows = min(rows, int64(len(m.slots)+turn%2))
	}
	m.pre = newArray(dt, []int64{rows, m.columns()}, pick.output())
	m.inputs, m.outputs = m.operands(), []*array{m.out, m.pre}
	s.run(m.call)
	m.out.before, m.pre.before = slices.Clone(m.out.memory), slices.Clone(m.pre.memory)
	for i := range m.gradientLayouts {
		m.gradientLayouts[i] = pick.output()
	}
	return m
}

// route sorts the slots by their experts.
func (m *mixture) route() {
	index := m.index.values()
	m.places = slices.Repeat([]int{-1}, len(index))
	for e := range m.groups {
		for slot, named := range index {
			if named == float64(e) {
				m.places[slot] = len(m.slots)
				m.slots, m.experts = append(m.slots, slot), append(m.experts, int(e))
			}
		}
	}
}

func (m *mixture) operands() []*array {
	return []*array{m.x, m.index, m.scale, m.weightIn, m.biasIn, m.weightOut, m.biasOut}
}

// gradients are like these inputs.
func (m *mixture) gradients() []*array {
	return []*array{m.x, m.scale, m.weightIn, m.biasIn, m.weightOut, m.biasOut}
}

// half is the column of the preactivation where the value of a hidden element is, or its gate.
func (m *mixture) half(i int64, gate bool) int64 {
	second := gate == (m.Gate == op.GateSecond || m.Gate == op.GateOdd)
	switch {
	case m.Gate == op.GateOdd || m.Gate == op.GateEven:
		i *= 2
		if second {
			i++
		}
	case second:
		i += m.hidden
	}
	return i
}

// total is a sum of products of numbers that have errors.
type total struct {
	sum  number
	size float64
	n    int
}

func (t *total) add(a, b number) {
	p := a.product(b)
	t.sum.value, t.sum.err = t.sum.value+p.value, t.sum.err+p.err
	t.size += math.Abs(p.value) + p.err
	t.n++
}

// of is the sum as a backend accumulates it.
func (t *total) of(limits bounds) number {
	return number{t.sum.value, t.sum.err + limits.sum(t.n, t.size)}
}

// stored is a number as it is stored.
func (a number) stored(limits bounds) number { return number{a.value, limits.stored(a.value, a.err)} }

func exact(x float64) number { return number{value: x} }

var one = exact(1)

// table has the numbers of an array, by rows.
type table struct {
	values  []float64
	columns int64
}

func rowsOf(a *array) table {
	if a == nil {
		return table{}
	}
	return table{a.values(), a.view.Shape[len(a.view.Shape)-1]}
}

func (n table) at(row, column int64) number { return exact(n.values[row*n.columns+column]) }

// hiddenOf is an element of the hidden activation of a row, of the preactivation as it is stored.
func (m *mixture) hiddenOf(limits bounds, pre table, row, i int64) number {
	if m.gated {
		r := gatedReferences[m.Kind]
		value, gate := pre.at(row, m.half(i, false)).value, pre.at(row, m.half(i, true)).value
		return r.ofValue(limits, value).product(r.ofGate(limits, gate)).stored(limits)
	}
	act, x := references[m.Kind], pre.at(row, i).value
	// an output may be that of the unrounded preactivation
	return number{act.value(x), act.formulaError(x, limits.formula) + act.spread(x, limits.unit*math.Abs(x)+limits.tiny)}.stored(limits)
}

func (s *opSuite) checkMixture(m *mixture) {
	s.T().Helper()
	limits, pre, x := s.boundsOf(m.dt), rowsOf(m.pre), rowsOf(m.x)
	weightIn, biasIn, weightOut, biasOut, scale := rowsOf(m.weightIn), rowsOf(m.biasIn), rowsOf(m.weightOut), rowsOf(m.biasOut), rowsOf(m.scale)
	var wantPre expectation
	for row, slot := range m.slots {
		for c := range m.columns() {
			var sum total
			for i := range m.features {
				sum.add(x.at(int64(slot)/m.each, i), weightIn.at(int64(m.experts[row])*m.columns()+c, i))
			}
			if m.biasIn != nil {
				sum.add(biasIn.at(int64(m.experts[row]), c), one)
			}
			wantPre.add(sum.of(limits).stored(limits))
		}
	}
	s.within(m.pre.values()[:len(wantPre.value)], wantPre.value, wantPre.bound, "preactivation of %v", m)
	s.zerosFrom(int64(len(m.slots)), m.columns(), m.pre, "preactivation in rows of no expert of %v", m)
	var wantOut expectation
	for t := range m.tokens {
		for i := range m.features {
			var sum total
			for j := range m.each {
				row := int64(m.places[t*m.each+j])
				if row < 0 {
					continue
				}
				var y total
				for c := range m.hidden {
					y.add(m.hiddenOf(limits, pre, row, c), weightOut.at(int64(m.experts[row])*m.features+i, c))
				}
				if m.biasOut != nil {
					y.add(biasOut.at(int64(m.experts[row]), i), one)
				}
				sum.add(y.of(limits).stored(limits), scale.at(t, j))
			}
			wantOut.add(sum.of(limits).stored(limits))
		}
	}
	s.within(m.out.values(), wantOut.value, wantOut.bound, "output of %v in %v", m, m.out)
}

func (e *expectation) add(n number) {
	e.value, e.bound = append(e.value, n.value), append(e.bound, n.err)
}

// wantedGradients are what the gradients should be, from the preactivation as it is stored.
func (s *opSuite) wantedGradients(m *mixture) [6]expectation {
	limits, pre, x, grad := s.boundsOf(m.dt), rowsOf(m.pre), rowsOf(m.x), rowsOf(m.grad)
	weightIn, weightOut, biasOut, scale := rowsOf(m.weightIn), rowsOf(m.weightOut), rowsOf(m.biasOut), rowsOf(m.scale)
	rows, columns := len(m.slots), m.columns()
	gradPre, hidden, inputs := make([][]number, rows), make([][]number, rows), make([][]number, rows)
	scaleSums := make([]number, rows)
	sums := func(n int64) []total { return make([]total, n) }
	weightsIn, biasesIn := sums(m.groups*columns*m.features), sums(m.groups*columns)
	weightsOut, biasesOut := sums(m.groups*m.features*m.hidden), sums(m.groups*m.features)
	for row, slot := range m.slots {
		t, e := int64(slot)/m.each, int64(m.experts[row])
		factor := scale.at(t, int64(slot)%m.each)
		gradPre[row] = make([]number, columns)
		var toScale total
		for c := range m.hidden {
			var g total
			for i := range m.features {
				g.add(grad.at(t, i), weightOut.at(e*m.features+i, c))
			}
			upstream, h := g.of(limits).stored(limits), m.hiddenOf(limits, pre, int64(row), c)
			toScale.add(upstream, h)
			scaled := upstream.product(factor).stored(limits)
			hidden[row] = append(hidden[row], h.product(factor).stored(limits))
			if m.gated {
				r := gatedReferences[m.Kind]
				at, gateAt := m.half(c, false), m.half(c, true)
				value, gate := pre.at(int64(row), at).value, pre.at(int64(row), gateAt).value
				gradPre[row][at] = r.slopeOfValue(limits, value).product(r.ofGate(limits, gate)).product(scaled)
				gradPre[row][gateAt] = r.ofValue(limits, value).product(r.slopeOfGate(limits, gate)).product(scaled)
			} else {
				act, z := references[m.Kind], pre.at(int64(row), c).value
				gradPre[row][c] = number{act.slope(z), act.slopeError(z, limits.formula)}.product(scaled)
			}
		}
		for i := range m.features {
			if m.biasOut != nil {
				toScale.add(biasOut.at(e, i), grad.at(t, i))
			}
			biasesOut[e*m.features+i].add(grad.at(t, i), factor)
			for c := range m.hidden {
				weightsOut[(e*m.features+i)*m.hidden+c].add(grad.at(t, i), hidden[row][c])
			}
		}
		scaleSums[row] = toScale.of(limits)
		for c, g := range gradPre[row] {
			biasesIn[e*columns+int64(c)].add(g, one)
			gradPre[row][c] = g.stored(limits)
			for i := range m.features {
				weightsIn[(e*columns+int64(c))*m.features+i].add(gradPre[row][c], x.at(t, i))
			}
		}
		for i := range m.features {
			var sum total
			for c := range columns {
				sum.add(gradPre[row][c], weightIn.at(e*columns+c, i))
			}
			inputs[row] = append(inputs[row], sum.of(limits).stored(limits))
		}
	}
	var want [6]expectation
	for t := range m.tokens {
		for i := range m.features {
			var sum total
			for j := range m.each {
				if row := m.places[t*m.each+j]; row >= 0 {
					sum.add(inputs[row][i], one)
				}
			}
			want[0].add(sum.of(limits).stored(limits))
		}
	}
	ofScale := limits
	ofScale.unit, ofScale.tiny = unit(m.scale.view.DType), tiny(m.scale.view.DType)
	for _, place := range m.places {
		n := number{}
		if place >= 0 {
			n = scaleSums[place].stored(ofScale)
		}
		want[1].add(n)
	}
	for i, list := range [][]total{weightsIn, biasesIn, weightsOut, biasesOut} {
		for _, sum := range list {
			want[2+i].add(sum.of(limits).stored(limits))
		}
	}
	return want
}

// mixtureBackward runs the backward for the gradients of a mask.
func (s *opSuite) mixtureBackward(m *mixture, saved bool, mask int, adjust func(c *call)) []*array {
	c := call{Call: m.Call, inputs: slices.Concat([]*array{m.grad}, m.operands(), []*array{nil}), outputs: make([]*array, 6)}
	c.Op = "experts_backward"
	c.Threads = 1 + mask%3
	if saved {
		c.inputs[8] = m.pre
	}
	for i, like := range m.gradients() {
		if like != nil && mask>>i&1 == 1 {
			c.outputs[i] = newArray(like.view.DType, like.view.Shape, m.gradientLayouts[i])
		}
	}
	if adjust != nil {
		adjust(&c)
	}
	s.run(c)
	return c.outputs
}

const allGradients = 1<<6 - 1

// checkMixtureBackward checks the gradients, and returns them.
func (s *opSuite) checkMixtureBackward(m *mixture) []*array {
	s.T().Helper()
	all := s.mixtureBackward(m, true, allGradients, nil)
	for i, want := range s.wantedGradients(m) {
		if all[i] != nil {
			s.within(all[i].values(), want.value, want.bound, "gradient %d of %v in %v", i, m, all[i])
		}
	}
	return all
}

// checkMixtureMasks: a result is the same whichever others are wanted, from a preactivation that
// was saved or is formed again, and gradients of weights and biases may be added to others.
func (s *opSuite) checkMixtureMasks(m *mixture, all []*array, masks []int) {
	s.T().Helper()
	for i, both := range []*array{m.out, m.pre} {
		outputs := make([]*array, 2)
		outputs[i] = newArray(m.dt, both.view.Shape, m.gradientLayouts[i])
		s.run(call{Call: m.Call, inputs: m.operands(), outputs: outputs})
		s.same(outputs[i], both, "output %d alone of %v", i, m)
	}
	for i := len(m.slots) * int(m.columns()); i < len(m.pre.at); i++ {
		m.pre.set(i, nan) // where nothing is read
	}
	m.pre.before = slices.Clone(m.pre.memory)
	for _, mask := range masks {
		for _, saved := range []bool{true, false} {
			for i, got := range s.mixtureBackward(m, saved, mask, nil) {
				if got != nil {
					s.sameOrBias(got, all[i], i == 3 && !saved, "gradient %d of %v, mask %b, saved %v", i, m, mask, saved)
				}
			}
		}
		if s.T().Failed() {
			return
		}
	}
	var olds [6][]float64
	sums := s.mixtureBackward(m, true, allGradients, func(c *call) {
		c.Accumulate = true
		for i, out := range c.outputs {
			if out != nil {
				olds[i] = out.fill(s.normal(1)).values()
			}
		}
	})
	for i, got := range sums {
		if i < 2 {
			s.same(got, all[i], "gradient %d, which is overwritten, of %v", i, m)
		} else {
			s.checkAdded(got, all[i], olds[i], "accumulated gradient %d of %v", i, m)
		}
	}
}

// TestExperts: mixtures of experts, forward and backward.
func (s *opSuite) TestExperts() {
	pick := &picker{}
	for k, kind := range mixtureKinds {
		for j, dt := range s.dtypes() {
			if (j+k)%2 != 0 {
				continue // other kinds meet it
			}
			s.Run(kind.kind+"/"+dt.String(), func() {
				for i, c := range mixtureCases {
					if s.takesPairs() && (i+j/2)%2 != 0 {
						continue // another dtype meets it
					}
					for turn := range s.groupTurns() {
						pick.next++
						m := s.mixture(c, kind.kind, kind.gate, dt, turn+i+k, pick)
						s.checkMixture(m)
						if all := s.checkMixtureBackward(m); !s.T().Failed() {
							s.checkMixtureMasks(m, all, []int{1 << (turn % 6), (turn*37 + 11*i) % 64})
						}
						if s.T().Failed() {
							return
						}
					}
				}
			})
		}
	}
	for i, c := range largeMixtureCases {
		for j, dt := range s.largeDTypes(i) {
			kind := mixtureKinds[(2*i+j)%len(mixtureKinds)]
			m := s.mixture(c, kind.kind, kind.gate, dt, i+j, pick)
			s.checkMixture(m)
			s.checkMixtureBackward(m)
		}
	}
}

// TestExpertsNeedsChangeNothing takes every set of gradients, of which each dtype meets some.
func (s *opSuite) TestExpertsNeedsChangeNothing() {
	pick := &picker{}
	for i, kind := range mixtureKinds {
		for j, dt := range some(s.dtypes(), i) {
			var masks []int
			for mask := 1 + (i+j)%4; mask < allGradients; mask += 4 {
				masks = append(masks, mask)
			}
			m := s.mixture(mixtureCases[0], kind.kind, kind.gate, dt, 2+3*((i+j)%2), pick)
			s.checkMixtureMasks(m, s.mixtureBackward(m, true, allGradients, nil), some(masks, i+5*j))
			if s.T().Failed() {
				return
			}
		}
	}
}

// TestExpertsPropagateNaN: a scale of 0 does not hide what an expert gives, and an expert that
// no slot selects gives nothing.
func (s *opSuite) TestExpertsPropagateNaN() {
	s.forEachDType(func(dt dtype.DType) {
		weightIn, weightOut := list(dt, []int64{2, 2, 1}, 1, 1, nan, nan), list(dt, []int64{2, 1, 1}, 1, nan)
		for _, c := range []struct {
			index, scale float64
			want         float64
		}{{0, 0, 0}, {1, 0, nan}, {2, 5, 0}} {
			out, gradients := list(dt, []int64{1, 1}, 0), make([]*array, 6)
			inputs := []*array{list(dt, []int64{1, 1}, 1), list(dtype.Int64, []int64{1, 1}, c.index), list(dt, []int64{1, 1}, c.scale), weightIn, nil, weightOut, nil}
			s.run(call{Call: op.Call{Op: "experts", Kind: "bilinear"}, inputs: inputs, outputs: []*array{out}})
			s.equals([]float64{c.want}, out, "output of expert %v", c.index)
			gradients[0], gradients[2], gradients[4] = list(dt, []int64{1, 1}, 0), fresh(weightIn), fresh(weightOut)
			s.run(call{Call: op.Call{Op: "experts_backward", Kind: "bilinear"}, inputs: slices.Concat([]*array{list(dt, []int64{1, 1}, 1)}, inputs, []*array{nil}), outputs: gradients})
			s.equals([]float64{c.want}, gradients[0], "input's gradient of expert %v", c.index)
			if c.index != 1 {
				s.equals([]float64{0, 0, 0, 0}, gradients[2], "weight_in's gradient of expert %v", c.index)
			}
		}
	})
}
