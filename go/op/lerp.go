package op

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/tensor"
)

// lerp, by torch.lerp's formula:
//
//	out         = start + weight * (end - start)
//	grad_start  = (1 - weight) * grad_output
//	grad_end    = weight * grad_output
//	grad_weight = grad_output * (end - start)
//
// weight is a tensor or a number, and everything broadcasts. Each gradient is summed to its
// tensor's shape.
var (
	lerp = operation{
		Signature: Signature{"lerp", broadcasting(0, arguments("start ~[3]", "end ~[3]", "weight? ~[3] = None")), arguments("out ~[3]")},
		formula:   "lerp",
		factor:    true,
		shapes: func(c *Call, _ []*tensor.View) ([][]int64, error) {
			const name = "lerp"
			if err := oneWeight(name, c, c.input(2)); err != nil {
				return nil, err
			}
			shape, err := broadcastAll(name, []string{"start", "end", "weight"}, c.Inputs)
			if err != nil {
				return nil, err
			}
			return [][]int64{shape}, nil
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			out := c.output(0)
			inputs := []*tensor.View{expanded(c.input(0), out.Shape), expanded(c.input(1), out.Shape), expanded(c.input(2), out.Shape)}
			return &backend.Pointwise{Header: h, Inputs: inputs, Out: out}
		},
	}
	lerpBackward = operation{
		Signature: Signature{
			"lerp_backward", broadcasting(1, arguments("grad_output ~[3]", "start? ~[3]", "end? ~[3]", "weight? ~[3] = None")),
			broadcasting(0, arguments("grad_start ~[3]", "grad_end ~[3]", "grad_weight ~[3]")),
		},
		formula: "lerp",
		factor:  true,
		shapes:  lerpBackwardShapes,
		problem: func(c *Call, h backend.Header) backend.Problem {
			g := c.input(0)
			p := &backend.PointwiseBackward{
				Header: h, GradOutput: g, Inputs: []*tensor.View{nil, nil, expanded(c.input(3), g.Shape)}, Uses: [][]int{{2}, {2}, {0, 1}},
			}
			for i := range 3 {
				p.Gradients = append(p.Gradients, tensor.Aligned(c.output(i), g.Rank()))
			}
			if p.Gradients[2] != nil {
				p.Inputs[0], p.Inputs[1] = expanded(c.input(1), g.Shape), expanded(c.input(2), g.Shape)
			}
			return p
		},
	}
)

func lerpBackwardShapes(c *Call, _ []*tensor.View) ([][]int64, error) {
	const name = "lerp_backward"
	g, weight := c.input(0), c.input(3)
	if err := oneWeight(name, c, weight); err != nil {
		return nil, err
	}
	names := []string{"start", "end", "weight"}
	shapes := make([][]int64, len(names))
	known := []*tensor.View{c.input(1), c.input(2), weight}
	for i, v := range known {
		switch {
		case v != nil:
			shapes[i] = v.Shape
			if _, err := v.Expand(g.Shape); err != nil {
				return nil, check.Invalid(name, names[i], "shape %s, want one that broadcasts to grad_output's %s", check.Sizes(v.Shape), check.Sizes(g.Shape))
			}
		case i < 2:
			// Without the tensor only out tells the gradient's shape; without either it is
			// grad_output's.
			shapes[i] = g.Shape
			if out := c.output(i); out != nil {
				if _, err := out.Expand(g.Shape); err == nil {
					shapes[i] = out.Shape
				}
			}
		}
	}
	if c.input(1) != nil && c.input(2) != nil {
		shape, err := broadcastAll(name, names, known)
		if err != nil {
			return nil, err
		}
		if err := check.Shape(name, "grad_output", g.Shape, shape, "the broadcast shape"); err != nil {
			return nil, err
		}
	} else if c.output(2) != nil {
		return nil, check.Invalid(name, "start and end", "missing, want both: grad_weight is computed from them")
	}
	return shapes, nil
}

// oneWeight asks for a weight tensor or a number, not both.
func oneWeight(op string, c *Call, weight *tensor.View) error {
	switch number := len(c.Parameters) > 0; {
	case weight == nil && !number:
		return check.Invalid(op, "weight", "missing, want a tensor or a number")
	case weight != nil && number:
		return check.Invalid(op, "weight", "a tensor, want none: a number was given already")
	}
	return nil
}

func broadcastAll(op string, names []string, views []*tensor.View) ([]int64, error) {
	var shape []int64
	for i, v := range views {
		if v == nil {
			continue
		}
		joined, err := tensor.BroadcastShapes(shape, v.Shape)
		if err != nil {
			return nil, check.Wrap(op, names[i], err)
		}
		shape = joined
	}
	if shape == nil {
		shape = []int64{}
	}
	return shape, nil
}

// expanded is a view under a shape that it is known to broadcast to.
func expanded(v *tensor.View, shape []int64) *tensor.View {
	if v == nil {
		return nil
	}
	e, err := v.Expand(shape)
	if err != nil {
		panic(err)
	}
	return &e
}
