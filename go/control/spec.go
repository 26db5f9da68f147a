package control

import (
	"bytes"
	"encoding/json"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// spec is a problem as epigrad.plan's select functions describe it.
type spec struct {
	Class  string `json:"class"`
	DType  string `json:"dtype"`
	Device string `json:"device"`
	// Backend runs tensors in the host's memory; "" is the CPU's.
	Backend string `json:"backend"`
	// Parameters are those of the activation or the gated kind, none for their defaults; or lerp's
	// weight, none for a tensor that run gets. They are written as text, since JSON has no infinity
	// and no NaN.
	Parameters []string `json:"parameters"`

	// GemmEpilogue, GemmEpilogueBackward. Leading dimensions are in elements; nil leaves the
	// strides open. LDGrad is the output's in the forward.
	M          int64   `json:"m"`
	N          int64   `json:"n"`
	K          int64   `json:"k"`
	Batch      []int64 `json:"batch"`
	BBatched   bool    `json:"b_batched"`
	Activation string  `json:"activation"`
	LDA        *int64  `json:"lda"`
	LDB        *int64  `json:"ldb"`
	LDGrad     *int64  `json:"ld_grad"`
	// Both are of the plan's runs too, whatever they say.
	AllowTF32      bool `json:"allow_tf32"`
	BatchInvariant bool `json:"batch_invariant"`

	// GatedActivation, GatedActivationBackward.
	InputShape []int64 `json:"input_shape"`
	SplitDim   int     `json:"split_dim"`
	Kind       string  `json:"kind"`
	Gate       string  `json:"gate"`

	// Lerp, LerpBackward.
	Shape []int64 `json:"shape"`
}

// selectPlan builds the call that a spec describes and plans it.
func selectPlan(text string) (*op.Plan, error) {
	var s spec
	decoder := json.NewDecoder(bytes.NewBufferString(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return nil, status.Errorf(status.InvalidProblem, "select: %v", err)
	}
	if s.Class == "" {
		return nil, check.Invalid("select", "class", "missing, want a plan class")
	}
	dt, ok := dtype.Parse(s.DType)
	if !ok {
		return nil, status.Errorf(status.DTypeMismatch, "%s: dtype: got %s, want one of %s", s.Class, check.Quote(s.DType), dtype.Names())
	}
	device, err := parseDevice(s.Class, s.Device)
	if err != nil {
		return nil, err
	}
	d := describer{class: s.Class, dt: dt, device: device}
	call, err := d.call(&s)
	if err == nil {
		err = d.err
	}
	if err != nil {
		return nil, err
	}
	call.Backend = s.Backend
	return op.NewPlan(call, d.exactInputs, d.exactOutputs)
}

// describer makes views without memory, and keeps the first error.
type describer struct {
	class  string
	dt     dtype.DType
	device tensor.Device
	err    error

	exactInputs, exactOutputs []bool
}

// call makes the call that a spec describes.
func (d *describer) call(s *spec) (*op.Call, error) {
	parameters, err := s.numbers()
	if err != nil {
		return nil, err
	}
	switch s.Class {
	case "GemmEpilogue":
		batchB := s.batchB()
		inputs := []*tensor.View{d.matrix("a", s.Batch, s.M, s.K, "lda", s.LDA), d.matrix("b", batchB, s.K, s.N, "ldb", s.LDB), d.view("bias", []int64{s.N})}
		outputs := []*tensor.View{d.matrix("out", s.Batch, s.M, s.N, "ld_grad", s.LDGrad)}
		d.exactInputs, d.exactOutputs = []bool{s.LDA != nil, s.LDB != nil}, []bool{s.LDGrad != nil}
		return &op.Call{Op: "matmul_bias_activation", Kind: s.Activation, Parameters: parameters, AllowTF32: s.AllowTF32, BatchInvariant: s.BatchInvariant, Inputs: inputs, Outputs: outputs}, nil
	case "GemmEpilogueBackward":
		grad := d.matrix("grad_output", s.Batch, s.M, s.N, "ld_grad", s.LDGrad)
		inputs := []*tensor.View{
			grad, d.matrix("a", s.Batch, s.M, s.K, "lda", s.LDA), d.matrix("b", s.batchB(), s.K, s.N, "ldb", s.LDB), d.view("bias", []int64{s.N}),
			d.matrix("preactivation", s.Batch, s.M, s.N, "", nil),
		}
		d.exactInputs = []bool{s.LDGrad != nil, s.LDA != nil, s.LDB != nil}
		return &op.Call{Op: "matmul_bias_activation_backward", Kind: s.Activation, Parameters: parameters, AllowTF32: s.AllowTF32, BatchInvariant: s.BatchInvariant, Inputs: inputs}, nil
	case "GatedActivation", "GatedActivationBackward":
		gate, err := op.ParseGate(s.Class, s.Gate)
		if err != nil {
			return nil, err
		}
		call := &op.Call{Op: "gated_activation", Kind: s.Kind, Parameters: parameters, Dim: s.SplitDim, Gate: gate}
		input := d.view("input", s.InputShape)
		call.Inputs = []*tensor.View{input}
		if s.Class == "GatedActivation" || d.err != nil {
			return call, nil
		}
		shapes, _, err := op.Infer(call, []bool{true})
		if err != nil {
			return nil, err
		}
		call.Op, call.Inputs = "gated_activation_backward", []*tensor.View{d.view("grad_output", shapes[0]), input}
		return call, nil
	case "Lerp", "LerpBackward":
		call := &op.Call{Op: "lerp", Inputs: []*tensor.View{d.view("start", s.Shape), d.view("end", s.Shape), nil}}
		if call.Parameters = parameters; parameters == nil {
			call.Inputs[2] = d.view("weight", s.Shape)
		}
		if s.Class == "LerpBackward" {
			call.Op, call.Inputs = "lerp_backward", append([]*tensor.View{d.view("grad_output", s.Shape)}, call.Inputs...)
		}
		return call, nil
	}
	return nil, check.Invalid("select", "class", "got %q, want a plan class, such as GemmEpilogue", s.Class)
}

// numbers reads the parameters.
func (s *spec) numbers() (values []float64, err error) {
	for _, text := range s.Parameters {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, check.Invalid(s.Class, "parameters", "got %q, want a number", text)
		}
		values = append(values, value)
	}
	return values, nil
}

func (s *spec) batchB() []int64 {
	if s.BBatched {
		return s.Batch
	}
	return nil
}

func (d *describer) view(name string, shape []int64) *tensor.View { return d.strided(name, shape, nil) }

// matrix is [batch..., rows, columns] with a leading dimension, if ld gives one; a batch item
// starts rows * ld after the one before.
func (d *describer) matrix(name string, batch []int64, rows, columns int64, ldName string, ld *int64) *tensor.View {
	shape := append(append([]int64{}, batch...), rows, columns)
	if ld == nil {
		return d.view(name, shape)
	}
	if *ld < max(1, columns) {
		d.fail(check.Invalid(d.class, ldName, "got %d, want at least %d, the columns of %s", *ld, max(1, columns), name))
		return nil
	}
	strides := make([]int64, len(shape))
	strides[len(strides)-1], strides[len(strides)-2] = 1, *ld
	next := product{value: *ld, fits: true}.times(rows)
	for i := len(batch) - 1; i >= 0; i-- {
		strides[i] = next.value
		next = next.times(batch[i])
	}
	if !next.fits {
		d.fail(check.Invalid(d.class, name, "shape %s with leading dimension %d reaches beyond 64 bits", check.Sizes(shape), *ld))
		return nil
	}
	return d.strided(name, shape, strides)
}

// product multiplies sizes, of which 0 counts as 1, and notes whether 64 bits hold the result.
type product struct {
	value int64
	fits  bool
}

func (p product) times(size int64) product {
	high, low := bits.Mul64(uint64(p.value), uint64(max(size, 1)))
	return product{int64(low), p.fits && high == 0 && low <= math.MaxInt64}
}

func (d *describer) strided(name string, shape, strides []int64) *tensor.View {
	v, err := tensor.New(nil, 0, d.dt, d.device, shape, strides, 0)
	if err != nil {
		d.fail(check.Wrap(d.class, name, err))
		return nil
	}
	return &v
}

func (d *describer) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// parseDevice reads "cpu", "cuda" or "cuda:1".
func parseDevice(class, text string) (tensor.Device, error) {
	name, index, indexed := strings.Cut(text, ":")
	types := map[string]int32{"cpu": tensor.CPU, "cuda": tensor.CUDA, "webgpu": tensor.WebGPU}
	device, ok := types[name]
	if !ok {
		return tensor.Device{}, check.Invalid(class, "device", "got %q, want cpu, cuda, cuda:N or webgpu", text)
	}
	number := 0
	if indexed {
		var err error
		if number, err = strconv.Atoi(index); err != nil || number < 0 {
			return tensor.Device{}, check.Invalid(class, "device", "got %q, want an index of 0 or more after the colon", text)
		}
	}
	if device == tensor.CPU {
		number = 0
	}
	return tensor.Device{Type: device, Index: int32(number)}, nil
}
