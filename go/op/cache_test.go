package op_test

import (
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/go/tuning"
)

type CacheSuite struct{ suite.Suite }

func TestCache(t *testing.T) { suite.Run(t, new(CacheSuite)) }

func (s *CacheSuite) SetupTest() { op.ClearCache() }

// after returns what a call adds to the cache's size, hits and misses.
func (s *CacheSuite) after(c *op.Call) [3]int64 {
	size, hits, misses := op.CacheFacts()
	s.Require().NoError(op.Run(c))
	newSize, newHits, newMisses := op.CacheFacts()
	return [3]int64{int64(newSize - size), newHits - hits, newMisses - misses}
}

func (s *CacheSuite) activation(dt dtype.DType, shape ...int64) *op.Call {
	return &op.Call{
		Op: "activation", Kind: "silu", Inputs: []*tensor.View{array(s.T(), dt, shape...)}, Outputs: []*tensor.View{array(s.T(), dt, shape...)},
	}
}

func (s *CacheSuite) TestGeometryIsTheKey() {
	missed, hit := [3]int64{1, 0, 1}, [3]int64{0, 1, 0}
	s.Equal(missed, s.after(s.activation(dtype.Float32, 4, 4)))
	s.Equal(hit, s.after(s.activation(dtype.Float32, 4, 4)), "other memory, the same geometry")
	threads := s.activation(dtype.Float32, 4, 4)
	threads.Threads = 3
	s.Equal(hit, s.after(threads), "what belongs to a run")
	s.Equal(missed, s.after(s.activation(dtype.Float64, 4, 4)), "dtype")
	s.Equal(missed, s.after(s.activation(dtype.Float32, 16)), "rank")
	s.Equal(missed, s.after(s.activation(dtype.Float32, 2, 8)), "shape")
	kind := s.activation(dtype.Float32, 4, 4)
	kind.Kind = "tanh"
	s.Equal(missed, s.after(kind), "kind")
	turned := s.activation(dtype.Float32, 4, 4)
	turned.Inputs[0] = strided(turned.Inputs[0], 1, 4)
	s.Equal(missed, s.after(turned), "strides")
	turned = s.activation(dtype.Float32, 4, 4)
	turned.Outputs[0] = strided(turned.Outputs[0], 1, 4)
	s.Equal(missed, s.after(turned), "strides of the output")

	lerp := func(weight float64) *op.Call {
		a := array(s.T(), dtype.Float32, 2)
		return &op.Call{Op: "lerp", Parameters: []float64{weight}, Inputs: []*tensor.View{a, a}, Outputs: []*tensor.View{array(s.T(), dtype.Float32, 2)}}
	}
	s.Equal(missed, s.after(lerp(0.25)))
	s.Equal(hit, s.after(lerp(0.5)), "a weight belongs to a run too")

	gated := func(dim int, first op.Gate) *op.Call {
		return &op.Call{
			Op: "gated_activation", Kind: "glu", Dim: dim, Gate: first,
			Inputs: []*tensor.View{array(s.T(), dtype.Float32, 2, 2)}, Outputs: []*tensor.View{array(s.T(), dtype.Float32, 1, 2)},
		}
	}
	s.Equal(missed, s.after(gated(0, op.GateSecond)))
	s.Equal(missed, s.after(gated(0, op.GateFirst)), "order of the halves")
	s.Equal(hit, s.after(gated(0, op.GateFirst)))
}

// TestEveryFieldIsInTheKey: a call that differs in one field from one before has a kernel of its
// own, unless the field belongs to a run.
func (s *CacheSuite) TestEveryFieldIsInTheKey() {
	square := func() *tensor.View { return array(s.T(), dtype.Float32, 2, 2) }
	linear := func() *op.Call {
		return &op.Call{Op: "linear", Kind: "silu", Inputs: []*tensor.View{square(), square()}, Outputs: []*tensor.View{square()}}
	}
	gradient := func() *op.Call {
		return &op.Call{
			Op: "linear_backward", Kind: "none", Inputs: []*tensor.View{square(), square(), square()},
			Outputs: []*tensor.View{nil, square()},
		}
	}
	leaky := func() *op.Call {
		c := linear()
		c.Kind = "leaky_relu"
		return c
	}
	gated := func() *op.Call {
		return &op.Call{
			Op: "gated_activation", Kind: "glu", Dim: 1, Inputs: []*tensor.View{square()},
			Outputs: []*tensor.View{array(s.T(), dtype.Float32, 2, 1)},
		}
	}
	fields := map[string]struct {
		call   func() *op.Call
		change func(c *op.Call)
	}{
		"Op":             {linear, func(c *op.Call) { c.Op = "matmul_bias_activation" }},
		"Kind":           {linear, func(c *op.Call) { c.Kind = "tanh" }},
		"Parameters":     {leaky, func(c *op.Call) { c.Parameters = []float64{0.5} }},
		"Dim":            {gated, func(c *op.Call) { c.Dim = -1 }},
		"Gate":           {gated, func(c *op.Call) { c.Gate = op.GateFirst }},
		"Accumulate":     {gradient, func(c *op.Call) { c.Accumulate = true }},
		"AllowTF32":      {linear, func(c *op.Call) { c.AllowTF32 = true }},
		"BatchInvariant": {linear, func(c *op.Call) { c.BatchInvariant = true }},
		"Backend":        {linear, func(c *op.Call) { c.Backend = "cpu" }},
		"Inputs":         {linear, func(c *op.Call) { c.Inputs[0] = strided(c.Inputs[0], 1, 2) }},
		"Outputs":        {linear, func(c *op.Call) { c.Outputs[0] = strided(c.Outputs[0], 1, 2) }},
	}
	// the last is a step's, whose kernel is remembered as a part of the whole
	others := []string{"Workspace", "WorkspaceBytes", "AssumeWorkspace", "Stream", "Threads", "adds"}
	for i := range reflect.TypeFor[op.Call]().NumField() {
		name := reflect.TypeFor[op.Call]().Field(i).Name
		field, ok := fields[name]
		if !ok {
			s.Contains(others, name, "a field of which no test knows whether it is in the key")
			continue
		}
		op.ClearCache()
		changed := field.call()
		field.change(changed)
		s.Equal([3]int64{1, 0, 1}, s.after(field.call()), name)
		s.Equal([3]int64{1, 0, 1}, s.after(changed), name)
		s.Equal([3]int64{0, 1, 0}, s.after(changed), name)
	}
}

// TestParametersBelongToTheCaller: a kernel that is kept does not look at the numbers of the call
// that chose it, whose memory may be gone.
func (s *CacheSuite) TestParametersBelongToTheCaller() {
	first := []float64{0.5, 2}
	gated := func(parameters []float64) float32 {
		one, out := array(s.T(), dtype.Float32, 1), array(s.T(), dtype.Float32, 1)
		*(*float32)(one.Base) = 3
		weight := array(s.T(), dtype.Float32, 1, 1)
		*(*float32)(weight.Base) = 1
		c := &op.Call{
			Op: "gated_linear", Kind: "situ_glu", Parameters: parameters,
			Inputs: []*tensor.View{one, weight, weight, nil, nil}, Outputs: []*tensor.View{out, nil},
		}
		memory := make([]byte, 4096)
		offset := -uintptr(unsafe.Pointer(unsafe.SliceData(memory))) % 256
		c.Workspace, c.WorkspaceBytes = unsafe.Pointer(&memory[offset]), 2048
		s.Require().NoError(op.Run(c))
		return *(*float32)(out.Base)
	}
	want := gated(first)
	copy(first, []float64{9, 9})
	s.Equal(want, gated([]float64{0.5, 2}))
}

func (s *CacheSuite) TestErrorsAreNotKept() {
	wrong := s.activation(dtype.Float32, 4)
	wrong.Kind = "no such"
	for range 2 {
		s.Error(op.Run(wrong))
	}
	size, _, _ := op.CacheFacts()
	s.Zero(size)
}

// TestBuffersAreCheckedOnEveryCall: a kernel that is found does not vouch for the memory of this
// call.
func (s *CacheSuite) TestBuffersAreCheckedOnEveryCall() {
	s.NoError(op.Run(s.activation(dtype.Float32, 4)))
	shared := s.activation(dtype.Float32, 4)
	shared.Outputs = shared.Inputs
	s.ErrorContains(op.Run(shared), "shares memory")
	small := s.activation(dtype.Float32, 4)
	small.Inputs[0] = with(small.Inputs[0], func(v *tensor.View) { v.NBytes = 15 })
	s.ErrorContains(op.Run(small), "inside the buffer's 15")
}

func (s *CacheSuite) TestIsBounded() {
	most := 0
	for n := range int64(9000) {
		v, err := tensor.New(nil, 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, []int64{n}, nil, 0)
		s.Require().NoError(err)
		_, _, err = op.Infer(&op.Call{Op: "activation", Kind: "relu", Inputs: []*tensor.View{&v}}, []bool{true})
		s.Require().NoError(err)
		size, _, _ := op.CacheFacts()
		most = max(most, size)
	}
	s.LessOrEqual(most, 4096)
	s.Greater(most, 1000, "but it does remember")
}

// choosing is a backend that calls choose while it is asked for a kernel.
type choosing struct {
	backend.Backend
	choose func(p backend.Problem)
}

func (b choosing) Select(p backend.Problem) (backend.Kernel, error) {
	b.choose(p)
	return b.Backend.Select(p)
}

// TestABlockThatOpensMeanwhile: a kernel that is being chosen when another thread begins to tune is
// not tuned, since it is kept for calls outside of blocks.
func (s *CacheSuite) TestABlockThatOpensMeanwhile() {
	cpu, err := backend.Named("cpu")
	s.Require().NoError(err)
	defer backend.Register(cpu)
	var seen []*tuning.File
	path := filepath.Join(s.T().TempDir(), "choices.json")
	backend.Register(choosing{cpu, func(p backend.Problem) {
		if len(seen) == 0 {
			s.Require().NoError(tuning.Begin(path))
		}
		seen = append(seen, p.Tuning())
	}})
	call := s.activation(dtype.Float32, 4, 4)
	s.Equal([3]int64{1, 0, 1}, s.after(call))
	s.Equal([3]int64{1, 0, 1}, s.after(call), "inside the block it is another kernel's turn")
	s.Equal([]*tuning.File{nil, tuning.Current()}, seen)
	tuning.End()
	s.Equal([3]int64{0, 1, 0}, s.after(call))
}

func (s *CacheSuite) TestConcurrentUse() {
	var done sync.WaitGroup
	for worker := range 8 {
		done.Go(func() {
			for i := range 200 {
				size := int64(1 + (i*7+worker)%40)
				call := &op.Call{
					Op: "lerp", Parameters: []float64{0.25},
					Inputs:  []*tensor.View{array(s.T(), dtype.Float32, size), array(s.T(), dtype.Float32, size)},
					Outputs: []*tensor.View{array(s.T(), dtype.Float32, size)},
				}
				s.NoError(op.Run(call))
				if worker == 0 && i%50 == 0 {
					op.ClearCache()
				}
			}
		})
	}
	done.Wait()
	size, _, _ := op.CacheFacts()
	s.LessOrEqual(size, 40)
}
