package optest

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

// gatedCase is an input's shape and the dimension that is split.
type gatedCase struct {
	shape []int64
	dim   int
}

var gatedCases = []gatedCase{
	{[]int64{6}, 0},
	{[]int64{2}, -1},
	{[]int64{5, 6}, -1},
	{[]int64{6, 5}, 0},
	{[]int64{3, 4, 5}, 1},
	{[]int64{3, 4, 5}, -2},
	{[]int64{2, 1, 4}, -1},
	{[]int64{2, 3, 2, 3, 2}, 2},
	{[]int64{1, 2, 1, 2, 1, 2, 1, 2}, 5},
	{[]int64{0, 4}, 1},
	{[]int64{4, 0}, 0},
	{[]int64{3, 0}, 1},
	{[]int64{3, 514}, 1},
	{[]int64{258, 7}, 0},
}

// halves reads an input's values as the two tensors that it holds.
func (c gatedCase) halves(values []float64, gateFirst bool) (value, gate []float64) {
	half := size(c.shape[c.at():]) / 2
	for i := 0; half > 0 && i < len(values); i += 2 * half {
		value, gate = append(value, values[i:i+half]...), append(gate, values[i+half:i+2*half]...)
	}
	if gateFirst {
		return gate, value
	}
	return value, gate
}

// join is the inverse of halves.
func (c gatedCase) join(value, gate []float64, gateFirst bool) (values []float64) {
	if gateFirst {
		value, gate = gate, value
	}
	half := size(c.shape[c.at():]) / 2
	for i := 0; half > 0 && i < len(value); i += half {
		values = append(append(values, value[i:i+half]...), gate[i:i+half]...)
	}
	return values
}

// gradBias is the input's gradient, unrounded, summed over all dimensions but the split one.
func (c gatedCase) gradBias(kind string, limits bounds, gradOutput, value, gate []float64, gateFirst bool) expectation {
	gradValue, gradGate := gatedBackward(kind, limits.unrounded(), gradOutput, value, gate)
	terms, errs := c.join(gradValue.value, gradGate.value, gateFirst), c.join(gradValue.bound, gradGate.bound, gateFirst)
	for i, x := range terms {
		errs[i] += 4 * limits.elementwise * float64(len(terms)) * math.Abs(x)
	}
	to := make([]int64, len(c.shape))
	for d := range to {
		to[d] = 1
	}
	to[c.at()] = c.shape[c.at()]
	sums := expectation{value: sumTo(terms, c.shape, to)}
	sums.bound = limits.allStored(sums.value, sumTo(errs, c.shape, to))
	return sums
}

// at is the split dimension counted from the front.
func (c gatedCase) at() int { return (c.dim + len(c.shape)) % len(c.shape) }

func (c gatedCase) half() []int64 {
	shape := slices.Clone(c.shape)
	shape[c.at()] /= 2
	return shape
}

// forEachGated visits gated kinds x dtypes x both orders x layouts; of kinds that share a formula
// the first alone meets more than two layouts.
func (s *opSuite) forEachGated(visit func(kind string, dt dtype.DType, turn int, pick *picker)) {
	pick, first := &picker{}, firstOfFormulas(gatedKinds())
	s.forEachKind(gatedKinds(), func(kind string, dt dtype.DType) {
		turns := len(some(inputLayouts, 0))
		if !slices.Contains(first, kind) {
			turns = 2
		}
		for turn := range turns {
			pick.next++
			visit(kind, dt, turn, pick)
			if s.T().Failed() {
				return
			}
		}
	})
}

func (s *opSuite) TestGatedActivation() {
	s.forEachGated(func(kind string, dt dtype.DType, turn int, pick *picker) {
		for i, c := range gatedCases {
			first := (turn+i)%2 == 0
			input := newArray(dt, c.shape, pick.input()).fill(s.normal(3))
			grad := newArray(dt, c.half(), pick.input()).fill(s.normal(1))
			out, gradient := newArray(dt, c.half(), pick.output()), newArray(dt, c.shape, pick.output())
			bias := newArray(dt, c.shape[c.at():c.at()+1], pick.output())
			forward := call{Call: op.Call{Op: "gated_activation", Kind: kind, Dim: c.dim, Gate: gateOf(first)}, inputs: []*array{input}, outputs: []*array{out}}
			s.run(forward)
			backward := call{Call: forward.Call, inputs: []*array{grad, input}, outputs: []*array{gradient, bias}}
			backward.Op = "gated_activation_backward"
			s.run(backward)

			what := fmt.Sprintf("%s of %v, dim %d, gate first %v", kind, input, c.dim, first)
			value, gate := c.halves(input.values(), first)
			want := gatedForward(kind, s.boundsOf(dt), value, gate)
			s.within(out.values(), want.value, want.bound, "%s in %v", what, out)
			gotValue, gotGate := c.halves(gradient.values(), first)
			wantValue, wantGate := gatedBackward(kind, s.boundsOf(dt), grad.values(), value, gate)
			s.within(gotValue, wantValue.value, wantValue.bound, "value's gradient of %s in %v", what, gradient)
			s.within(gotGate, wantGate.value, wantGate.bound, "gate's gradient of %s in %v", what, gradient)

			sums := c.gradBias(kind, s.boundsOf(dt), grad.values(), value, gate, first)
			s.within(bias.values(), sums.value, sums.bound, "bias gradient of %s in %v", what, bias)
			alone := newArray(dt, bias.view.Shape, contiguous)
			backward.outputs, backward.Threads = []*array{nil, alone}, 1+turn%4
			s.run(backward)
			s.same(alone, bias, "bias gradient alone of %s", what)
		}
	})
}

func (s *opSuite) TestGatedProduct() {
	shapes := [][]int64{{}, {1}, {7}, {5, 6}, {2, 3, 4}, {3, 1, 5}, {0}, {2, 0, 3}, {2, 1, 3, 1, 2, 2}, {257}, {2, 255}}
	s.forEachGated(func(kind string, dt dtype.DType, turn int, pick *picker) {
		for _, shape := range shapes {
			value := newArray(dt, shape, pick.input()).fill(s.normal(2))
			gate := newArray(dt, shape, pick.input()).fill(s.normal(3))
			grad := newArray(dt, shape, pick.input()).fill(s.normal(1))
			outputs := func() []*array {
				return []*array{newArray(dt, shape, pick.output()), newArray(dt, shape, pick.output())}
			}
			out, both := outputs(), outputs()
			s.run(call{Call: op.Call{Op: "gated_product", Kind: kind}, inputs: []*array{value, gate}, outputs: out[:1]})
			backward := call{Call: op.Call{Op: "gated_product_backward", Kind: kind}, inputs: []*array{grad, value, gate}, outputs: both}
			s.run(backward)

			want := gatedForward(kind, s.boundsOf(dt), value.values(), gate.values())
			s.within(out[0].values(), want.value, want.bound, "%s of %v, %v in %v", kind, value, gate, out[0])
			wantValue, wantGate := gatedBackward(kind, s.boundsOf(dt), grad.values(), value.values(), gate.values())
			s.within(both[0].values(), wantValue.value, wantValue.bound, "value's gradient of %s of %v", kind, value)
			s.within(both[1].values(), wantGate.value, wantGate.bound, "gate's gradient of %s of %v", kind, gate)

			for i := range both {
				alone := []*array{nil, nil}
				alone[i] = outputs()[0]
				backward.outputs, backward.Threads = alone, 1+turn%4
				s.run(backward)
				s.same(alone[i], both[i], "gradient %d alone of %s of %v", i, kind, value)
			}
			if len(shape) > 0 {
				s.checkBiasesOfProduct(backward, kind, pick)
			}
		}
	})
}

// checkBiasesOfProduct checks the sums of a gated product's gradients, together and alone, of the
// value's and gate's arrays that a call has.
func (s *opSuite) checkBiasesOfProduct(backward call, kind string, pick *picker) {
	grad, value, gate := backward.inputs[0], backward.inputs[1], backward.inputs[2]
	dt, shape := value.view.DType, value.view.Shape
	limits, last := s.boundsOf(dt), len(shape)-1
	both := []*array{newArray(dt, shape[last:], pick.output()), newArray(dt, shape[last:], pick.output())}
	backward.outputs = []*array{nil, nil, both[0], both[1]}
	s.run(backward)
	gradValue, gradGate := gatedBackward(kind, limits.unrounded(), grad.values(), value.values(), gate.values())
	to := make([]int64, len(shape))
	for d := range to {
		to[d] = 1
	}
	to[last] = shape[last]
	for i, terms := range []expectation{gradValue, gradGate} {
		for j, x := range terms.value {
			terms.bound[j] += 4 * limits.elementwise * float64(len(terms.value)) * math.Abs(x)
		}
		sums := sumTo(terms.value, shape, to)
		s.within(both[i].values(), sums, limits.allStored(sums, sumTo(terms.bound, shape, to)), "bias gradient %d of %s of %v", i, kind, value)
		alone := make([]*array, 4)
		alone[i], alone[2+i] = newArray(dt, shape, pick.output()), newArray(dt, shape[last:], contiguous)
		backward.outputs = alone
		s.run(backward)
		s.same(alone[2+i], both[i], "bias gradient %d alone of %s of %v", i, kind, value)
	}
}

// TestActivation also compares elementwise results of every layout, position and number of threads:
// they are one and the same. replaces runs a call whose first output is written over its first
// input, and has the results that it gave apart.
func (s *opSuite) replaces(apart call, want []*array) {
	s.T().Helper()
	over := apart.inputs[0].in(contiguous)
	rest := []*array{newArray(over.view.DType, want[1].view.Shape, contiguous), newArray(over.view.DType, want[2].view.Shape, contiguous)}
	c := named(apart.Call)
	c.Inputs, c.Outputs, c.Backend = views([]*array{over, apart.inputs[1]}), views([]*array{over, rest[0], rest[1]}), s.host()
	_, bytes, err := op.Infer(&c, []bool{true, true, true})
	s.Require().NoError(err)
	c.Workspace, c.WorkspaceBytes = unsafe.Pointer(&newScratch(bytes)[0]), bytes
	s.Require().NoError(op.Run(&c))
	for i, got := range []*array{over, rest[0], rest[1]} {
		s.same(got, want[i], "output %d in place", i)
	}
}

// TestActivationBackward: each result is right, and the same bits whichever of the others are asked
// for.
func (s *opSuite) TestActivationBackward() {
	s.forEachKind(kinds(), func(kind string, dt dtype.DType) {
		shape := []int64{3, 11, 67}
		input, grad := newArray(dt, shape, contiguous).fill(s.normal(3)), newArray(dt, shape, contiguous).fill(s.normal(1))
		outputs := []*array{newArray(dt, shape, contiguous), newArray(dt, shape, contiguous), newArray(dt, shape[2:], contiguous)}
		backward := call{Call: op.Call{Op: "activation_backward", Kind: kind}, inputs: []*array{grad, input}, outputs: outputs}
		s.run(backward)
		limits, act := s.boundsOf(dt), references[kind]
		var terms, errs []float64
		var gradient, value expectation
		g := grad.values()
		for i, x := range input.values() {
			y := act.value(x)
			value.value = append(value.value, y)
			value.bound = append(value.bound, limits.stored(y, act.formulaError(x, limits.formula)))
			term := g[i] * act.slope(x)
			terms, errs = append(terms, term), append(errs, math.Abs(g[i])*act.slopeError(x, limits.formula))
			gradient.value = append(gradient.value, term)
			gradient.bound = append(gradient.bound, limits.stored(term, errs[i]))
		}
		for i, x := range terms {
			errs[i] += 4 * limits.elementwise * float64(len(terms)) * math.Abs(x)
		}
		to := []int64{1, 1, shape[2]}
		sums := sumTo(terms, shape, to)
		s.within(outputs[0].values(), gradient.value, gradient.bound, "gradient of %s of %v", kind, input)
		s.within(outputs[1].values(), value.value, value.bound, "%s of %v", kind, input)
		s.within(outputs[2].values(), sums, limits.allStored(sums, sumTo(errs, shape, to)), "bias gradient of %s of %v", kind, input)
		s.replaces(backward, outputs)
		for mask := range 1 << len(outputs) {
			alone := backward
			alone.outputs = make([]*array, len(outputs))
			for i, out := range outputs {
				if mask>>i&1 == 1 {
					alone.outputs[i] = newArray(dt, out.view.Shape, some(outputLayouts, mask)[0])
				}
			}
			s.run(alone)
			for i, out := range alone.outputs {
				if out != nil {
					s.same(out, outputs[i], "%s, output %d of those in %b", kind, i, mask)
				}
			}
		}
	})
}

func (s *opSuite) TestActivation() {
	first := firstOfFormulas(kinds())
	s.forEachKind(kinds(), func(kind string, dt dtype.DType) {
		shape := []int64{3, 5, 41, 67} // several tasks' worth of elements
		input := newArray(dt, shape, contiguous).fill(s.normal(4))
		want := newArray(dt, shape, contiguous)
		s.run(call{Call: op.Call{Op: "activation", Kind: kind}, inputs: []*array{input}, outputs: []*array{want}})
		limits, act, reference := s.boundsOf(dt), references[kind], expectation{}
		for _, x := range input.values() {
			y := act.value(x)
			reference.value = append(reference.value, y)
			reference.bound = append(reference.bound, limits.stored(y, act.formulaError(x, limits.formula)))
		}
		s.within(want.values(), reference.value, reference.bound, "%s of %v", kind, input)
		if !slices.Contains(first, kind) {
			return
		}
		for i, l := range some(outputLayouts, int(dt)) {
			out := newArray(dt, shape, l)
			s.run(call{
				Call:   op.Call{Op: "activation", Kind: kind, Threads: 1 + i%4},
				inputs: []*array{input.in(outputLayouts[(i+3)%len(outputLayouts)])}, outputs: []*array{out},
			})
			s.same(out, want, "%s of %v in %v", kind, input, out)
		}
	})
}
