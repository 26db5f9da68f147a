package op_test

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

type PlanSuite struct{ suite.Suite }

func TestPlan(t *testing.T) { suite.Run(t, new(PlanSuite)) }

// filled is a contiguous tensor of small numbers.
func (s *PlanSuite) filled(dt dtype.DType, shape ...int64) *tensor.View {
	v := array(s.T(), dt, shape...)
	for i := range v.Numel() {
		p := unsafe.Add(v.Base, i*dt.Size())
		if x := float64(i%7)/4 - 0.6; dt == dtype.Float64 {
			*(*float64)(p) = x
		} else {
			*(*float32)(p) = float32(x)
		}
	}
	return v
}

func (s *PlanSuite) TestRunsAsTheOperationDoes() {
	const m, k, n = 5, 7, 6
	input, weight, grad := s.filled(dtype.Float32, m, k), s.filled(dtype.Float32, n, k), s.filled(dtype.Float32, m, n)
	describe := &op.Call{Op: "linear_backward", Kind: "gelu", Inputs: []*tensor.View{grad, input, weight}}
	plan, err := op.NewPlan(describe, nil, nil)
	s.Require().NoError(err)
	s.Equal(int64(m*n*4), plan.WorkspaceBytes())
	run := func() *op.Call {
		scratch := array(s.T(), dtype.Float64, 64)
		return &op.Call{
			Inputs:    describe.Inputs,
			Outputs:   []*tensor.View{array(s.T(), dtype.Float32, m, k), array(s.T(), dtype.Float32, n, k)},
			Workspace: unsafe.Add(scratch.Base, -uintptr(scratch.Base)%64), WorkspaceBytes: m * n * 4,
		}
	}
	planned, plain := run(), run()
	s.NoError(plan.Validate(planned))
	s.NoError(plan.Run(planned))
	plain.Op, plain.Kind = "linear_backward", "gelu"
	s.NoError(op.Run(plain))
	for i := range plain.Outputs {
		s.Equal(bytesOf(plain.Outputs[i]), bytesOf(planned.Outputs[i]))
	}
	// Whatever a run leaves out, the workspace is the plan's.
	little := run()
	little.Outputs, little.WorkspaceBytes = little.Outputs[:1], 8
	failure := plan.Run(little)
	s.Require().Error(failure)
	s.Equal(status.WorkspaceTooSmall, status.Of(failure).Code)
	s.Equal(int64(m*n*4), status.Of(failure).Needed)
}

// experts is the backward of a mixture; its outputs are contiguous.
func (s *PlanSuite) experts() (c *op.Call, outputs []*tensor.View) {
	const tokens, each, n, h, groups = 20, 2, 16, 32, 8
	f32 := func(shape ...int64) *tensor.View { return s.filled(dtype.Float32, shape...) }
	weightIn, weightOut := f32(groups, 2*h, n), f32(groups, n, h)
	index := array(s.T(), dtype.Int64, tokens, each)
	inputs := []*tensor.View{f32(tokens, n), f32(tokens, n), index, f32(tokens, each), weightIn, nil, weightOut, nil, f32(tokens*each, 2*h)}
	outputs = []*tensor.View{f32(tokens, n), f32(tokens, each), f32(groups, 2*h, n), nil, f32(groups, n, h), nil}
	return &op.Call{Op: "experts_backward", Kind: "swiglu", Inputs: inputs, Outputs: outputs}, outputs
}

// TestAPlansWorkspaceIsEnoughForAnyRun: one that adds to gradients cannot have their memory as
// scratch, and neither can one that does not give them.
func (s *PlanSuite) TestAPlansWorkspaceIsEnoughForAnyRun() {
	describe, outputs := s.experts()
	exact := []bool{true, true, true, true, true, true}
	plan, err := op.NewPlan(describe, nil, exact)
	s.Require().NoError(err)
	scratch := array(s.T(), dtype.Float64, plan.WorkspaceBytes()/8+8)
	for _, accumulate := range []bool{false, true} {
		for missing := range outputs {
			given := slices.Clone(outputs)
			given[missing] = nil
			s.NoError(plan.Run(&op.Call{
				Inputs: describe.Inputs, Outputs: given, Accumulate: accumulate,
				Workspace: unsafe.Add(scratch.Base, -uintptr(scratch.Base)%64), WorkspaceBytes: plan.WorkspaceBytes(),
			}))
		}
	}
}

// TestAMixtureSaysWhatItsProductsSay, and not what the kernels say that move its rows.
func (s *PlanSuite) TestAMixtureSaysWhatItsProductsSay() {
	describe, _ := s.experts()
	mixture, err := op.NewPlan(describe, nil, nil)
	s.Require().NoError(err)
	layer, err := op.NewPlan(&op.Call{Op: "linear", Inputs: []*tensor.View{s.filled(dtype.Float32, 20, 16), s.filled(dtype.Float32, 32, 16)}}, nil, nil)
	s.Require().NoError(err)
	s.Equal(layer.Precision(), mixture.Precision())
	s.Equal(layer.Sku().Arch, mixture.Sku().Arch)
	s.Equal(layer.Sku().VectorWidth, mixture.Sku().VectorWidth)
}

func (s *PlanSuite) TestRefusesOtherProblems() {
	a, b := s.filled(dtype.Float32, 2, 3), s.filled(dtype.Float32, 3, 4)
	plan, err := op.NewPlan(&op.Call{Op: "matmul_bias_activation", Inputs: []*tensor.View{strided(a, 5, 1), b}}, []bool{true}, nil)
	s.Require().NoError(err)
	wide := strided(s.filled(dtype.Float32, 2, 5), 5, 1)
	wide = with(wide, func(v *tensor.View) { v.Shape = []int64{2, 3} })
	for _, c := range []struct {
		name    string
		inputs  []*tensor.View
		outputs []*tensor.View
		code    status.Code
		text    string
	}{
		{"shape", []*tensor.View{s.filled(dtype.Float32, 1, 3), b}, nil, status.InvalidProblem, "a: shape [1, 3], want the plan's shape [2, 3]"},
		{"strides", []*tensor.View{a, b}, nil, status.InvalidProblem, "a: strides [3, 1], want [5, 1], of the plan's leading dimension"},
		{"dtype", []*tensor.View{s.filled(dtype.Float64, 2, 3), b}, nil, status.DTypeMismatch, "a: dtype float64, want the plan's float32"},
		{
			"device",
			[]*tensor.View{wide, with(b, func(v *tensor.View) { v.Device.Type = tensor.CUDA })},
			nil,
			status.DeviceMismatch, "b: on cuda:0, want the plan's cpu",
		},
		{"out", []*tensor.View{wide, b}, []*tensor.View{s.filled(dtype.Float32, 4, 2)}, status.InvalidProblem, "out: shape [4, 2], want the plan's"},
		{"missing", []*tensor.View{wide}, nil, status.InvalidProblem, "b: missing"},
	} {
		s.Run(c.name, func() {
			err := plan.Validate(&op.Call{Inputs: c.inputs, Outputs: c.outputs})
			s.Require().Error(err)
			s.Equal(c.code, status.Of(err).Code)
			s.Contains(err.Error(), c.text)
			s.Equal(err, plan.Run(&op.Call{Inputs: c.inputs, Outputs: c.outputs}))
		})
	}
	s.NoError(plan.Run(&op.Call{Inputs: []*tensor.View{wide, strided(b, 1, 3)}, Outputs: []*tensor.View{s.filled(dtype.Float32, 2, 4)}}),
		"strides are fixed only where the plan says so")
}

func (s *PlanSuite) TestSelectRefusesWhatRunWould() {
	x := s.filled(dtype.Float32, 3)
	_, err := op.NewPlan(&op.Call{Op: "gated_activation", Kind: "glu", Inputs: []*tensor.View{x}}, nil, nil)
	s.Equal(status.InvalidProblem, status.Of(err).Code)
	_, err = op.NewPlan(&op.Call{Op: "no such op"}, nil, nil)
	s.Equal(status.InvalidProblem, status.Of(err).Code)
	_, err = op.NewPlan(&op.Call{Op: "activation", Inputs: []*tensor.View{with(x, func(v *tensor.View) { v.Device.Type = tensor.CUDA })}}, nil, nil)
	s.Equal(status.BackendUnavailable, status.Of(err).Code)
}

func (s *PlanSuite) TestDescribesItself() {
	for _, dt := range dtype.All() {
		x := array(s.T(), dt, 4)
		plan, err := op.NewPlan(&op.Call{Op: "lerp_backward", Inputs: []*tensor.View{x, x, x, x}}, nil, nil)
		s.Require().NoError(err)
		sku, precision, signature := plan.Sku(), plan.Precision(), plan.Signature()
		s.Equal([]string{"lerp_backward", dt.String(), dt.Accumulator().String(), "cpu"}, []string{sku.Op, sku.DType, sku.Accumulator, sku.Backend})
		s.Contains(sku.Kernel, dt.Short())
		s.Equal(sku.Accumulator, precision.Accumulator)
		s.True(precision.Deterministic)
		s.Equal("lerp_backward", signature.Name)
		s.Equal([]string{"grad_output", "start", "end", "weight"}, names(signature.Inputs))
		s.Equal([]string{"grad_start", "grad_end", "grad_weight"}, names(signature.Outputs))
	}
}

func names(arguments []op.Argument) []string {
	var list []string
	for _, a := range arguments {
		list = append(list, a.Name)
	}
	return list
}

// TestWorkspaceIsEnoughWithoutWhatIsKept: a run without the preactivation needs memory for it.
func (s *PlanSuite) TestWorkspaceIsEnoughWithoutWhatIsKept() {
	x, weight := s.filled(dtype.Float32, 3, 4), s.filled(dtype.Float32, 4, 4)
	for _, c := range []op.Call{
		{Op: "gated_mlp", Kind: "glu", Inputs: []*tensor.View{x, weight, nil, s.filled(dtype.Float32, 4, 2)}},
		{Op: "gated_linear", Kind: "glu", Inputs: []*tensor.View{x, weight, weight}},
		{Op: "mlp", Kind: "gelu", Inputs: []*tensor.View{x, weight, nil, weight}},
	} {
		plan, err := op.NewPlan(&c, nil, nil)
		s.Require().NoError(err)
		_, bytes, err := op.Infer(&c, []bool{true, false})
		s.Require().NoError(err)
		s.GreaterOrEqual(plan.WorkspaceBytes(), bytes, c.Op)
	}
}

// TestKeepsNothingOfTheDescription: the caller may free the shapes that described the problem.
func (s *PlanSuite) TestKeepsNothingOfTheDescription() {
	x, grad := s.filled(dtype.Float32, 2, 4), s.filled(dtype.Float32, 2, 2)
	described := []*tensor.View{with(grad, func(v *tensor.View) { v.Shape = []int64{2, 2} }), with(x, func(v *tensor.View) { v.Shape = []int64{2, 4} })}
	plan, err := op.NewPlan(&op.Call{Op: "gated_activation_backward", Kind: "glu", Dim: -1, Inputs: described}, nil, nil)
	s.Require().NoError(err)
	described[0].Shape[0], described[1].Shape[0] = 7, 7
	s.NoError(plan.Validate(&op.Call{Inputs: []*tensor.View{grad, x}, Outputs: []*tensor.View{array(s.T(), dtype.Float32, 2, 4)}}))
}
