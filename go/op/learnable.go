package op

import (
	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/tensor"
)

// Activations whose parameters are tensors with gradients. prelu is torch.nn.functional.prelu:
//
//	out         = input if input > 0 else weight input
//	grad_input  = grad_output (1 if input > 0 else weight)
//	grad_weight = grad_output (0 if input > 0 else input), summed
//
// where weight has one element, or one for each index of the input's second dimension. xielu is
// that of Apertus, with a_p = softplus(alpha_p) and a_n = beta + softplus(alpha_n):
//
//	out          = a_p input^2 + beta input if input > 0
//	               else a_n (exp(input) - 1 - input) + beta input
//	grad_input   = grad_output (2 a_p input + beta, or else a_n (exp(input) - 1) + beta)
//	grad_alpha_p = grad_output s(alpha_p) (input^2 if input > 0 else 0), summed
//	grad_alpha_n = grad_output s(alpha_n) (0 if input > 0 else exp(input) - 1 - input), summed
//
// where alpha_p and alpha_n have one element each, and s is the logistic function.
var learnables = []learnable{
	{
		signature: Signature{"prelu", arguments("input [...]", "weight ~[1|C]"), arguments("out [...]")},
		uses:      [][]int{{0, 1}, {0}},
	},
	{
		signature:  Signature{"xielu", arguments("input [...]", "alpha_p ~[1]", "alpha_n ~[1]"), arguments("out [...]")},
		uses:       [][]int{{0, 1, 2}, {0, 1}, {0, 2}},
		parameters: []activation.Parameter{{Name: "beta", Default: 0.5, Range: activation.Finite}},
	},
}

// learnable is an activation of an input and of small tensors that broadcast to it.
type learnable struct {
	signature  Signature // whose name is the formula's
	uses       [][]int   // the inputs that each gradient is a function of, beside grad_output
	parameters []activation.Parameter
}

// operations are the forward and the backward.
func (l learnable) operations() []operation {
	forward := l.forward()
	return []operation{forward, forward.backward(operation{problem: l.gradients})}
}

func (l learnable) forward() operation {
	return operation{
		Signature: l.signature,
		formula:   l.signature.Name, parameters: l.parameters,
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			return [][]int64{inputs[0].Shape}, l.check(c.Op, inputs[0], inputs[1:])
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			return &backend.Pointwise{Header: h, Inputs: l.inputs(c.input(0), c.Inputs[1:]), Out: c.output(0)}
		},
	}
}

func (l learnable) gradients(c *Call, h backend.Header) backend.Problem {
	input := c.input(1)
	p := &backend.PointwiseBackward{
		Header: h, GradOutput: c.input(0), Inputs: l.inputs(input, c.Inputs[2:]), Gradients: []*tensor.View{c.output(0)}, Uses: l.uses,
	}
	for i := range l.signature.Inputs[1:] {
		p.Gradients = append(p.Gradients, beside(input, c.output(1+i)))
	}
	return p
}

// check asks for small tensors that fit the input.
func (l learnable) check(op string, input *tensor.View, small []*tensor.View) error {
	for i, v := range small {
		a, channels := l.signature.Inputs[1+i], int64(1)
		if input.Rank() > 1 {
			channels = input.Shape[1]
		}
		switch {
		case v.Rank() <= 1 && v.Numel() == 1:
		case !a.Channels:
			return check.Invalid(op, a.Name, "shape %s, want one element, as [] or [1]", check.Sizes(v.Shape))
		case input.Rank() < 2:
			return check.Invalid(op, a.Name, "shape %s, want one element, since the input has no second dimension", check.Sizes(v.Shape))
		case v.Rank() != 1 || v.Numel() != channels:
			return check.Invalid(op, a.Name, "shape %s, want [1], or [%d] as the input's second dimension", check.Sizes(v.Shape), channels)
		}
	}
	return nil
}

// inputs are the input and the small tensors under its shape.
func (l learnable) inputs(input *tensor.View, small []*tensor.View) []*tensor.View {
	all := []*tensor.View{input}
	for _, v := range small {
		all = append(all, expanded(beside(input, v), input.Shape))
	}
	return all
}

// beside is a small tensor with the input's rank: its elements belong to the second dimension.
func beside(input, small *tensor.View) *tensor.View {
	if small == nil {
		return nil
	}
	v := *small
	if v.Rank() == 1 && v.Shape[0] == 1 {
		v = v.Squeeze(0)
	}
	for v.Rank() > 0 && v.Rank() < input.Rank()-1 {
		v = v.Unsqueeze(-1)
	}
	return tensor.Aligned(&v, input.Rank())
}
