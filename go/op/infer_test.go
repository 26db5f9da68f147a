package op_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

type InferSuite struct{ suite.Suite }

func TestInfer(t *testing.T) { suite.Run(t, new(InferSuite)) }

// described is a tensor without memory.
func (s *InferSuite) described(device int32, shape ...int64) *tensor.View {
	v, err := tensor.New(nil, 0, dtype.BFloat16, tensor.Device{Type: device}, shape, nil, 0)
	s.Require().NoError(err)
	return &v
}

func (s *InferSuite) TestShapesFollowMatmul() {
	for _, c := range []struct{ a, b, out []int64 }{
		{[]int64{2, 3}, []int64{3, 4}, []int64{2, 4}},
		{[]int64{3}, []int64{3, 4}, []int64{4}},
		{[]int64{2, 3}, []int64{3}, []int64{2}},
		{[]int64{3}, []int64{3}, []int64{}},
		{[]int64{5, 2, 3}, []int64{3}, []int64{5, 2}},
		{[]int64{3}, []int64{5, 3, 4}, []int64{5, 4}},
		{[]int64{6, 1, 2, 3}, []int64{5, 3, 4}, []int64{6, 5, 2, 4}},
		{[]int64{0, 3}, []int64{3, 4}, []int64{0, 4}},
		{[]int64{2, 0}, []int64{0, 4}, []int64{2, 4}},
		{[]int64{1, 2, 3}, []int64{0, 3, 4}, []int64{0, 2, 4}},
	} {
		for _, device := range []int32{tensor.CPU, tensor.Meta} {
			call := &op.Call{Op: "matmul_bias_activation", Inputs: []*tensor.View{s.described(device, c.a...), s.described(device, c.b...)}}
			shapes, bytes, err := op.Infer(call, []bool{true, true})
			s.Require().NoError(err)
			s.Equal([][]int64{c.out, c.out}, shapes)
			s.Zero(bytes)
			shapes, _, err = op.Infer(call, []bool{true})
			s.Require().NoError(err)
			s.Equal([][]int64{c.out, nil}, shapes, "an output that is not wanted")
			grad := s.described(device, c.out...)
			shapes, bytes, err = op.Infer(&op.Call{
				Op: "matmul_bias_activation_backward", Kind: "silu", Inputs: append([]*tensor.View{grad}, call.Inputs...),
			}, []bool{true, true, true})
			s.Require().NoError(err)
			s.Equal([][]int64{c.a, c.b, nil}, shapes, "there is no bias to have a gradient")
			if device == tensor.CPU {
				s.Equal(grad.Numel()*2, bytes, "grad_preactivation")
			}
		}
	}
}

func (s *InferSuite) TestShapesOfTheOthers() {
	const device = tensor.CPU
	x, weight := s.described(device, 2, 6), s.described(device, 4, 6)
	for _, c := range []struct {
		call   op.Call
		shapes [][]int64
	}{
		{op.Call{Op: "linear", Inputs: []*tensor.View{s.described(device, 5, 2, 6), s.described(device, 4, 6)}}, [][]int64{{5, 2, 4}, {5, 2, 4}}},
		{op.Call{Op: "activation", Kind: "tanh", Inputs: []*tensor.View{x}}, [][]int64{{2, 6}}},
		{op.Call{Op: "gated_activation", Kind: "glu", Dim: -1, Inputs: []*tensor.View{x}}, [][]int64{{2, 3}}},
		{op.Call{Op: "gated_activation", Kind: "glu", Inputs: []*tensor.View{x}}, [][]int64{{1, 6}}},
		{op.Call{Op: "gated_activation_backward", Kind: "glu", Inputs: []*tensor.View{s.described(device, 1, 6), x}}, [][]int64{{2, 6}, {2}}},
		{op.Call{Op: "gated_product_backward", Kind: "glu", Inputs: []*tensor.View{x, x, x}}, [][]int64{{2, 6}, {2, 6}, {6}, {6}}},
		{op.Call{Op: "gated_linear", Kind: "glu", Inputs: []*tensor.View{s.described(device, 5, 2, 6), weight, weight}}, [][]int64{{5, 2, 4}, {5, 2, 8}}},
		{
			op.Call{Op: "gated_linear_backward", Kind: "glu", Inputs: []*tensor.View{s.described(device, 2, 4), x, weight, weight, nil, s.described(device, 4)}},
			[][]int64{{2, 6}, {4, 6}, {4, 6}, nil, {4}},
		},
		{op.Call{Op: "lerp", Parameters: []float64{0}, Inputs: []*tensor.View{s.described(device, 2, 1), s.described(device, 3, 1, 6)}}, [][]int64{{3, 2, 6}}},
		{op.Call{Op: "lerp_backward", Parameters: []float64{0}, Inputs: []*tensor.View{x, s.described(device, 6), x}}, [][]int64{{6}, {2, 6}, nil}},
		{op.Call{Op: "lerp_backward", Inputs: []*tensor.View{x, x, s.described(device), s.described(device, 2, 1)}}, [][]int64{{2, 6}, {}, {2, 1}}},
	} {
		shapes, bytes, err := op.Infer(&c.call, slices.Repeat([]bool{true}, 6))
		s.Require().NoError(err, c.call.Op)
		s.Equal(c.shapes, shapes, c.call.Op)
		s.Equal(c.call.Op == "gated_linear_backward", bytes > 0, c.call.Op)
	}
	alone := &op.Call{Op: "lerp_backward", Inputs: []*tensor.View{x, nil, nil, s.described(device)}}
	shapes, _, err := op.Infer(alone, []bool{true, true, false})
	s.Require().NoError(err)
	s.Equal([][]int64{{2, 6}, {2, 6}, nil}, shapes)
	_, _, err = op.Infer(alone, []bool{false, false, true})
	s.ErrorContains(err, "start and end: missing")
}

func (s *InferSuite) TestSignatures() {
	names := map[string]bool{}
	for _, signature := range op.Signatures() {
		s.False(names[signature.Name], "%s occurs twice", signature.Name)
		names[signature.Name] = true
		found, ok := op.SignatureOf(signature.Name)
		s.True(ok)
		s.Equal(signature, found)
		s.LessOrEqual(len(signature.Outputs), 6, "the C ABI has room for six")
		s.LessOrEqual(len(signature.Inputs), 10)
	}
	for name := range names {
		s.NotContains(name, "?")
		_, hasForward := names[trimBackward(name)]
		s.True(hasForward, "%s has no forward", name)
	}
	_, ok := op.SignatureOf("")
	s.False(ok)
}

func trimBackward(name string) string {
	const suffix = "_backward"
	if len(name) > len(suffix) && name[len(name)-len(suffix):] == suffix {
		return name[:len(name)-len(suffix)]
	}
	return name
}
