package backend_test

import (
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/backend"
	_ "github.com/epigrad/epigrad/go/backend/builtin"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

type RegistrySuite struct{ suite.Suite }

func TestRegistry(t *testing.T) { suite.Run(t, new(RegistrySuite)) }

func (s *RegistrySuite) TestNames() {
	b, err := backend.Named("cpu")
	s.Require().NoError(err)
	s.Equal("cpu", b.Info().Name)
	_, err = backend.Named("gpu")
	s.Equal(status.InvalidProblem, status.Of(err).Code)
	s.Contains(err.Error(), `backend: got "gpu", want one of cpu, cuda, webgpu`)
}

func (s *RegistrySuite) TestEveryKnownBackendIsListed() {
	var names []string
	for _, info := range backend.Infos() {
		names = append(names, info.Name)
		s.Equal(info.Available, info.Reason == "", "%+v", info)
		_, err := backend.Named(info.Name)
		if info.Name == "cpu" || withC {
			s.NoError(err)
			continue
		}
		s.Require().Error(err)
		s.Equal(status.BackendUnavailable, status.Of(err).Code)
		s.Equal(info.Reason, err.Error())
		s.Contains(info.Reason, "this build of epigrad has no "+info.Name+" backend, which needs cgo: build with CGO_ENABLED=1")
		s.Contains(info.Reason, "move the tensors to one that it has: cpu")
	}
	s.Equal([]string{"cpu", "cuda", "webgpu"}, names)
}

func (s *RegistrySuite) TestDevices() {
	b, err := backend.ForDevice(tensor.Device{Type: tensor.CPU})
	s.Require().NoError(err)
	s.Equal("cpu", b.Info().Device)
	s.LessOrEqual(b.WorkspaceAlignment(), int64(256), "the alignment that callers are asked for")
	_, err = backend.ForDevice(tensor.Device{Type: 10})
	s.Equal(status.Unsupported, status.Of(err).Code)
}

func (s *RegistrySuite) TestProblemsListTheirViews() {
	v := &tensor.View{}
	header := backend.Header{Op: "o", Kind: "k", DType: dtype.Float16}
	grouped := header
	grouped.Groups = v
	for _, c := range []struct {
		problem backend.Problem
		views   int
	}{
		{&backend.GemmEpilogue{Header: header, A: v, B: v, Out: v}, 3},
		{&backend.GemmEpilogueBackward{Header: header, GradOutput: v, A: v, B: v, Preactivation: v, GradA: v, GradBias: v}, 6},
		{&backend.Activation{Header: header, Input: v, Out: v}, 2},
		{&backend.Gated{Header: header, Value: v, Gate: v, Out: v}, 3},
		{&backend.GatedBackward{Header: header, GradOutput: v, Value: v, Gate: v, GradGate: v}, 4},
		{&backend.Pointwise{Header: header, Inputs: []*tensor.View{v, v, nil}, Out: v}, 3},
		{&backend.PointwiseBackward{Header: header, GradOutput: v, Inputs: []*tensor.View{nil, nil, v}, Gradients: []*tensor.View{nil, v, nil}}, 3},
		{&backend.GemmEpilogue{Header: grouped, A: v, B: v, Out: v}, 4},
		{&backend.GatedBackward{Header: grouped, GradOutput: v, Value: v, Gate: v, GradGate: v}, 5},
		{&backend.ScaleRows{Header: grouped, Hidden: v, Scales: v}, 3},
		{&backend.SumRows{Header: grouped, Input: v, Scales: v, Sums: v}, 4},
		{&backend.ZeroRows{Header: grouped, Outputs: []*tensor.View{nil, v}}, 2},
		{&backend.GroupedLayer{Header: grouped, Input: v, Weight: v, Out: v}, 4},
		{&backend.CombinedLayer{Header: grouped, Input: v, Weight: v, Places: v, Out: v}, 5},
	} {
		name, kind, dt := c.problem.Describe()
		s.Equal([]any{"o", "k", dtype.Float16}, []any{name, kind, dt})
		s.Len(backend.Views(c.problem), c.views, "%T", c.problem)
		s.NotContains(backend.Views(c.problem), (*tensor.View)(nil))
	}
}

func (s *RegistrySuite) TestSkuReadsWell() {
	s.Equal("cpu/lerp_f32[float32 contiguous, amd64]",
		backend.Sku{Backend: "cpu", Kernel: "lerp_f32", DType: "float32", Layout: "contiguous", Arch: "amd64"}.String())
}
