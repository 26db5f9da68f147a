package op

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/tensor"
)

// Argument is one input or output of a signature.
type Argument struct {
	Name string
	// Shape has a symbol for each size: "[..., K]". "..." is any number of dimensions, and equal
	// symbols are equal sizes. The 2 of "[2H, K]" counts only for a gated kind. It is "" where a
	// rule says more than symbols can.
	Shape string
	// Example is the shape in an example, where Shape is "".
	Example string
	// Channels reports whether it has one element, or one for each index of the first input's
	// second dimension.
	Channels bool
	Optional bool
	// Default reports whether PyTorch's operator has the default None for it.
	Default bool
	// Kept reports whether an input of a backward is what forward may have kept.
	Kept bool
	// Broadcasts: any shape that broadcasts to the operation's is accepted, also by a plan that was
	// selected with another.
	Broadcasts bool
	// Replaces names the input that an output may be written over; "" for none.
	Replaces string
	// Types are the dtypes that it may have.
	Types check.Types
	// Like names the input whose dtype an output has; "" where that is the call's.
	Like string
}

// Signature is an operation's arguments in order. Outputs may all be absent: what is absent is not
// computed.
type Signature struct {
	Name            string
	Inputs, Outputs []Argument
}

// Keeps is what backward needs of a forward's preactivation.
type Keeps int

// The values are those of bridge.h.
const (
	KeepsNothing Keeps = iota // there is none
	KeepsSlope                // the slope, which may be constant
	KeepsOutput               // the slope, which may be constant, or follow from the output
	KeepsHidden               // also the hidden activation
)

// String is a word for it in the table that Python reads.
func (k Keeps) String() string { return [...]string{"", "slope", "output", "hidden"}[k] }

// arguments reads a signature's arguments, each a name and a shape, or "~" and that of an example,
// in which "1|C" is one element or one for each channel. A "?" after the name makes it optional,
// and "= None" at the end gives it a default.
func arguments(texts ...string) []Argument {
	list := make([]Argument, len(texts))
	for i, text := range texts {
		text, byDefault := strings.CutSuffix(text, " = None")
		name, shape, _ := strings.Cut(text, " ")
		bare, optional := strings.CutSuffix(name, "?")
		list[i] = Argument{Name: bare, Optional: optional, Default: byDefault}
		if example, is := strings.CutPrefix(shape, "~"); is {
			list[i].Example = strings.Replace(example, "|C", "", 1)
			list[i].Channels = list[i].Example != example
		} else {
			list[i].Shape = shape
		}
	}
	return list
}

// typed gives the arguments of some names other dtypes than the call's.
func typed(types check.Types, list []Argument, names ...string) []Argument {
	for i := range list {
		if slices.Contains(names, list[i].Name) {
			list[i].Types = types
		}
	}
	return list
}

// broadcasting marks the arguments from first on as those that broadcast.
func broadcasting(first int, list []Argument) []Argument {
	for i := first; i < len(list); i++ {
		list[i].Broadcasts = true
	}
	return list
}

// backward is the signature of the gradients of a forward: of grad_output, forward's inputs and
// what forward has kept, the gradient of each input that is no index. Adapters come last. Gradients
// of a product's weights and biases may be float32 where the call has a half type: what was summed
// in float32 is then not rounded. So may that of an input with a dtype of its own, which it has
// then.
func (s Signature) backward(kept ...string) Signature {
	b := Signature{Name: s.Name + "_backward"}
	out := s.Outputs[0]
	own := s.ownInputs()
	b.Inputs = append([]Argument{{Name: "grad_output", Shape: out.Shape, Example: out.Example}}, s.Inputs[:own]...)
	for _, name := range kept {
		b.Inputs = append(b.Inputs, Argument{Name: name, Shape: out.Shape, Optional: true, Default: true, Kept: true})
	}
	b.Inputs = append(b.Inputs, s.Inputs[own:]...)
	for _, a := range s.Inputs {
		gradient := Argument{Name: "grad_" + a.Name, Shape: a.Shape, Example: a.Example, Broadcasts: a.Broadcasts}
		switch {
		case a.Types == check.Offsets || a.Types == check.Indices:
			continue
		case a.Types == check.OrWider:
			gradient.Types, gradient.Like = check.OrWider, a.Name
		case len(kept) > 0 && (isWeight(a.Name) || a.IsAdapters()):
			gradient.Types = check.OrWider
		}
		b.Outputs = append(b.Outputs, gradient)
	}
	for i, a := range b.Inputs {
		if a.Kept && a.Name == "preactivation" {
			b.Inputs[i].Shape = s.Outputs[1].Shape
		}
	}
	return b
}

// backward is the operation of the forward's gradients; b has its problem or problems. What forward
// has kept and grad_output have the shapes of its outputs, and gradients those of its inputs.
func (o operation) backward(b operation, kept ...string) operation {
	problem, problems := b.problem, b.problems
	b = o
	b.Signature, b.accumulates, b.problem, b.problems = o.Signature.backward(kept...), o.multiplies, problem, problems
	b.shapes = func(c *Call, inputs []*tensor.View) ([][]int64, error) {
		outputs, err := o.shapes(c, inputs[1:])
		if err != nil {
			return nil, err
		}
		for i, a := range b.Inputs {
			v, want, whose := at(inputs, i), outputs[0], "the output's"
			if a.Name == "preactivation" {
				want, whose = outputs[1], "forward's"
			}
			if v == nil || i > 0 && !a.Kept {
				continue
			}
			if err := check.Shape(c.Op, a.Name, v.Shape, want, whose); err != nil {
				return nil, err
			}
			if a.Name == "output" {
				if err := fromOutput(c); err != nil {
					return nil, err
				}
			}
		}
		var shapes [][]int64
		for i, a := range b.Inputs {
			if !slices.ContainsFunc(b.Outputs, func(gradient Argument) bool { return gradient.Name == "grad_"+a.Name }) {
				continue
			}
			var shape []int64
			if v := at(inputs, i); v != nil {
				shape = v.Shape
			}
			shapes = append(shapes, shape)
		}
		return shapes, nil
	}
	return b
}

// fromOutput refuses an output in place of the preactivation, of a kind whose slope does not follow
// from it.
func fromOutput(c *Call) error {
	if info, _ := activation.Lookup(c.Kind); info.FromOutput {
		return nil
	}
	return check.Invalid(c.Op, "output", "given for %q, whose derivative cannot be computed from the output: pass preactivation, or use one of %s", c.Kind,
		strings.Join(activation.NamesFromOutput(), ", "))
}

// isWeight reports whether an operand of a product is a weight or a bias by its name.
func isWeight(name string) bool {
	return name == "b" || strings.HasPrefix(name, "weight") || strings.HasPrefix(name, "bias")
}

// ownInputs is how many inputs are no adapter's, which come last.
func (s Signature) ownInputs() int {
	own := len(s.Inputs)
	for own > 0 && s.Inputs[own-1].IsAdapters() {
		own--
	}
	return own
}

// results are the outputs of PyTorch's operator: of a backward only the gradients of its inputs.
func (s Signature) results() []Argument {
	if !strings.HasSuffix(s.Name, "_backward") {
		return s.Outputs
	}
	var list []Argument
	for _, output := range s.Outputs {
		if slices.ContainsFunc(s.Inputs, func(input Argument) bool { return "grad_"+input.Name == output.Name }) {
			list = append(list, output)
		}
	}
	return list
}

// plain is the signature without adapters.
func (s Signature) plain() Signature {
	s.Inputs = slices.DeleteFunc(slices.Clone(s.Inputs), Argument.IsAdapters)
	s.Outputs = slices.DeleteFunc(slices.Clone(s.Outputs), Argument.IsAdapters)
	return s
}

// rounding is the signature of PyTorch's operator with adapters, nil where there are none. Its
// adapters may be float32 beside half types (cbridge/launch.c rounds them), as their gradients are
// then.
func (s Signature) rounding() *Signature {
	if s.ownInputs() == len(s.Inputs) {
		return nil
	}
	s.Inputs, s.Outputs = slices.Clone(s.Inputs), slices.Clone(s.Outputs)
	for i := range s.Inputs {
		if s.Inputs[i].IsAdapters() {
			s.Inputs[i].Types = check.OrWider
		}
	}
	for i := range s.Outputs {
		if s.Outputs[i].IsAdapters() {
			s.Outputs[i].Like = strings.TrimPrefix(s.Outputs[i].Name, "grad_")
		}
	}
	return &s
}

// schema is the arguments and results of PyTorch's operator with a signature, in PyTorch's
// notation.
func (o *operation) schema(s Signature) string {
	var list, kept []string
	for _, a := range s.Inputs {
		text := "Tensor "
		if a.Optional {
			text = "Tensor? "
		}
		text += operatorName(a.Name)
		if a.Default {
			text += "=None"
		}
		if a.Kept || a.IsAdapters() {
			kept = append(kept, text)
		} else {
			list = append(list, text)
		}
	}
	options := []string{"*"}
	if o.kinds != nil {
		text := "str " + o.kinds.argument
		if o.kinds == activations {
			text = "str? " + o.kinds.argument
		}
		if o.defaultKind != "" {
			text += "='" + o.defaultKind + "'"
		}
		list, options = append(list, text), append(options, "float[] parameters=[]")
	}
	if o.splits {
		list = append(list, "int dim=-1")
	}
	for _, p := range o.parameters {
		list = append(list, "float "+p.Name+"="+strconv.FormatFloat(float64(p.Default), 'g', -1, 64))
	}
	if o.factor {
		options = append(options, "float? factor=None")
	}
	if o.halves {
		options = append(options, "str gate='second'")
	}
	results := s.results()
	switch count := len(results); {
	case o.keeps() != KeepsNothing:
		options = append(options, "str save='auto'")
	case count > 1:
		options = append(options, fmt.Sprintf("bool[%d] needs=[True%s]", count, strings.Repeat(", True", count-1)))
	}
	options = append(options, "str? backend=None")
	if o.multiplies {
		options = append(options, "bool batch_invariant=False")
	}
	outcome := "Tensor"
	if len(results) > 1 {
		names := make([]string, len(results))
		for i, r := range results {
			names[i] = "Tensor " + operatorName(r.Name)
			if r.Name == "out" {
				names[i] = "Tensor output"
			}
		}
		outcome = "(" + strings.Join(names, ", ") + ")"
	}
	return "(" + strings.Join(slices.Concat(list, kept, options), ", ") + ") -> " + outcome
}

// operatorName is an argument's name in PyTorch's notation.
func operatorName(name string) string { return strings.ReplaceAll(name, ".", "_") }

// keeps says what a forward may keep of its preactivation for backward.
func (o *operation) keeps() Keeps {
	if len(o.Outputs) < 2 || o.Outputs[1].Name != "preactivation" {
		return KeepsNothing
	}
	gradients, _ := SignatureOf(o.Name + "_backward")
	switch {
	case o.Outputs[0].Shape != o.Outputs[1].Shape:
		return KeepsHidden
	case slices.ContainsFunc(gradients.Inputs, func(a Argument) bool { return a.Name == "output" }):
		return KeepsOutput
	default:
		return KeepsSlope
	}
}

// Row is what other languages know of an operation.
type Row struct {
	Signature // without adapters
	// Schema is the arguments and results of PyTorch's operator, in PyTorch's notation.
	Schema string
	// Adapted is the signature with adapters, nil for none, and AdaptedSchema that of its operator.
	Adapted       *Signature
	AdaptedSchema string
	// Kinds says which table its kind is in: "activation", "gated", "either" or "".
	Kinds string
	// DefaultKind is the kind that a caller may leave out; "" for none.
	DefaultKind string
	// Parameters are those of a formula of its own.
	Parameters []activation.Parameter
	Keeps      Keeps
	// Multiplies reports whether it has a product of matrices, which TF32 and batch invariance are
	// about, Halves whether it takes the gate's place, and Splits whether it splits a dimension.
	Multiplies, Halves, Splits bool
	// Factor reports whether a number may stand for an operand.
	Factor bool
}

// Rows lists every operation.
func Rows() []Row {
	all := make([]Row, len(operations))
	for i := range operations {
		o := &operations[i]
		all[i] = Row{
			Signature: o.plain(), Schema: o.schema(o.plain()), Adapted: o.rounding(), Keeps: o.keeps(), DefaultKind: o.defaultKind, Parameters: o.parameters,
			Multiplies: o.multiplies, Halves: o.halves, Splits: o.splits, Factor: o.factor,
		}
		if all[i].Adapted != nil {
			all[i].AdaptedSchema = o.schema(*all[i].Adapted)
		}
		if o.kinds != nil {
			all[i].Kinds = o.kinds.table
		}
	}
	return all
}
