package lower_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// machine has the memory of views, which are numbered by their operands.
type machine struct {
	memory [][]float64
	random *rand.Rand
}

// tensor makes a view with a gap behind each row. A dimension that is broadcast has the stride 0.
func (m *machine) tensor(shape []int64, broadcast ...int) *tensor.View {
	v := &tensor.View{Operand: len(m.memory), DType: dtype.Float64, Shape: shape, Strides: make([]int64, len(shape))}
	size := int64(1)
	for d, n := range slices.Backward(shape) {
		if !slices.Contains(broadcast, d) {
			v.Strides[d] = size
			size = size*n + 1
		}
	}
	memory := make([]float64, size)
	for i := range memory {
		memory[i] = m.random.NormFloat64()
	}
	m.memory = append(m.memory, memory)
	return v
}

func (m *machine) at(v *tensor.View, index []int64) *float64 {
	at := int64(0)
	for d, i := range index {
		at += i * v.Strides[d]
	}
	return &m.memory[v.Operand][at]
}

// each visits the indices of a shape.
func each(shape []int64, visit func(index []int64)) {
	index := make([]int64, len(shape))
	for i := range tensor.View.Numel(tensor.View{Shape: shape}) {
		for d, n := range slices.Backward(shape) {
			index[d] = i % n
			i /= n
		}
		visit(index)
	}
}

// multiply runs a product by its definition, with exp as the activation.
func (m *machine) multiply(p *lower.Product) {
	out, pre, bias := p.Result(lower.Out), p.Result(lower.Preactivation), p.Result(lower.Bias)
	result := p.Result(lower.Left).Shape
	each(result, func(index []int64) {
		sum := 0.
		for pair := p; pair != nil; pair = pair.Next {
			left, right := pair.View(lower.Left, pair.Batch, pair.M, pair.N, pair.K), pair.View(lower.Right, pair.Batch, pair.M, pair.N, pair.K)
			each(pair.View(lower.Left, pair.K).Shape, func(k []int64) {
				all := slices.Concat(index, k)
				sum += *m.at(left, all) * *m.at(right, all)
			})
		}
		if bias != nil {
			sum += *m.at(bias, index)
		}
		if pre != nil {
			*m.at(pre, index) = sum
		}
		if out != nil && p.Formula == "exp" {
			sum = math.Exp(sum)
		}
		if out != nil {
			*m.at(out, index) = sum
		}
	})
}

// pass runs a pass by its definition.
func (m *machine) pass(p *lower.Pass) {
	if p.GradBias != nil {
		each(p.GradBias.Shape, func(index []int64) { *m.at(p.GradBias, index) = 0 })
	}
	each(p.GradOutput.Shape, func(index []int64) {
		g := *m.at(p.GradOutput, index)
		switch {
		case p.Formula == "none":
		case p.FromOutput:
			g *= *m.at(p.Saved, index)
		default:
			g *= math.Exp(*m.at(p.Saved, index))
		}
		if p.GradPreactivation != nil {
			*m.at(p.GradPreactivation, index) = g
		}
		if p.GradBias != nil {
			column := make([]int64, len(index))
			column[len(index)-1] = index[len(index)-1]
			*m.at(p.GradBias, column) += g
		}
	})
}

// problem is a GEMM epilogue with the tensors of its forward and its backward.
type problem struct {
	machine
	name     string
	forward  backend.GemmEpilogue
	backward backend.GemmEpilogueBackward
	depth    int64
}

// problems vary the dimensions and which of the batch dimensions each operand is broadcast over.
func problems(kind string) []*problem {
	var all []*problem
	for i, c := range []struct {
		batch, rows  []int64
		k, n         int64
		overA, overB []int
		withoutBias  bool
	}{
		{rows: []int64{5}, k: 4, n: 3},
		{rows: []int64{2, 3}, k: 4, n: 3, withoutBias: true},
		{rows: []int64{1}, k: 4, n: 1},
		{rows: []int64{1}, k: 1, n: 4},
		{rows: []int64{3}, k: 0, n: 2},
		{rows: []int64{0}, k: 3, n: 2},
		{batch: []int64{3}, rows: []int64{2}, k: 5, n: 4, withoutBias: true},
		{batch: []int64{3}, rows: []int64{2}, k: 5, n: 4, overA: []int{0}},
		{batch: []int64{3}, rows: []int64{2, 2}, k: 5, n: 4, overB: []int{0}},
		{batch: []int64{2, 3, 2}, rows: []int64{2}, k: 3, n: 2, overA: []int{1}, overB: []int{0, 2}},
		{batch: []int64{1, 3}, rows: []int64{2}, k: 3, n: 2, overA: []int{0, 1}},
		{batch: []int64{0}, rows: []int64{2}, k: 3, n: 2, overB: []int{0}},
	} {
		p := &problem{machine: machine{random: rand.New(rand.NewPCG(1, uint64(i)))}, name: fmt.Sprintf("%v", c), depth: c.k}
		shape := func(over []int, rest ...int64) []int64 {
			batch := slices.Clone(c.batch)
			for _, d := range over {
				batch[d] = 1
			}
			return append(batch, rest...)
		}
		rowsOf := func(last int64) []int64 { return append(slices.Clone(c.rows), last) }
		a, b := p.tensor(shape(nil, rowsOf(c.k)...), c.overA...), p.tensor(shape(nil, c.k, c.n), c.overB...)
		out, pre := p.tensor(shape(nil, rowsOf(c.n)...)), p.tensor(shape(nil, rowsOf(c.n)...))
		var bias *tensor.View
		if !c.withoutBias {
			bias = p.tensor([]int64{c.n})
		}
		header := backend.Header{Kind: kind, Formula: kind, DType: dtype.Float64, AllowTF32: true}
		p.forward = backend.GemmEpilogue{Header: header, BatchRank: len(c.batch), A: a, B: b, Bias: bias, Out: out, Preactivation: pre}
		p.backward = backend.GemmEpilogueBackward{
			Header: header, BatchRank: len(c.batch), GradOutput: p.tensor(out.Shape), A: a, B: b, Bias: bias,
			GradA: p.tensor(shape(c.overA, rowsOf(c.k)...)), GradB: p.tensor(shape(c.overB, c.k, c.n)), GradBias: p.tensor([]int64{c.n}),
		}
		all = append(all, p)
	}
	return all
}

// terms visits every multiplication of the forward: the indices of out, a, b and the bias.
func (p *problem) terms(visit func(out, a, b, column []int64)) {
	rank, last := p.forward.BatchRank, p.forward.Out.Rank()-1
	each(p.forward.Out.Shape, func(out []int64) {
		for k := range p.depth {
			a := append(slices.Clone(out[:last]), k)
			b := append(slices.Clone(out[:rank]), k, out[last])
			visit(out, a, b, out[last:])
		}
	})
}

// values lists a tensor's elements.
func (p *problem) values(v *tensor.View) []float64 {
	var list []float64
	each(v.Shape, func(index []int64) { list = append(list, *p.at(v, index)) })
	return list
}

func TestForward(t *testing.T) {
	for _, p := range problems("exp") {
		t.Run(p.name, func(t *testing.T) {
			want := p.tensor(p.forward.Out.Shape)
			each(want.Shape, func(index []int64) {
				*p.at(want, index) = 0
				if p.forward.Bias != nil {
					*p.at(want, index) = *p.at(p.forward.Bias, index[len(index)-1:])
				}
			})
			p.terms(func(out, a, b, _ []int64) { *p.at(want, out) += *p.at(p.forward.A, a) * *p.at(p.forward.B, b) })
			p.multiply(lower.Forward(&p.forward))
			assertNear(t, p.values(want), p.values(p.forward.Preactivation))
			each(want.Shape, func(index []int64) { *p.at(want, index) = math.Exp(*p.at(want, index)) })
			assertNear(t, p.values(want), p.values(p.forward.Out))
		})
	}
}

func assertNear(t *testing.T, want, got []float64) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		assert.InDelta(t, want[i], got[i], 1e-12*(1+math.Abs(want[i])))
	}
}

// TestGradients compares what the steps compute with sums over the forward's multiplications, for
// each activation and each thing that can be saved.
func TestGradients(t *testing.T) {
	for _, saved := range []string{"nothing", "nothing, in place", "preactivation", "output", "no activation"} {
		kind := "exp"
		if saved == "no activation" {
			kind = "none"
		}
		for _, p := range problems(kind) {
			t.Run(saved+" "+p.name, func(t *testing.T) {
				p.multiply(lower.Forward(&p.forward))
				q := p.backward
				switch saved {
				case "preactivation":
					q.Preactivation = p.forward.Preactivation
				case "output":
					q.Output = p.forward.Out
				}
				wantA, wantB, wantBias := p.tensor(q.GradA.Shape), p.tensor(q.GradB.Shape), p.tensor(q.GradBias.Shape)
				for _, want := range []*tensor.View{wantA, wantB, wantBias} {
					each(want.Shape, func(index []int64) { *p.at(want, index) = 0 })
				}
				slope := func(out []int64) float64 {
					if kind == "none" {
						return *p.at(q.GradOutput, out)
					}
					return *p.at(q.GradOutput, out) * *p.at(p.forward.Out, out)
				}
				summed := func(v *tensor.View, index []int64) *float64 {
					for d, n := range v.Shape {
						if n == 1 {
							index[d] = 0
						}
					}
					return p.at(v, index)
				}
				p.terms(func(out, a, b, _ []int64) {
					gradA, gradB := slope(out)**p.at(q.B, b), slope(out)**p.at(q.A, a)
					*summed(wantA, a) += gradA
					*summed(wantB, b) += gradB
				})
				each(q.GradOutput.Shape, func(out []int64) { *p.at(wantBias, out[len(out)-1:]) += slope(out) })

				region := p.tensor(q.GradOutput.Shape)
				made := lower.Gradients(&q, func(_ dtype.DType, shape ...int64) *tensor.View {
					if saved == "nothing, in place" {
						return region
					}
					return p.tensor(shape)
				})
				require.Equal(t, strings.HasPrefix(saved, "nothing"), made.Recompute != nil)
				if made.Recompute != nil {
					p.multiply(lower.Forward(made.Recompute))
				}
				p.pass(made.Pass)
				for _, product := range made.Products() {
					p.multiply(product)
				}
				assertNear(t, p.values(wantA), p.values(q.GradA))
				assertNear(t, p.values(wantB), p.values(q.GradB))
				assertNear(t, p.values(wantBias), p.values(q.GradBias))
			})
		}
	}
}

// TestSteps: steps and memory that nothing needs are left out.
func TestSteps(t *testing.T) {
	for _, c := range []struct {
		kind, saved                 string
		gradA, gradB, gradBias      bool
		regions                     int
		recompute, pass, fromOutput bool
	}{
		{kind: "exp"},
		{kind: "none"},
		{kind: "none", gradA: true, gradB: true},
		{kind: "none", gradB: true, gradBias: true, pass: true},
		{kind: "none", saved: "preactivation", gradBias: true, pass: true},
		{kind: "exp", gradBias: true, regions: 1, recompute: true, pass: true},
		{kind: "exp", gradA: true, regions: 2, recompute: true, pass: true},
		{kind: "exp", saved: "preactivation", gradBias: true, pass: true},
		{kind: "exp", saved: "preactivation", gradB: true, regions: 1, pass: true},
		{kind: "exp", saved: "output", gradBias: true, pass: true, fromOutput: true},
		{kind: "exp", saved: "output", gradA: true, gradBias: true, regions: 1, pass: true, fromOutput: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			p := problems(c.kind)[7] // of which grad_a is summed over a batch of 3
			q := p.backward
			want := map[string]*tensor.View{"preactivation": p.forward.Preactivation, "output": p.forward.Out}[c.saved]
			if c.fromOutput {
				q.Output = want
			} else {
				q.Preactivation = want
			}
			if !c.gradA {
				q.GradA = nil
			}
			if !c.gradB {
				q.GradB = nil
			}
			if !c.gradBias {
				q.GradBias = nil
			}
			var regions []*tensor.View
			made := lower.Gradients(&q, func(dt dtype.DType, shape ...int64) *tensor.View {
				assert.Equal(t, dtype.Float64, dt)
				assert.Equal(t, q.GradOutput.Shape, shape)
				regions = append(regions, p.tensor(shape))
				return regions[len(regions)-1]
			})
			require.Len(t, regions, c.regions)
			require.Equal(t, c.recompute, made.Recompute != nil)
			require.Equal(t, c.pass, made.Pass != nil)
			gradient := q.GradOutput
			if c.pass {
				assert.Equal(t, c.fromOutput, made.Pass.FromOutput)
				assert.Equal(t, c.gradBias, made.Pass.GradBias != nil)
				if c.recompute {
					want = regions[0]
				}
				if c.kind == "none" {
					want = nil
				}
				assert.Same(t, want, made.Pass.Saved)
				if c.kind != "none" && (c.gradA || c.gradB) {
					gradient = regions[len(regions)-1]
					assert.Same(t, gradient, made.Pass.GradPreactivation)
				} else {
					assert.Nil(t, made.Pass.GradPreactivation)
				}
			}
			if c.recompute {
				h := q.Header
				h.Formula = "none"
				assert.Equal(t, &backend.GemmEpilogue{Header: h, BatchRank: 1, A: q.A, B: q.B, Bias: q.Bias, Preactivation: regions[0]}, made.Recompute)
			}
			require.Equal(t, c.gradA, made.A != nil)
			if c.gradA {
				assert.Same(t, gradient, made.A.Views[lower.Left])
				assert.False(t, made.A.Accumulates)
				assert.Equal(t, 1, made.A.Summed)
				assert.EqualValues(t, 3, made.A.K[0].Size, "summed batch dimensions come first")
				assert.Empty(t, made.A.Batch)
			}
			require.Equal(t, c.gradB, made.B != nil)
			if c.gradB {
				assert.Same(t, gradient, made.B.Views[lower.Right])
				assert.True(t, made.B.Accumulates)
				assert.Zero(t, made.B.Summed)
				assert.EqualValues(t, 3, lower.Count(made.B.Batch))
			}
		})
	}
}

// TestForwardOfPairs: a product over pairs is that of their factors side by side.
func TestForwardOfPairs(t *testing.T) {
	m := machine{random: rand.New(rand.NewPCG(5, 0))}
	header := backend.Header{Formula: "exp", DType: dtype.Float64}
	p := &backend.GemmEpilogue{
		Header: header, BatchRank: 1, A: m.tensor([]int64{2, 3, 4}), B: m.tensor([]int64{2, 4, 5}, 0), Bias: m.tensor([]int64{5}), Out: m.tensor([]int64{2, 3, 5}),
		More: []backend.Pair{{A: m.tensor([]int64{2, 3, 1}, 0), B: m.tensor([]int64{2, 1, 5})}, {A: m.tensor([]int64{2, 3, 6}), B: m.tensor([]int64{2, 6, 5})}},
	}
	m.multiply(lower.Forward(p))
	each(p.Out.Shape, func(index []int64) {
		batch, row, column := index[0], index[1], index[2]
		sum := *m.at(p.Bias, []int64{column})
		for _, pair := range append([]backend.Pair{{A: p.A, B: p.B}}, p.More...) {
			for k := range pair.A.Shape[2] {
				sum += *m.at(pair.A, []int64{batch, row, k}) * *m.at(pair.B, []int64{batch, k, column})
			}
		}
		assert.InDelta(t, math.Exp(sum), *m.at(p.Out, index), 1e-9*math.Exp(sum))
	})
	assert.Len(t, backend.Views(p), 8)
}

// TestContiguous: groups lie in their order, and an operand that is absent has no view.
func TestContiguous(t *testing.T) {
	p := &lower.Product{
		Views: [lower.Operands]*tensor.View{lower.Left: {Operand: 3, Offset: 8, Shape: []int64{1}, Strides: []int64{1}}},
		Batch: []lower.Dim{{Size: 2}, {Size: 3}}, M: []lower.Dim{{Size: 4}}, K: []lower.Dim{{Size: 5}},
	}
	lower.Contiguous(lower.Left, p.Batch, p.K, p.M)
	v := p.View(lower.Left, p.M, p.Batch, p.K)
	assert.Equal(t, &tensor.View{Operand: 3, Offset: 8, Shape: []int64{4, 2, 3, 5}, Strides: []int64{1, 60, 20, 4}}, v)
	assert.Nil(t, p.View(lower.Bias, p.M))
	assert.EqualValues(t, 120, lower.Count(p.Batch, p.M, p.K))
	assert.EqualValues(t, 1, lower.Count())
}
