package op

import (
	"slices"
	"strings"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/check"
)

// kinds is one of the tables of go/activation, as operations look kinds up.
type kinds struct {
	table    string // "activation", "gated" or "either"
	argument string // what the kind is called in messages
	names    func() []string
	aliases  []string // other names that lookup knows
	lookup   func(name string) (k kind, known bool)
}

// kind is a row of either table.
type kind struct {
	name       string
	parameters []activation.Parameter
	// defaults are the parameters' values where a call gives none; nil for those of the table.
	defaults []float64
	// defaultIs is the kind that it is with its default parameters; "" for itself.
	defaultIs string
	kernel    func(values []float64) (formula string, numbers []float64)
}

var (
	activations = &kinds{"activation", "activation", activation.Names, activation.Aliases(), func(name string) (kind, bool) {
		row, known := activation.Lookup(name)
		return kind{name: row.Name, parameters: row.Parameters, defaultIs: row.DefaultIs, kernel: row.Kernel}, known
	}}
	gatedKinds = &kinds{"gated", "kind", activation.GatedNames, nil, func(name string) (kind, bool) {
		preset, is := activation.LookupPreset(name)
		if is {
			name = preset.Kind
		}
		row, known := activation.LookupGated(name)
		return kind{name: row.Name, parameters: row.Parameters, defaults: preset.Values(), kernel: row.Kernel}, known
	}}
	// eitherKinds are both: no name is in both tables
	eitherKinds = &kinds{"either", "kind", func() []string { return slices.Concat(gatedKinds.names(), activations.names()) }, activations.aliases, func(name string) (kind, bool) {
		if k, known := gatedKinds.lookup(name); known {
			return k, true
		}
		return activations.lookup(name)
	}}
)

// complete gives a call's kind its own name, and the values that parameters have by default. It
// refuses a kind that the operation does not know, and parameters that the kind does not have.
func (o *operation) complete(c *Call) error {
	if o.kinds == nil {
		return o.completeFormula(c)
	}
	if c.Kind == "" && (o.kinds == activations || o.kinds == eitherKinds) {
		c.Kind = "none"
	}
	k, known := o.kinds.lookup(c.Kind)
	if !known {
		return o.unknown(c.Kind)
	}
	given := c.Parameters
	if len(given) == 0 {
		given = k.defaults
	}
	values, err := activation.Complete(k.parameters, given)
	if err != nil {
		return check.In(o.Name, err)
	}
	c.Kind, c.Parameters = k.name, values
	if k.defaultIs != "" && activation.AreDefaults(k.parameters, values) {
		c.Kind, c.Parameters = k.defaultIs, nil
	}
	return nil
}

// unknown is the error for a kind that the operation does not know.
func (o *operation) unknown(name string) error {
	for what, other := range map[string]*kinds{"an activation": activations, "a gated kind": gatedKinds} {
		if _, known := other.lookup(name); known {
			return check.Invalid(o.Name, o.kinds.argument, "got %s, want one of %s (it is %s)",
				check.Quote(name), strings.Join(o.kinds.names(), ", "), what)
		}
	}
	return check.OneOf(o.Name, o.kinds.argument, name, o.kinds.names(), o.kinds.aliases...)
}

// completeFormula is complete for an operation without a kind.
func (o *operation) completeFormula(c *Call) error {
	switch {
	case c.Kind != "":
		return check.Invalid(o.Name, "kind", "got %s, want none: this operation has no activation", check.Quote(c.Kind))
	case o.parameters != nil:
		values, err := activation.Complete(o.parameters, c.Parameters)
		if err != nil {
			return check.In(o.Name, err)
		}
		c.Parameters = values
	case len(c.Parameters) > 0 && !o.factor:
		return check.Invalid(o.Name, "parameters", "got %d, want none", len(c.Parameters))
	case len(c.Parameters) > 1:
		return check.Invalid(o.Name, "parameters", "got %d, want at most one, the weight", len(c.Parameters))
	}
	return nil
}

// hasDefaults reports whether a call that gives no parameters has some.
func (o *operation) hasDefaults() bool { return o.kinds != nil || o.parameters != nil }

// computes is the formula of a completed call, and the formula's numbers (go/activation).
func (o *operation) computes(c *Call) (formula string, numbers []float64) {
	if o.kinds == nil {
		return o.formula, c.Parameters
	}
	k, _ := o.kinds.lookup(c.Kind)
	return k.kernel(c.Parameters)
}

// describe is a call's kind, with the parameters that are not defaults.
func (o *operation) describe(c *Call) string {
	if o.kinds == nil {
		return c.Kind
	}
	k, _ := o.kinds.lookup(c.Kind)
	return activation.Describe(c.Kind, k.parameters, c.Parameters)
}
