package backend

import (
	"reflect"
	"slices"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/go/tuning"
)

// Header holds the fields that all problems have.
type Header struct {
	// Op is the name of an operation, or of a part of one; Kind the activation or gated kind, ""
	// without one.
	Op, Kind string
	// Formula computes the kind, of a gated kind its gate (go/activation). Its numbers are
	// Run.Parameters.
	Formula string
	DType   dtype.DType
	// AllowTF32 lets float32 products be computed in TF32 where the hardware has it.
	AllowTF32 bool
	// BatchInvariant makes bits of a row depend neither on other rows nor on how many there are: of
	// the output, of the gradient to the input and of that to the preactivation.
	BatchInvariant bool
	// Groups [e] are where the groups of a problem's rows end (grouped.go); nil where its rows
	// belong to none.
	Groups *tensor.View `role:"ends"`
	// Choices are those of the tuning block that the call is in: a backend that has candidates
	// times them and keeps the choice. nil outside of blocks, where every choice is fixed.
	Choices *tuning.File
}

// As is the header with another operation's name.
func (h Header) As(op string) Header {
	h.Op = op
	return h
}

// Plain is As for an operation without an activation.
func (h Header) Plain(op string) Header {
	h.Op, h.Kind, h.Formula = op, "none", "none"
	return h
}

// Describe implements Problem.
func (h *Header) Describe() (op, kind string, dt dtype.DType) { return h.Op, h.Kind, h.DType }

// Computes implements Problem.
func (h *Header) Computes() string { return h.Formula }

// Tuning implements Problem. A batch-invariant call may not choose by what was fastest for its
// rows.
func (h *Header) Tuning() *tuning.File {
	if h.BatchInvariant {
		return nil
	}
	return h.Choices
}

// IsBatchInvariant implements Problem.
func (h *Header) IsBatchInvariant() bool { return h.BatchInvariant }

// AllowsTF32 implements Problem.
func (h *Header) AllowsTF32() bool { return h.AllowTF32 }

// Grouping implements Problem.
func (h *Header) Grouping() *tensor.View { return h.Groups }

// Role is what a tensor is to its problem: the tag `role` of its field. Products, passes, SumRows
// and CombineRows have these tags. With Groups, a tensor has rows, or a part for each group.
type Role string

// The roles.
const (
	Input      Role = ""      // with rows
	GroupInput Role = "group" // with a part for each group
	Output     Role = "out"   // with rows
	Sum        Role = "sum"   // an output with a part for each group, to which a run may add
	Ends       Role = "ends"  // Header.Groups
)

// Pair is a product within a sum of products.
type Pair struct {
	A *tensor.View
	B *tensor.View `role:"group"`
}

// GemmEpilogue is out = act(a b + a' b' + ... + bias), where the pairs a', b' ... are More.
//
// A, Out and Preactivation are [batch..., rows..., columns]: all dimensions but the batch and the
// last are rows, walked as one in row-major order, so that leading dimensions that strides do not
// allow to merge are still one product. B is [batch..., k, n] and Bias is [n]. Batch dimensions of
// the operands have equal sizes, with stride 0 where an operand is broadcast. Bias and
// Preactivation may be nil, and Out is nil where only the preactivation is wanted. A further pair
// has a depth of its own, and else the shapes of A and B.
//
// With Groups, B is [e, k, n] and Bias [e, n]: rows of group e are multiplied by B[e].
type GemmEpilogue struct {
	Header
	BatchRank          int
	A                  *tensor.View
	B, Bias            *tensor.View `role:"group"`
	More               []Pair
	Out, Preactivation *tensor.View `role:"out"`
}

// GemmEpilogueBackward is
//
//	g         = grad_output act'(pre)
//	grad_a    = g bᵀ
//	grad_b    = aᵀ g
//	grad_bias = column sums of g
//
// Shapes are as in GemmEpilogue; GradA and GradB have the size 1 in the batch dimensions that they
// are summed over. GradA, GradB and GradBias are nil where they are not wanted. With neither
// Preactivation nor Output the preactivation is formed from A, B and Bias. Runs that accumulate add
// to GradB and GradBias.
//
// With Groups, B and GradB are [e, k, n], Bias and GradBias [e, n]. A group without rows has
// gradients 0.
type GemmEpilogueBackward struct {
	Header
	BatchRank             int
	GradOutput, A         *tensor.View
	B, Bias               *tensor.View `role:"group"`
	Preactivation, Output *tensor.View
	GradA                 *tensor.View `role:"out"`
	GradB, GradBias       *tensor.View `role:"sum"`
}

// Activation is out = act(input); both views have one shape.
type Activation struct {
	Header
	Input *tensor.View
	Out   *tensor.View `role:"out"`
}

// ActivationBackward is grad_input = grad_output act'(input) and out = act(input); all views have
// one shape and results that are not wanted are nil. GradBias is the unrounded gradient summed over
// all dimensions but the last, in which alone its size is not 1; a run may add to it. With Groups
// it is [e, n], the sums of each group's rows. GradInput may be GradOutput's memory.
type ActivationBackward struct {
	Header
	GradOutput, Input *tensor.View
	GradInput, Out    *tensor.View `role:"out"`
	GradBias          *tensor.View `role:"sum"`
}

// ActivationCurvature is the backward of an ActivationBackward's gradient, for gradients of
// gradients:
//
//	grad_grad_output = grad_grad_input act'(input)
//	grad_input       = (grad_grad_input grad_output) act''(input)
//
// With Output in the place of Input, act' is a function of that, which has grad_input in the place
// of the input. All views have one shape, and a result that is not wanted is nil. A backend may
// refuse it as Unsupported: PyTorch then computes it.
type ActivationCurvature struct {
	Header
	GradGradInput, GradOutput, Input, Output *tensor.View
	GradGradOutput, GradInput                *tensor.View `role:"out"`
}

// HiddenBackward is the backward of a layer's input that was act(preactivation):
//
//	g         = grad_output weight
//	grad_pre  = g act'(preactivation)
//	grad_bias = column sums of grad_pre, before it is rounded
//	out       = act(preactivation)
//
// GradOutput is [rows..., n], Weight [n, h], and the rest [rows..., h]. GradBias has the size 1 in
// all dimensions but the last; a run may add to it. GradBias and Out may be nil.
//
// A backend may refuse it as Unsupported, since it is the same as a product and an
// ActivationBackward.
type HiddenBackward struct {
	Header
	GradOutput, Weight, Preactivation *tensor.View
	GradPreactivation, Out, GradBias  *tensor.View
}

// GatedLinear is
//
//	value = input weight_valueᵀ + bias_value
//	gate  = input weight_gateᵀ + bias_gate
//	out   = value act(gate)
//
// Input is [rows..., k], the weights are [h, k], the biases [h], Out, Value and Gate [rows..., h].
// Weights, biases and preactivations may be halves of one tensor each. Both is then the product of
// the whole tensors, with the preactivation as its output if that is wanted, and Halves gives the
// values and the gates of what has 2h columns.
// Biases, Out, and Value with Gate may be nil; the preactivations are rounded once, where they are
// stored.
//
// A backend may refuse it as Unsupported, since it is the same as two products and a Gated.
type GatedLinear struct {
	Header
	Input, WeightValue, BiasValue *tensor.View
	WeightGate, BiasGate          *tensor.View
	Out, Value, Gate              *tensor.View
	Both                          *GemmEpilogue
	Halves                        func(v *tensor.View) (value, gate *tensor.View)
}

// GatedHiddenBackward is the backward of a layer's input that was value act(gate):
//
//	g          = grad_output weight
//	grad_value = g act(gate)
//	grad_gate  = g value act'(gate)
//	out        = value act(gate)
//
// and the biases' gradients are column sums, before rounding. Shapes are as in HiddenBackward.
// The biases' gradients and Out may be nil. Biased says that the layer
// has biases: bits do not depend on which gradients are wanted.
//
// A backend may refuse it as Unsupported, since it is the same as a product, a GatedBackward and a
// Gated.
type GatedHiddenBackward struct {
	Header
	GradOutput, Weight, Value, Gate *tensor.View
	GradValue, GradGate, Out        *tensor.View
	GradBiasValue, GradBiasGate     *tensor.View
	Biased                          bool
}

// Gated is out = value act(gate); all views have one shape.
type Gated struct {
	Header
	Value, Gate *tensor.View
	Out         *tensor.View `role:"out"`
}

// GatedBackward is grad_value = grad_output act(gate) and grad_gate = grad_output value act'(gate);
// all views have one shape and the gradients that are not wanted are nil. GradBiasValue and
// GradBiasGate are the unrounded gradients summed over the dimensions in which they have the size 1
// and GradOutput has not; a run may add to them. With Groups they are [e, n], the sums of each
// group's rows.
type GatedBackward struct {
	Header
	GradOutput, Value, Gate     *tensor.View
	GradValue, GradGate         *tensor.View `role:"out"`
	GradBiasValue, GradBiasGate *tensor.View `role:"sum"`
}

// GatedCurvature is the backward of GatedBackward's gradients, with u and v for the gradients to
// grad_value and grad_gate:
//
//	grad_grad_output = u act(gate) + v value act'(gate)
//	grad_value       = v grad_output act'(gate)
//	grad_gate        = u grad_output act'(gate) + v grad_output value act''(gate)
//
// Views and refusals are as in ActivationCurvature.
type GatedCurvature struct {
	Header
	GradGradValue, GradGradGate, GradOutput, Value, Gate *tensor.View
	GradGradOutput, GradValue, GradGate                  *tensor.View `role:"out"`
}

// Pointwise is out = f(inputs), where each element is a function of the inputs' at the same place.
// All views have out's shape, with stride 0 where an input is broadcast. The formula is one of:
//
//	lerp    start, end, weight     start + weight (end - start)
//	prelu   input, weight          input if input > 0 else weight input
//	xielu   input, alpha_p, alpha_n
//	                               with a_p = softplus(alpha_p), a_n = beta + softplus(alpha_n):
//	                               a_p input^2 + beta input if input > 0,
//	                               else (exp(input) - 1 - input) a_n + beta input
//
// lerp's weight is nil where the first of Run.Parameters gives it; xielu's beta is that.
type Pointwise struct {
	Header
	Inputs []*tensor.View
	Out    *tensor.View `role:"out"`
}

// PointwiseBackward is the gradients of a Pointwise's inputs, each summed over the dimensions in
// which it has the size 1 and GradOutput has not. The inputs have GradOutput's shape, the gradients
// its rank. Inputs are nil where they are not needed, and gradients where they are not wanted.
type PointwiseBackward struct {
	Header
	GradOutput *tensor.View
	Inputs     []*tensor.View
	Gradients  []*tensor.View `role:"out"`
	// Uses tells for each gradient of which inputs it is a function, beside GradOutput.
	Uses [][]int
}

// Passes are the gradients by what computes them: those of grad_output's own shape, and a list for
// each shape that others are summed to. A list has a place for each gradient.
func (p *PointwiseBackward) Passes() (whole []*tensor.View, sums [][]*tensor.View) {
	whole = make([]*tensor.View, len(p.Gradients))
	var shapes [][]int64
	for i, gradient := range p.Gradients {
		switch {
		case gradient == nil:
		case slices.Equal(gradient.Shape, p.GradOutput.Shape):
			whole[i] = gradient
		default:
			at := slices.IndexFunc(shapes, func(shape []int64) bool { return slices.Equal(shape, gradient.Shape) })
			if at < 0 {
				at = len(shapes)
				shapes, sums = append(shapes, gradient.Shape), append(sums, make([]*tensor.View, len(p.Gradients)))
			}
			sums[at][i] = gradient
		}
	}
	return whole, sums
}

// UsedBy are a PointwiseBackward's inputs, without those that none of the gradients in these lists
// is a function of.
func (p *PointwiseBackward) UsedBy(lists ...[]*tensor.View) []*tensor.View {
	used := make([]*tensor.View, len(p.Inputs))
	for _, gradients := range lists {
		for i, gradient := range gradients {
			if gradient == nil {
				continue
			}
			for _, input := range p.Uses[i] {
				used[input] = p.Inputs[input]
			}
		}
	}
	return used
}

// Views lists a problem's views in the order of its fields, and the ends of its groups last. Absent
// ones are left out. Both of a GatedLinear has none of its own.
func Views(p Problem) (all []*tensor.View) {
	Replaced(p, func(v *tensor.View, role Role) *tensor.View {
		if role != Ends {
			all = append(all, v)
		}
		return v
	})
	if ends := p.Grouping(); ends != nil {
		all = append(all, ends)
	}
	return all
}

// Replaced is a problem over other tensors: `by` gives one for each that is there.
func Replaced[P Problem](p P, by func(v *tensor.View, role Role) *tensor.View) P {
	other := reflect.New(reflect.TypeOf(p).Elem())
	other.Elem().Set(reflect.ValueOf(p).Elem())
	replace(other.Elem(), Input, by)
	return other.Interface().(P)
}

// replace replaces the tensors of a struct, or of a field or a part of one.
func replace(of reflect.Value, role Role, by func(v *tensor.View, role Role) *tensor.View) {
	switch old := of.Interface().(type) {
	case *tensor.View:
		if old != nil {
			of.Set(reflect.ValueOf(by(old, role)))
		}
		return
	case []*tensor.View:
		of.Set(reflect.ValueOf(slices.Clone(old)))
	case []Pair:
		of.Set(reflect.ValueOf(slices.Clone(old)))
	}
	switch of.Kind() {
	case reflect.Slice:
		for i := range of.Len() {
			replace(of.Index(i), role, by)
		}
	case reflect.Struct:
		for i := range of.NumField() {
			replace(of.Field(i), Role(of.Type().Field(i).Tag.Get("role")), by)
		}
	}
}
