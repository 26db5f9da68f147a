package optest

import (
	"fmt"
	"math"
	"slices"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

// spelling is one of the two names of a GEMM epilogue.
type spelling struct {
	op         string
	transposed bool // the weight is [n, k]
}

var spellings = []spelling{{"matmul_bias_activation", false}, {"linear", true}}

// fits reports whether a case can be spelled so.
func (sp spelling) fits(c gemmCase) bool { return !sp.transposed || len(c.b) == 2 }

// shape is the stored shape of b.
func (sp spelling) shape(b []int64) []int64 {
	if sp.transposed {
		return []int64{b[1], b[0]}
	}
	return b
}

// matmulOrder reads the stored b's values as [k, n].
func (sp spelling) matmulOrder(p *product, values []float64) []float64 {
	if !sp.transposed {
		return values
	}
	return turn(values, p.n, p.k)
}

// storedOrder is matmulOrder's inverse.
func (sp spelling) storedOrder(p *product, values []float64) []float64 {
	if !sp.transposed {
		return values
	}
	return turn(values, p.k, p.n)
}

func turn(values []float64, rows, columns int) []float64 {
	turned := make([]float64, len(values))
	for i := range rows {
		for j := range columns {
			turned[j*rows+i] = values[i*columns+j]
		}
	}
	return turned
}

// epilogue is a GEMM epilogue with its tensors.
type epilogue struct {
	*product
	sp                        spelling
	kind                      string
	dt                        dtype.DType
	a, b, bias, grad          *array
	out, pre                  *array
	layouts                   *picker
	gradientA, gradientB      layout
	valuesA, valuesB, addends []float64
}

// epilogue makes the inputs of a case, with layouts from pick on, and runs its forward.
func (s *opSuite) epilogue(c gemmCase, sp spelling, kind string, dt dtype.DType, bias bool, pick *picker) *epilogue {
	e := &epilogue{product: newProduct(c), sp: sp, kind: kind, dt: dt, layouts: pick}
	scale := 1 / math.Sqrt(float64(max(1, e.k)))
	e.a = newArray(dt, c.a, pick.input()).fill(s.normal(1.5))
	e.b = newArray(dt, sp.shape(c.b), pick.input()).fill(s.normal(scale))
	e.grad = newArray(dt, e.product.out, pick.input()).fill(s.normal(1))
	e.valuesA, e.valuesB = e.a.values(), sp.matmulOrder(e.product, e.b.values())
	if bias {
		e.bias = newArray(dt, e.product.bias, pick.input()).fill(s.normal(1))
		e.addends = e.bias.values()
	}
	e.out, e.pre = newArray(dt, e.product.out, pick.output()), newArray(dt, e.product.out, pick.output())
	s.run(call{
		Call:   op.Call{Op: sp.op, Kind: kind},
		inputs: []*array{e.a, e.b, e.bias}, outputs: []*array{e.out, e.pre},
	})
	e.out.before, e.pre.before = slices.Clone(e.out.memory), slices.Clone(e.pre.memory)
	e.gradientA, e.gradientB = pick.output(), pick.output()
	return e
}

// String names the case in messages.
func (e *epilogue) String() string {
	return fmt.Sprintf("%s %s a=%v b=%v bias=%v", e.sp.op, e.kind, e.a, e.b, e.bias)
}

// saved is the tensor from which a backward computes the slopes.
type saved int

const (
	fromInputs saved = iota
	fromPreactivation
	fromOutput
)

// backward runs the backward for the gradients that needs names.
func (s *opSuite) backward(e *epilogue, from saved, needs [3]bool, adjust func(c *call)) [3]*array {
	inputs := []*array{e.grad, e.a, e.b, e.bias, nil, nil}
	switch from {
	case fromPreactivation:
		inputs[4] = e.pre
	case fromOutput:
		inputs[5] = e.out
	}
	c := call{Call: op.Call{Op: e.sp.op + "_backward", Kind: e.kind}, inputs: inputs, outputs: make([]*array, 3)}
	if needs[0] {
		c.outputs[0] = newArray(e.dt, e.product.a, e.gradientA)
	}
	if needs[1] {
		c.outputs[1] = newArray(e.dt, e.sp.shape(e.product.b), e.gradientB)
	}
	if needs[2] && e.bias != nil {
		c.outputs[2] = newArray(e.dt, e.product.bias, contiguous)
	}
	if adjust != nil {
		adjust(&c)
	}
	s.run(c)
	return [3]*array(c.outputs)
}

var everything = [3]bool{true, true, true}

// checkForward compares the output and the preactivation with gonum's product.
func (s *opSuite) checkForward(e *epilogue) {
	s.T().Helper()
	out, pre := e.forward(e.kind, s.boundsOf(e.dt), e.valuesA, e.valuesB, e.addends)
	s.within(e.pre.values(), pre.value, pre.bound, "preactivation of %v in %v", e, e.pre)
	s.within(e.out.values(), out.value, out.bound, "output of %v in %v", e, e.out)
}

// checkBackward compares gradients with gonum's products and differences of the activation.
func (s *opSuite) checkBackward(e *epilogue, got [3]*array, slopeErr float64) {
	s.T().Helper()
	gradA, gradB, gradBias := e.product.backward(e.kind, s.boundsOf(e.dt), e.grad.values(), e.valuesA, e.valuesB, e.pre.values(), slopeErr)
	s.within(got[0].values(), gradA.value, gradA.bound, "grad_a of %v in %v", e, got[0])
	s.within(got[1].values(), e.sp.storedOrder(e.product, gradB.value), e.sp.storedOrder(e.product, gradB.bound), "grad_b of %v in %v", e, got[1])
	if got[2] != nil {
		s.within(got[2].values(), gradBias.value, gradBias.bound, "grad_bias of %v in %v", e, got[2])
	}
}

// forEachEpilogue visits formulas x dtypes x spellings x cases x layouts, with and without a bias.
// A formula meets every other case, its neighbours the rest.
func (s *opSuite) forEachEpilogue(cases []gemmCase, visit func(e *epilogue)) {
	pick, kinds := &picker{}, firstOfFormulas(kinds())
	s.forEachKind(kinds, func(kind string, dt dtype.DType) {
		for i, c := range cases {
			if (i+slices.Index(kinds, kind))%2 == 1 {
				continue
			}
			for _, sp := range spellings {
				if !sp.fits(c) {
					continue
				}
				for turn := range some(inputLayouts, i) {
					pick.next++ // else a case would meet the same layouts over and over
					visit(s.epilogue(c, sp, kind, dt, turn%3 != 0, pick))
					if s.T().Failed() {
						return
					}
				}
			}
		}
	})
}

// forSomeEpilogues is forEachEpilogue with a kind and layouts that rotate from case to case, and
// with a dtype and a spelling that do where the backend is slow.
func (s *opSuite) forSomeEpilogues(cases []gemmCase, visit func(e *epilogue)) {
	pick := &picker{}
	for i, c := range cases {
		dtypes, fitting := some(s.dtypes(), i), slices.DeleteFunc(slices.Clone(spellings), func(sp spelling) bool { return !sp.fits(c) })
		if s.takesPairs() {
			dtypes, fitting = dtypes[:1], fitting[i%len(fitting):][:1]
		}
		for j, dt := range dtypes {
			kinds := s.kindsFor(dt, firstOfFormulas(kinds()))
			for l, sp := range fitting {
				visit(s.epilogue(c, sp, kinds[(i+2*j+l)%len(kinds)], dt, i%4 != 3, pick))
			}
		}
	}
}

func (s *opSuite) TestGemmEpilogueForward() {
	s.forEachEpilogue(gemmCases, s.checkForward)
}

func (s *opSuite) TestGemmEpilogueBackward() {
	s.forEachEpilogue(gemmCases, func(e *epilogue) {
		s.checkBackward(e, s.backward(e, fromPreactivation, everything, nil), 0)
	})
}

func (s *opSuite) TestGemmEpilogueOfEmptyTensors() {
	s.forEachEpilogue(emptyCases, func(e *epilogue) {
		s.checkForward(e)
		for _, from := range []saved{fromInputs, fromPreactivation} {
			s.checkBackward(e, s.backward(e, from, everything, nil), 0)
		}
	})
}

// TestGemmEpilogueAtBlockEdges takes each size over the edges of tiles and blocks, the others
// small.
func (s *opSuite) TestGemmEpilogueAtBlockEdges() {
	edges := []int64{1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257}
	var cases []gemmCase
	for _, n := range edges {
		cases = append(cases, gemmCase{[]int64{n, 5}, []int64{5, 3}}, gemmCase{[]int64{3, n}, []int64{n, 4}}, gemmCase{[]int64{3, 5}, []int64{5, n}})
	}
	cases = append(cases,
		gemmCase{[]int64{65, 257}, []int64{257, 129}}, gemmCase{[]int64{2, 64, 128}, []int64{2, 128, 127}},
		gemmCase{[]int64{3, 43, 33}, []int64{33, 130}}, gemmCase{[]int64{5, 29, 17}, []int64{17, 40}},
	)
	s.forSomeEpilogues(cases, func(e *epilogue) {
		s.checkForward(e)
		s.checkBackward(e, s.backward(e, fromPreactivation, everything, nil), 0)
	})
}

// smallCases are few enough to compare many runs of each; largeCases have several tiles in every
// direction.
var (
	smallCases = []gemmCase{gemmCases[0], gemmCases[1], gemmCases[3], gemmCases[4], gemmCases[10]}
	largeCases = []gemmCase{{[]int64{2, 67, 70}, []int64{70, 131}}, {[]int64{3, 130, 300}, []int64{3, 300, 140}}, {[]int64{70, 20}, []int64{3, 20, 140}}}
)

func (s *opSuite) TestGemmEpilogueNeedsChangeNothing() {
	check := func(e *epilogue) {
		for _, from := range []saved{fromInputs, fromPreactivation} {
			all := s.backward(e, from, everything, nil)
			for mask := range 7 {
				needs := [3]bool{mask&1 != 0, mask&2 != 0, mask&4 != 0}
				for i, got := range s.backward(e, from, needs, nil) {
					if got != nil {
						s.same(got, all[i], "gradient %d with needs %v of %v", i, needs, e)
					}
				}
			}
		}
		// A forward with one requested output.
		for i, both := range []*array{e.out, e.pre} {
			outputs := make([]*array, 2)
			outputs[i] = newArray(e.dt, e.product.out, e.gradientA)
			s.run(call{Call: op.Call{Op: e.sp.op, Kind: e.kind}, inputs: []*array{e.a, e.b, e.bias}, outputs: outputs})
			s.same(outputs[i], both, "output %d alone of %v", i, e)
		}
	}
	s.forEachEpilogue(smallCases[1:3], check)
	s.forSomeEpilogues(largeCases, check)
}

func (s *opSuite) TestGemmEpilogueThreadsChangeNothing() {
	s.forSomeEpilogues(slices.Concat(largeCases, smallCases), func(e *epilogue) {
		threads := func(n int) func(*call) { return func(c *call) { c.Threads = n } }
		one := s.backward(e, fromInputs, everything, threads(1))
		for n := 1; n <= 4; n++ {
			for g, got := range s.backward(e, fromInputs, everything, threads(n)) {
				if got != nil {
					s.same(got, one[g], "gradient %d on %d threads of %v", g, n, e)
				}
			}
			out := newArray(e.dt, e.product.out, e.gradientA)
			s.run(call{
				Call:   op.Call{Op: e.sp.op, Kind: e.kind, Threads: n},
				inputs: []*array{e.a, e.b, e.bias}, outputs: []*array{out},
			})
			s.same(out, e.out, "output on %d threads of %v", n, e)
		}
	})
}

func (s *opSuite) TestGemmEpilogueLayoutsChangeNothing() {
	s.forSomeEpilogues(slices.Concat(largeCases, smallCases), func(e *epilogue) {
		plain := e.in(contiguous)
		want := s.backward(plain, fromInputs, everything, nil)
		for _, l := range outputLayouts {
			moved := e.in(l)
			for g, got := range s.backward(moved, fromInputs, everything, nil) {
				// a sum's order may follow its terms' layout
				if got != nil && (g != 2 || !s.narrow) {
					s.same(got, want[g], "gradient %d of %v", g, moved)
				}
			}
		}
	})
}

// in is the same problem with all of its tensors in one layout.
func (e *epilogue) in(l layout) *epilogue {
	moved := *e
	moved.a, moved.b, moved.grad = e.a.in(l), e.b.in(l), e.grad.in(l)
	if e.bias != nil {
		moved.bias = e.bias.in(l)
	}
	moved.gradientA, moved.gradientB = l, l
	return &moved
}

func (s *opSuite) TestGemmEpilogueRecomputesWhatIsSaved() {
	check := func(e *epilogue) {
		recomputed := s.backward(e, fromInputs, everything, nil)
		for i, got := range s.backward(e, fromPreactivation, everything, nil) {
			switch want := recomputed[i]; {
			case got == nil:
			case i == 2: // a sum's order may follow the preactivation's layout
				bound := magnitudes(want.values())
				for j := range bound {
					bound[j] *= 2 * unit(e.dt)
				}
				s.within(got.values(), want.values(), bound, "bias gradient from the preactivation of %v", e)
			default:
				s.same(got, want, "gradient %d from the preactivation of %v", i, e)
			}
		}
	}
	s.forEachEpilogue(smallCases, check)
	s.forSomeEpilogues(largeCases, check)
}

func (s *opSuite) TestGemmEpilogueFromTheOutput() {
	s.forEachEpilogue(smallCases, func(e *epilogue) {
		info, _ := activation.Lookup(e.kind)
		if !info.FromOutput {
			return
		}
		got := s.backward(e, fromOutput, everything, nil)
		if references[e.kind].exactOutput {
			for i, want := range s.backward(e, fromPreactivation, everything, nil) {
				if want != nil {
					s.same(got[i], want, "gradient %d from the output of %v", i, e)
				}
			}
			return
		}
		// The output is that of the unrounded preactivation, which the reference has rounded: by
		// that much, and by its own rounding, slopes differ.
		limits, largest := s.boundsOf(e.dt), 0.
		for _, x := range e.pre.values() {
			largest = max(largest, math.Abs(x))
		}
		sizes := e.product.pre(magnitudes(e.valuesA), magnitudes(e.valuesB), magnitudes(e.addends))
		slopeErr := 3*limits.unit + limits.unit*largest
		for _, x := range sizes {
			slopeErr = max(slopeErr, 3*limits.unit+limits.unit*largest+limits.sum(e.k+1, x))
		}
		s.checkBackward(e, got, slopeErr)
	})
}

// TestGradientsInFloat32: of half types, whatever part of an engine's tiles the gradients fill, and
// where their depth is cut into parts.
func (s *opSuite) TestGradientsInFloat32() {
	for _, dt := range s.dtypes() {
		if !dt.IsHalf() {
			continue
		}
		for _, size := range [][3]int64{{40, 8, 16}, {40, 16, 16}, {33, 24, 48}, {17, 48, 16}, {40, 32, 64}, {600, 32, 32}} {
			m, k, n := size[0], size[1], size[2]
			made := func(shape ...int64) *array { return newArray(dt, shape, contiguous).fill(s.normal(1)) }
			grad, a := made(m, n), made(m, k)
			gradB, gradBias := newArray(dtype.Float32, []int64{k, n}, contiguous), newArray(dtype.Float32, []int64{n}, contiguous)
			s.run(call{
				Call:   op.Call{Op: "matmul_bias_activation_backward", Kind: "none"},
				inputs: []*array{grad, a, made(k, n), made(n)}, outputs: []*array{nil, gradB, gradBias},
			})
			g, x := grad.values(), a.values()
			sum := func(term func(row int64) float64) (total, bound float64) {
				for row := range m {
					total += term(row)
					bound += math.Abs(term(row)) * float64(m) * unit(dtype.Float32)
				}
				return total, bound
			}
			want, bound := make([]float64, k*n), make([]float64, k*n)
			for i := range want {
				row, column := int64(i)/n, int64(i)%n
				want[i], bound[i] = sum(func(l int64) float64 { return x[l*k+row] * g[l*n+column] })
			}
			s.within(gradB.values(), want, bound, "grad_b of %v, %v", size, dt)
			for i := range want[:n] {
				want[i], bound[i] = sum(func(l int64) float64 { return g[l*n+int64(i)] })
			}
			s.within(gradBias.values(), want[:n], bound[:n], "grad_bias of %v, %v", size, dt)
		}
	}
}

func (s *opSuite) TestGemmEpilogueAccumulates() {
	check := func(e *epilogue) {
		plain := s.backward(e, fromInputs, everything, nil)
		olds := [3][]float64{}
		got := s.backward(e, fromInputs, everything, func(c *call) {
			c.Accumulate = true
			for i, out := range c.outputs {
				if out != nil {
					out.fill(s.normal(1))
					olds[i] = out.values()
				}
			}
		})
		s.same(got[0], plain[0], "grad_a, which is overwritten, of %v", e)
		for i := 1; i < 3; i++ {
			if got[i] == nil {
				continue
			}
			// The sum is rounded once, from accumulators that plain's values are the roundings of.
			want, bound := plain[i].values(), make([]float64, len(plain[i].at))
			for j := range want {
				limits := s.boundsOf(e.dt)
				bound[j] = limits.stored(want[j]+olds[i][j], limits.stored(want[j], 4*limits.accumulator*math.Abs(olds[i][j])))
				want[j] += olds[i][j]
			}
			s.within(got[i].values(), want, bound, "accumulated gradient %d of %v", i, e)
		}
	}
	s.forEachEpilogue(slices.Concat(smallCases, emptyCases[:1], emptyCases[6:7]), check)
	s.forSomeEpilogues(largeCases, check)
}
