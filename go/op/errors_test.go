package op_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

type ErrorSuite struct{ suite.Suite }

func TestErrors(t *testing.T) { suite.Run(t, new(ErrorSuite)) }

// f32 is a contiguous float32 tensor.
func (s *ErrorSuite) f32(shape ...int64) *tensor.View { return array(s.T(), dtype.Float32, shape...) }

// with changes a copy of a view.
func with(v *tensor.View, change func(v *tensor.View)) *tensor.View {
	changed := *v
	change(&changed)
	return &changed
}

func views(list ...*tensor.View) []*tensor.View { return list }

// strided gives a view other strides.
func strided(v *tensor.View, strides ...int64) *tensor.View {
	return with(v, func(v *tensor.View) { v.Strides = strides })
}

func bytesOf(v *tensor.View) []byte {
	if v == nil || v.Base == nil {
		return nil
	}
	return unsafe.Slice((*byte)(v.Base), v.Numel()*v.DType.Size())
}

// refused asks Validate and Run for one and the same error, and for outputs that are as they were.
func (s *ErrorSuite) refused(c *op.Call, code status.Code, text string) *status.Error {
	s.T().Helper()
	var before [][]byte
	for _, out := range c.Outputs {
		for i := range bytesOf(out) {
			bytesOf(out)[i] = 0xa5
		}
		before = append(before, bytes.Clone(bytesOf(out)))
	}
	validated, ran := op.Validate(c), op.Run(c)
	s.Require().Error(validated)
	s.Equal(code, status.Of(validated).Code, validated.Error())
	s.Contains(validated.Error(), text)
	s.Require().Error(ran)
	s.Equal(validated.Error(), ran.Error())
	s.Equal(status.Of(validated).Code, status.Of(ran).Code)
	for i, out := range c.Outputs {
		s.Equal(before[i], bytesOf(out), "output %d was written to", i)
	}
	return status.Of(validated)
}

func (s *ErrorSuite) TestProblems() {
	a, b, bias, out := s.f32(2, 3), s.f32(3, 4), s.f32(4), s.f32(2, 4)
	half := array(s.T(), dtype.Float16, 3, 4)
	const invalid = status.InvalidProblem
	for _, c := range []struct {
		name, op, kind  string
		inputs, outputs []*tensor.View
		code            status.Code
		text            string
	}{
		{"no such op", "matmul", "", views(a, b), views(out), invalid, `epigrad: op: got "matmul", want one of matmul_bias_activation, `},
		{"no such activation", "linear", "Gelu", views(a, s.f32(4, 3)), views(out), invalid, `linear: activation: got "Gelu", want one of ` + strings.Join(activation.Names(), ", ")},
		{"an activation in capitals", "linear", "GELU", views(a, s.f32(4, 3)), views(out), invalid, `(did you mean "gelu"?)`},
		{"an alias in capitals", "activation", "Gelu_New", views(a), views(s.f32(2, 3)), invalid, `(did you mean "gelu_new"?)`},
		{"a gated kind in capitals", "gated_activation", "SwiGLU", views(s.f32(4)), views(s.f32(2)), invalid, `(did you mean "swiglu"?)`},
		{"a kind with a NUL", "linear", "none\x00", views(a, s.f32(4, 3)), views(out), invalid, "want one of " + strings.Join(activation.Names(), ", ")},
		{"an activation as a gated kind", "gated_activation", "relu", views(s.f32(4)), views(s.f32(2)), invalid, "want one of " + strings.Join(activation.GatedNames(), ", ") + " (it is an activation)"},
		{"a gated kind as an activation", "linear", "geglu", views(a, s.f32(4, 3)), views(out), invalid, "softcap (it is a gated kind)"},
		{"no gated kind", "gated_product", "", views(a, a), views(s.f32(2, 3)), invalid, `kind: got ""`},
		{"input missing", "matmul_bias_activation", "", views(a), views(out), invalid, "matmul_bias_activation: b: missing, want a tensor"},
		{"no inputs", "lerp", "", nil, nil, invalid, "lerp: start: missing"},
		{"too many inputs", "activation", "", views(a, a), nil, invalid, "activation: inputs: got 2, want at most 1"},
		{"too many outputs", "activation", "", views(a), views(nil, out), invalid, "activation: outputs: got 2, want at most 1"},
		{"k", "matmul_bias_activation", "", views(a, s.f32(4, 4)), views(out), invalid, "b: shape [4, 4] has k = 4, want k = 3 as a has with shape [2, 3]"},
		{"batches", "matmul_bias_activation", "", views(s.f32(2, 2, 3), s.f32(3, 3, 4)), nil, invalid, "b: batch dimensions: shape [3] does not broadcast with [2]"},
		{"scalar a", "matmul_bias_activation", "", views(s.f32(), b), nil, invalid, "a: shape [], want at least one dimension"},
		{"scalar b", "matmul_bias_activation", "", views(a, s.f32()), nil, invalid, "b: shape [], want at least one dimension"},
		{"1-D weight", "linear", "", views(a, s.f32(3)), nil, invalid, "linear: weight: shape [3], want [n, k]"},
		{"batched weight", "linear", "", views(a, s.f32(1, 4, 3)), nil, invalid, "want [n, k]"},
		{"bias", "matmul_bias_activation", "", views(a, b, s.f32(3)), views(out), invalid, "bias: shape [3], want [n] = [4]"},
		{"bias of a vector", "matmul_bias_activation", "", views(a, s.f32(3), s.f32(1)), nil, invalid, "bias: shape [1], want a scalar, []"},
		{"out", "matmul_bias_activation", "", views(a, b), views(s.f32(4, 2)), invalid, "out: shape [4, 2], want the result's [2, 4]"},
		{"preactivation", "matmul_bias_activation", "", views(a, b), views(out, s.f32(2)), invalid, "preactivation: shape [2]"},
		{"grad_output", "matmul_bias_activation_backward", "", views(s.f32(4, 2), a, b), nil, invalid, "grad_output: shape [4, 2], want the output's [2, 4]"},
		{
			"output of gelu", "matmul_bias_activation_backward", "gelu", views(out, a, b, nil, nil, out), nil, invalid,
			`output: given for "gelu", whose derivative cannot be computed from the output`,
		},
		{"grad_bias of no bias", "matmul_bias_activation_backward", "", views(out, a, b), views(nil, nil, s.f32(4)), invalid, "grad_bias: got a tensor, want none"},
		{"grad_b", "matmul_bias_activation_backward", "", views(out, a, b), views(nil, s.f32(4, 3)), invalid, "grad_b: shape [4, 3], want the result's [3, 4]"},
		{"odd size", "gated_activation", "glu", views(s.f32(3, 2)), nil, invalid, "input: shape [3, 2] has the odd size 3"},
		{"scalar input", "gated_activation", "glu", views(s.f32()), nil, invalid, "want at least one dimension, to split"},
		{"half", "gated_activation_backward", "glu", views(s.f32(4), s.f32(4)), nil, invalid, "grad_output: shape [4], want half of the input's shape [2]"},
		{"gate", "gated_product", "glu", views(a, b), nil, invalid, "gate: shape [3, 4], want the value's shape [2, 3]"},
		{"lerp's shapes", "lerp", "", views(a, b, a), nil, invalid, "end: shape [3, 4] does not broadcast with [2, 3]"},
		{"no weight", "lerp", "", views(a, a), nil, invalid, "weight: missing, want a tensor or a number"},
		{"weight beyond grad_output", "lerp_backward", "", views(a, nil, nil, s.f32(7, 2, 3)), nil, invalid, "weight: shape [7, 2, 3], want one that broadcasts to"},
		{"grad_weight without start", "lerp_backward", "", views(a, nil, a, a), views(nil, nil, s.f32(2, 3)), invalid, "start and end: missing"},
		{"larger grad_output", "lerp_backward", "", views(s.f32(7, 2, 3), a, a, a), nil, invalid, "grad_output: shape [7, 2, 3], want the broadcast shape [2, 3]"},
		{"dtypes", "matmul_bias_activation", "", views(a, half), views(out), status.DTypeMismatch, "b: dtype float16, want float32 as a has: one dtype per call"},
		{"dtype of out", "activation", "", views(half), views(s.f32(3, 4)), status.DTypeMismatch, "out: dtype float32, want float16"},
		{
			"devices", "matmul_bias_activation", "", views(a, with(b, func(v *tensor.View) { v.Device = tensor.Device{Type: tensor.CUDA, Index: 1} })), views(out),
			status.DeviceMismatch, "b: on cuda:1, want cpu where a is",
		},
		{"no such device", "activation", "", views(with(a, func(v *tensor.View) { v.Device.Type = 99 })), nil, status.Unsupported, "want one of cpu"},
		{"meta", "activation", "", views(with(a, func(v *tensor.View) { v.Device.Type = tensor.Meta })), nil, status.Unsupported, "meta tensors"},
		{"null", "activation", "", views(with(a, func(v *tensor.View) { v.Base = nil })), views(s.f32(2, 3)), invalid, "input: got a null pointer, want memory"},
		{
			"misaligned", "activation", "", views(with(a, func(v *tensor.View) { v.Offset = 2 })), views(s.f32(2, 3)), status.MisalignedOperand,
			"want a multiple of 4 bytes (float32)",
		},
		{"misaligned out", "activation", "", views(a), views(with(s.f32(2, 3), func(v *tensor.View) { v.Offset = 1 })), status.MisalignedOperand, "out: address"},
		{"out with stride 0", "activation", "", views(a), views(strided(s.f32(2, 3), 0, 1)), invalid, "out: shape [2, 3] with strides [0, 1] overlaps itself"},
		{"out in windows", "activation", "", views(a), views(strided(s.f32(2, 3), 1, 1)), invalid, "overlaps itself"},
		{"in place", "activation", "", views(a), views(a), invalid, "out: shares memory with input"},
		{"two outputs in one", "matmul_bias_activation", "", views(a, b, bias), views(out, out), invalid, "preactivation: shares memory with out"},
		{"grad in grad_output", "gated_product_backward", "glu", views(out, s.f32(2, 4), s.f32(2, 4)), views(out), invalid, "grad_value: shares memory with grad_output"},
	} {
		s.Run(c.name, func() {
			s.refused(&op.Call{Op: c.op, Kind: c.kind, Inputs: c.inputs, Outputs: c.outputs}, c.code, c.text)
		})
	}
}

func (s *ErrorSuite) TestDimensions() {
	for _, dim := range []int{2, -3, math.MaxInt32, math.MinInt32} {
		s.refused(&op.Call{Op: "gated_activation", Kind: "glu", Dim: dim, Inputs: []*tensor.View{s.f32(2, 4)}, Outputs: []*tensor.View{s.f32(2, 2)}},
			status.InvalidProblem, "gated_activation: dim: got ")
	}
}

func (s *ErrorSuite) TestTwoWeights() {
	x := s.f32(2)
	s.refused(&op.Call{Op: "lerp", Parameters: []float64{0}, Inputs: []*tensor.View{x, x, x}, Outputs: []*tensor.View{s.f32(2)}},
		status.InvalidProblem, "weight: a tensor, want none: a number was given already")
	s.refused(&op.Call{
		Op: "lerp_backward", Parameters: []float64{0}, Inputs: []*tensor.View{x, x, x}, Outputs: []*tensor.View{nil, nil, s.f32(2)},
	}, status.InvalidProblem, "grad_weight: got a tensor, want none")
}

func (s *ErrorSuite) TestAccumulateWithoutGradients() {
	s.refused(&op.Call{Op: "activation", Accumulate: true, Inputs: []*tensor.View{s.f32(2)}, Outputs: []*tensor.View{s.f32(2)}},
		status.InvalidProblem, "accumulate: got true, want false")
}

func (s *ErrorSuite) TestStatedSizes() {
	for _, c := range []struct {
		name         string
		stated       int64
		strides      []int64
		needed       int64
		input, other bool
	}{
		{"input", 23, []int64{3, 1}, 24, true, false},
		{"output", 20, []int64{3, 1}, 24, false, true},
		{"gap", 24, []int64{4, 1}, 28, true, false},
		{"negative stride", 1000, []int64{-3, 1}, 24, true, false},
	} {
		s.Run(c.name, func() {
			small := with(strided(s.f32(2, 3), c.strides...), func(v *tensor.View) { v.NBytes = c.stated })
			call := &op.Call{Op: "activation", Inputs: []*tensor.View{s.f32(2, 3)}, Outputs: []*tensor.View{s.f32(2, 3)}}
			if c.input {
				call.Inputs[0] = small
			} else {
				call.Outputs[0] = small
			}
			err := s.refused(call, status.BufferTooSmall, "want inside the buffer's")
			s.Equal(c.needed, err.Needed)
			s.Equal(c.stated, err.Got)
		})
	}
	exact := with(s.f32(2, 3), func(v *tensor.View) { v.NBytes = 24 })
	s.NoError(op.Run(&op.Call{Op: "activation", Inputs: []*tensor.View{exact}, Outputs: []*tensor.View{s.f32(2, 3)}}))
}

func (s *ErrorSuite) TestWorkspace() {
	call := func() *op.Call {
		return &op.Call{
			Op: "linear_backward", Kind: "gelu", Inputs: []*tensor.View{s.f32(2, 4), s.f32(2, 3), s.f32(4, 3)}, Outputs: []*tensor.View{s.f32(2, 3)},
		}
	}
	_, needed, err := op.Infer(&op.Call{Op: "linear_backward", Kind: "gelu", Inputs: call().Inputs}, []bool{true})
	s.Require().NoError(err)
	s.Equal(int64(2*4*4), needed, "one grad_preactivation")

	missing := call()
	failure := s.refused(missing, status.WorkspaceTooSmall, "workspace: got 0 bytes, want at least 32")
	s.Equal([2]int64{32, 0}, [2]int64{failure.Needed, failure.Got})

	scratch := array(s.T(), dtype.Float64, 64)
	aligned := unsafe.Add(scratch.Base, -uintptr(scratch.Base)%64)
	short := call()
	short.Workspace, short.WorkspaceBytes = aligned, 31
	failure = s.refused(short, status.WorkspaceTooSmall, "got 31 bytes")
	s.Equal([2]int64{32, 31}, [2]int64{failure.Needed, failure.Got})

	misaligned := call()
	misaligned.Workspace, misaligned.WorkspaceBytes = unsafe.Add(aligned, 8), 32
	s.refused(misaligned, status.MisalignedOperand, "workspace: address")

	shared := call()
	shared.Workspace, shared.WorkspaceBytes = aligned, 32
	shared.Inputs[0] = with(shared.Inputs[0], func(v *tensor.View) { v.Base = aligned })
	s.refused(shared, status.InvalidProblem, "workspace: shares memory with grad_output")

	good := call()
	good.Workspace, good.WorkspaceBytes = aligned, 32
	s.NoError(op.Run(good))
}

// TestUncountable: sizes whose product is beyond 64 bits are refused, not wrapped.
func (s *ErrorSuite) TestUncountable() {
	const huge = int64(1) << 40
	wide := strided(with(s.f32(1, 1), func(v *tensor.View) { v.Shape = []int64{huge, 1} }), 0, 0)
	long := strided(with(s.f32(1, 1), func(v *tensor.View) { v.Shape = []int64{1, huge} }), 0, 0)
	s.refused(&op.Call{Op: "matmul_bias_activation", Inputs: []*tensor.View{wide, long}}, status.InvalidProblem, "out: shape")
	s.refused(&op.Call{Op: "lerp", Parameters: []float64{0}, Inputs: []*tensor.View{wide, long}}, status.InvalidProblem,
		"lerp: end: all shapes broadcast to [1099511627776, 1099511627776], which has more elements than 64 bits can count")
	deep := func(d int) *tensor.View {
		shape := []int64{1, 1, 1, 1}
		shape[d] = huge
		return strided(with(s.f32(1, 1, 1, 1), func(v *tensor.View) { v.Shape = shape }), 0, 0, 0, 0)
	}
	s.refused(&op.Call{Op: "matmul_bias_activation", Inputs: []*tensor.View{deep(0), deep(1)}}, status.InvalidProblem,
		"matmul_bias_activation: b: batch dimensions: all shapes broadcast to [1099511627776, 1099511627776], which has more elements")
}

// TestNothingIsIgnored: a parameter that an operation does not have is an error of every call of
// it.
func (s *ErrorSuite) TestNothingIsIgnored() {
	a, out := s.f32(2, 2), s.f32(2, 2)
	linear := func(change func(c *op.Call)) *op.Call {
		c := &op.Call{Op: "linear", Inputs: views(a, a), Outputs: views(out)}
		change(c)
		return c
	}
	lerp := func(change func(c *op.Call)) *op.Call {
		c := &op.Call{Op: "lerp", Parameters: []float64{0.5}, Inputs: views(a, a), Outputs: views(out)}
		change(c)
		return c
	}
	gated := func(change func(c *op.Call)) *op.Call {
		c := &op.Call{Op: "gated_activation", Kind: "glu", Inputs: views(a), Outputs: views(s.f32(1, 2))}
		change(c)
		return c
	}
	for _, c := range []struct {
		call *op.Call
		text string
	}{
		{linear(func(c *op.Call) { c.Dim = -1 }), "linear: dim: got -1, want 0"},
		{linear(func(c *op.Call) { c.Gate = op.GateFirst }), "linear: gate: got 1, want 0"},
		{linear(func(c *op.Call) { c.Parameters = []float64{2} }), "linear: parameters: got 1, want none"},
		{lerp(func(c *op.Call) { c.Parameters = []float64{1, 2} }), "lerp: parameters: got 2, want at most one, the weight"},
		{lerp(func(c *op.Call) { c.Gate = -1 }), "lerp: gate: got -1, want 0"},
		{gated(func(c *op.Call) { c.Gate = 4 }), "gated_activation: gate: got 4, want 0 (the second half), 1 (the first), 2 (odd places) or 3 (even places)"},
		{gated(func(c *op.Call) { c.Parameters = []float64{1} }), "gated_activation: parameters: got 1, want 3 (limit, limit_after, offset), or none for the defaults"},
		{linear(func(c *op.Call) { c.Accumulate = true }), "linear: accumulate: got true, want false"},
		{linear(func(c *op.Call) { c.Stream = 7 }), "linear: stream: got 0x7, want 0: tensors on cpu"},
		{lerp(func(c *op.Call) { c.Kind = "relu" }), `lerp: kind: got "relu", want none: this operation has no activation`},
		{lerp(func(c *op.Call) { c.AllowTF32 = true }), "lerp: allow_tf32: got true, want false"},
		{lerp(func(c *op.Call) { c.BatchInvariant = true }), "lerp: batch_invariant: got true, want false"},
		{lerp(func(c *op.Call) { c.Accumulate = true }), "lerp: accumulate: got true, want false"},
		{lerp(func(c *op.Call) { c.Stream = 7 }), "lerp: stream: got 0x7"},
	} {
		s.refused(c.call, status.InvalidProblem, c.text)
		if c.call.Stream != 0 {
			continue // a plan's runs have one, not the plan
		}
		_, _, err := op.Infer(c.call, []bool{true})
		s.ErrorContains(err, c.text)
		_, err = op.NewPlan(c.call, nil, nil)
		s.ErrorContains(err, c.text)
	}
	plan, err := op.NewPlan(lerp(func(*op.Call) {}), nil, nil)
	s.Require().NoError(err)
	run := lerp(func(c *op.Call) { c.Stream = 7 })
	s.ErrorContains(plan.Run(run), "lerp: stream: got 0x7")
	s.ErrorContains(plan.Validate(run), "lerp: stream: got 0x7")
}

// TestLongNames: what is accepted stands in the message whatever was given.
func (s *ErrorSuite) TestLongNames() {
	a, long := s.f32(2, 2), strings.Repeat("é", 1<<19)
	for _, c := range []*op.Call{
		{Op: long},
		{Op: "linear", Kind: long, Inputs: views(a, a)},
		{Op: "gated_product", Kind: long, Inputs: views(a, a)},
		{Op: "lerp", Kind: long, Parameters: []float64{0}, Inputs: views(a, a)},
		{Op: "linear", Backend: long, Inputs: views(a, a)},
	} {
		message := op.Validate(c).Error()
		s.Less(len(message), 1000)
		s.Contains(message, `... (1048576 bytes), want`)
		s.Contains(message, `"éé`)
		s.True(utf8.ValidString(message))
	}
}

// TestNoWordTwice: a message names the device and the backend once.
func (s *ErrorSuite) TestNoWordTwice() {
	for _, b := range backend.Infos() {
		s.False(strings.HasPrefix(b.Reason, b.Name+":"), b.Reason)
	}
	elsewhere := with(s.f32(2, 2), func(v *tensor.View) { v.Device = tensor.Device{Type: 10} })
	s.refused(&op.Call{Op: "linear", Inputs: views(elsewhere, elsewhere), Outputs: views(elsewhere)}, status.Unsupported, "linear: device: got device(10):0, want one of")
	a := s.f32(2, 2)
	s.refused(&op.Call{Op: "linear", Backend: "gpu", Inputs: views(a, a)}, status.InvalidProblem, `linear: backend: got "gpu", want one of`)
	for _, b := range backend.Infos() {
		if err := op.Validate(&op.Call{Op: "linear", Backend: b.Name, Inputs: views(a, a)}); err != nil {
			s.Equal(status.BackendUnavailable, status.Of(err).Code)
			s.True(strings.HasPrefix(err.Error(), "linear: "), err.Error())
			s.Equal(1, strings.Count(err.Error(), " "+b.Name+": ")+strings.Count(err.Error(), " "+b.Name+" backend"), err.Error())
		}
	}
}

// TestDisjointOutputsOfOneBuffer: column slices, and columns that alternate, are outputs of their
// own.
func (s *ErrorSuite) TestDisjointOutputsOfOneBuffer() {
	for _, c := range []struct {
		name            string
		strides         []int64
		first, together int64
	}{
		{"column slices", []int64{8, 1}, 4, 8},
		{"alternating columns", []int64{8, 2}, 1, 8},
	} {
		s.Run(c.name, func() {
			buffer := s.f32(2, c.together)
			one := strided(with(buffer, func(v *tensor.View) { v.Shape = []int64{2, 4} }), c.strides...)
			two := with(one, func(v *tensor.View) { v.Offset = c.first * 4 })
			s.NoError(op.Run(&op.Call{Op: "matmul_bias_activation", Inputs: []*tensor.View{s.f32(2, 3), s.f32(3, 4)}, Outputs: []*tensor.View{one, two}}))
		})
	}
}

// TestNothingAsked: a call without outputs is validated and computes nothing.
func (s *ErrorSuite) TestNothingAsked() {
	x, square := s.f32(4), s.f32(4, 4)
	for name, inputs := range map[string][]*tensor.View{
		"matmul_bias_activation": {square, square}, "matmul_bias_activation_backward": {square, square, square},
		"linear": {square, square}, "linear_backward": {square, square, square}, "activation": {x},
		"gated_activation": {square}, "gated_activation_backward": {s.f32(2, 4), square}, "gated_product": {x, x}, "gated_product_backward": {x, x, x},
		"lerp": {x, x, x}, "lerp_backward": {x, x, x, x},
	} {
		kind := ""
		if strings.HasPrefix(name, "gated") {
			kind = "swiglu"
		}
		signature, _ := op.SignatureOf(name)
		for _, outputs := range [][]*tensor.View{nil, make([]*tensor.View, len(signature.Outputs))} {
			s.NoError(op.Run(&op.Call{Op: name, Kind: kind, Inputs: inputs, Outputs: outputs}), name)
		}
		s.refused(&op.Call{Op: name, Kind: "no such kind", Inputs: inputs[:1]}, status.InvalidProblem, name)
	}
}
