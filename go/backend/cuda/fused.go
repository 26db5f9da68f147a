//go:build cgo

package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// onePass is a product with its epilogue as one kernel does it.
type onePass struct {
	program               *tileProgram
	left, right, out, pre matrix
	across                bool // the right operand's columns are contiguous, else its depth
	rows, columns, depth  int64
	views                 [lower.Operands]*tensor.View
	more                  *onePass // a further pair, whose product is added to the sums
}

// onePassOf reports whether one kernel does a product with a bias and an activation, and how. It
// may be a sum of two pairs.
func (b *builder) onePassOf(whole *lower.Product) (o onePass, ok bool) {
	if b.layers == nil || b.invariant && b.layers == sm80 && !b.forced {
		return o, false
	}
	if o, ok = b.possiblyOnePass(b.layers, whole); !ok {
		return o, false
	}
	b.ways = []way{narrow, separated}
	if b.layers == sm90 {
		b.ways = []way{narrow, wide, separated}
	}
	return o, b.invariant || b.way != byRule || o.worthwhile(b.device.processors) && (b.layers == sm90 || b.forced || o.isShort())
}

// possiblyOnePass reports whether one kernel can do that, however fast it is.
func (b *builder) possiblyOnePass(t *tileProgram, whole *lower.Product) (o onePass, ok bool) {
	if !b.runs(t) {
		return o, false
	}
	p := *whole
	p.M, p.N, p.K = squeezed(p.M), squeezed(p.N), squeezed(p.K)
	o = onePass{program: t, rows: lower.Count(p.M), columns: lower.Count(p.N), depth: lower.Count(p.K), views: p.Views}
	if lower.Count(p.Batch) != 1 || min(o.rows, o.columns, o.depth) == 0 || max(o.rows, o.columns, o.depth) > raggedRows {
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
	if o.across = t.takesMatrix(&o.right); !o.across {
		o.right = o.right.transposed()
	}
	stored := func(m *matrix, operand int) bool { return p.Views[operand] == nil || t.takesMatrix(m) }
	if !t.takesMatrix(&o.left) || !t.takesMatrix(&o.right) || !stored(&o.out, lower.Out) || !stored(&o.pre, lower.Preactivation) {
		return o, false
	}
	if t == sm90 && (o.columns%2 != 0 || b.invariant && !o.rowsStartAlike()) {
		return o, false
	}
	if whole.Next != nil {
		more, fits := b.possiblyOnePass(t, whole.Next)
		if !fits || more.more != nil || more.across != o.across {
			return o, false
		}
		o.more = &more
	}
	return o, true
}

// A depth is short where the epilogue decides more than the product.
const shortDepth = 2048

// worthwhile reports whether one kernel is as fast as BLAS and a pass. It is not where the depth is
// long beside the columns, so that the epilogue is little of the time, and where there are too few
// tiles for the processors, among which BLAS divides the depth.
func (o *onePass) worthwhile(processors int) bool {
	const deep = 3
	least := 0.8
	if o.depth < shortDepth {
		least = 0.5
	}
	return o.fullDepth() < deep*o.columns && max(o.used(processors, narrowTile), o.used(processors, wideTile)) >= least
}

func (o *onePass) fullDepth() int64 {
	if o.more == nil {
		return o.depth
	}
	return o.depth + o.more.depth
}

// isShort reports whether product_sm80.cuh may be faster than BLAS and a pass. No GPU that asks has
// been measured: it assumes that BLAS's product takes .95 of the program's time, and that a pass
// takes longer than the epilogue by as much as 50 terms do.
func (o *onePass) isShort() bool {
	const most = 1024
	return o.fullDepth() <= most
}

// either adds two ways, of which a run goes one: inBoxes if boxes can start at its addresses, else
// otherwise. Where inBoxes is nil there is one way for all.
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

// byKernel adds the launch of a kernel, if it is compiled, or else what is otherwise done. Runs
// whose addresses boxes cannot start at also go without Hopper's kernels.
func (b *builder) byKernel(o *onePass, function string, launch, otherwise func()) {
	switch {
	case !b.device.compiled(function) || b.way == separated:
		otherwise()
	case o.program == sm90:
		b.either(launch, otherwise)
	default:
		launch()
	}
}

// onePass adds a product with its bias and its activation in one kernel.
func (b *builder) onePass(o *onePass, kind string, otherwise func()) {
	tileRows := b.tileRows(o, o.fewOr(o.fewestIdle(b.device.processors)))
	l, _ := b.dense(o, tileRows)
	l.outputs[0], l.outputs[1] = rowMatrix{o.views[lower.Out], o.out}, rowMatrix{o.views[lower.Preactivation], o.pre}
	l.biases[0] = o.views[lower.Bias]
	function := b.denseKernel(o, "linear_", kind, tileRows)
	b.byKernel(o, function, func() { o.program.add(l, b, function) }, otherwise)
}

// hiddenBackward adds a product with the slope of an activation in one kernel. It refuses devices
// and layouts without such a kernel: op then takes the problem's parts.
func (b *builder) hiddenBackward(p *backend.HiddenBackward) {
	o, ok := b.throughWeight(p.Header, p.GradOutput, p.Weight, p.GradPreactivation)
	if !ok {
		b.refuse(p)
		return
	}
	tileRows := int64(narrowTile) // beside which the epilogue has more boxes on their way
	if o.depth >= shortDepth {
		tileRows = o.fewestIdle(b.device.processors)
	}
	tileRows = b.tileRows(&o, tileRows)
	l, down := b.dense(&o, tileRows)
	l.boxRows = backwardRows
	function := b.denseKernel(&o, "hidden_backward_", p.Formula, tileRows)
	fits := o.program.takes(l.inputs[:], p.Preactivation) && o.program.takes(l.outputs[:], p.GradPreactivation, p.Out)
	if !fits || !b.device.compiled(function) {
		b.refuse(p)
		return
	}
	parts := down * o.program.partsOfColumns
	if p.GradBias != nil {
		l.columnSums = b.region(dtype.Float32, parts, o.columns)
	}
	b.byKernel(&o, function, func() {
		o.program.add(l, b, function)
		if l.columnSums != nil {
			b.finish(true, walkOf([]*tensor.View{p.GradBias}), l.columnSums, parts, o.columns)
		}
	}, func() { b.inPasses(p, nil) })
}

// gatedHiddenBackward is the same with the slopes of a gated activation. Sums for biases, which few
// gated layers have, take another pass.
func (b *builder) gatedHiddenBackward(p *backend.GatedHiddenBackward) {
	o, ok := b.throughWeight(p.Header, p.GradOutput, p.Weight, p.GradValue)
	if !ok || p.Biased {
		b.refuse(p)
		return
	}
	b.ways = []way{narrow, separated}
	l, _ := b.dense(&o, narrowTile)
	l.boxRows = backwardRows
	function := b.denseKernel(&o, "gated_hidden_backward_", p.Formula, narrowTile)
	fits := o.program.takes(l.inputs[:], p.Value, p.Gate) && o.program.takes(l.outputs[:], p.GradValue, p.GradGate, p.Out)
	if !fits || !b.device.compiled(function) {
		b.refuse(p)
		return
	}
	b.byKernel(&o, function, func() { o.program.add(l, b, function) }, func() { b.inPasses(p, p.GradValue) })
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
	ofOneStride := o.program == sm90 || o.right.rowStride == other.right.rowStride
	if !ok || !alsoOK || o.across != other.across || !ofOneStride {
		b.refuse(p)
		return
	}
	b.ways = []way{narrow, separated}
	tileRows := b.tileRows(&o, o.fewOr(narrowTile))
	l, down := b.dense(&o, tileRows)
	l.pairs[0].weights = [2]*weight{o.weight(), other.weight()} // half a tile's columns each
	l.tileColumns = tileColumns / 2
	l.blocks = min(down*ceilDiv(o.columns, l.tileColumns), int64(b.device.processors))
	function := b.denseKernel(&o, "gated_linear_", p.Formula, tileRows)
	if !o.program.takes(l.outputs[:], p.Out, p.Value, p.Gate) || !b.device.compiled(function) {
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
	b.byKernel(&o, function, func() { o.program.add(l, b, function) }, func() { b.inPasses(&apart, p.Out) })
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

// denseKernel names a program's kernel of a family and a formula. Hopper's have their tile's rows
// in the name.
func (b *builder) denseKernel(o *onePass, family, formula string, tileRows int64) string {
	name := family + o.program.name + "_" + formula + "_" + b.dt.Short() + "_" + form(o.across)
	if o.program == sm90 {
		return fmt.Sprintf("%s_%d", name, tileRows)
	}
	if strings.HasPrefix(family, "gated_") {
		return name + "_halves"
	}
	return name
}

// form names how a right operand lies: with contiguous columns, or a contiguous depth.
func form(across bool) string {
	if across {
		return "nn"
	}
	return "nt"
}

// The rows that tiles have: few where there are no more. They then have half the columns too, so
// that more processors read the weight.
const fewRows, narrowTile, wideTile = 64, 128, 192

// tileRows is a tile's rows: those of the builder's way, or what a rule says, where the program has
// several.
func (b *builder) tileRows(o *onePass, rule int64) int64 {
	switch {
	case o.program == sm80 || b.way == narrow:
		return narrowTile
	case b.way == wide:
		return wideTile
	default:
		return rule
	}
}

// fewOr is fewRows where there are no more rows than that, else the given rows of a tile.
func (o *onePass) fewOr(rows int64) int64 {
	if o.rows <= fewRows {
		return fewRows
	}
	return rows
}

// fewestIdle chooses a tile's rows. The wider tile reads less for each product; the other one
// may leave fewer processors idle in the last round.
func (o *onePass) fewestIdle(processors int) int64 {
	const worth = 1.05
	if o.used(processors, narrowTile) > worth*o.used(processors, wideTile) {
		return narrowTile
	}
	return wideTile
}

// used is the part of all processors' time that goes into elements, with tiles of tileRows rows.
// The rest goes into tiles' empty rows and columns, and into a last round that is not full.
func (o *onePass) used(processors int, tileRows int64) float64 {
	tiles := ceilDiv(o.rows, tileRows) * ceilDiv(o.columns, tileColumns)
	rounds := ceilDiv(tiles, int64(processors))
	return float64(o.rows*o.columns) / float64(rounds*int64(processors)*tileRows*tileColumns)
}
