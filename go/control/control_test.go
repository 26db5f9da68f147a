package control_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/backend"
	_ "github.com/epigrad/epigrad/go/backend/builtin"
	"github.com/epigrad/epigrad/go/control"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

type ControlSuite struct{ suite.Suite }

func TestControl(t *testing.T) { suite.Run(t, new(ControlSuite)) }

func (s *ControlSuite) decode(text string, into any) {
	s.Require().NoError(json.Unmarshal([]byte(text), into), text)
}

func (s *ControlSuite) TestFacts() {
	var backends []struct {
		Name, Device, Detail, Reason string
		Available                    bool
	}
	text, err := control.Backends()
	s.Require().NoError(err)
	s.decode(text, &backends)
	s.Len(backends, 3)
	for _, b := range backends {
		s.NotEqual(b.Reason == "", b.Detail == "", "%s: what it is, or why it is not", b.Name)
		s.Equal(b.Available, b.Reason == "", b.Name)
	}
	s.Equal("cpu", backends[0].Name)
	s.True(backends[0].Available)

	var facts struct {
		GoVersion string                             `json:"go_version"`
		CPUs      int                                `json:"cpu_count"`
		ABI       int                                `json:"abi_version"`
		Cache     struct{ Size, Hits, Misses int64 } `json:"plan_cache"`
	}
	text, err = control.DoctorFacts()
	s.Require().NoError(err)
	s.decode(text, &facts)
	s.Contains(facts.GoVersion, "go1")
	s.Positive(facts.CPUs)
	s.Positive(facts.ABI)
}

func (s *ControlSuite) TestCacheControl() {
	_, _, err := op.Infer(&op.Call{Op: "activation", Inputs: []*tensor.View{{DType: dtype.Float32, Device: tensor.Device{Type: tensor.CPU}}}}, []bool{true})
	s.Require().NoError(err)
	s.Positive(control.PlanCacheSize())
	s.NoError(control.ClearPlanCache())
	s.Zero(control.PlanCacheSize())
}

// broken is a backend with a defect.
type broken struct{ backend.Backend }

func (broken) Info() backend.Info { panic("broken") }

func (s *ControlSuite) TestAPanicIsAnError() {
	cuda, err := backend.Named("cuda")
	s.Require().NoError(err)
	backend.Register(broken{cuda})
	defer backend.Register(cuda)
	_, err = control.Backends()
	s.ErrorContains(err, "EpigradError: epigrad: a defect: broken\n")
}
