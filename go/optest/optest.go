// Package optest is one suite of tests for every backend, as gonum's testblas is for BLAS:
// operations x kinds x dtypes x layouts x edges.
//
// The oracles are independent of the kernels: gonum's products in float64, differences of
// gonum/diff/fd for derivatives, and plain loops for the rest. Errors are measured against bounds
// that follow from the dtype and from the sizes of the terms summed, not against free tolerances.
package optest

import (
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// Run runs the suite against a backend that can use host memory: the CPU's, or an emulated GPU's. A
// backend that is not available here is skipped, unless EPIGRAD_REQUIRE_BACKENDS names it. With
// -short each case meets fewer layouts and sizes.
func Run(t *testing.T, b backend.Backend) {
	info := b.Info()
	if !info.Available {
		required, err := required("EPIGRAD_REQUIRE_BACKENDS", []string{"cpu", "cuda", "webgpu"})
		require.NoError(t, err)
		if slices.Contains(required, info.Name) {
			t.Fatalf("the backend %s is required and not available: %s", info.Name, info.Reason)
		}
		t.Skip(info.Reason)
	}
	backend.Register(b)
	op.ClearCache() // of the kernels of the backend of this name before
	if info.Device == "cuda" {
		device.Type = tensor.CUDA
	}
	narrow, ok := b.(Narrow)
	suite.Run(t, &opSuite{backend: b, narrow: ok && narrow.ComputesInAccumulator(), bits: bitsFile(t)})
}

// Narrow is a backend that can say that it computes formulas and elementwise sums in the
// accumulator's dtype, and an activation from the preactivation as it is stored. Others compute
// them in float64, from the unrounded sum.
type Narrow interface{ ComputesInAccumulator() bool }

// Approximate is a backend that can say how far its formulas may be off before they are rounded to
// a dtype, relative to their terms. Others' are exact to float64's last places. The half types'
// elementwise sums may be off as far; float32's are computed in float64.
type Approximate interface{ FormulaError(dt dtype.DType) float64 }

// Partial is a backend that can say that it has no kernels for some dtypes. Others have them for
// all.
type Partial interface{ Computes(dt dtype.DType) bool }

// Clamping is a backend that can say that it takes groups' offsets which fall, or are no rows, for
// what is next to them. Others call them an error.
type Clamping interface{ ClampsOffsets() bool }

// Slow is a backend that can say that a case takes long: it compiles a kernel for each kind, dtype
// and layout, or emulates a GPU. With -short its cases meet each kind with one dtype, which differs
// from kind to kind; the Python tests meet every pair of them.
type Slow interface{ IsSlow() bool }

// dtypes are those that the backend computes with.
func (s *opSuite) dtypes() []dtype.DType {
	return slices.DeleteFunc(dtype.All(), func(dt dtype.DType) bool { return !s.computes(dt) })
}

func (s *opSuite) computes(dt dtype.DType) bool {
	partial, ok := s.backend.(Partial)
	return !ok || partial.Computes(dt)
}

// takesPairs reports whether cases are few because the backend is slow, or the race detector.
func (s *opSuite) takesPairs() bool {
	slow, ok := s.backend.(Slow)
	return testing.Short() && (slowed || ok && slow.IsSlow())
}

// kindsFor are the kinds that a dtype meets.
func (s *opSuite) kindsFor(dt dtype.DType, kinds []string) []string {
	if !s.takesPairs() {
		return kinds
	}
	all := s.dtypes()
	var met []string
	for i, kind := range kinds {
		if all[i%len(all)] == dt {
			met = append(met, kind)
		}
	}
	return met
}

// forEachKind visits kinds x dtypes, each as a test of its own.
func (s *opSuite) forEachKind(kinds []string, visit func(kind string, dt dtype.DType)) {
	for _, kind := range kinds {
		for _, dt := range s.dtypes() {
			if slices.Contains(s.kindsFor(dt, kinds), kind) {
				s.Run(kind+"/"+dt.String(), func() { visit(kind, dt) })
			}
		}
	}
}

type opSuite struct {
	suite.Suite
	backend backend.Backend
	narrow  bool
	random  *rand.Rand
	bits    io.Writer
}

// boundsOf are the bounds of this backend's results.
func (s *opSuite) boundsOf(dt dtype.DType) bounds {
	limits := boundsOf(dt)
	if s.narrow {
		limits.elementwise, limits.argument = unit(dt.Accumulator()), unit(dt)
		limits.formula = 4 * limits.elementwise
		if dt != dt.Accumulator() {
			limits.formula = 0x1p-15 // far below the rounding to storage
		}
	}
	if a, ok := s.backend.(Approximate); ok {
		limits.formula = max(limits.formula, a.FormulaError(dt))
		if dt != dt.Accumulator() {
			limits.elementwise = max(limits.elementwise, a.FormulaError(dt))
		}
	}
	return limits
}

// SetupTest makes every test independent of the ones before it.
func (s *opSuite) SetupTest() { s.random = rand.New(rand.NewPCG(7, 11)) }

// call is one use of an operation on guarded arrays.
type call struct {
	op.Call
	inputs, outputs []*array
}

// run computes a call and checks that it wrote its outputs and nothing else.
func (s *opSuite) run(c call) {
	s.T().Helper()
	s.Require().NoError(s.tryRun(c))
}

// tryRun is run for a call that may fail.
func (s *opSuite) tryRun(c call) error {
	s.T().Helper()
	c.Inputs, c.Outputs, c.Backend = views(c.inputs), views(c.outputs), s.host()
	c.Call = named(c.Call)
	wanted := make([]bool, len(c.outputs))
	for i, out := range c.outputs {
		wanted[i] = out != nil
	}
	_, bytes, err := op.Infer(&c.Call, wanted)
	if err != nil {
		return err
	}
	workspace := newScratch(bytes)
	c.Workspace, c.WorkspaceBytes = unsafe.Pointer(&workspace[0]), bytes
	for _, out := range c.outputs {
		if out != nil {
			s.Require().NoError(op.Validate(&c.Call))
		}
	}
	if err := op.Run(&c.Call); err != nil {
		return err
	}
	for i, in := range c.inputs {
		if in != nil && !in.unchanged() {
			s.Require().Failf("an input was written to", "%s input %d, %v", c.Op, i, in)
		}
	}
	for i, out := range c.outputs {
		if out != nil && !out.guarded() {
			s.Require().Failf("memory around an output was written to", "%s output %d, %v", c.Op, i, out)
		}
	}
	if !isPoison(workspace[bytes:]) {
		s.Require().Failf("memory behind the workspace was written to", "%s, %d bytes", c.Op, bytes)
	}
	s.recordBits(&c)
	return nil
}

// host names the backend for tensors in the host's memory, which are the CPU's otherwise.
func (s *opSuite) host() string {
	if device.Type != tensor.CPU {
		return ""
	}
	return s.backend.Name()
}

func views(arrays []*array) []*tensor.View {
	list := make([]*tensor.View, len(arrays))
	for i, a := range arrays {
		if a != nil {
			list[i] = &a.view
		}
	}
	return list
}

// Full reports whether EPIGRAD_TEST_FULL asks for all layouts and sizes.
func Full() bool {
	full := os.Getenv("EPIGRAD_TEST_FULL")
	return full != "" && full != "0"
}

// Hurry makes cases meet fewer layouts and sizes, as -short does, until the function that it
// returns is called. It does nothing where EPIGRAD_TEST_FULL asks for all.
func Hurry(t *testing.T) (restore func()) {
	if Full() {
		return func() {}
	}
	return set(t, "test.short", "true")
}

// OnlyMethods leaves those methods of suites that a pattern matches, until the function that it
// returns is called.
func OnlyMethods(t *testing.T, pattern string) (restore func()) {
	return set(t, "testify.m", pattern)
}

func set(t *testing.T, name, value string) (restore func()) {
	option := flag.Lookup(name).Value
	before := option.String()
	require.NoError(t, option.Set(value))
	return func() { require.NoError(t, option.Set(before)) }
}

// some returns every item, or with -short two, which rotate with turn so that all of them occur
// somewhere.
func some[T any](items []T, turn int) []T {
	if !testing.Short() || len(items) <= 2 {
		return items
	}
	return []T{items[turn%len(items)], items[(turn+len(items)/2)%len(items)]}
}
