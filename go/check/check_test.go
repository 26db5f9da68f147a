package check_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

type CheckSuite struct {
	suite.Suite
	memory []uint64
}

func TestCheck(t *testing.T) { suite.Run(t, new(CheckSuite)) }

func (s *CheckSuite) SetupTest() { s.memory = make([]uint64, 64) }

// operand is a float32 tensor at a byte of the memory.
func (s *CheckSuite) operand(name string, at int64, shape, strides []int64) check.Operand {
	v, err := tensor.New(unsafe.Pointer(&s.memory[0]), at, dtype.Float32, tensor.Device{Type: tensor.CPU}, shape, strides, 0)
	s.Require().NoError(err)
	return check.Operand{Name: name, View: &v}
}

func (s *CheckSuite) fails(err error, code status.Code, text string) *status.Error {
	s.T().Helper()
	s.Require().Error(err)
	s.Equal(code, status.Of(err).Code)
	s.Equal(text, err.Error())
	return status.Of(err)
}

func (s *CheckSuite) TestMessages() {
	s.fails(check.Invalid("op", "a", "got %d", 3), status.InvalidProblem, "op: a: got 3")
	original := &status.Error{Code: status.BufferTooSmall, Message: "small", Needed: 8, Got: 4}
	wrapped := s.fails(check.Wrap("op", "a", original), status.BufferTooSmall, "op: a: small")
	s.Equal([2]int64{8, 4}, [2]int64{wrapped.Needed, wrapped.Got})
	s.Equal("small", original.Message, "the error that was wrapped stays as it was")
	s.fails(check.Wrap("op", "a", errors.New("odd")), status.Internal, "op: a: odd")
	s.Equal("[4, 8]", check.Sizes([]int64{4, 8}))
	s.Equal("[]", check.Sizes(nil))
}

func (s *CheckSuite) TestShape() {
	s.NoError(check.Shape("op", "a", []int64{4, 8}, []int64{4, 8}, "[m, n]"))
	s.NoError(check.Shape("op", "a", nil, []int64{}, "a scalar,"))
	s.fails(check.Shape("op", "a", []int64{4}, []int64{8}, "[n]"), status.InvalidProblem, "op: a: shape [4], want [n] = [8]")
	s.fails(check.Shape("op", "a", []int64{4}, []int64{4, 1}, "the output's"), status.InvalidProblem, "op: a: shape [4], want the output's [4, 1]")
}

func (s *CheckSuite) TestDTypeAndDevice() {
	a, b := s.operand("a", 0, []int64{2}, nil), s.operand("b", 0, []int64{2}, nil)
	absent := check.Operand{Name: "bias"}
	dt, err := check.DType("op", []check.Operand{absent, a, b})
	s.Require().NoError(err)
	s.Equal(dtype.Float32, dt)
	device, err := check.Device("op", []check.Operand{absent, a, b})
	s.Require().NoError(err)
	s.Equal(tensor.CPU, device.Type)
	b.View.DType, b.View.Device = dtype.BFloat16, tensor.Device{Type: tensor.CUDA}
	_, err = check.DType("op", []check.Operand{a, absent, b})
	s.fails(err, status.DTypeMismatch, "op: b: dtype bfloat16, want float32 as a has: one dtype per call")
	_, err = check.Device("op", []check.Operand{a, absent, b})
	s.fails(err, status.DeviceMismatch, "op: b: on cuda:0, want cpu where a is: one device per call")
	_, err = check.DType("op", []check.Operand{absent})
	s.fails(err, status.InvalidProblem, "op: inputs: got none, want at least one tensor")
	_, err = check.Device("op", nil)
	s.fails(err, status.InvalidProblem, "op: inputs: got none, want at least one tensor")
}

func (s *CheckSuite) TestMemory() {
	memory := func(o check.Operand) error { return check.Memory("op", []check.Operand{{Name: "absent"}, o}) }
	good := s.operand("a", 8, []int64{2, 3}, []int64{4, 1})
	s.NoError(memory(good))
	good.View.NBytes = 28
	s.NoError(memory(good))
	good.View.NBytes = 27
	small := s.fails(memory(good), status.BufferTooSmall, "op: a: shape [2, 3] with strides [4, 1] reaches bytes [0, 28), want inside the buffer's 27")
	s.Equal([2]int64{28, 27}, [2]int64{small.Needed, small.Got})
	null := s.operand("a", 0, []int64{2}, nil)
	null.View.Base = nil
	s.fails(memory(null), status.InvalidProblem, "op: a: got a null pointer, want memory for shape [2]")
	null.View.Shape = []int64{0}
	s.NoError(memory(null), "what is empty needs no memory")
	for at := int64(1); at < 4; at++ {
		err := memory(s.operand("a", at, []int64{2}, nil))
		s.Equal(status.MisalignedOperand, status.Of(err).Code)
		s.NoError(memory(s.operand("a", at, []int64{2, 0}, nil)))
	}
}

func (s *CheckSuite) TestAliasing() {
	in, left := s.operand("in", 0, []int64{4, 4}, []int64{8, 1}), s.operand("left", 16, []int64{4, 4}, []int64{8, 1})
	s.NoError(check.Aliasing("op", []check.Operand{in}, []check.Operand{left}))
	across := s.operand("across", 12, []int64{4, 4}, []int64{8, 1})
	s.fails(check.Aliasing("op", []check.Operand{in}, []check.Operand{across}), status.InvalidProblem,
		"op: across: shares memory with in, want an output of its own")
	s.fails(check.Aliasing("op", nil, []check.Operand{left, {Name: "absent"}, across}), status.InvalidProblem,
		"op: across: shares memory with left, want an output of its own")
	over, beside := in, across
	over.Name, over.Replaces, beside.Replaces = "over", "in", "in"
	s.NoError(check.Aliasing("op", []check.Operand{in}, []check.Operand{over}), "an output may replace the input that it names")
	s.fails(check.Aliasing("op", []check.Operand{in}, []check.Operand{beside}), status.InvalidProblem, "op: across: shares memory with in, want an output of its own")
	over.Replaces = "another"
	s.fails(check.Aliasing("op", []check.Operand{in}, []check.Operand{over}), status.InvalidProblem, "op: over: shares memory with in, want an output of its own")
	s.NoError(check.SelfOverlap("op", []check.Operand{{Name: "absent"}, left}))
	s.fails(check.SelfOverlap("op", []check.Operand{s.operand("out", 0, []int64{2, 2}, []int64{1, 1})}), status.InvalidProblem,
		"op: out: shape [2, 2] with strides [1, 1] overlaps itself, want an output that reaches each element once")
}

func (s *CheckSuite) TestWorkspace() {
	base := uintptr(unsafe.Pointer(&s.memory[0]))
	in := []check.Operand{{Name: "absent"}, s.operand("a", 64, []int64{4}, nil), s.operand("empty", 0, []int64{0}, nil)}
	s.NoError(check.Workspace("op", 0, 0, 0, 64, in), "none needed")
	s.NoError(check.Workspace("op", base, 64, 64, 8, in), "just before a tensor")
	s.NoError(check.Workspace("op", base+80, 64, 64, 8, in), "just behind it")
	for _, at := range []uintptr{8, 64, 72} {
		s.fails(check.Workspace("op", base+at, 64, 64, 8, in), status.InvalidProblem, "op: workspace: shares memory with a, want scratch of its own")
	}
	small := s.fails(check.Workspace("op", base, 63, 64, 8, in), status.WorkspaceTooSmall, "op: workspace: got 63 bytes, want at least 64")
	s.Equal([2]int64{64, 63}, [2]int64{small.Needed, small.Got})
	none := s.fails(check.Workspace("op", 0, 999, 64, 8, in), status.WorkspaceTooSmall, "op: workspace: got 0 bytes, want at least 64")
	s.Zero(none.Got, "a size without memory is none")
	err := check.Workspace("op", base+128+4, 64, 64, 8, in)
	s.Equal(status.MisalignedOperand, status.Of(err).Code)
}

func (s *CheckSuite) TestOneOf() {
	s.NoError(check.OneOf("op", "kind", "glu", []string{"reglu", "glu"}))
	s.fails(check.OneOf("op", "kind", "GLU", []string{"reglu", "glu"}), status.InvalidProblem, `op: kind: got "GLU", want one of reglu, glu (did you mean "glu"?)`)
}

func (s *CheckSuite) TestAMisspelledNameGetsAProposal() {
	names := []string{"none", "gelu", "gelu_tanh", "hardswish", "sigmoid", "softplus", "relu", "relu6", "tanh", "celu"}
	for got, want := range map[string]string{
		"GELU": "gelu", "gelu-tanh": "gelu_tanh", " Gelu Tanh": "gelu_tanh", "hard_swish": "hardswish", "SiLU": "silu", "tanh_gelu": "gelu_tanh",
		"gelo": "gelu", "hardswosch": "hardswish", "sigmiod": "sigmoid", "gelu_tahn": "gelu_tanh", "relu_": "relu",
		"": "", "_": "", "sin": "", "x": "", "tan": "", "geglu_oai": "", strings.Repeat("gelu", 17): "",
		// other functions than the one whose name is near
		"logsigmoid": "", "hardsilu": "", "softsign": "", "arctan": "", "prelu": "", "lrelu": "", "crelu": "", "relu5": "", "gelu_erf": "",
	} {
		err := check.OneOf("op", "kind", got, names, "silu")
		s.Require().Error(err)
		if want == "" {
			s.NotContains(err.Error(), "did you mean", got)
		} else {
			s.Contains(err.Error(), fmt.Sprintf("celu (did you mean %q?)", want), got)
		}
	}
}
