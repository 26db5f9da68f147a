package op

import (
	"cmp"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/tensor"
)

// The GEMM epilogue, out = act(a b + bias), comes in two spellings: matmul, whose b is [..., k, n]
// as torch.matmul's, and linear, whose weight is [n, k] as torch.nn.functional.linear's.
//
// grad_preactivation = grad_output * act'(pre); grad_a = grad_preactivation bᵀ; grad_b = aᵀ
// grad_preactivation; grad_bias = the sum of grad_preactivation over all but its last dimension.
// Each is summed to its tensor's shape over the dimensions that broadcast.
var (
	matmulSpelling = gemmSpelling{
		signature: Signature{"matmul_bias_activation", arguments("a ~[2, 3]", "b ~[3, 4]", "bias? ~[4] = None"), arguments("out ~[2, 4]", "preactivation")},
		a:         "a", b: "b",
	}
	linearSpelling = gemmSpelling{
		signature: Signature{
			"linear", arguments("input [..., K]", "weight [N, K]", "bias? [N] = None", "adapter.a? [R, K] = None", "adapter.b? [N, R] = None"),
			arguments("out [..., N]", "preactivation [..., N]"),
		},
		a: "input", b: "weight", transposed: true,
	}

	matmul, linear = matmulSpelling.forward(), linearSpelling.forward()
	matmulBackward = matmul.backward(operation{problem: matmulSpelling.gradients}, "preactivation", "output")
	linearBackward = linear.backward(operation{problem: linearSpelling.gradients, problems: adaptedLinearBackward}, "preactivation", "output")
)

// gemmSpelling is how a GEMM epilogue's operands are named and laid out.
type gemmSpelling struct {
	signature  Signature
	a, b       string
	bias       string // "bias" where it is ""
	transposed bool   // b is [n, k]
}

func (s gemmSpelling) forward() operation {
	return operation{
		Signature:   s.signature,
		kinds:       activations,
		defaultKind: "none",
		multiplies:  true,
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			g, err := s.resolve(c.Op, at(inputs, 0), at(inputs, 1), at(inputs, 2))
			if err != nil {
				return nil, err
			}
			return [][]int64{g.out, g.out}, nil
		},
		problems: func(c *Call, h backend.Header, w *region) []backend.Problem {
			if u := c.adapter(3); u.given() {
				return adapted([]backend.Problem{layer(h, c.input(0), c.input(1), c.input(2), c.output(0), c.output(1))}, w, u)
			}
			return nil
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			g, _ := s.resolve(h.Op, c.input(0), c.input(1), c.input(2))
			return &backend.GemmEpilogue{
				Header: h, BatchRank: g.batchRank(), A: g.operandA(c.input(0)), B: g.operandB(c.input(1)),
				Bias: g.vector(c.input(2)), Out: g.result(c.output(0)), Preactivation: g.result(c.output(1)),
			}
		},
	}
}

func (s gemmSpelling) gradients(c *Call, h backend.Header) backend.Problem {
	g, _ := s.resolve(h.Op, c.input(1), c.input(2), c.input(3))
	return &backend.GemmEpilogueBackward{
		Header: h, BatchRank: g.batchRank(),
		GradOutput: g.result(c.input(0)), A: g.operandA(c.input(1)), B: g.operandB(c.input(2)), Bias: g.vector(c.input(3)),
		Preactivation: g.result(c.input(4)), Output: g.result(c.input(5)),
		GradA: g.gradientA(c.output(0)), GradB: g.gradientB(c.output(1)), GradBias: g.vector(c.output(2)),
	}
}

// adaptedLinearBackward is the problems of linear's gradients with an adapter, nil without.
func adaptedLinearBackward(c *Call, h backend.Header, w *region) (problems []backend.Problem) {
	u := c.adapter(6)
	if !u.given() {
		return nil
	}
	grad, input, weight, bias, pre := c.input(0), c.input(1), c.input(2), c.input(3), c.input(4)
	gradInput, gradWeight, gradBias, gradA, gradB := c.output(0), c.output(1), c.output(2), c.output(3), c.output(4)
	if c.Kind != "none" {
		if pre == nil { // an output that was kept does not show where it was rounded
			pre = w.view(grad.Shape)
			problems = adapted([]backend.Problem{layer(h.Plain("linear"), input, weight, bias, nil, pre)}, w, u)
		}
		slope := &backend.ActivationBackward{
			Header: pass(h, "activation_backward"), GradOutput: rows(grad), Input: rows(pre), GradBias: tensor.Aligned(gradBias, rows(grad).Rank()),
		}
		if gradInput != nil || gradWeight != nil || gradA != nil || gradB != nil {
			grad = w.view(grad.Shape)
			slope.GradInput = rows(grad)
		}
		problems, gradBias = append(problems, slope), nil
	}
	t := &term{grad: rows(grad), weight: weight, adapter: u, gradA: gradA, gradB: gradB}
	return append(problems, layerGradients(t, h, w, input, bias, gradInput, gradWeight, gradBias)...)
}

// gemm is a validated product: which dimensions the operands lack, and the shapes that follow.
type gemm struct {
	transposed       bool
	vectorA, vectorB bool    // a is [k], b is [k]
	batch            []int64 // broadcast from both operands
	// b has no batch of its own: all of a's leading dimensions are rows of one product
	rowsOnly bool
	out      []int64
}

// resolve applies torch.matmul's rules to the operands' shapes.
func (s gemmSpelling) resolve(op string, a, b, bias *tensor.View) (*gemm, error) {
	g := &gemm{transposed: s.transposed, vectorA: a.Rank() == 1, vectorB: b.Rank() == 1}
	switch {
	case a.Rank() == 0:
		return nil, check.Invalid(op, s.a, "shape [], want at least one dimension")
	case s.transposed && b.Rank() != 2:
		return nil, check.Invalid(op, s.b, "shape %s, want [n, k]", check.Sizes(b.Shape))
	case b.Rank() == 0:
		return nil, check.Invalid(op, s.b, "shape [], want at least one dimension")
	}
	fullA, fullB := g.matrixA(a), g.matrixB(b)
	m, k := fullA.Shape[fullA.Rank()-2], fullA.Shape[fullA.Rank()-1]
	n := fullB.Shape[fullB.Rank()-1]
	if got := fullB.Shape[fullB.Rank()-2]; got != k {
		return nil, check.Invalid(op, s.b, "shape %s has k = %d, want k = %d as %s has with shape %s",
			check.Sizes(b.Shape), got, k, s.a, check.Sizes(a.Shape))
	}
	batchA, batchB := fullA.Shape[:fullA.Rank()-2], fullB.Shape[:fullB.Rank()-2]
	var err error
	if g.batch, err = tensor.BroadcastShapes(batchA, batchB); err != nil {
		return nil, check.Wrap(op, s.b+": batch dimensions", err)
	}
	g.rowsOnly = true
	for _, size := range batchB {
		g.rowsOnly = g.rowsOnly && size == 1
	}
	g.out = append([]int64{}, g.batch...)
	if !g.vectorA {
		g.out = append(g.out, m)
	}
	if !g.vectorB {
		g.out = append(g.out, n)
	}
	want, name := []int64{n}, "[n]"
	if g.vectorB {
		want, name = []int64{}, "a scalar,"
	}
	if bias != nil {
		if err := check.Shape(op, cmp.Or(s.bias, "bias"), bias.Shape, want, name); err != nil {
			return nil, err
		}
	}
	if _, err := tensor.New(nil, 0, a.DType, a.Device, g.out, nil, 0); err != nil {
		return nil, check.Wrap(op, "out", err)
	}
	return g, nil
}

// matrixA is [..., m, k], matrixB [..., k, n]: vectors become matrices, a linear layer's weight is
// transposed.
func (g *gemm) matrixA(v *tensor.View) tensor.View {
	if g.vectorA {
		return v.Unsqueeze(0)
	}
	return *v
}

func (g *gemm) matrixB(v *tensor.View) tensor.View {
	switch {
	case g.vectorB:
		return v.Unsqueeze(-1)
	case g.transposed:
		return v.Transpose(0, 1)
	default:
		return *v
	}
}

// batchRank is how many leading dimensions backends see as a batch.
func (g *gemm) batchRank() int {
	if g.rowsOnly {
		return 0
	}
	return len(g.batch)
}

// operandA and operandB are the operands as backends see them: broadcast over the batch.
func (g *gemm) operandA(v *tensor.View) *tensor.View { return g.broadcast(g.matrixA(v)) }

func (g *gemm) operandB(v *tensor.View) *tensor.View {
	if g.rowsOnly {
		return g.gradientB(v)
	}
	return g.broadcast(g.matrixB(v))
}

func (g *gemm) broadcast(v tensor.View) *tensor.View {
	shape := append(append([]int64{}, g.batch...), v.Shape[v.Rank()-2:]...)
	expanded, err := v.Expand(shape)
	if err != nil {
		panic(err) // resolve has broadcast the same shapes
	}
	return &expanded
}

// gradientA and gradientB have all batch dimensions, of size 1 where the operand was broadcast.
// Without a batch in b, gradientB is the bare matrix.
func (g *gemm) gradientA(v *tensor.View) *tensor.View {
	if v == nil {
		return nil
	}
	full := g.matrixA(v)
	return tensor.Aligned(&full, len(g.batch)+2)
}

func (g *gemm) gradientB(v *tensor.View) *tensor.View {
	if v == nil {
		return nil
	}
	full := g.matrixB(v)
	if g.rowsOnly {
		for full.Rank() > 2 {
			full = full.Squeeze(0)
		}
	}
	return tensor.Aligned(&full, g.batchRank()+2)
}

// result is [batch..., m, n] for a tensor of the output's shape.
func (g *gemm) result(v *tensor.View) *tensor.View {
	if v == nil {
		return nil
	}
	full := *v
	if g.vectorB {
		full = full.Unsqueeze(-1)
	}
	if g.vectorA {
		full = full.Unsqueeze(full.Rank() - 1)
	}
	return &full
}

// vector is [n] for a tensor of the bias's shape.
func (g *gemm) vector(v *tensor.View) *tensor.View {
	if v == nil || !g.vectorB {
		return v
	}
	full := v.Unsqueeze(0)
	return &full
}
