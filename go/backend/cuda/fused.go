//go:build cgo

package cuda

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// onePass is a product with its epilogue as one kernel does it.
type onePass struct {
	left, right, out, pre matrix
	across                bool // the right operand's columns are contiguous, else its depth
	rows, columns, depth  int64
	views                 [lower.Operands]*tensor.View
	more                  *onePass // a further pair, whose product is added to the sums
}

// onePassOf tells whether one kernel does a product with a bias and an activation, and how. It may
// be a sum of two pairs.
func (b *builder) onePassOf(whole *lower.Product) (o onePass, ok bool) {
	if o, ok = b.possiblyOnePass(whole); !ok {
		return o, false
	}
	b.ways = []way{narrow, wide, separated}
	return o, b.invariant || b.way != byRule || o.worthwhile(b.device.processors)
}

// possiblyOnePass tells whether one kernel can do that, however fast it is.
func (b *builder) possiblyOnePass(whole *lower.Product) (o onePass, ok bool) {
	if !b.dt.IsHalf() || b.blasAlone || !b.device.boxes {
		return o, false
	}
	p := *whole
	p.M, p.N, p.K = squeezed(p.M), squeezed(p.N), squeezed(p.K)
	o = onePass{rows: lower.Count(p.M), columns: lower.Count(p.N), depth: lower.Count(p.K), views: p.Views}
	if lower.Count(p.Batch) != 1 || min(o.rows, o.columns, o.depth) == 0 || o.columns%2 != 0 {
		return o, false
	}
	var fits [4]bool
	o.left, fits[0] = matrixOf(p.M, p.K, lower.Left)
	o.right, fits[1] = matrixOf(p.K, p.N, lower.Right)
	o.out, fits[2] = matrixOf(p.M, p.N, lower.Out)
	o.pre, fits[3] = matrixOf(p.M, p.N, lower.Preactivation)
	if fits != [4]bool{true, true, true, true} {
		return o, false
	}
	if o.across = o.right.boxable(); !o.across {
		o.right = o.right.transposed()
	}
	stored := func(m *matrix, operand int) bool { return p.Views[operand] == nil || m.boxable() }
	if !o.left.boxable() || !o.right.boxable() || !stored(&o.out, lower.Out) || !stored(&o.pre, lower.Preactivation) {
		return o, false
	}
	if b.invariant && !o.rowsStartAlike() {
		return o, false
	}
	if whole.Next != nil {
		more, fits := b.possiblyOnePass(whole.Next)
		if !fits || more.more != nil || more.across != o.across {
			return o, false
		}
		o.more = &more
	}
	return o, true
}

// A depth is short where the epilogue decides more than the product.
const shortDepth = 2048

// worthwhile tells whether one kernel is as fast as BLAS and a pass. It is not where the depth is
// long beside the columns, so that the epilogue is little of the time, and where there are too few
// tiles for the processors, among which BLAS divides the depth.
func (o *onePass) worthwhile(processors int) bool {
	const deep = 3
	least := 0.8
	if o.depth < shortDepth {
		least = 0.5
	}
	depth := o.depth
	if o.more != nil {
		depth += o.more.depth
	}
	return depth < deep*o.columns && max(o.used(processors, narrowTile), o.used(processors, wideTile)) >= least
}

// either adds what runs whose addresses boxes can start at do, nil for nothing, and what others do.
func (b *builder) either(inBoxes, otherwise func()) {
	if inBoxes == nil || b.way == separated {
		otherwise()
		return
	}
	first := b.scratch // both have the same memory
	b.unless(notBoxable, inBoxes)
	used := b.scratch
	b.scratch = first
	b.unless(boxable, otherwise)
	b.scratch = max(b.scratch, used)
}

// onePass adds a product with its bias and its activation in one kernel.
func (b *builder) onePass(o *onePass, kind string, otherwise func()) {
	tileRows := b.byWay(o.fewestIdle(b.device.processors))
	l, _ := b.dense(o, tileRows)
	l.outputs[0], l.outputs[1] = boxes{o.views[lower.Out], o.out}, boxes{o.views[lower.Preactivation], o.pre}
	l.biases[0] = o.views[lower.Bias]
	b.either(func() { l.add(b, b.denseKernel("gemm_epilogue_sm90", kind, o, tileRows)) }, otherwise)
}

// hiddenBackward adds a product with the slope of an activation in one kernel, which other devices
// and layouts have no counterpart of.
func (b *builder) hiddenBackward(p *backend.HiddenBackward) {
	o, ok := b.throughWeight(p.Header, p.GradOutput, p.Weight, p.GradPreactivation)
	tileRows := int64(narrowTile) // beside which the epilogue has more boxes on their way
	if o.depth >= shortDepth {
		tileRows = o.fewestIdle(b.device.processors)
	}
	tileRows = b.byWay(tileRows)
	l, down := b.dense(&o, tileRows)
	l.boxRows = backwardRows
	function := b.denseKernel("hidden_backward_sm90", p.Formula, &o, tileRows)
	fits := takes(l.inputs[:], p.Preactivation) && takes(l.outputs[:], p.GradPreactivation, p.Out)
	if !ok || !fits || !b.device.compiled(function) {
		b.refuse(p)
		return
	}
	if p.GradBias != nil {
		l.columnSums = b.region(dtype.Float32, down, o.columns)
	}
	b.either(func() {
		l.add(b, function)
		if l.columnSums != nil {
			b.finish(true, walkOf([]*tensor.View{p.GradBias}), l.columnSums, down, o.columns)
		}
	}, func() { b.inPasses(p, nil) })
}

// gatedHiddenBackward is the same with the slopes of a gated activation. Sums for biases, which few
// gated layers have, take another pass.
func (b *builder) gatedHiddenBackward(p *backend.GatedHiddenBackward) {
	o, ok := b.throughWeight(p.Header, p.GradOutput, p.Weight, p.GradValue)
	b.ways = []way{narrow, separated}
	l, _ := b.dense(&o, narrowTile)
	l.boxRows = backwardRows
	fits := takes(l.inputs[:], p.Value, p.Gate) && takes(l.outputs[:], p.GradValue, p.GradGate, p.Out)
	if !ok || !fits || p.Biased {
		b.refuse(p)
		return
	}
	function := b.denseKernel("gated_hidden_backward_sm90", p.Formula, &o, narrowTile)
	b.either(func() { l.add(b, function) }, func() { b.inPasses(p, p.GradValue) })
}

// throughWeight is grad_output weight as one kernel does it.
func (b *builder) throughWeight(h backend.Header, gradOutput, weight, out *tensor.View) (o onePass, ok bool) {
	if _, small := b.smallOf(0, out, gradOutput); small {
		return o, false
	}
	h.Formula = "none"
	return b.onePassOf(lower.Forward(&backend.GemmEpilogue{Header: h, A: gradOutput, B: weight, Out: out}))
}

// gatedLinear adds two products and a gated activation in one kernel.
func (b *builder) gatedLinear(p *backend.GatedLinear) {
	if p.Out == nil {
		b.refuse(p)
		return
	}
	if _, small := b.smallOf(0, p.Out, p.Input); small {
		b.refuse(p)
		return
	}
	h := p.Header
	h.Formula = "none"
	value := &backend.GemmEpilogue{Header: h, A: p.Input, B: tensor.Exchanged(p.WeightValue, 0, 1), Bias: p.BiasValue, Out: p.Out}
	gate := &backend.GemmEpilogue{Header: h, A: p.Input, B: tensor.Exchanged(p.WeightGate, 0, 1), Bias: p.BiasGate, Out: p.Out}
	o, ok := b.onePassOf(lower.Forward(value))
	other, alsoOK := b.onePassOf(lower.Forward(gate))
	if !ok || !alsoOK || o.across != other.across {
		b.refuse(p)
		return
	}
	b.ways = []way{narrow, separated}
	l, down := b.dense(&o, narrowTile)
	l.pairs[0].weights = [2]*weightBoxes{o.weight(), other.weight()} // half a tile's columns each
	l.blocks = min(down*ceilDiv(o.columns, tileColumns/2), int64(b.device.processors))
	if !takes(l.outputs[:], p.Out, p.Value, p.Gate) {
		b.refuse(p)
		return
	}
	for i, layer := range []*onePass{&o, &other} {
		l.biases[i] = b.contiguousBias(layer.views[lower.Bias])
	}
	apart := *p
	if p.Value == nil {
		apart.Both = nil // values then lie in Out, and only gates in a region
	}
	function := b.denseKernel("gated_linear_sm90", p.Formula, &o, narrowTile)
	b.either(func() { l.add(b, function) }, func() { b.inPasses(&apart, p.Out) })
}

// inPasses adds the parts of a problem, with products by BLAS. Their first region is the memory of
// a tensor that is written later, where one is lent.
func (b *builder) inPasses(p backend.Problem, lent *tensor.View) {
	for _, part := range lower.Parts(p, b.lending(lent)) {
		switch part := part.(type) {
		case *backend.GemmEpilogue:
			b.twoPasses(part)
		case *backend.GemmEpilogueBackward:
			b.multiply(lower.Gradients(part, nil).A, part.AllowTF32)
		default:
			b.plan(part)
		}
	}
}

// lending makes regions, the first of which is a tensor where that is not nil, and of its shape.
func (b *builder) lending(lent *tensor.View) lower.Region {
	return func(dt dtype.DType, shape ...int64) *tensor.View {
		if first := lent; first != nil && slices.Equal(first.Shape, shape) {
			lent = nil
			return first
		}
		return b.region(dt, shape...)
	}
}

// refuse says that there is no kernel for a problem.
func (b *builder) refuse(p backend.Problem) {
	op, _, _ := p.Describe()
	b.refused = status.Errorf(status.Unsupported, "%s: the cuda backend has no kernel for this operation", op)
}
