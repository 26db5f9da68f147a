package op_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// asked is a backend that notes what it was asked for and computes nothing.
type asked struct {
	backend.Backend
	kind, formula string
	selected      int
	parameters    [4]float64
}

func (a *asked) Select(p backend.Problem) (backend.Kernel, error) {
	a.selected++
	_, a.kind, _ = p.Describe()
	switch p := p.(type) {
	case *backend.Activation:
		a.formula = p.Formula
	case *backend.Gated:
		a.formula = p.Formula
	}
	return &askedKernel{a}, nil
}

type askedKernel struct{ *asked }

func (k *askedKernel) Sku() backend.Sku             { return backend.Sku{} }
func (k *askedKernel) Precision() backend.Precision { return backend.Precision{} }
func (k *askedKernel) WorkspaceBytes() int64        { return 0 }

func (k *askedKernel) Run(r *backend.Run) error {
	k.parameters = r.Parameters
	return nil
}

// inPlaceOfCPU registers a backend that is made of the CPU's, until the test ends.
func inPlaceOfCPU[B backend.Backend](t *testing.T, of func(cpu backend.Backend) B) B {
	cpu, err := backend.Named("cpu")
	require.NoError(t, err)
	b := of(cpu)
	t.Cleanup(func() {
		op.ClearCache()
		backend.Register(cpu)
	})
	op.ClearCache()
	backend.Register(b)
	return b
}

// TestKindsBecomeFormulas: a backend sees a kind under its own name, and the formula that computes
// it with all of the formula's numbers.
func TestKindsBecomeFormulas(t *testing.T) {
	a := inPlaceOfCPU(t, func(cpu backend.Backend) *asked { return &asked{Backend: cpu} })

	nan, none, inf := math.NaN(), math.Copysign(0, -1), math.Inf(1)
	for _, c := range []struct {
		name       string
		given      []float64
		kind       string // what it is
		formula    string
		parameters []float64
	}{
		{"gelu_new", nil, "gelu_tanh", "gelu_tanh", nil},
		{"linear", nil, "none", "none", nil},
		{"swish", nil, "silu", "silu", nil},
		{"swish", []float64{1}, "silu", "silu", nil},
		{"swish", []float64{2}, "swish", "swish", []float64{2}},
		{"quick_gelu", nil, "quick_gelu", "swish", []float64{1.702}},
		{"celu", []float64{0.5}, "celu", "elu", []float64{1, 0.5, 0.5}},
		{"relu6", nil, "relu6", "hardtanh", []float64{0, 6}},
		{"softplus", []float64{2, 10}, "softplus", "softplus", []float64{2, 10}},
		{"glu", nil, "glu", "sigmoid", []float64{nan, nan, none}},
		{"swiglu", nil, "swiglu", "silu", []float64{nan, nan, none}},
		{"swiglu", []float64{7, inf, 1, 1.702}, "swiglu", "swish", []float64{7, nan, 1, 1.702}},
		{"swiglu_oai", nil, "swiglu", "swish", []float64{7, nan, 1, 1.702}},
		{"quick_geglu", []float64{inf, 3, 0}, "quick_geglu", "swish", []float64{nan, 3, none, 1.702}},
		{"situ_glu", nil, "situ_glu", "situ", []float64{4, 25}},
	} {
		call := op.Call{Op: "activation", Kind: c.name, Parameters: c.given}
		call.Inputs, call.Outputs = views(array(t, dtype.Float32, 2, 4)), views(array(t, dtype.Float32, 2, 4))
		if _, plain := activation.Lookup(c.name); !plain {
			call.Op, call.Dim, call.Outputs = "gated_activation", -1, views(array(t, dtype.Float32, 2, 2))
		}
		require.NoError(t, op.Run(&call), c.name)
		require.Equal(t, []string{c.kind, c.formula}, []string{a.kind, a.formula}, c.name)
		for i, want := range c.parameters {
			got := a.parameters[i]
			require.True(t, got == want && math.Signbit(got) == math.Signbit(want) || math.IsNaN(got) && math.IsNaN(want), "%s: parameter %d is %v, want %v", c.name, i, got, want)
		}
	}
}

// TestOneKernelForAllNames: names of one function share what is remembered of it, and a parameter
// has its own.
func TestOneKernelForAllNames(t *testing.T) {
	a := inPlaceOfCPU(t, func(cpu backend.Backend) *asked { return &asked{Backend: cpu} })
	run := func(kind string, parameters ...float64) (parameter float64, selected int) {
		c := op.Call{Op: "activation", Kind: kind, Parameters: parameters}
		c.Inputs, c.Outputs = []*tensor.View{array(t, dtype.Float32, 3)}, []*tensor.View{array(t, dtype.Float32, 3)}
		require.NoError(t, op.Run(&c))
		return a.parameters[0], a.selected
	}
	for i, c := range []struct {
		kind       string
		parameters []float64
		first      float64
		selected   int
	}{
		{"gelu_tanh", nil, 0, 1},
		{"gelu_new", nil, 0, 1},
		{"silu", nil, 0, 2},
		{"swish", nil, 0, 2},
		{"swish", []float64{2}, 2, 3},
		{"swish", []float64{3}, 3, 4},
		{"swish", []float64{2}, 2, 4},
	} {
		first, selected := run(c.kind, c.parameters...)
		require.Equal(t, c.first, first, i)
		require.Equal(t, c.selected, selected, i)
	}
}
