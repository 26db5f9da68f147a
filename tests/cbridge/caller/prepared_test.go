//go:build cgo

package caller_test

import (
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/go/tuning"
	"github.com/epigrad/epigrad/tests/cbridge/caller"
)

// PreparedSuite has a backend of its own for CUDA's tensors, whose kernels record what they are run
// with.
type PreparedSuite struct {
	suite.Suite
	real     backend.Backend
	recorder *caller.Recorder
	freed    atomic.Int32
}

func TestPrepared(t *testing.T) { suite.Run(t, new(PreparedSuite)) }

type fake struct{ suite *PreparedSuite }

func (fake) Name() string              { return "cuda" }
func (fake) Info() backend.Info        { return backend.Info{Name: "cuda", Available: true} }
func (fake) WorkspaceAlignment() int64 { return 256 }

func (f fake) Select(p backend.Problem) (backend.Kernel, error) {
	k := &recorded{f.suite.recorder}
	runtime.AddCleanup(k, func(freed *atomic.Int32) { freed.Add(1) }, &f.suite.freed)
	return k, nil
}

type recorded struct{ recorder *caller.Recorder }

// plain is a backend whose kernels have no program, and keep what Go runs them with.
type plain struct {
	fake
	run *backend.Run
}

func (f *plain) Select(backend.Problem) (backend.Kernel, error) { return &kept{f}, nil }

type kept struct{ backend *plain }

func (*kept) Sku() backend.Sku             { return backend.Sku{} }
func (*kept) Precision() backend.Precision { return backend.Precision{} }
func (*kept) WorkspaceBytes() int64        { return 64 }
func (k *kept) Run(r *backend.Run) error {
	run := *r
	run.Bases = slices.Clone(r.Bases)
	k.backend.run = &run
	return nil
}

func (*recorded) Sku() backend.Sku             { return backend.Sku{} }
func (*recorded) Precision() backend.Precision { return backend.Precision{} }
func (*recorded) WorkspaceBytes() int64        { return 64 }
func (*recorded) Run(*backend.Run) error       { return nil }
func (k *recorded) Program() unsafe.Pointer    { return k.recorder.Program() }

func (s *PreparedSuite) SetupTest() {
	var err error
	s.real, err = backend.Named("cuda")
	s.Require().NoError(err)
	backend.Register(fake{s})
	s.recorder = caller.NewRecorder(0)
}

func (s *PreparedSuite) TearDownTest() { backend.Register(s.real) }

// lerp is a call on tensors of a CUDA device; geometries differ by their size, since kernels are
// remembered.
func lerp(size int64) *caller.Call {
	call := &caller.Call{Op: "lerp", Parameters: []float64{0.25}, Inputs: tensors(zeros(size), zeros(size), nil), Outputs: tensors(zeros(size)), Workspace: 64}
	for _, t := range []*caller.Tensor{call.Inputs[0], call.Inputs[1], call.Outputs[0]} {
		t.Device = tensor.CUDA
	}
	return call
}

func (s *PreparedSuite) prepared(call *caller.Call) *caller.Prepared {
	p, r := caller.Prepare(call)
	s.Require().Zero(r.Code, r.Message)
	return p
}

func (s *PreparedSuite) TestRunsWithTheCallsAddresses() {
	p := s.prepared(lerp(4))
	defer p.Release()
	s.Require().True(p.HasProgram())
	other := lerp(4)
	other.Parameters, other.Threads, other.Flags = []float64{0.75}, 3, other.Flags|caller.Accumulate
	other.Inputs[1].ByteOffset = 8
	s.Zero(p.Run(other).Code)
	s.Equal(1, s.recorder.Runs())
	s.Equal([]uint64{other.Inputs[0].Address(), other.Inputs[1].Address(), 0, other.Outputs[0].Address()},
		[]uint64{s.recorder.Base(0), s.recorder.Base(1), s.recorder.Base(2), s.recorder.Base(3)})
	s.Equal(0.75, s.recorder.Weight())
	s.NotZero(s.recorder.Workspace())
	s.Equal(3, s.recorder.Threads())
	s.True(s.recorder.Accumulate())
}

func (s *PreparedSuite) TestGoRunsWithTheSame() {
	b := &plain{fake: fake{s}}
	backend.Register(b)
	p := s.prepared(lerp(11))
	defer p.Release()
	s.Require().True(p.Holds())
	s.False(p.HasProgram())
	for _, accumulate := range []bool{false, true} {
		other := lerp(11)
		other.Parameters, other.Threads, other.Inputs[1].ByteOffset = []float64{0.75}, 3, 8
		if accumulate {
			other.Flags |= caller.Accumulate
		}
		s.Zero(p.Run(other).Code)
		s.Equal(accumulate, b.run.Accumulate)
		s.Equal(3, b.run.Threads)
		s.Equal(0.75, b.run.Parameters[0])
		s.NotNil(b.run.Workspace)
		s.Nil(b.run.Bases[2])
		s.Equal([]uint64{other.Inputs[0].Address(), other.Inputs[1].Address(), other.Outputs[0].Address()},
			[]uint64{uint64(uintptr(b.run.Bases[0])), uint64(uintptr(b.run.Bases[1])), uint64(uintptr(b.run.Bases[3]))})
	}
}

func (s *PreparedSuite) TestFailuresAreDeviceErrors() {
	s.recorder = caller.NewRecorder(7)
	p := s.prepared(lerp(5))
	defer p.Release()
	r := p.Run(lerp(5))
	s.Equal(int32(status.DeviceFailure), r.Code)
	s.Equal("fake: call: NAME (7): text", r.Message)
	s.Equal(int64(7), r.Got)
}

// TestLeavesWhatIsWrongToGo: addresses are not Go's to check where C runs a call, so C runs none
// that Go would refuse.
func (s *PreparedSuite) TestLeavesWhatIsWrongToGo() {
	p := s.prepared(lerp(6))
	defer p.Release()
	misaligned, missing, without, small, shifted := lerp(6), lerp(6), lerp(6), lerp(6), lerp(6)
	misaligned.Inputs[0].ByteOffset = 2
	missing.Inputs[1].Data = nil
	without.Workspace, small.Workspace, shifted.Shift = 0, 63, 64
	for _, call := range []*caller.Call{misaligned, missing, without, small, shifted} {
		s.Equal(int32(-1), p.Run(call).Code)
		s.NotZero(caller.Run(call).Code)
	}
	s.Zero(s.recorder.Runs())
}

// TestTrailingInputsMayBeLeftOut: outputs have their places behind all inputs of the operation.
func (s *PreparedSuite) TestTrailingInputsMayBeLeftOut() {
	short := lerp(8)
	short.Inputs = short.Inputs[:2]
	p := s.prepared(short)
	defer p.Release()
	s.Zero(p.Run(short).Code)
	s.Equal([]uint64{short.Inputs[1].Address(), 0, short.Outputs[0].Address()}, []uint64{s.recorder.Base(1), s.recorder.Base(2), s.recorder.Base(3)})
}

func (s *PreparedSuite) TestSomeCallsAreAlwaysGos() {
	empty := lerp(0)
	p := s.prepared(empty)
	s.False(p.Holds())
	s.Equal(int32(-1), p.Run(empty).Code)
	wrong := lerp(7)
	wrong.Workspace = 0
	_, r := caller.Prepare(wrong)
	s.Equal(int32(status.WorkspaceTooSmall), r.Code, "a call that would not run")
}

// TestGoRunsWhatHasNoProgram: the CPU's kernels.
func (s *PreparedSuite) TestGoRunsWhatHasNoProgram() {
	call := product()
	call.Inputs = append(call.Inputs, nil) // all that the operation has
	p := s.prepared(call)
	defer p.Release()
	s.True(p.Holds())
	s.False(p.HasProgram())
	s.Zero(p.Run(call).Code)
	s.Equal([]float32{4, 5, 10, 11}, call.Outputs[0].Data)
	misaligned := product()
	misaligned.Inputs = append(misaligned.Inputs, nil)
	misaligned.Inputs[1].ByteOffset = 2
	s.Equal(int32(-1), p.Run(misaligned).Code)
	s.Equal([]float32{0, 0, 0, 0}, misaligned.Outputs[0].Data)
}

func (s *PreparedSuite) TestClearingTheCacheEndsWhatWasChosen() {
	p := s.prepared(lerp(10))
	defer p.Release()
	s.True(p.Current())
	op.ClearCache()
	s.False(p.Current())
}

func (s *PreparedSuite) TestTuningEndsWhatWasChosen() {
	p := s.prepared(lerp(8))
	defer p.Release()
	s.True(p.Current())
	s.Require().NoError(tuning.Begin(filepath.Join(s.T().TempDir(), "choices.json")))
	s.False(p.Current())
	inside := s.prepared(lerp(8))
	defer inside.Release()
	s.True(inside.Current())
	tuning.End()
	s.False(inside.Current())
}

// TestHoldsItsKernel until it is released, also when the kernel is forgotten elsewhere.
func (s *PreparedSuite) TestHoldsItsKernel() {
	collect := func() {
		for range 3 {
			runtime.GC()
			time.Sleep(10 * time.Millisecond)
		}
	}
	op.ClearCache()
	collect() // what other tests have left
	s.freed.Store(0)
	p := s.prepared(lerp(9))
	op.ClearCache()
	collect()
	s.Zero(s.freed.Load())
	p.Release()
	p.Release() // nothing is left to release
	s.Eventually(func() bool { collect(); return s.freed.Load() > 0 }, 10*time.Second, time.Millisecond)
}
