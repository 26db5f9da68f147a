//go:build cgo

package cuda

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cuda"
	"github.com/epigrad/epigrad/kernels/portable"
)

// call is a program on operands of its own.
type call struct {
	t      *testing.T
	random *rand.Rand
	dt     dtype.DType
	bases  []unsafe.Pointer
	memory [][]byte
	views  []*tensor.View
}

func newCall(t *testing.T, dt dtype.DType) *call {
	return &call{t: t, random: rand.New(rand.NewPCG(3, 5)), dt: dt}
}

// operand is a tensor of random numbers with the dimensions of shape in this order in memory,
// outermost first.
func (c *call) operand(shape []int64, order ...int) *tensor.View {
	if order == nil {
		for d := range shape {
			order = append(order, d)
		}
	}
	strides := make([]int64, len(shape))
	next := int64(1)
	for _, d := range slices.Backward(order) {
		strides[d] = next
		next *= shape[d]
	}
	buffer := make([]byte, next*c.dt.Size()+64)
	from := (64 - int(uintptr(unsafe.Pointer(&buffer[0]))%64)) % 64
	c.memory = append(c.memory, buffer[from:])
	c.bases = append(c.bases, unsafe.Pointer(&buffer[from]))
	v := &tensor.View{Operand: len(c.bases) - 1, DType: c.dt, Shape: shape, Strides: strides}
	for i := range next {
		c.set(v, i, 2*c.random.NormFloat64())
	}
	c.views = append(c.views, v)
	return v
}

func (c *call) set(v *tensor.View, at int64, x float64) {
	optest.Put(c.dt, unsafe.Pointer(&c.memory[v.Operand][at*c.dt.Size()]), x)
}

// values are a tensor's elements in row-major order.
func (c *call) values(v *tensor.View) []float64 {
	var all []float64
	index := make([]int64, len(v.Shape))
	for range v.Numel() {
		at := v.Offset / c.dt.Size()
		for d, i := range index {
			at += i * v.Strides[d]
		}
		all = append(all, optest.Get(c.dt, unsafe.Pointer(&c.memory[v.Operand][at*c.dt.Size()])))
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < v.Shape[d] {
				break
			}
			index[d] = 0
		}
	}
	return all
}

// run plans and runs, in both forms, and returns the program.
func (c *call) run(r backend.Run, plan func(b *builder)) *builder {
	e := newEmulated(c.t)
	b := &builder{device: e.device, dt: c.dt}
	plan(b)
	require.NoError(c.t, b.refused)
	r.Bases = c.bases
	require.NoError(c.t, (&emulatedKernel{emulated: e, views: c.views, builder: b}).Run(&r))
	return b
}

// roundoff is what an elementwise result may be off, relative to the size of its terms.
func (c *call) roundoff() float64 {
	switch c.dt {
	case dtype.Float64:
		return 1e-15
	case dtype.Float32:
		return 4e-7
	case dtype.Float16:
		return 0x1p-10
	default:
		return 0x1p-7
	}
}

func (c *call) near(want, got, sizes []float64, relative float64, what string) {
	c.t.Helper()
	require.Len(c.t, got, len(want))
	for i := range want {
		if !(math.Abs(got[i]-want[i]) <= relative*(sizes[i]+1e-4)) {
			require.Failf(c.t, "outside the error bound", "%s: element %d: got %v, want %v, of terms of size %v", what, i, got[i], want[i], sizes[i])
		}
	}
}

func TestGradPreactivation(t *testing.T) {
	layouts := []struct {
		shape []int64
		order []int
	}{
		{[]int64{70, 64}, nil},
		{[]int64{3, 50, 16}, nil},
		{[]int64{1, 1}, nil},
		{[]int64{37, 9}, nil},
		{[]int64{5, 40, 24}, []int{1, 0, 2}},
		{[]int64{64, 48}, []int{1, 0}},
		{[]int64{700, 8}, nil},
		{[]int64{600, 5}, []int{1, 0}},
	}
	for _, dt := range dtype.All() {
		for a, info := range activation.All() {
			formula, numbers := info.Kernel(defaults(t, info.Name))
			for _, fromOutput := range []bool{false, true}[:1+truth(info.FromOutput)] {
				for turn, layout := range layouts {
					if testing.Short() && (turn+a)%4 != 0 {
						continue
					}
					name := fmt.Sprintf("%s/%v/%v/%v%v", info.Name, fromOutput, dt, layout.shape, layout.order)
					t.Run(name, func(t *testing.T) {
						testGradPreactivation(t, dt, formula, numbers, fromOutput, layout.shape, layout.order, turn)
					})
				}
			}
		}
	}
}

// defaults are the parameters of an activation.
func defaults(t *testing.T, kind string) []float64 {
	row, _ := activation.Lookup(kind)
	values, err := activation.Complete(row.Parameters, nil)
	require.NoError(t, err)
	return values
}

func testGradPreactivation(t *testing.T, dt dtype.DType, kind string, numbers []float64, fromOutput bool, shape []int64, order []int, turn int) {
	c := newCall(t, dt)
	n := shape[len(shape)-1]
	g, bias := c.operand(shape, order...), c.operand(append(slices.Repeat([]int64{1}, len(shape)-1), n))
	out := c.operand(shape, order...)
	var saved *tensor.View
	var xs []float64
	if kind != "none" {
		saved = c.operand(shape, order...)
		xs = c.values(saved)
	}
	made, _ := portable.Lookup(kind)
	formula := made(numbers)
	gs, old := c.values(g), c.values(bias)
	want, sums, sizes := make([]float64, len(gs)), make([]float64, n), make([]float64, n)
	terms := make([]float64, len(gs))
	for i, x := range gs {
		switch {
		case kind == "none":
			want[i] = x
		case fromOutput:
			want[i] = formula.GradientFromOutput(x, xs[i])
		default:
			want[i] = formula.Gradient(x, xs[i])
		}
		terms[i] = 8*math.Abs(x) + math.Abs(want[i])
		sums[i%int(n)] += want[i]
		sizes[i%int(n)] += math.Abs(want[i])
	}
	pass := func(out, bias *tensor.View) func(*builder) {
		return func(b *builder) {
			b.gradPreactivation(&lower.Pass{
				Formula: kind, FromOutput: fromOutput, GradOutput: g, Saved: saved, GradPreactivation: out, GradBias: bias,
			})
		}
	}
	accumulate := turn%2 == 0
	for i := range sums {
		if accumulate {
			sums[i] += old[i]
			sizes[i] += math.Abs(old[i])
		}
	}
	run := backend.Run{Accumulate: accumulate}
	copy(run.Parameters[:], numbers)
	b := c.run(run, pass(out, bias))
	c.near(want, c.values(out), terms, c.roundoff(), "grad_preactivation")
	c.near(sums, c.values(bias), sizes, 4*c.roundoff(), "grad_bias")
	if width := vectorBytes / dt.Size(); order == nil && n%width == 0 {
		assert.NotNil(t, b.program[0].(step).vector, "contiguous columns have vectors")
	}
	// Alone, each is the same.
	together, outs := c.values(bias), c.values(out)
	for i, x := range old {
		c.set(bias, int64(i), x)
	}
	c.run(run, pass(nil, bias))
	assert.Equal(t, together, c.values(bias))
	// In place.
	run.Accumulate = false
	c.run(run, pass(g, nil))
	assert.Equal(t, outs, c.values(g))
}

// TestLerpBackwardSums: every set of reduced dimensions of shapes that have vectors along the kept,
// the reduced, or no dimension.
func TestLerpBackwardSums(t *testing.T) {
	for _, dt := range dtype.All() {
		for turn, layout := range []struct {
			shape []int64
			order []int
		}{{[]int64{48, 80}, nil}, {[]int64{6, 10, 32}, nil}, {[]int64{3, 11, 7}, nil}, {[]int64{32, 6, 16}, []int{2, 0, 1}}, {[]int64{2, 1024}, nil}} {
			for set := range 1 << len(layout.shape) {
				if testing.Short() && (set+turn)%3 != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%v/%v%v/%b", dt, layout.shape, layout.order, set), func(t *testing.T) {
					testLerpBackward(t, dt, layout.shape, layout.order, set)
				})
			}
		}
	}
}

func testLerpBackward(t *testing.T, dt dtype.DType, shape []int64, order []int, set int) {
	c := newCall(t, dt)
	small := slices.Clone(shape)
	for d := range small {
		if set>>d&1 == 1 {
			small[d] = 1
		}
	}
	expand := func(v *tensor.View) *tensor.View {
		e, err := v.Expand(shape)
		require.NoError(t, err)
		return &e
	}
	g, start, weight := c.operand(shape, order...), c.operand(shape, order...), expand(c.operand(small))
	end := expand(c.operand(small))
	gradients := []*tensor.View{c.operand(shape, order...), c.operand(small), c.operand(small)}
	p := &backend.PointwiseBackward{
		Header: backend.Header{Op: "lerp_backward", Formula: "lerp", DType: dt}, GradOutput: g, Inputs: []*tensor.View{start, end, weight}, Gradients: gradients,
		Uses: usesOfLerp,
	}
	gs, ss, es, ws := c.values(g), c.values(start), c.values(end), c.values(weight)
	gradStart, gradEnd, gradWeight := make([]float64, len(gs)), make([]float64, len(gs)), make([]float64, len(gs))
	portable.LerpBackward(gradStart, gradEnd, gradWeight, gs, ss, es, ws)
	c.run(backend.Run{}, func(b *builder) { b.pointwiseBackward(p) })
	sizes := make([]float64, len(gs))
	for i := range gs {
		sizes[i] = math.Abs(gs[i]) * (1 + math.Abs(ws[i]))
	}
	c.near(gradStart, c.values(gradients[0]), sizes, c.roundoff(), "grad_start")
	sum, size := summed(gradEnd, shape, small)
	c.near(sum, c.values(gradients[1]), size, 4*c.roundoff(), "grad_end")
	sum, size = summed(gradWeight, shape, small)
	for i := range size {
		size[i] += float64(len(gs)/len(size)) * 8
	}
	c.near(sum, c.values(gradients[2]), size, 4*c.roundoff(), "grad_weight")
	// Alone, with a number, it is the same formula.
	c.run(backend.Run{Parameters: [4]float64{0.25}}, func(b *builder) {
		b.pointwiseBackward(gradEndOf(dt, g, gradients[1]))
	})
	for i := range gradEnd {
		gradEnd[i] = 0.25 * gs[i]
	}
	sum, size = summed(gradEnd, shape, small)
	c.near(sum, c.values(gradients[1]), size, 4*c.roundoff(), "grad_end of a number")
}

// usesOfLerp are the inputs that each of its gradients is a function of.
var usesOfLerp = [][]int{{2}, {2}, {0, 1}}

// gradEndOf is lerp's grad_end alone, by a number.
func gradEndOf(dt dtype.DType, gradOutput, gradEnd *tensor.View) *backend.PointwiseBackward {
	return &backend.PointwiseBackward{
		Header: backend.Header{Op: "lerp_backward", Formula: "lerp", DType: dt}, GradOutput: gradOutput,
		Inputs: make([]*tensor.View, 3), Gradients: []*tensor.View{nil, gradEnd, nil}, Uses: usesOfLerp,
	}
}

// summed sums to a shape that has the size 1 in some dimensions, and gives the sum of magnitudes
// too.
func summed(values []float64, from, to []int64) (sums, sizes []float64) {
	sums, sizes = make([]float64, tensor.Elements(to)), make([]float64, tensor.Elements(to))
	for i, x := range values {
		rest, at, step := int64(i), int64(0), int64(1)
		for d := len(from) - 1; d >= 0; d-- {
			if to[d] > 1 {
				at += rest % from[d] * step
			}
			rest /= from[d]
			step *= to[d]
		}
		sums[at] += x
		sizes[at] += math.Abs(x)
	}
	return sums, sizes
}

// TestManyDimensions: more than a launch takes, none of which merge.
func TestManyDimensions(t *testing.T) {
	shape := []int64{2, 2, 2, 1, 2, 3, 2, 2, 2, 2, 2}
	var order []int
	for d := range shape {
		order = append(order, d*4%len(shape))
	}
	c := newCall(t, dtype.Float32)
	in, out := c.operand(shape, order...), c.operand(shape)
	b := c.run(backend.Run{}, func(b *builder) { b.copy(out, in) })
	assert.Greater(t, len(b.program), 1)
	assert.Equal(t, c.values(in), c.values(out))
	for _, reduced := range [][]int{{0}, {1, 3, 4, 5, 6, 7, 8, 9, 10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {10}} {
		small := slices.Clone(shape)
		for _, d := range reduced {
			small[d] = 1
		}
		sum := c.operand(small)
		c.run(backend.Run{Parameters: [4]float64{1}}, func(b *builder) {
			b.pointwiseBackward(gradEndOf(c.dt, in, sum))
		})
		want, sizes := summed(c.values(in), shape, small)
		c.near(want, c.values(sum), sizes, 1e-6, fmt.Sprint(reduced))
	}
}

// TestShortChunks: a pass that is long enough for chunks of two lengths.
func TestShortChunks(t *testing.T) {
	shape := []int64{530, 768}
	c := newCall(t, dtype.Float64)
	g, y, grad, bias := c.operand(shape), c.operand(shape), c.operand(shape), c.operand([]int64{1, shape[1]})
	want := c.values(g)
	for i, x := range c.values(y) {
		if x <= 0 {
			want[i] = 0
		}
	}
	b := c.run(backend.Run{}, func(b *builder) {
		b.gradPreactivation(&lower.Pass{Formula: "relu", FromOutput: true, GradOutput: g, Saved: y, GradPreactivation: grad, GradBias: bias})
	})
	assert.Equal(t, want, c.values(grad))
	sum, sizes := summed(want, shape, []int64{1, shape[1]})
	c.near(sum, c.values(bias), sizes, c.roundoff(), "grad_bias")
	r := &reduction{inputs: []*tensor.View{g, y}, outputs: []*tensor.View{grad}}
	o := b.order(r, walkOf([]*tensor.View{bias}), walkOf([]*tensor.View{{DType: c.dt, Shape: shape[:1], Strides: shape[1:]}}))
	assert.Equal(t, order{keptFirst: true, keptLanes: 5, unit: 1, run: 272, shortRun: 40, longChunks: 1, chunks: 8}, o)
}

func TestSumsOfNothing(t *testing.T) {
	c := newCall(t, dtype.BFloat16)
	g, bias, empty := c.operand([]int64{0, 40}), c.operand([]int64{1, 40}), c.operand([]int64{0, 40})
	pass := func(b *builder) {
		b.gradPreactivation(&lower.Pass{Formula: "none", GradOutput: g, GradPreactivation: empty, GradBias: bias})
	}
	before := c.values(bias)
	c.run(backend.Run{Accumulate: true}, pass)
	assert.Equal(t, before, c.values(bias))
	c.run(backend.Run{}, pass)
	assert.Equal(t, make([]float64, 40), c.values(bias))
	b := c.run(backend.Run{}, func(b *builder) { b.activation("gelu", empty, g) })
	assert.Empty(t, b.program)
}

// TestDivisor: what Divisor of loops.cuh computes with these numbers is the quotient.
func TestDivisor(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100000 {
		size := random.Int64N(1<<(1+random.IntN(62))) + 1
		n := random.Int64N(math.MaxInt64 >> random.IntN(63))
		for _, n := range []int64{n, n / size * size, max(0, n/size*size-1), math.MaxInt64} {
			p := &parameters{}
			p.divisor(size)
			multiplier := *(*uint64)(unsafe.Pointer(&p.bytes[0]))
			shift := *(*uint32)(unsafe.Pointer(&p.bytes[16]))
			quotient := n
			if multiplier != 0 {
				product := new(big.Int).Mul(new(big.Int).SetUint64(multiplier), big.NewInt(n))
				quotient = int64(product.Rsh(product, 64).Uint64() >> shift)
			}
			require.Equal(t, n/size, quotient, "%d / %d", n, size)
		}
	}
}

// TestEveryKernelIsCompiled: each that the planner can ask for.
func TestEveryKernelIsCompiled(t *testing.T) {
	if !kernels.Built() {
		t.Skip("the CUDA kernels are not compiled in this build: make kernels")
	}
	var names []string
	for _, dt := range dtype.All() {
		suffix := "_" + dt.Short()
		one := func(name string) { names = append(names, name+suffix) }
		both := func(name string) { names = append(names, name+suffix, name+suffix+"_strided") }
		ofHopper := func(name string, columns ...string) {
			for _, form := range []string{"_nt_", "_nn_"} {
				for _, tile := range columns {
					if dt.IsHalf() {
						names = append(names, name+suffix+form+tile)
					}
				}
			}
		}
		mma := func(name string, isThere bool, layout ...string) {
			if isThere && dt != dtype.Float64 {
				names = append(names, name+suffix+"_nt"+strings.Join(layout, ""), name+suffix+"_nn"+strings.Join(layout, ""))
			}
		}
		for _, formula := range activation.Kernels() {
			row, _ := activation.Lookup(formula)
			both("activation_" + formula)
			both("grad_preactivation_columns_" + formula)
			both("curvature_" + formula)
			if row.Frequent {
				one("gemm_epilogue_small_" + formula)
				one("gemm_epilogue_backward_small_" + formula)
			}
			ofHopper("linear_sm90_"+formula, "64", "128", "192")
			ofAll := row.Frequent || dt.IsHalf()
			mma("linear_sm80_"+formula, ofAll)
			if formula != "none" {
				both("grad_preactivation_" + formula)
				both("activation_backward_" + formula)
				both("activation_backward_columns_" + formula)
				ofHopper("hidden_backward_sm90_"+formula, "128", "192")
				mma("hidden_backward_sm80_"+formula, ofAll)
			}
			if row.FromOutput {
				both("grad_preactivation_from_output_" + formula)
				both("grad_preactivation_from_output_columns_" + formula)
				both("curvature_from_output_" + formula)
				one("gemm_epilogue_backward_small_from_output_" + formula)
			}
		}
		one("gemm_epilogue_small_other")
		one("gemm_epilogue_backward_small_other")
		for _, formula := range activation.GatedKernels() {
			both("gated_" + formula)
			both("gated_backward_" + formula)
			both("gated_backward_columns_" + formula)
			both("gated_curvature_" + formula)
			one("gated_pairs_" + formula)
			one("gated_backward_pairs_" + formula)
			ofHopper("gated_linear_sm90_"+formula, "64", "128")
			ofHopper("gated_hidden_backward_sm90_"+formula, "128")
			inTF32 := slices.Contains([]string{"gelu", "gelu_tanh", "silu", "swish"}, formula)
			mma("gated_linear_sm80_"+formula, inTF32 || dt.IsHalf(), "_halves")
			mma("gated_hidden_backward_sm80_"+formula, inTF32 || dt.IsHalf(), "_halves")
		}
		for _, formula := range []string{"lerp", "prelu", "xielu"} {
			both(formula)
			both(formula + "_backward")
			both(formula + "_backward_columns")
			one(formula + "_backward_rows")
		}
		one("finish_columns")
		for _, name := range []string{"combine", "scale_hidden", "sums"} {
			both("grouped_" + name)
		}
		for _, name := range []string{"scale_gradient", "product", "depth", "finish_sums"} {
			one("grouped_" + name)
		}
	}
	for _, dt := range []string{"bf16", "f16", "f32"} {
		names = append(names, "gated_linear_sm80_swish_"+dt+"_nn_interleaved", "gated_hidden_backward_sm80_swish_"+dt+"_nt_interleaved",
			"weight_gradient_sm80_"+dt+"_f32", "weight_gradient_sm80_"+dt+"_f32_tokens")
	}
	for _, dt := range []string{"bf16", "f16"} {
		names = append(names, "weight_gradient_sm80_"+dt+"_"+dt, "weight_gradient_sm80_"+dt+"_"+dt+"_tokens")
		for _, name := range []string{
			"grouped_linear_sm90_none_%s_nt", "grouped_linear_sm90_none_%s_nn", "grouped_linear_sm90_relu2_%s_nt", "grouped_linear_sm90_relu2_%s_nn",
			"grouped_gated_linear_sm90_swish_%s_nt_halves", "grouped_gated_linear_sm90_gelu_tanh_%s_nt_halves",
			"grouped_gated_linear_sm90_swish_%s_nn_interleaved",
			"grouped_gated_hidden_backward_sm90_swish_%s_nn_halves", "grouped_gated_hidden_backward_sm90_gelu_tanh_%s_nn_halves",
			"grouped_gated_hidden_backward_sm90_swish_%s_nt_interleaved", "grouped_hidden_backward_sm90_relu2_%s_nn",
			"grouped_weight_gradient_sm90_%[1]s_%[1]s", "grouped_weight_gradient_sm90_%[1]s_%[1]s_turned", "grouped_weight_gradient_sm90_%s_f32",
			"grouped_depth_%s_f32",
		} {
			names = append(names, fmt.Sprintf(name, dt))
		}
	}
	names = append(names, "grouped_ends", "grouped_route_rank", "grouped_route_scan", "grouped_route_place", "grouped_tokens",
		"grouped_count_rows", "grouped_count_scan", "grouped_count_place", "grouped_scatter_slots")
	for _, bytes := range []string{"2", "4", "8", "16"} {
		names = append(names, "grouped_scatter_"+bytes, "grouped_zero_"+bytes)
	}
	count := 0
	for _, name := range names {
		_, ok := kernels.ImageOf(name)
		assert.True(t, ok, "no kernel %s", name)
	}
	for _, image := range kernels.Images() {
		assert.NotEmpty(t, image.Data)
		count += len(image.Functions)
	}
	assert.Len(t, names, count, "kernels that are never launched")
}
