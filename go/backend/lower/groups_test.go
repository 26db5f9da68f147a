package lower_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// grouped is a machine with rows of three groups, one of which has none, and a row of no group.
type grouped struct {
	machine
	header backend.Header
}

var groupEnds = []float64{2, 2, 5}

func newGrouped(formula string) *grouped {
	g := &grouped{machine: machine{random: rand.New(rand.NewPCG(5, 8))}}
	ends := g.tensor([]int64{3})
	for e, end := range groupEnds {
		*g.at(ends, []int64{int64(e)}) = end
	}
	g.header = backend.Header{Kind: formula, Formula: formula, DType: dtype.Float64, Groups: ends}
	return g
}

// eachRow visits the rows of groups.
func eachRow(visit func(group, row int64)) {
	row := int64(0)
	for e, end := range groupEnds {
		for ; row < int64(end); row++ {
			visit(int64(e), row)
		}
	}
}

// multiplyGroups runs a product of groups by its definition.
func (g *grouped) multiplyGroups(p *lower.Product) {
	ends := p.View(lower.Ends, p.Batch)
	alone := *p
	alone.Views[lower.Ends], alone.Batch = nil, nil
	first := 0.
	for e := range ends.Shape[0] {
		end := *g.at(ends, []int64{e})
		rows := &alone.K
		if p.ByRows {
			rows = &alone.M
		}
		*rows = []lower.Dim{{Size: int64(end - first), Strides: p.M[0].Strides}}
		if !p.ByRows {
			(*rows)[0].Strides = p.K[0].Strides
		}
		for operand, v := range p.Views {
			if v == nil || operand == lower.Ends {
				continue
			}
			moved := *v // this machine's offsets are memory of their own
			moved.Operand = len(g.memory)
			g.memory = append(g.memory, g.memory[v.Operand][int64(first)*(*rows)[0].Strides[operand]+e*p.Batch[0].Strides[operand]:])
			alone.Views[operand] = &moved
		}
		g.multiply(&alone)
		first = end
	}
}

func TestForwardOfGroups(t *testing.T) {
	g := newGrouped("exp")
	p := &backend.GemmEpilogue{
		Header: g.header, A: g.tensor([]int64{6, 4}), B: g.tensor([]int64{3, 4, 2}), Bias: g.tensor([]int64{3, 2}),
		Out: g.tensor([]int64{6, 2}), Preactivation: g.tensor([]int64{6, 2}),
	}
	left := *g.at(p.Out, []int64{5, 1})
	g.multiplyGroups(lower.Forward(p))
	eachRow(func(e, row int64) {
		for n := range int64(2) {
			sum := *g.at(p.Bias, []int64{e, n})
			for k := range int64(4) {
				sum += *g.at(p.A, []int64{row, k}) * *g.at(p.B, []int64{e, k, n})
			}
			assert.InDelta(t, sum, *g.at(p.Preactivation, []int64{row, n}), 1e-12)
			assert.InDelta(t, math.Exp(sum), *g.at(p.Out, []int64{row, n}), 1e-9)
		}
	})
	assert.Equal(t, left, *g.at(p.Out, []int64{5, 1}), "a row of no group")
}

func TestGradientsOfGroups(t *testing.T) {
	g := newGrouped("none")
	p := &backend.GemmEpilogueBackward{
		Header: g.header, GradOutput: g.tensor([]int64{6, 2}), A: g.tensor([]int64{6, 4}), B: g.tensor([]int64{3, 4, 2}),
		GradA: g.tensor([]int64{6, 4}), GradB: g.tensor([]int64{3, 4, 2}), GradBias: g.tensor([]int64{3, 2}),
	}
	made := lower.Gradients(p, nil)
	require.Same(t, g.header.Groups, made.Pass.Groups)
	require.Equal(t, p.GradBias, made.Pass.GradBias)
	for _, product := range made.Products() {
		g.multiplyGroups(product)
	}
	sums := g.tensor(p.GradB.Shape)
	each(sums.Shape, func(index []int64) { *g.at(sums, index) = 0 })
	eachRow(func(e, row int64) {
		for k := range int64(4) {
			sum := 0.
			for n := range int64(2) {
				upstream := *g.at(p.GradOutput, []int64{row, n})
				sum += upstream * *g.at(p.B, []int64{e, k, n})
				*g.at(sums, []int64{e, k, n}) += upstream * *g.at(p.A, []int64{row, k})
			}
			assert.InDelta(t, sum, *g.at(p.GradA, []int64{row, k}), 1e-12)
		}
	})
	each(sums.Shape, func(index []int64) { assert.InDelta(t, *g.at(sums, index), *g.at(p.GradB, index), 1e-12) })
}

// TestParts: each part reads what a part before it has written, or what was given, and together
// they write what is wanted.
func TestParts(t *testing.T) {
	halves := func(v *tensor.View) (value, gate *tensor.View) {
		if v == nil {
			return nil, nil
		}
		half := v.Shape[v.Rank()-1] / 2
		first, _ := v.Narrow(-1, 0, half)
		second, _ := v.Narrow(-1, half, half)
		return &first, &second
	}
	g := newGrouped("silu")
	alone := g.header
	alone.Groups = nil
	rows := func(n int64) *tensor.View { return g.tensor([]int64{6, n}) }
	pre, gradPre, sums, scales, hidden := rows(10), rows(10), g.tensor([]int64{6}), g.tensor([]int64{6}), rows(5)
	weight, gradBias, weightIn, out, grad := g.tensor([]int64{3, 4, 5}), g.tensor([]int64{3, 10}), g.tensor([]int64{3, 10, 4}), rows(5), rows(4)
	up, down := g.tensor([]int64{5, 4}), g.tensor([]int64{4, 5})
	tokens, places, scale := g.tensor([]int64{3, 4}), g.tensor([]int64{3, 2}), g.tensor([]int64{3, 2})
	for name, c := range map[string]struct {
		problem               backend.Problem
		given, wanted         []*tensor.View
		regions, parts, zeros int
	}{
		"a gated layer": {
			&backend.GroupedLayer{Header: g.header, Input: grad, Weight: weightIn, Out: out, Halves: halves, Rest: []*tensor.View{out}},
			[]*tensor.View{grad, weightIn},
			[]*tensor.View{out},
			1, 3, 1,
		},
		"its preactivation": {
			&backend.GroupedLayer{Header: g.header, Input: grad, Weight: weightIn, Preactivation: pre, Halves: halves},
			[]*tensor.View{grad, weightIn},
			[]*tensor.View{pre},
			0, 1, 0,
		},
		"a layer": {
			&backend.GroupedLayer{Header: g.header, Input: grad, Weight: weightIn, Out: gradPre},
			[]*tensor.View{grad, weightIn},
			[]*tensor.View{gradPre},
			0, 1, 0,
		},
		"a layer of tokens": {
			&backend.GroupedLayer{Header: g.header, Input: tokens, Places: places, Weight: weightIn, Out: out, Halves: halves},
			[]*tensor.View{tokens, places, weightIn},
			[]*tensor.View{out},
			2, 3, 0,
		},
		"a layer whose rows are combined": {
			&backend.CombinedLayer{Header: g.header, Input: out, Weight: weight, Places: places, Scale: scale, Out: tokens},
			[]*tensor.View{out, weight, places, scale},
			[]*tensor.View{tokens},
			1, 2, 0,
		},
		"a gated hidden activation": {
			&backend.GroupedHiddenBackward{
				Header: g.header, GradOutput: grad, Weight: weight, Preactivation: pre, Scales: scales,
				GradPreactivation: gradPre, Out: hidden, Sums: sums, GradBias: gradBias, Halves: halves,
			},
			[]*tensor.View{grad, weight, pre, scales},
			[]*tensor.View{gradPre, hidden, sums, gradBias},
			1, 4, 0,
		},
		"sums alone": {
			&backend.GroupedHiddenBackward{Header: g.header, GradOutput: grad, Weight: weight, Preactivation: out, Sums: sums},
			[]*tensor.View{grad, weight, out},
			[]*tensor.View{sums},
			2, 3, 0,
		},
		"a hidden activation alone": {
			&backend.GroupedHiddenBackward{Header: g.header, GradOutput: grad, Weight: weight, Preactivation: pre, Out: hidden, Halves: halves},
			[]*tensor.View{pre},
			[]*tensor.View{hidden},
			0, 1, 0,
		},
		"gradients with scales": {
			&backend.GroupedLayerBackward{
				Header: g.header, GradOutput: pre, Input: grad, Weight: weightIn, Scales: scales, GradInput: rows(4), GradBias: gradBias, Rest: true,
			},
			[]*tensor.View{pre, grad, weightIn, scales},
			[]*tensor.View{gradBias},
			0, 3, 1,
		},
		"a gated layer of one group": {
			&backend.GatedLinear{Header: alone, Input: grad, WeightValue: up, WeightGate: up, Out: out},
			[]*tensor.View{grad, up},
			[]*tensor.View{out},
			2, 3, 0,
		},
		"one whose weights are halves of one": {
			&backend.GatedLinear{
				Header: alone, Input: grad, WeightValue: up, WeightGate: up, Out: out,
				Both:   &backend.GemmEpilogue{Header: alone, A: grad, B: up},
				Halves: func(v *tensor.View) (value, gate *tensor.View) { return v, v },
			},
			[]*tensor.View{grad, up},
			[]*tensor.View{out},
			1, 2, 0,
		},
		"its preactivations": {
			&backend.GatedLinear{Header: alone, Input: grad, WeightValue: up, WeightGate: up, Value: out, Gate: hidden},
			[]*tensor.View{grad, up},
			[]*tensor.View{out, hidden},
			0, 2, 0,
		},
		"a hidden activation of one group": {
			&backend.HiddenBackward{Header: alone, GradOutput: grad, Weight: down, Preactivation: out, GradPreactivation: hidden},
			[]*tensor.View{grad, down, out},
			[]*tensor.View{hidden},
			0, 2, 0,
		},
		"a gated one of one group": {
			&backend.GatedHiddenBackward{
				Header: alone, GradOutput: grad, Weight: down, Value: out, Gate: out, GradValue: gradPre, GradGate: sums, Out: hidden,
			},
			[]*tensor.View{grad, down, out},
			[]*tensor.View{hidden, gradPre, sums},
			1, 3, 0,
		},
	} {
		regions := 0
		parts := lower.Parts(c.problem, func(dt dtype.DType, shape ...int64) *tensor.View {
			require.Equal(t, dtype.Float64, dt)
			regions++
			return g.tensor(shape)
		})
		require.Len(t, parts, c.parts, name)
		require.Equal(t, c.regions, regions, name)
		known := map[int]bool{g.header.Groups.Operand: true}
		for _, v := range c.given {
			known[v.Operand] = true
		}
		zeros := 0
		for _, part := range parts {
			inputs, outputs := operandsOf(part)
			for _, v := range inputs {
				require.True(t, v == nil || known[v.Operand], "%s: %T reads operand %d", name, part, v)
			}
			for _, v := range outputs {
				if v != nil {
					known[v.Operand] = true
				}
			}
			if _, is := part.(*backend.ZeroRows); is {
				zeros++
			}
			require.Same(t, c.problem.Grouping(), part.Grouping(), name)
			require.Nil(t, lower.Parts(part, nil), "%s: %T has parts", name, part)
		}
		require.Equal(t, c.zeros, zeros, name)
		for _, v := range c.wanted {
			require.True(t, known[v.Operand], "%s: operand %d is not written", name, v.Operand)
		}
	}
}

// operandsOf are what a part reads and what it writes.
func operandsOf(p backend.Problem) (inputs, outputs []*tensor.View) {
	switch p := p.(type) {
	case *backend.GemmEpilogue:
		return []*tensor.View{p.A, p.B, p.Bias}, []*tensor.View{p.Out, p.Preactivation}
	case *backend.GemmEpilogueBackward:
		return []*tensor.View{p.GradOutput, p.A, p.B, p.Bias, p.Preactivation}, []*tensor.View{p.GradA, p.GradB, p.GradBias}
	case *backend.Activation:
		return []*tensor.View{p.Input}, []*tensor.View{p.Out}
	case *backend.ActivationBackward:
		return []*tensor.View{p.GradOutput, p.Input}, []*tensor.View{p.GradInput, p.Out, p.GradBias}
	case *backend.Gated:
		return []*tensor.View{p.Value, p.Gate}, []*tensor.View{p.Out}
	case *backend.GatedBackward:
		return []*tensor.View{p.GradOutput, p.Value, p.Gate}, []*tensor.View{p.GradValue, p.GradGate, p.GradBiasValue, p.GradBiasGate}
	case *backend.ScatterRows:
		return []*tensor.View{p.Input, p.Places, p.Scale}, []*tensor.View{p.Out, p.Scales}
	case *backend.CombineRows:
		return []*tensor.View{p.Input, p.Places, p.Scale}, []*tensor.View{p.Out}
	case *backend.ScaleRows:
		return []*tensor.View{p.Grad, p.Hidden, p.Scales}, []*tensor.View{p.Sums}
	case *backend.SumRows:
		return []*tensor.View{p.Input, p.Scales}, []*tensor.View{p.Sums}
	case *backend.ZeroRows:
		return p.Outputs, nil
	}
	return nil, nil
}
