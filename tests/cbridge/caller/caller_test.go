//go:build cgo

package caller_test

import (
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/tests/cbridge/caller"
)

type BridgeSuite struct{ suite.Suite }

func TestBridge(t *testing.T) { suite.Run(t, new(BridgeSuite)) }

func zeros(shape ...int64) *caller.Tensor {
	count := int64(1)
	for _, n := range shape {
		count *= n
	}
	return caller.Floats(make([]float32, count), shape...)
}

func tensors(list ...*caller.Tensor) []*caller.Tensor { return list }

// product is out = a b for 2x3 and 3x2.
func product() *caller.Call {
	a, b := caller.Floats([]float32{1, 2, 3, 4, 5, 6}, 2, 3), caller.Floats([]float32{1, 0, 0, 1, 1, 1}, 3, 2)
	return &caller.Call{Op: "matmul_bias_activation", Inputs: tensors(a, b), Outputs: tensors(zeros(2, 2))}
}

func (s *BridgeSuite) ok(r caller.Result) {
	s.T().Helper()
	s.Require().Zero(r.Code, r.Message)
}

func (s *BridgeSuite) fails(r caller.Result, code status.Code, text string) {
	s.T().Helper()
	s.Equal(int32(code), r.Code, r.Message)
	s.Contains(r.Message, text)
}

// TestOneTable: the header's codes, api.c's classes and go/status are one table.
func (s *BridgeSuite) TestOneTable() {
	s.Len(caller.Statuses, len(status.Codes())+1)
	for name, code := range map[string]status.Code{
		"OK": status.OK, "InvalidProblem": status.InvalidProblem, "DTypeMismatch": status.DTypeMismatch, "Unsupported": status.Unsupported,
		"DeviceMismatch": status.DeviceMismatch, "MisalignedOperand": status.MisalignedOperand, "WorkspaceTooSmall": status.WorkspaceTooSmall,
		"BufferTooSmall": status.BufferTooSmall, "BackendUnavailable": status.BackendUnavailable, "DeviceFailure": status.DeviceFailure,
		"Internal": status.Internal,
	} {
		s.Equal(int32(code), caller.Statuses[name], name)
		s.Equal(code.Class(), caller.StatusClass(int32(code)), name)
	}
	for _, unknown := range []int32{-1, 11, math.MaxInt32, math.MinInt32} {
		s.Equal(status.Code(unknown).Class(), caller.StatusClass(unknown))
	}
}

func (s *BridgeSuite) TestVersions() {
	library, abi, header, headerABI := caller.Version()
	s.Equal(header, library)
	s.Equal(headerABI, abi)
}

func (s *BridgeSuite) TestRun() {
	call := product()
	s.ok(caller.Validate(call))
	s.Equal([]float32{0, 0, 0, 0}, call.Outputs[0].Data)
	s.ok(caller.Run(call))
	s.Equal([]float32{4, 5, 10, 11}, call.Outputs[0].Data)
	call.Kind, call.Threads = "relu", 2
	call.Inputs = append(call.Inputs, caller.Floats([]float32{-5, 1}, 2))
	s.ok(caller.Run(call))
	s.Equal([]float32{0, 6, 5, 12}, call.Outputs[0].Data)
	// the same memory, read by columns: [[1, 1], [0, 1], [0, 1]]
	call.Inputs[1].Strides = []int64{1, 3}
	s.ok(caller.Run(call))
	s.Equal([]float32{0, 7, 0, 16}, call.Outputs[0].Data)
}

func (s *BridgeSuite) TestFlags() {
	input := caller.Floats([]float32{1, 2, 3, 4}, 4)
	out := zeros(2)
	gated := &caller.Call{Op: "gated_activation", Kind: "reglu", Dim: -1, Inputs: tensors(input), Outputs: tensors(out)}
	input.Data[3] = -4
	s.ok(caller.Run(gated))
	s.Equal([]float32{3, 0}, out.Data)
	gated.Gate = caller.GateFirst
	s.ok(caller.Run(gated))
	s.Equal([]float32{3, -8}, out.Data)

	lerp := &caller.Call{Op: "lerp", Parameters: []float64{0.25}, Inputs: tensors(zeros(2), caller.Floats([]float32{4, 8}, 2)), Outputs: tensors(out)}
	s.ok(caller.Run(lerp))
	s.Equal([]float32{1, 2}, out.Data)

	one := caller.Floats([]float32{1}, 1, 1)
	bias := caller.Floats([]float32{10}, 1)
	backward := &caller.Call{
		Op: "linear_backward", Flags: caller.Accumulate, Inputs: tensors(one, one, one, zeros(1)), Outputs: tensors(nil, nil, bias),
	}
	s.ok(caller.Run(backward))
	s.Equal([]float32{11}, bias.Data)
}

// TestScalarsNeedNoShape: a tensor without dimensions may have null pointers for its shape and
// strides.
func (s *BridgeSuite) TestScalarsNeedNoShape() {
	grad, weight := caller.Floats([]float32{3}), caller.Floats([]float32{0.5})
	out := zeros()
	s.Require().Nil(grad.Shape)
	s.ok(caller.Run(&caller.Call{Op: "lerp_backward", Inputs: tensors(grad, grad, zeros(), weight), Outputs: tensors(nil, nil, out)}))
	s.Equal([]float32{-9}, out.Data)
}

func (s *BridgeSuite) TestInferAndWorkspace() {
	call := product()
	grad := call.Outputs[0]
	shapes, workspace, r := caller.Infer(&caller.Call{Op: "matmul_bias_activation_backward", Kind: "tanh", Inputs: tensors(grad, call.Inputs[0], call.Inputs[1])})
	s.ok(r)
	s.Equal([][]int64{{2, 3}, {3, 2}, nil}, shapes[:3])
	s.Equal(uint64(16), workspace)
	backward := &caller.Call{
		Op: "matmul_bias_activation_backward", Kind: "tanh", Inputs: tensors(grad, call.Inputs[0], call.Inputs[1]), Outputs: tensors(zeros(2, 3)), Workspace: 15,
	}
	r = caller.Run(backward)
	s.fails(r, status.WorkspaceTooSmall, "got 15 bytes, want at least 16")
	s.Equal([2]int64{16, 15}, [2]int64{r.Needed, r.Got})
	backward.Workspace = 16
	s.ok(caller.Run(backward))
}

func (s *BridgeSuite) TestRefuses() {
	change := func(change func(c *caller.Call)) *caller.Call {
		c := product()
		change(c)
		return c
	}
	in := func(change func(t *caller.Tensor)) *caller.Call {
		c := product()
		change(c.Inputs[1])
		return c
	}
	const invalid = status.InvalidProblem
	// Memory that WebGPU did not give out, or where there is no WebGPU that it would run on.
	strangers := status.BackendUnavailable
	if infos := backend.Infos(); infos[len(infos)-1].Available {
		strangers = invalid
	}
	for _, c := range []struct {
		name string
		call *caller.Call
		code status.Code
		text string
	}{
		{"null call", nil, invalid, "call: a null pointer"},
		{"another header", change(func(c *caller.Call) { c.SizeError = 8 }), invalid, "built with another epigrad.h"},
		{"null op", change(func(c *caller.Call) { c.NullOp = true }), invalid, `op: got ""`},
		{"no such op", change(func(c *caller.Call) { c.Op = "conv" }), invalid, `op: got "conv"`},
		{"negative counts", change(func(c *caller.Call) { c.Surplus = -5 }), invalid, "inputs and"},
		{"too many", change(func(c *caller.Call) { c.Surplus = 100 }), invalid, "want at most"},
		{"missing", change(func(c *caller.Call) { c.Inputs[0] = nil }), invalid, "a: missing"},
		{"unknown flags", change(func(c *caller.Call) { c.Flags = 1<<31 | 1<<5 }), invalid, "flags: got unknown bits 0x80000020, want only EPG_ACCUMULATE (0x1), "},
		{"gate of no halves", change(func(c *caller.Call) { c.Gate = caller.GateFirst }), invalid, "gate: got 1, want 0: this operation takes no gate"},
		{"nothing to add to", change(func(c *caller.Call) { c.Flags = caller.Accumulate }), invalid, "accumulate: got true, want false"},
		{"parameters of none", change(func(c *caller.Call) { c.Parameters = []float64{1} }), invalid, "parameters: got 1, want none"},
		{"dim of no split", change(func(c *caller.Call) { c.Dim = 1 }), invalid, "dim: got 1, want 0"},
		{"negative threads", change(func(c *caller.Call) { c.Threads = -1 }), invalid, "num_threads: got -1"},
		{"stream of the CPU", change(func(c *caller.Call) { c.Stream = 1 }), invalid, "stream: got 0x1, want 0: tensors on cpu"},
		{"integers", in(func(t *caller.Tensor) { t.Code = 0 }), status.DTypeMismatch, "b: dtype int32, want one of"},
		{"lanes", in(func(t *caller.Tensor) { t.Lanes = 4 }), status.DTypeMismatch, "b: dtype float32x4"},
		{"mixed", in(func(t *caller.Tensor) { t.Bits = 64 }), status.DTypeMismatch, "b: dtype float64, want float32"},
		{"device", in(func(t *caller.Tensor) { t.Device = 2 }), status.DeviceMismatch, "b: on cuda:0, want cpu"},
		{"device of all", change(func(c *caller.Call) {
			for _, t := range append(c.Inputs, c.Outputs...) {
				t.Device = 15
			}
		}), strangers, "webgpu: "},
		{"null data", in(func(t *caller.Tensor) { t.Data = nil }), invalid, "b: got a null pointer"},
		{"misaligned", in(func(t *caller.Tensor) { t.ByteOffset = 2 }), status.MisalignedOperand, "b: address"},
		{"negative size", in(func(t *caller.Tensor) { t.Shape = []int64{3, -2} }), invalid, "b: shape [3, -2] has a negative size"},
		{"far strides", in(func(t *caller.Tensor) { t.Strides = []int64{math.MaxInt64, 1} }), invalid, "beyond 64 bits"},
		{"far offset", in(func(t *caller.Tensor) { t.ByteOffset = math.MaxUint64 - 7 }), invalid, "b: byte_offset"},
		{"rank", in(func(t *caller.Tensor) { t.Shape = make([]int64, 65) }), invalid, "65 dimensions"},
	} {
		s.Run(c.name, func() {
			r := caller.Run(c.call)
			s.fails(r, c.code, c.text)
			s.Equal(r, caller.Validate(c.call))
			if c.call != nil {
				s.Equal([]float32{0, 0, 0, 0}, c.call.Outputs[0].Data)
			}
		})
	}
}

func (s *BridgeSuite) TestStatedSizes() {
	call := product()
	call.Inputs[0].NBytes = 24
	s.ok(caller.Run(call))
	call.Inputs[0].NBytes = math.MaxUint64 // more than any tensor reaches
	s.ok(caller.Run(call))
	call.Inputs[0].NBytes = 20
	r := caller.Run(call)
	s.fails(r, status.BufferTooSmall, "a: shape [2, 3]")
	s.Equal([2]int64{24, 20}, [2]int64{r.Needed, r.Got})
}

func (s *BridgeSuite) TestHandlesOfPlansAreNeverUsedTwice() {
	seen, mutex, done := map[caller.Plan]bool{}, sync.Mutex{}, sync.WaitGroup{}
	for range 8 {
		done.Go(func() {
			for range 50 {
				plan, r := caller.CreatePlan(product())
				s.ok(r)
				mutex.Lock()
				s.False(seen[plan])
				seen[plan] = true
				mutex.Unlock()
				_, r = plan.Workspace()
				s.ok(r)
				s.ok(plan.Destroy())
				_, r = plan.Workspace()
				s.Equal(int32(status.InvalidProblem), r.Code)
				s.Equal(int32(status.InvalidProblem), plan.Destroy().Code)
			}
		})
	}
	done.Wait()
	s.fails(caller.Plan(0).Destroy(), status.InvalidProblem, "handle 0 is not an open plan")
}

func (s *BridgeSuite) TestPlans() {
	call := product()
	plan, r := caller.CreatePlan(call)
	s.ok(r)
	bytes, r := plan.Workspace()
	s.ok(r)
	s.Zero(bytes)
	s.ok(plan.Run(call))
	s.Equal([]float32{4, 5, 10, 11}, call.Outputs[0].Data)
	texts, numbers, r := plan.Query(0)
	s.ok(r)
	s.Equal([]string{"matmul_bias_activation", "none", "float32", "float32"}, texts[:4])
	s.NotContains(texts, "")
	s.Positive(numbers[0])
	s.Equal([]int32{1, 1, 1}, numbers[1:])
	_, _, r = plan.Query(8)
	s.fails(r, status.InvalidProblem, "epg_plan_query: struct_size 104, want 96: the program was built with another epigrad.h")
	other := product()
	other.Inputs[0] = zeros(1, 3)
	s.fails(plan.Run(other), status.InvalidProblem, "want the plan's shape")
	s.fails(plan.Run(nil), status.InvalidProblem, "null pointer")
	other = product()
	other.Op, other.Flags = "", 1<<7
	s.fails(plan.Run(other), status.InvalidProblem, "matmul_bias_activation: flags: got unknown bits 0x80")
	other.Flags, other.Stream = 0, 1
	s.fails(plan.Run(other), status.InvalidProblem, "matmul_bias_activation: stream: got 0x1")
	other.Stream, other.Inputs[1].Lanes = 0, 2
	s.fails(plan.Run(other), status.DTypeMismatch, "matmul_bias_activation: b: dtype float32x2")
	s.ok(plan.Destroy())
	s.fails(plan.Destroy(), status.InvalidProblem, "is not an open plan")
	s.fails(plan.Run(call), status.InvalidProblem, "is not an open plan")
	_, _, r = plan.Query(0)
	s.fails(r, status.InvalidProblem, "is not an open plan")
	_, r = caller.CreatePlan(&caller.Call{Op: "lerp"})
	s.fails(r, status.InvalidProblem, "start: missing")
}

func (s *BridgeSuite) TestBackends() {
	_, needed, r := caller.Backends(0)
	s.fails(r, status.BufferTooSmall, "room for 0")
	text, _, r := caller.Backends(int(needed))
	s.ok(r)
	s.Contains(text, `"name":"cpu"`)
}

// TestRoomForEveryOperation: the C side has arrays of fixed sizes.
func (s *BridgeSuite) TestRoomForEveryOperation() {
	for _, signature := range op.Signatures() {
		kind := ""
		if strings.HasPrefix(signature.Name, "gated") || strings.HasPrefix(signature.Name, "experts") {
			kind = "glu"
		}
		r := caller.Run(&caller.Call{
			Op: signature.Name, Kind: kind, Inputs: make([]*caller.Tensor, len(signature.Inputs)), Outputs: make([]*caller.Tensor, len(signature.Outputs)),
		})
		s.fails(r, status.InvalidProblem, signature.Inputs[0].Name+": missing")
	}
}

// TestLastErrorIsTheThreads: threads that fail at the same time each read their own message.
func (s *BridgeSuite) TestLastErrorIsTheThreads() {
	var done sync.WaitGroup
	for worker := range 8 {
		done.Go(func() {
			name := strings.Repeat("x", worker+1)
			for range 200 {
				s.Contains(caller.Run(&caller.Call{Op: name}).Message, `op: got "`+name+`"`)
			}
		})
	}
	done.Wait()
}

// TestALongMessageIsCutBetweenCharacters: the slot has 4096 bytes.
func (s *BridgeSuite) TestALongMessageIsCutBetweenCharacters() {
	for _, start := range []string{"", "x"} {
		long := caller.SetLastError(start + strings.Repeat("é", 10000))
		s.Less(len(long), 4096)
		s.Greater(len(long), 4090)
		s.Equal(start+strings.Repeat("é", len(long)/2), long)
	}
}

// TestALongNameLeavesRoom: what is accepted stands behind it.
func (s *BridgeSuite) TestALongNameLeavesRoom() {
	long := strings.Repeat("é", 1<<19)
	s.fails(caller.Run(&caller.Call{Op: long}), status.InvalidProblem, "... (1048576 bytes), want one of matmul_bias_activation, ")
	call := product()
	call.Kind = long
	s.fails(caller.Run(call), status.InvalidProblem, "... (1048576 bytes), want one of none, relu, ")
	call.Inputs[0].Lanes = 4
	s.fails(caller.Run(call), status.DTypeMismatch, "matmul_bias_activation: a: dtype float32x4")
}
