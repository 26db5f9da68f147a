package op

import (
	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/check"
)

// kinds is one of the tables of go/activation, as operations look kinds up.
type kinds struct {
	argument   string // what the kind is called in messages
	names      func() []string
	parameters func(name string) (parameters []activation.Parameter, known bool)
}

var (
	activations = &kinds{"activation", activation.Names, func(name string) ([]activation.Parameter, bool) {
		row, known := activation.Lookup(name)
		return row.Parameters, known
	}}
	gatedKinds = &kinds{"kind", activation.GatedNames, func(name string) ([]activation.Parameter, bool) {
		row, known := activation.LookupGated(name)
		return row.Parameters, known
	}}
)

// complete fills in the activation that "" stands for, and the values that parameters have by
// default. It refuses a kind that the operation does not know, and parameters that the kind does
// not have.
func (o *operation) complete(c *Call) error {
	if o.kinds == nil {
		switch {
		case c.Kind != "":
			return check.Invalid(o.Name, "kind", "got %s, want no name (NULL): this operation has no activation", check.Quote(c.Kind))
		case len(c.Parameters) > 1:
			return check.Invalid(o.Name, "parameters", "got %d, want the weight alone", len(c.Parameters))
		}
		return nil
	}
	if c.Kind == "" && o.kinds == activations {
		c.Kind = "none"
	}
	parameters, known := o.kinds.parameters(c.Kind)
	if !known {
		return check.OneOf(o.Name, o.kinds.argument, c.Kind, o.kinds.names())
	}
	values, err := activation.Complete(parameters, c.Parameters)
	if err != nil {
		return check.In(o.Name, err)
	}
	c.Parameters = values
	return nil
}

// describe is a call's kind, with the parameters that are not defaults.
func (o *operation) describe(c *Call) string {
	if o.kinds == nil {
		return c.Kind
	}
	parameters, _ := o.kinds.parameters(c.Kind)
	return activation.Describe(c.Kind, parameters, c.Parameters)
}
