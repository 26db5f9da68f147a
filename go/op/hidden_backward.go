package op

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
)

// hiddenBackward is between the layers of a block in backward: the gradient of the hidden
// activation, and what comes of it (backend.HiddenBackward).
var hiddenBackward = operation{
	Signature: Signature{
		"hidden_backward", arguments("grad_output", "weight", "preactivation"),
		typed(check.OrWider, arguments("grad_preactivation", "out", "grad_bias"), "grad_bias"),
	},
	kinds: activations, multiplies: true, accumulates: true,
	shapes: func(c *Call) ([][]int64, error) {
		shape := c.input(2).Shape
		return [][]int64{shape, shape, shape[len(shape)-1:]}, nil
	},
	problem: func(c *Call, h backend.Header) backend.Problem {
		return &backend.HiddenBackward{
			Header: h, GradOutput: c.input(0), Weight: c.input(1), Preactivation: c.input(2),
			GradPreactivation: c.output(0), Out: c.output(1), GradBias: aligned(c.output(2), c.input(2).Rank()),
		}
	},
}

// gatedHiddenBackward is the same between the layers of a gated block
// (backend.GatedHiddenBackward).
var gatedHiddenBackward = operation{
	Signature: Signature{"gated_hidden_backward", append(slices.Clone(hiddenBackward.Inputs), arguments("bias?")...), hiddenBackward.Outputs},
	kinds:     gatedKinds, halves: true, multiplies: true, accumulates: true,
	shapes: func(c *Call) ([][]int64, error) {
		pre := c.input(2).Shape
		return [][]int64{pre, halved(pre), pre[len(pre)-1:]}, nil
	},
	problem: func(c *Call, h backend.Header) backend.Problem {
		p := &backend.GatedHiddenBackward{Header: h, GradOutput: c.input(0), Weight: c.input(1), Out: c.output(1), Biased: c.input(3) != nil}
		p.Value, p.Gate = columnHalves(c.input(2), c.Gate)
		p.GradValue, p.GradGate = columnHalves(c.output(0), c.Gate)
		p.GradBiasValue, p.GradBiasGate = columnHalves(aligned(c.output(2), c.input(2).Rank()), c.Gate)
		return p
	},
}

// halved is a preactivation's shape without the gates.
func halved(shape []int64) []int64 {
	half := slices.Clone(shape)
	half[len(half)-1] /= 2
	return half
}
