package op

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/tensor"
)

// activationForward is out = act(input), for a hidden activation that a backward forms again.
var activationForward = operation{
	Signature: Signature{"activation", arguments("input [...]"), arguments("out [...]")},
	kinds:     activations,
	shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
		return [][]int64{c.input(0).Shape}, nil
	},
	problem: func(c *Call, h backend.Header) backend.Problem {
		return &backend.Activation{Header: h, Input: c.input(0), Out: c.output(0)}
	},
}

// activationBackward is grad_input = grad_output * act'(input), beside it out = act(input), which a
// backward that keeps preactivations alone needs at the same time, and grad_bias: grad_input
// summed, before it is rounded, over all dimensions but the last. grad_input may be grad_output.
var activationBackward = operation{
	Signature: Signature{"activation_backward", arguments("grad_output [...]", "input [...]"), []Argument{
		{Name: "grad_input", Shape: "[...]", Replaces: "grad_output"}, {Name: "out", Shape: "[...]"}, {Name: "grad_bias", Types: check.OrWider},
	}},
	kinds: activations,
	shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
		const name = "activation_backward"
		shape := c.input(1).Shape
		if err := check.Shape(name, "grad_output", c.input(0).Shape, shape, "the input's shape"); err != nil {
			return nil, err
		}
		if len(shape) == 0 {
			return [][]int64{shape, shape, nil}, nil
		}
		return [][]int64{shape, shape, shape[len(shape)-1:]}, nil
	},
	problem: func(c *Call, h backend.Header) backend.Problem {
		return &backend.ActivationBackward{
			Header: h, GradOutput: c.input(0), Input: c.input(1), GradInput: c.output(0), Out: c.output(1),
			GradBias: tensor.Aligned(c.output(2), c.input(1).Rank()),
		}
	},
}

// activationCurvature is the backward of activation_backward, for gradients of gradients:
//
//	grad_grad_output = grad_grad_input act'(input)
//	grad_input       = (grad_grad_input grad_output) act''(input)
//
// With output = act(input), of a kind whose slope follows from it, the input is not read, and
// grad_input is the gradient to the output.
var activationCurvature = operation{
	Signature: Signature{
		"activation_backward_backward",
		append(arguments("grad_grad_input [...]", "grad_output [...]", "input? [...]"), Argument{Name: "output", Shape: "[...]", Optional: true, Default: true, Kept: true}),
		arguments("grad_grad_output [...]", "grad_input [...]"),
	},
	kinds:  activations,
	shapes: activationCurvatureShapes,
	problem: func(c *Call, h backend.Header) backend.Problem {
		p := &backend.ActivationCurvature{
			Header: h, GradGradInput: c.input(0), GradOutput: c.input(1), Output: c.input(3), GradGradOutput: c.output(0), GradInput: c.output(1),
		}
		if p.Output == nil {
			p.Input = c.input(2)
		}
		return p
	},
}

func activationCurvatureShapes(c *Call, _ []*tensor.View) ([][]int64, error) {
	if c.input(3) != nil {
		if err := fromOutput(c); err != nil {
			return nil, err
		}
	} else if c.input(2) == nil {
		return nil, check.Invalid(c.Op, "input", "missing, want a tensor, or the output in its place")
	}
	shape := c.input(0).Shape
	for i, a := range [3]string{"grad_output", "input", "output"} {
		if v := c.input(1 + i); v != nil {
			if err := check.Shape(c.Op, a, v.Shape, shape, "grad_grad_input's"); err != nil {
				return nil, err
			}
		}
	}
	return [][]int64{shape, shape}, nil
}

// A gated activation:
//
//	out        = value * act(gate)
//	grad_value = grad_output * act(gate)
//	grad_gate  = grad_output * value * act'(gate)
//
// value and gate are the halves of the input along a dimension (torch.nn.functional.glu's
// convention is the gate second), or take turns along it, or, in the product, are two tensors of
// one shape. grad_bias is grad_input summed, before it is rounded, over all dimensions but the
// split one: the gradient of a bias that a linear layer added to the input. grad_bias_value and
// grad_bias_gate are the same of two tensors, summed over all dimensions but the last.
var (
	gatedActivation = operation{
		Signature: Signature{"gated_activation", arguments("input ~[2, 8]"), arguments("out ~[2, 4]")},
		kinds:     gatedKinds, defaultKind: "swiglu",
		halves: true,
		splits: true,
		shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
			half, err := split("gated_activation", c, c.input(0))
			if err != nil {
				return nil, err
			}
			return [][]int64{half}, nil
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			value, gate := halves(c.input(0), c.Dim, c.Gate)
			return &backend.Gated{Header: h, Value: value, Gate: gate, Out: c.output(0)}
		},
	}
	gatedActivationBackward = operation{
		Signature: Signature{
			"gated_activation_backward", arguments("grad_output ~[2, 4]", "input ~[2, 8]"), typed(check.OrWider, arguments("grad_input ~[2, 8]", "grad_bias"), "grad_bias"),
		},
		kinds: gatedKinds, defaultKind: "swiglu",
		halves: true,
		splits: true,
		shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
			const name = "gated_activation_backward"
			half, err := split(name, c, c.input(1))
			if err != nil {
				return nil, err
			}
			if err := check.Shape(name, "grad_output", c.input(0).Shape, half, "half of the input's shape"); err != nil {
				return nil, err
			}
			shape := c.input(1).Shape
			return [][]int64{shape, {shape[splitDim(c, len(shape))]}}, nil
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			p := &backend.GatedBackward{Header: h, GradOutput: c.input(0)}
			p.Value, p.Gate = halves(c.input(1), c.Dim, c.Gate)
			p.GradValue, p.GradGate = halves(c.output(0), c.Dim, c.Gate)
			if bias := c.output(1); bias != nil {
				along := *bias
				for d := range c.input(1).Rank() {
					if d != splitDim(c, c.input(1).Rank()) {
						along = along.Unsqueeze(d)
					}
				}
				p.GradBiasValue, p.GradBiasGate = halves(&along, c.Dim, c.Gate)
			}
			return p
		},
	}
	gatedActivationCurvature = operation{
		Signature: Signature{
			"gated_activation_backward_backward", arguments("grad_grad_input ~[2, 8]", "grad_output ~[2, 4]", "input ~[2, 8]"),
			arguments("grad_grad_output ~[2, 4]", "grad_input ~[2, 8]"),
		},
		kinds: gatedKinds, defaultKind: "swiglu",
		halves: true,
		splits: true,
		shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
			half, err := split(c.Op, c, c.input(2))
			if err != nil {
				return nil, err
			}
			if err := check.Shape(c.Op, "grad_output", c.input(1).Shape, half, "half of the input's shape"); err != nil {
				return nil, err
			}
			return [][]int64{half, c.input(2).Shape}, check.Shape(c.Op, "grad_grad_input", c.input(0).Shape, c.input(2).Shape, "the input's shape")
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			p := &backend.GatedCurvature{Header: h, GradOutput: c.input(1), GradGradOutput: c.output(0)}
			p.GradGradValue, p.GradGradGate = halves(c.input(0), c.Dim, c.Gate)
			p.Value, p.Gate = halves(c.input(2), c.Dim, c.Gate)
			p.GradValue, p.GradGate = halves(c.output(1), c.Dim, c.Gate)
			return p
		},
	}
	gatedProduct = operation{
		Signature: Signature{"gated_product", arguments("value [...]", "gate [...]"), arguments("out [...]")},
		kinds:     gatedKinds, defaultKind: "swiglu",
		shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
			return [][]int64{c.input(0).Shape}, check.Shape(c.Op, "gate", c.input(1).Shape, c.input(0).Shape, "the value's shape")
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			return &backend.Gated{Header: h, Value: c.input(0), Gate: c.input(1), Out: c.output(0)}
		},
	}
	gatedProductBackward = operation{
		Signature: Signature{
			"gated_product_backward", arguments("grad_output [...]", "value [...]", "gate [...]"),
			typed(check.OrWider, arguments("grad_value [...]", "grad_gate [...]", "grad_bias_value", "grad_bias_gate"), "grad_bias_value", "grad_bias_gate"),
		},
		kinds: gatedKinds, defaultKind: "swiglu",
		shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
			const name = "gated_product_backward"
			value, gate := c.input(1), c.input(2)
			if err := check.Shape(name, "gate", gate.Shape, value.Shape, "the value's shape"); err != nil {
				return nil, err
			}
			shapes := [][]int64{value.Shape, gate.Shape, nil, nil}
			if last := value.Rank() - 1; last >= 0 {
				shapes[2], shapes[3] = value.Shape[last:], gate.Shape[last:]
			}
			return shapes, check.Shape(name, "grad_output", c.input(0).Shape, value.Shape, "the value's shape")
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			return &backend.GatedBackward{
				Header: h, GradOutput: c.input(0), Value: c.input(1), Gate: c.input(2),
				GradValue: c.output(0), GradGate: c.output(1),
				GradBiasValue: tensor.Aligned(c.output(2), c.input(1).Rank()), GradBiasGate: tensor.Aligned(c.output(3), c.input(1).Rank()),
			}
		},
	}
	gatedProductCurvature = operation{
		Signature: Signature{
			"gated_product_backward_backward",
			arguments("grad_grad_value [...]", "grad_grad_gate [...]", "grad_output [...]", "value [...]", "gate [...]"),
			arguments("grad_grad_output [...]", "grad_value [...]", "grad_gate [...]"),
		},
		kinds: gatedKinds, defaultKind: "swiglu",
		shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
			shape := c.input(3).Shape
			for i, a := range [5]string{"grad_grad_value", "grad_grad_gate", "grad_output", "value", "gate"} {
				if err := check.Shape(c.Op, a, c.input(i).Shape, shape, "the value's shape"); err != nil {
					return nil, err
				}
			}
			return [][]int64{shape, shape, shape}, nil
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			return &backend.GatedCurvature{
				Header: h, GradGradValue: c.input(0), GradGradGate: c.input(1), GradOutput: c.input(2), Value: c.input(3), Gate: c.input(4),
				GradGradOutput: c.output(0), GradValue: c.output(1), GradGate: c.output(2),
			}
		},
	}
)

// split validates a gated activation's input and returns the shape of its halves.
func split(op string, c *Call, input *tensor.View) ([]int64, error) {
	rank := input.Rank()
	if rank == 0 {
		return nil, check.Invalid(op, "input", "shape [], want at least one dimension, to split into value and gate")
	}
	if c.Dim < -rank || c.Dim >= rank {
		return nil, check.Invalid(op, "dim", "got %d, want one in [%d, %d] for shape %s", c.Dim, -rank, rank-1, check.Sizes(input.Shape))
	}
	half := append([]int64{}, input.Shape...)
	d := splitDim(c, rank)
	if half[d]%2 != 0 {
		return nil, check.Invalid(op, "input", "shape %s has the odd size %d in dim %d, want an even size: half values, half gates",
			check.Sizes(input.Shape), half[d], c.Dim)
	}
	half[d] /= 2
	return half, nil
}

// splitDim is the split dimension counted from the front.
func splitDim(c *Call, rank int) int { return (c.Dim + rank) % rank }

// halves returns the values and the gates of a dimension of even size, which may count from the
// end; nil of nil.
func halves(v *tensor.View, d int, place Gate) (value, gate *tensor.View) {
	if v == nil {
		return nil, nil
	}
	d = (d + v.Rank()) % v.Rank()
	size := v.Shape[d]
	part := func(start, length, step int64) *tensor.View {
		narrow, err := v.Narrow(d, start, length)
		if err != nil {
			panic(err)
		}
		every := narrow.Every(d, step)
		return &every
	}
	first, second := part(0, size/2, 1), part(size/2, size/2, 1)
	if place == GateOdd || place == GateEven {
		first, second = part(0, size, 2), part(min(1, size), max(size-1, 0), 2)
	}
	if place == GateFirst || place == GateEven {
		return second, first
	}
	return first, second
}
