package optest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

// adapted are the operations whose weights may have adapters, with a kind for each.
var adapted = map[string][]string{
	"linear": {"none", "gelu", "sigmoid"}, "gated_linear": {"swiglu"}, "mlp": {"none", "gelu"}, "gated_mlp": {"geglu"},
	"grouped_linear": {"none", "gelu"}, "experts": {"swiglu", "bilinear"},
}

// adapterSizes are the sizes of signatures. The rank R is also 0. Slots and rows of no group are
// some of T.
var adapterSizes = map[string]int64{"K": 5, "N": 3, "H": 6, "2H": 12, "R": 2, "S": 3, "T": 7, "J": 2, "T*J": 14, "E": 3}

// adaptedOffsets and adaptedIndex are the offsets and the indices of those sizes.
var adaptedOffsets, adaptedIndex = []float64{2, 2, 6}, []float64{0, 2, 2, 0, -1, 2, 0, 2, 2, 3, 0, 2, 2, 0}

// adaptedCall is an operation with adapters, and the same one whose weights have them added.
type adaptedCall struct {
	forward          op.Signature
	dt               dtype.DType
	operands, formed []*array
	names            []string
}

func (s *opSuite) adaptedCall(name string, dt dtype.DType, rows []int64, sizes map[string]int64, without string, pick *picker) *adaptedCall {
	signature, _ := op.SignatureOf(name)
	c := &adaptedCall{forward: signature, dt: dt}
	for _, argument := range signature.Inputs {
		c.names = append(c.names, argument.Name)
		if without != "" && strings.HasPrefix(argument.Name, without) {
			c.operands = append(c.operands, nil)
			continue
		}
		shape := shapeOf(argument.Shape, rows, sizes)
		switch argument.Types {
		case check.Offsets:
			c.operands = append(c.operands, newArray(dtype.Int32, shape, contiguous).fill(func(i int) float64 { return adaptedOffsets[i] }))
		case check.Indices:
			c.operands = append(c.operands, newArray(dtype.Int64, shape, contiguous).fill(func(i int) float64 { return adaptedIndex[i] }))
		default:
			c.operands = append(c.operands, newArray(dt, shape, pick.input()).fill(s.normal(0.7)))
		}
	}
	c.formed = slices.Clone(c.operands)
	for i, name := range c.names {
		if keyword, is := strings.CutSuffix(name, ".a"); is && c.operands[i] != nil {
			place := slices.Index(c.names, strings.Replace(keyword, "adapter", "weight", 1))
			weight, update := c.operands[place].values(), multiplied(c.operands[i+1], false, c.operands[i], false)
			c.formed[place] = fresh(c.operands[place]).fill(func(j int) float64 { return weight[j] + update[j] })
		}
		if strings.Contains(name, ".") {
			c.formed[i] = nil
		}
	}
	return c
}

// shapeOf is a signature's shape: "[..., 2H]".
func shapeOf(text string, rows []int64, sizes map[string]int64) []int64 {
	var shape []int64
	for _, symbol := range strings.Split(strings.Trim(text, "[]"), ", ") {
		if symbol == "..." {
			shape = append(shape, rows...)
		} else {
			shape = append(shape, sizes[symbol])
		}
	}
	return shape
}

// multiplied is the product of two matrices, or of those of each group, in float64. Each may be
// transposed.
func multiplied(a *array, turnA bool, b *array, turnB bool) (out []float64) {
	type matrix struct{ rows, columns, rowStep, columnStep int }
	of := func(v *array, turned bool) matrix {
		last := len(v.view.Shape) - 1
		rows, columns := int(v.view.Shape[last-1]), int(v.view.Shape[last])
		if turned {
			return matrix{columns, rows, 1, columns}
		}
		return matrix{rows, columns, columns, 1}
	}
	groups, left, right := 1, of(a, turnA), of(b, turnB)
	if len(a.view.Shape) == 3 {
		groups = int(a.view.Shape[0])
	}
	x, y := a.values(), b.values()
	for e := range groups {
		for i := range left.rows {
			for j := range right.columns {
				sum := 0.0
				for l := range left.columns {
					sum += x[e*left.rows*left.columns+i*left.rowStep+l*left.columnStep] * y[e*right.rows*right.columns+l*right.rowStep+j*right.columnStep]
				}
				out = append(out, sum)
			}
		}
	}
	return out
}

// nearFormed compares with what the formed weights give. Four roundings come one after the other:
// of the formed weight, of input aᵀ, of what lies between two layers, and of the result. Each
// counts four times for the largest number, since the terms of a sum are larger than the sum.
func (s *opSuite) nearFormed(got *array, want []float64, format string, args ...any) {
	s.T().Helper()
	largest := 1.0
	for _, x := range want {
		largest = max(largest, math.Abs(x))
	}
	bound := slices.Repeat([]float64{16 * unit(got.view.DType) * largest}, len(want))
	s.within(got.values(), want, bound, format, args...)
}

// adaptedCases are leading dimensions of an input, a rank, and the operands that are left out.
var adaptedCases = []struct {
	rows    []int64
	rank    int64
	without string
}{{[]int64{7}, 2, ""}, {[]int64{2, 3}, 0, "bias"}, {nil, 1, "adapter1"}, {[]int64{3}, 2, "adapter_gate"}, {[]int64{0}, 2, "adapter_out"}}

// TestAdaptersAreTheWeightsThatTheyUpdate: results are those of the weights with b a added to them,
// and the adapter's gradients those of this sum.
func (s *opSuite) TestAdaptersAreTheWeightsThatTheyUpdate() {
	pick := &picker{}
	turn := 0
	for _, name := range slices.Sorted(maps.Keys(adapted)) {
		for _, kind := range adapted[name] {
			for _, dt := range s.dtypes() {
				for i := range 2 { // of which other kinds and dtypes meet the rest
					c := adaptedCases[(turn+2*i)%len(adaptedCases)]
					sizes := maps.Clone(adapterSizes)
					sizes["R"] = c.rank
					what := fmt.Sprintf("%s %s %v, %+v", name, kind, dt, c)
					s.checkAdapted(s.adaptedCall(name, dt, c.rows, sizes, c.without, pick), kind, c.rows, sizes, what, pick)
				}
				turn++
			}
		}
	}
}

func (s *opSuite) checkAdapted(c *adaptedCall, kind string, rows []int64, sizes map[string]int64, what string, pick *picker) {
	results := func(like layout) (list []*array) {
		for _, argument := range c.forward.Outputs {
			list = append(list, newArray(c.dt, shapeOf(argument.Shape, rows, sizes), like))
		}
		return list
	}
	call := op.Call{Op: c.forward.Name, Kind: kind}
	want, got := results(contiguous), results(pick.output())
	s.next(call, c.formed, want)
	s.next(call, c.operands, got)
	for i := range got {
		s.nearFormed(got[i], want[i].values(), "%s of %s", c.forward.Outputs[i].Name, what)
	}
	alone := results(contiguous)
	s.next(call, c.operands, []*array{alone[0], nil})
	s.nearFormed(alone[0], want[0].values(), "output alone of %s", what)

	grad := newArray(c.dt, want[0].view.Shape, pick.input()).fill(s.normal(1))
	call.Op += "_backward"
	expected := s.formedGradients(c, call, grad)
	for _, pre := range []*array{want[1], nil} {
		s.checkAdaptedGradients(c, call, grad, pre, expected, what)
	}
}

// formedGradients are the gradients of the call with formed weights, and what follows for those of
// the adapters.
func (s *opSuite) formedGradients(c *adaptedCall, call op.Call, grad *array) [][]float64 {
	gradients := make([]*array, len(c.names))
	for i, operand := range c.formed {
		if operand != nil && !operand.view.DType.IsIndex() {
			gradients[i] = fresh(operand)
		}
	}
	s.next(call, backwardInputs(call.Op, grad, c.formed, nil), c.ofGradients(gradients))
	expected := make([][]float64, len(c.names))
	for i, name := range c.names {
		if gradients[i] != nil {
			expected[i] = gradients[i].values()
		}
		if keyword, is := strings.CutSuffix(name, ".a"); is && c.operands[i] != nil {
			gradient := gradients[slices.Index(c.names, strings.Replace(keyword, "adapter", "weight", 1))]
			expected[i], expected[i+1] = multiplied(c.operands[i+1], true, gradient, false), multiplied(gradient, false, c.operands[i], true)
		}
	}
	return expected
}

// ofGradients leaves out the places of operands that have no gradient.
func (c *adaptedCall) ofGradients(list []*array) (outputs []*array) {
	for i, argument := range c.forward.Inputs {
		if argument.Types != check.Offsets && argument.Types != check.Indices {
			outputs = append(outputs, list[i])
		}
	}
	return outputs
}

// backwardInputs are the inputs of a backward: what was kept stands before the adapters.
func backwardInputs(name string, grad *array, operands []*array, pre *array) []*array {
	signature, _ := op.SignatureOf(name)
	inputs := []*array{grad}
	for _, argument := range signature.Inputs[1:] {
		switch {
		case argument.Name == "preactivation":
			inputs = append(inputs, pre)
		case argument.Kept:
			inputs = append(inputs, nil)
		default:
			inputs, operands = append(inputs, operands[0]), operands[1:]
		}
	}
	return inputs
}

// checkAdaptedGradients asks for all gradients, for those that frozen weights leave, and for each
// alone.
func (s *opSuite) checkAdaptedGradients(c *adaptedCall, call op.Call, grad, pre *array, expected [][]float64, what string) {
	var all, frozen []int
	var chosen [][]int
	for i, operand := range c.operands {
		if operand == nil || operand.view.DType.IsIndex() {
			continue
		}
		all, chosen = append(all, i), append(chosen, []int{i})
		if !strings.HasPrefix(c.names[i], "weight") && !strings.HasPrefix(c.names[i], "bias") {
			frozen = append(frozen, i)
		}
	}
	for _, places := range append(chosen, all, frozen) {
		outputs := make([]*array, len(c.names))
		for _, i := range places {
			outputs[i] = newArray(c.dt, c.operands[i].view.Shape, contiguous)
		}
		s.next(call, backwardInputs(call.Op, grad, c.operands, pre), c.ofGradients(outputs))
		for _, i := range places {
			s.nearFormed(outputs[i], expected[i], "gradient of %s, %v, of %s", c.names[i], places, what)
		}
	}
}
