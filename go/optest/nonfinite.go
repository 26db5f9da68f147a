package optest

import (
	"maps"
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

var (
	nan = math.NaN()
	inf = math.Inf(1)
	// nearlyInf is the NaN whose bits are next to those of infinity.
	nearlyInf = math.Float64frombits(0x7ff0000000000001)
)

// list makes a contiguous array of the given numbers.
func list(dt dtype.DType, shape []int64, numbers ...float64) *array {
	return newArray(dt, shape, contiguous).fill(func(i int) float64 { return numbers[i] })
}

// equals compares with exact numbers, NaN equal to NaN.
func (s *opSuite) equals(want []float64, got *array, format string, args ...any) {
	s.T().Helper()
	for i, x := range got.values() {
		if x != want[i] && !(math.IsNaN(x) && math.IsNaN(want[i])) {
			s.Failf("wrong number", format+": got %v, want %v", append(args, got.values(), want)...)
			return
		}
	}
}

func (s *opSuite) forEachDType(visit func(dt dtype.DType)) {
	for _, dt := range s.dtypes() {
		s.Run(dt.String(), func() { visit(dt) })
	}
}

// TestProductsMultiplyZeros: no zero is skipped, so 0 * inf is NaN wherever it stands, in each of
// the three products.
func (s *opSuite) TestProductsMultiplyZeros() {
	s.forEachDType(func(dt dtype.DType) {
		// the special row and column at the front of a block and behind it
		for _, n := range []int64{1, 3, 64, 130} {
			last := int(n) - 1
			zerosAt := func(row int) func(int) float64 {
				return func(i int) float64 {
					if i/int(n) == row {
						return 0
					}
					return 1
				}
			}
			infAt := func(row, column int) func(int) float64 {
				return func(i int) float64 {
					if i == row*int(n)+column {
						return inf
					}
					return 1
				}
			}
			shape := []int64{n, n}
			a, b := newArray(dt, shape, contiguous).fill(zerosAt(last)), newArray(dt, shape, contiguous).fill(infAt(0, last))
			out := newArray(dt, shape, contiguous)
			s.run(call{Call: op.Call{Op: "matmul_bias_activation"}, inputs: []*array{a, b}, outputs: []*array{out}})
			for i, x := range out.values() {
				row, column := i/int(n), i%int(n)
				switch {
				case column != last:
				case row == last:
					s.True(math.IsNaN(x), "0 * inf at row %d of %d gives %v", row, n, x)
				default:
					s.True(math.IsInf(x, 1), "1 * inf at row %d of %d gives %v", row, n, x)
				}
			}
			// grad_a = g bᵀ: a zero row of g meets the inf. grad_b = aᵀ g: a zero column of a meets
			// an inf in g.
			gradA, gradB := newArray(dt, shape, contiguous), newArray(dt, shape, contiguous)
			ones := newArray(dt, shape, contiguous).fill(func(int) float64 { return 1 })
			s.run(call{Call: op.Call{Op: "matmul_bias_activation_backward"}, inputs: []*array{a, ones, b}, outputs: []*array{gradA}})
			s.True(math.IsNaN(gradA.values()[last*int(n)]), "grad_a")
			columnless := newArray(dt, shape, contiguous).fill(func(i int) float64 {
				if i%int(n) == 0 {
					return 0
				}
				return 1
			})
			s.run(call{
				Call: op.Call{Op: "matmul_bias_activation_backward"}, inputs: []*array{b, columnless, ones}, outputs: []*array{nil, gradB},
			})
			s.True(math.IsNaN(gradB.values()[last]), "grad_b")
		}
	})
}

func (s *opSuite) TestNaNReachesEveryOutput() {
	s.forEachDType(func(dt dtype.DType) {
		one := func(x float64) *array { return list(dt, []int64{1, 1}, x) }
		scalar := func(x float64) *array { return list(dt, []int64{1}, x) }
		out := func() *array { return newArray(dt, []int64{1, 1}, contiguous) }
		for _, kind := range s.kindsFor(dt, kinds()) {
			for at := range 3 {
				numbers := [3]float64{1, 1, 1}
				numbers[at] = nan
				y, pre := out(), out()
				inputs := []*array{one(numbers[0]), one(numbers[1]), scalar(numbers[2])}
				s.run(call{Call: op.Call{Op: "matmul_bias_activation", Kind: kind}, inputs: inputs, outputs: []*array{y, pre}})
				s.equals([]float64{nan}, y, "%s of NaN", kind)
				s.equals([]float64{nan}, pre, "%s's preactivation", kind)
				if kind == "none" {
					continue
				}
				want := nan
				if slope := references[kind].slopeOfNaN; slope != nil {
					want = scalar(4 * *slope).values()[0]
				}
				bias := newArray(dt, []int64{1}, contiguous)
				s.run(call{
					Call:   op.Call{Op: "matmul_bias_activation_backward", Kind: kind},
					inputs: append([]*array{one(4)}, inputs...), outputs: []*array{nil, nil, bias},
				})
				s.equals([]float64{want}, bias, "%s'(NaN) * 4", kind)
			}
			bias := newArray(dt, []int64{1}, contiguous)
			s.run(call{
				Call:   op.Call{Op: "matmul_bias_activation_backward", Kind: kind},
				inputs: []*array{one(nan), one(1), one(1), scalar(1)}, outputs: []*array{nil, nil, bias},
			})
			s.equals([]float64{nan}, bias, "NaN from above through %s", kind)
		}
		for _, kind := range s.kindsFor(dt, gatedKinds()) {
			for at, special := range []float64{nan, nan, nearlyInf, nearlyInf} {
				numbers := [2]float64{1, 0.5} // within all limits
				numbers[at%2] = special
				y := newArray(dt, []int64{1}, contiguous)
				s.run(call{Call: op.Call{Op: "gated_product", Kind: kind}, inputs: []*array{scalar(numbers[0]), scalar(numbers[1])}, outputs: []*array{y}})
				s.equals([]float64{nan}, y, "%s of %v", kind, numbers)
			}
			gradValue, gradGate := newArray(dt, []int64{1}, contiguous), newArray(dt, []int64{1}, contiguous)
			s.run(call{
				Call:   op.Call{Op: "gated_product_backward", Kind: kind},
				inputs: []*array{scalar(nan), scalar(1), scalar(0.5)}, outputs: []*array{gradValue, gradGate},
			})
			s.equals([]float64{nan}, gradValue, "%s", kind)
			s.equals([]float64{nan}, gradGate, "%s", kind)
		}
	})
}

func (s *opSuite) TestReluAtItsKink() {
	s.forEachDType(func(dt dtype.DType) {
		numbers := []float64{0, math.Copysign(0, -1), 1, -1, inf, -inf, nan}
		count := []int64{int64(len(numbers))}
		for _, upstream := range []float64{2, inf, nan} {
			grad := newArray(dt, count, contiguous).fill(func(int) float64 { return upstream })
			value := newArray(dt, count, contiguous).fill(func(int) float64 { return 1 })
			gate, gradGate := list(dt, count, numbers...), newArray(dt, count, contiguous)
			s.run(call{Call: op.Call{Op: "gated_product_backward", Kind: "reglu"}, inputs: []*array{grad, value, gate}, outputs: []*array{nil, gradGate}})
			s.equals([]float64{0, 0, upstream, 0, upstream, 0, upstream}, gradGate, "relu' with %v from above", upstream)
		}
	})
}

// TestActivationsOfSpecialValues has what PyTorch gives for single numbers at infinities and kinks:
// value, and slope times what comes from above.
func (s *opSuite) TestActivationsOfSpecialValues() {
	type point struct{ x, value, slope float64 }
	points := map[string][]point{
		"quick_gelu":      {{inf, inf, nan}, {-inf, nan, nan}, {0, 0, 0.5}},
		"swish -0.7":      {{inf, nan, nan}, {-inf, -inf, nan}, {0, 0, 0.5}},
		"elu -0.5":        {{inf, inf, 1}, {-inf, 0.5, 0}, {0, 0, -0.5}},
		"celu 0.75":       {{inf, inf, 1}, {-inf, -0.75, 0}, {0, 0, 1}},
		"softplus 2 3":    {{inf, inf, 1}, {-inf, 0, 0}, {0.5, 0.5 + math.Log1p(math.Exp(-1))/2, 1 / (1 + math.Exp(-1))}},
		"mish":            {{inf, inf, nan}, {-inf, nan, nan}, {0, 0, 0.6}},
		"hardswish":       {{inf, inf, 1}, {-inf, nan, 0}, {-3, 0, 0}, {3, 3, 1}, {0, 0, 0.5}},
		"hardsigmoid":     {{inf, 1, 0}, {-inf, 0, 0}, {-3, 0, 0}, {3, 1, 0}, {0, 0.5, 1. / 6}},
		"relu6":           {{inf, 6, 0}, {-inf, 0, 0}, {0, 0, 0}, {6, 6, 0}, {5, 5, 1}},
		"hardtanh -0.5 3": {{inf, 3, 0}, {-inf, -0.5, 0}, {-0.5, -0.5, 0}, {3, 3, 0}, {0, 0, 1}},
		"softcap 3":       {{inf, 3, 0}, {-inf, -3, 0}, {0, 0, 1}},
	}
	keys := slices.Sorted(maps.Keys(points))
	s.forEachKind(keys, func(kind string, dt dtype.DType) {
		list, act := points[kind], references[kind]
		shape := []int64{int64(len(list))}
		input := newArray(dt, shape, contiguous).fill(func(i int) float64 { return list[i].x })
		for _, upstream := range []float64{2, inf} {
			if math.IsInf(upstream, 0) && !act.selects {
				continue
			}
			grad := newArray(dt, shape, contiguous).fill(func(int) float64 { return upstream })
			outputs := []*array{newArray(dt, shape, contiguous), newArray(dt, shape, contiguous), nil}
			s.run(call{Call: op.Call{Op: "activation_backward", Kind: kind}, inputs: []*array{grad, input}, outputs: outputs})
			limits := s.boundsOf(dt)
			for i, p := range list {
				want := upstream * p.slope
				if p.slope == 0 {
					want = 0 // not inf*0
				}
				s.near(want, outputs[0].values()[i], limits.stored(want, upstream*limits.formula), "%s'(%v) with %v from above", kind, p.x, upstream)
				s.near(p.value, outputs[1].values()[i], limits.stored(p.value, limits.formula), "%s(%v)", kind, p.x)
			}
		}
	})
}

// near compares numbers, NaN and infinity equal to themselves alone.
func (s *opSuite) near(want, got, bound float64, format string, args ...any) {
	s.T().Helper()
	if want != got && !(math.IsNaN(want) && math.IsNaN(got)) && !(math.Abs(want-got) <= bound+4*0x1p-53) {
		s.Failf("wrong number", format+": got %v, want %v", append(args, got, want)...)
	}
}

// TestLimitsOfGatedKinds: at a bound and beyond it the slope is 0, also for infinities from above.
// The gate of bilinear is its own activation.
func (s *opSuite) TestLimitsOfGatedKinds() {
	s.forEachDType(func(dt dtype.DType) {
		for _, c := range []struct {
			limit, after, offset     float64
			value, gate              float64
			out, gradValue, gradGate float64 // of 2 from above
		}{
			{inf, inf, 1, 3, 8, 32, 16, 8},
			{6, inf, 0, 3, 4, 12, 8, 6},
			{6, inf, 0, 3, 6, 18, 12, 0},
			{6, inf, 0, 3, 8, 18, 12, 0},
			{6, inf, 0, 3, -8, -24, -16, 6}, // a gate has no lower limit
			{6, inf, 0, 6, 4, 24, 0, 12},
			{6, inf, 0, 8, 4, 24, 0, 12},
			{6, inf, 0, -6, 4, -24, 0, -12},
			{6, inf, 1, -8, 4, -20, 0, -10}, // the offset comes after the limit
			{inf, 6, 0, 3, 6, 18, 12, 0},
			{inf, 6, 1, 8, 16, 42, 0, 0},
			{8, 2, 0, 3, 16, 4, 0, 0},
			{6, 6, 0, nan, 4, nan, 8, nan},
			{6, 6, 0, 3, nan, nan, nan, 6},
			{6, inf, 0, inf, 4, 24, 0, 12},
			{inf, 6, 0, 3, inf, 18, 12, 0},
		} {
			one := func(x float64) *array { return list(dt, []int64{1}, x) }
			outputs := []*array{one(0), one(0), one(0)}
			forward := op.Call{Op: "gated_product", Kind: "bilinear", Parameters: []float64{c.limit, c.after, c.offset}}
			backward := forward
			backward.Op = "gated_product_backward"
			s.run(call{Call: forward, inputs: []*array{one(c.value), one(c.gate)}, outputs: outputs[:1]})
			s.equals([]float64{c.out}, outputs[0], "%v", c)
			for _, upstream := range []float64{2, inf} {
				s.run(call{Call: backward, inputs: []*array{one(upstream), one(c.value), one(c.gate)}, outputs: outputs[1:]})
				for i, want := range []float64{c.gradValue, c.gradGate} {
					if want != 0 {
						want *= upstream / 2
					}
					s.equals([]float64{want}, outputs[1+i], "gradient %d with %v from above of %v", i, upstream, c)
				}
			}
		}
	})
}

func (s *opSuite) TestLerpOfInfinities() {
	s.forEachDType(func(dt dtype.DType) {
		for _, c := range []struct{ start, end, weight, want float64 }{
			{1, inf, 0.25, inf},
			{-inf, 1, 0.25, nan}, // torch.lerp's formula adds inf to -inf
			{-inf, 1, 0.75, -inf},
			{1, inf, 0, nan}, // 0 * inf
			{inf, 1, 1, nan},
			{inf, inf, 0.5, nan},
			{nan, 1, 0, nan},
			{1, nan, 1, nan},
			{1, 2, nan, nan},
		} {
			out, count := newArray(dt, []int64{1}, contiguous), []int64{1}
			s.run(call{
				Call: op.Call{Op: "lerp", Parameters: []float64{c.weight}}, inputs: []*array{list(dt, count, c.start), list(dt, count, c.end)}, outputs: []*array{out},
			})
			s.equals([]float64{c.want}, out, "lerp(%v, %v, %v)", c.start, c.end, c.weight)
			grads := []*array{newArray(dt, count, contiguous), newArray(dt, count, contiguous), newArray(dt, count, contiguous)}
			inputs := []*array{list(dt, count, inf), list(dt, count, c.start), list(dt, count, c.end), list(dt, count, 0)}
			s.run(call{Call: op.Call{Op: "lerp_backward"}, inputs: inputs, outputs: grads})
			s.equals([]float64{inf}, grads[0], "grad_start")
			s.equals([]float64{nan}, grads[1], "grad_end: 0 * inf")
		}
	})
}

// TestSumsOfInfinities: an infinite bias gradient is infinite, with no NaN from the compensation of
// rounding errors, and inf - inf is NaN.
func (s *opSuite) TestSumsOfInfinities() {
	s.forEachDType(func(dt dtype.DType) {
		const rows = 200
		for _, c := range []struct{ first, last, want float64 }{{inf, 1, inf}, {-inf, -inf, -inf}, {1, nan, nan}, {inf, -inf, nan}} {
			grad := newArray(dt, []int64{rows, 1}, contiguous).fill(func(i int) float64 {
				switch i {
				case 0:
					return c.first
				case rows - 1:
					return c.last
				}
				return 0.5
			})
			a, b := newArray(dt, []int64{rows, 1}, contiguous).fill(func(int) float64 { return 1 }), list(dt, []int64{1, 1}, 1)
			bias := newArray(dt, []int64{1}, contiguous)
			s.run(call{
				Call: op.Call{Op: "matmul_bias_activation_backward"}, inputs: []*array{grad, a, b, list(dt, []int64{1}, 0)}, outputs: []*array{nil, nil, bias},
			})
			s.equals([]float64{c.want}, bias, "sum of %v ... %v", c.first, c.last)
			end := newArray(dt, []int64{1, 1}, contiguous)
			s.run(call{
				Call: op.Call{Op: "lerp_backward", Parameters: []float64{1}}, inputs: []*array{grad}, outputs: []*array{nil, end},
			})
			s.equals([]float64{c.want}, end, "lerp's sum of %v ... %v", c.first, c.last)
		}
	})
}

// TestNoDepthGivesTheBias: to the sign of its zeros.
func (s *opSuite) TestNoDepthGivesTheBias() {
	s.forEachDType(func(dt dtype.DType) {
		a, b := newArray(dt, []int64{2, 0}, contiguous).fill(nil), newArray(dt, []int64{0, 3}, contiguous).fill(nil)
		bias, out := list(dt, []int64{3}, math.Copysign(0, -1), inf, nan), newArray(dt, []int64{2, 3}, contiguous)
		s.run(call{Call: op.Call{Op: "matmul_bias_activation"}, inputs: []*array{a, b, bias}, outputs: []*array{out}})
		s.equals([]float64{0, inf, nan, 0, inf, nan}, out, "0 + bias")
		s.True(math.Signbit(out.values()[0]))
	})
}
