package op_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

// layers is a backend that answers for whole gated layers: its kernel notes where their operands
// are, and computes nothing.
type layers struct {
	backend.Backend
	problem *backend.GatedLinear
	at      map[string]unsafe.Pointer
}

func (l *layers) Select(p backend.Problem) (backend.Kernel, error) {
	layer, ok := p.(*backend.GatedLinear)
	if !ok {
		return l.Backend.Select(p)
	}
	l.problem = layer
	return &layerKernel{l}, nil
}

type layerKernel struct{ *layers }

func (k *layerKernel) Sku() backend.Sku             { return backend.Sku{Kernel: "gated_layer"} }
func (k *layerKernel) Precision() backend.Precision { return backend.Precision{} }
func (k *layerKernel) WorkspaceBytes() int64        { return 0 }

func (k *layerKernel) Run(r *backend.Run) error {
	p := k.problem
	k.at = map[string]unsafe.Pointer{}
	for name, v := range map[string]*tensor.View{
		"weight value": p.WeightValue, "weight gate": p.WeightGate, "bias value": p.BiasValue, "bias gate": p.BiasGate, "value": p.Value, "gate": p.Gate,
	} {
		if v != nil {
			k.at[name] = r.At(v)
		}
	}
	return nil
}

// TestABackendMayComputeAGatedLayer: both operations ask for one kernel of both products and the
// gate, of two weights or of the halves of one.
func TestABackendMayComputeAGatedLayer(t *testing.T) {
	l := inPlaceOfCPU(t, func(cpu backend.Backend) *layers { return &layers{Backend: cpu} })

	const rows, inputs, hidden, size = 3, 5, 4, 4
	x, pre := array(t, dtype.Float32, rows, inputs), array(t, dtype.Float32, rows, 2*hidden)
	both, biases, down := array(t, dtype.Float32, 2*hidden, inputs), array(t, dtype.Float32, 2*hidden), array(t, dtype.Float32, 2, hidden)
	value, gate, bias := array(t, dtype.Float32, hidden, inputs), array(t, dtype.Float32, hidden, inputs), array(t, dtype.Float32, hidden)
	scratch := array(t, dtype.Float64, 128)
	run := func(c op.Call) {
		c.Workspace, c.WorkspaceBytes = unsafe.Add(scratch.Base, -uintptr(scratch.Base)%64), 512
		require.NoError(t, op.Run(&c))
	}

	run(op.Call{
		Op: "gated_linear", Kind: "swiglu", Inputs: []*tensor.View{x, value, gate, nil, bias},
		Outputs: []*tensor.View{array(t, dtype.Float32, rows, hidden), pre},
	})
	require.Equal(t, "silu", l.problem.Formula)
	require.Equal(t, map[string]unsafe.Pointer{
		"weight value": value.Base, "weight gate": gate.Base, "bias gate": bias.Base, "value": pre.Base, "gate": unsafe.Add(pre.Base, hidden*size),
	}, l.at)

	run(op.Call{
		Op: "gated_mlp", Kind: "geglu", Gate: op.GateFirst, Inputs: []*tensor.View{x, both, biases, down, nil},
		Outputs: []*tensor.View{array(t, dtype.Float32, rows, 2), pre},
	})
	require.Equal(t, "gelu", l.problem.Formula)
	require.Equal(t, []int64{hidden, inputs}, l.problem.WeightValue.Shape)
	require.Equal(t, map[string]unsafe.Pointer{
		"weight gate": both.Base, "weight value": unsafe.Add(both.Base, hidden*inputs*size),
		"bias gate": biases.Base, "bias value": unsafe.Add(biases.Base, hidden*size),
		"gate": pre.Base, "value": unsafe.Add(pre.Base, hidden*size),
	}, l.at)

	l.problem = nil // without a preactivation
	run(op.Call{
		Op: "gated_linear", Kind: "swiglu", Inputs: []*tensor.View{x, value, gate}, Outputs: []*tensor.View{array(t, dtype.Float32, rows, hidden)},
	})
	require.NotNil(t, l.problem)
	require.Nil(t, l.problem.Value)
}
