//go:build cgo

package caller_test

import (
	"reflect"
	"slices"
	"strings"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/tests/cbridge/caller"
)

// choosy is a backend that keeps which problems may be computed in TF32, by operation.
type choosy struct {
	fake
	allowed map[string][]bool
}

func (f *choosy) Select(p backend.Problem) (backend.Kernel, error) {
	header := reflect.ValueOf(p).Elem().FieldByName("Header").Interface().(backend.Header)
	f.allowed[header.Op] = append(f.allowed[header.Op], header.AllowTF32)
	return &kept{&plain{fake: f.fake}}, nil
}

// shapes are small operands of each operation's forward. What it computes has the first one's rows.
var shapes = map[string]struct {
	kind   string
	inputs [][]int64
	out    []int64
}{
	"matmul_bias_activation": {"relu", [][]int64{{3, 4}, {4, 2}, {2}}, []int64{3, 2}},
	"linear":                 {"relu", [][]int64{{3, 4}, {2, 4}, {2}}, []int64{3, 2}},
	"activation":             {"relu", [][]int64{{3, 4}}, []int64{3, 4}},
	"gated_activation":       {"swiglu", [][]int64{{4, 3}}, []int64{2, 3}},
	"gated_product":          {"swiglu", [][]int64{{3, 4}, {3, 4}}, []int64{3, 4}},
	"lerp":                   {"", [][]int64{{3, 4}, {3, 4}, {3, 4}}, []int64{3, 4}},
	"prelu":                  {"", [][]int64{{3, 4}, {4}}, []int64{3, 4}},
	"xielu":                  {"", [][]int64{{3, 4}, {1}, {1}}, []int64{3, 4}},
	"gated_linear":           {"swiglu", [][]int64{{3, 4}, {2, 4}, {2, 4}, {2}, {2}}, []int64{3, 2}},
	"mlp":                    {"relu", [][]int64{{3, 4}, {2, 4}, {2}, {4, 2}, {4}}, []int64{3, 4}},
	"gated_mlp":              {"swiglu", [][]int64{{3, 4}, {4, 4}, {4}, {4, 2}, {4}}, []int64{3, 4}},
	"grouped_linear":         {"relu", [][]int64{{3, 4}, {2, 2, 4}, {2, 2}, {2}}, []int64{3, 2}},
	"experts":                {"swiglu", [][]int64{{3, 4}, {3, 1}, {3, 1}, {2, 4, 4}, {2, 4}, {2, 4, 2}, {2, 4}}, []int64{3, 4}},
}

// onCUDA is a call of an operation on float32 tensors of a CUDA device.
func (s *PreparedSuite) onCUDA(signature op.Signature) *caller.Call {
	forward, isBackward := strings.CutSuffix(signature.Name, "_backward")
	forward, isSecond := strings.CutSuffix(forward, "_backward")
	of, known := shapes[forward]
	s.Require().True(known, "shapes has no %s", forward)
	inputs := of.inputs
	if isBackward {
		inputs = slices.Concat([][]int64{of.out}, inputs)
	}
	if isSecond { // the gradients to the first ones come before
		inputs = slices.Concat(of.inputs, inputs)
	}
	call := &caller.Call{Op: signature.Name, Kind: of.kind}
	for i, shape := range inputs {
		t := zeros(shape...)
		t.Device, t.Strides = tensor.CUDA, tensor.ContiguousStrides(shape)
		if name := signature.Inputs[i].Name; name == "offsets" || name == "index" {
			t.Code, t.Bits = 0, 64 // kDLInt
		}
		call.Inputs = append(call.Inputs, t)
	}
	return call
}

func (s *PreparedSuite) TestEveryOperationThatMultipliesMayUseTF32() {
	multiplies := map[string]bool{}
	for _, row := range op.Rows() {
		multiplies[row.Name] = row.Multiplies
	}
	for _, signature := range op.Signatures() {
		for _, allows := range []bool{false, true} {
			b := &choosy{fake{s}, map[string][]bool{}}
			backend.Register(b)
			r := caller.Launch(s.onCUDA(signature), len(signature.Outputs), allows)
			s.Require().Zero(r.Code, "%s: %s", signature.Name, r.Message)
			// a block is made of other operations; kernels of a geometry are remembered
			products := 0
			for name, list := range b.allowed {
				if does, isPublic := multiplies[name]; does || !isPublic {
					products += len(list)
					s.NotContains(list, !allows, "%s of %s", name, signature.Name)
				} else {
					s.NotContains(list, true, "%s of %s", name, signature.Name)
				}
			}
			s.Equal(multiplies[signature.Name], products > 0, signature.Name)
		}
	}
}
