//go:build cgo

package cuda

import (
	"math"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

const (
	mostGroups = 512
	// rows of a tile
	groupedTileRows = 192
	// mostFeaturesOfTokens is the most hidden features of a layer that reads tokens where they lie,
	// and mostFeaturesBackward that of a mixture whose backward does. Boxes of copied rows are
	// multiplied faster: with more features that pays for the copy.
	mostFeaturesOfTokens, mostFeaturesBackward = 512, 256

	forthAndBack = -1 // a launch's shift
)

// isPlainBias reports whether the kernels can read a bias of groups, or nil: columns are contiguous
// and the stride of groups has 31 bits.
func isPlainBias(v *tensor.View) bool {
	return v == nil || v.Strides[1] == 1 && 0 <= v.Strides[0] && v.Strides[0] <= math.MaxInt32
}

// ofRows is a launch of the rows kind: tiles of a long depth share more of the cache where fewer of
// them are walked together, and in turn.
func (b *builder) ofRows(rows, ends *tensor.View, columns int64) *productLaunch {
	const longDepth = 8192
	l := &productLaunch{
		ends: ends, tokens: b.indexOf(rows), rows: rows.Shape[0], columns: columns, tileColumns: tileColumns, band: 8, shift: 1,
		pairRows: operandRows, boxRows: forwardRows, blocks: int64(b.device.processors),
	}
	if rows.Shape[1] >= longDepth {
		l.band, l.shift = 4, 0
	}
	return l
}

// takesPairs gives a launch products with right operands [e, depth, columns], of which halves are
// the values and the gates, if there are some. It tells whether the program takes all, and whether
// columns are contiguous, as in all right operands or in none.
func (t *tileProgram) takesPairs(l *productLaunch, pairs []backend.Pair, halves func(v *tensor.View) (value, gate *tensor.View)) (across, ok bool) {
	if len(pairs) > len(l.pairs) {
		return false, false
	}
	for i, pair := range pairs {
		p := &l.pairs[i]
		rights := [2]*tensor.View{pair.B}
		if halves != nil {
			if h := inHalves(halves, pair.B); !h.interleaved {
				rights = [2]*tensor.View{h.value, h.gate}
			}
		}
		p.rows = rowsOf(pair.A)
		if !t.takesAll(pair.A) {
			return false, false
		}
		for side, right := range rights {
			if right == nil {
				continue
			}
			weight, lies, fits := t.weightOf(right)
			if !fits || (i > 0 || side > 0) && lies != across {
				return false, false
			}
			p.weights[side], across = weight, lies
		}
	}
	return across, true
}

// withMore is a product and those that are added to it.
func withMore(a, b *tensor.View, more []backend.Pair) []backend.Pair {
	return append([]backend.Pair{{A: a, B: b}}, more...)
}

// groupedLinear is a program's launch of a product of groups, or of the sum of two, with right
// operands [e, depth, columns], a bias and an activation; nil where there is none.
func (b *builder) groupedLinear(t *tileProgram, formula string, bias, out, pre, ends *tensor.View, pairs ...backend.Pair) func() {
	if !b.hasGroups(t, ends, pairs[0].A.Shape[0]) || out == nil || !t.takesAll(out, pre) || !isPlainBias(bias) {
		return nil
	}
	l := b.ofRows(pairs[0].A, ends, out.Shape[1])
	l.outputs[0], l.outputs[1], l.biases[0] = rowsOf(out), rowsOf(pre), bias
	across, ok := t.takesPairs(l, pairs, nil)
	function := b.groupedKernel(t, "linear_", []string{formula}, form(across))
	if !ok || function == "" {
		return nil
	}
	if bias != nil {
		l.biasStride = bias.Strides[0]
	}
	return func() { t.add(l, b, function) }
}

// halvesOf are the values and the gates of a gated layer's tensors, and how they lie.
type halvesOf struct {
	value, gate *tensor.View
	interleaved bool
	gateFirst   bool
}

func inHalves(halves func(v *tensor.View) (value, gate *tensor.View), v *tensor.View) halvesOf {
	value, gate := halves(v)
	last := v.Rank() - 1
	return halvesOf{value, gate, value.Strides[last] != v.Strides[last], gate.Offset < value.Offset}
}

func (h *halvesOf) layout(across bool) string {
	if h.interleaved {
		return form(across) + "_interleaved"
	}
	return form(across) + "_halves"
}

// groupedGatedLinear is a program's launch of a gated layer of groups; nil where there is none.
func (b *builder) groupedGatedLinear(t *tileProgram, p *backend.GroupedLayer) func() {
	if !b.hasGroups(t, p.Groups, p.Input.Shape[0]) || p.Out == nil || !isPlainBias(p.Bias) || !t.takesAll(p.Out, p.Preactivation) {
		return nil
	}
	columns := tensor.Exchanged(p.Weight, 1, 2) // [e, k, 2h]
	weight := inHalves(p.Halves, columns)
	l := b.ofRows(p.Input, p.Groups, p.Out.Shape[1])
	across, ok := t.takesPairs(l, withMore(p.Input, columns, p.More), p.Halves)
	l.tileColumns = tileColumns / 2 // of values, and as many of gates
	l.outputs[0], l.gateFirst = rowsOf(p.Out), weight.gateFirst
	if p.Bias != nil {
		l.biasStride = p.Bias.Strides[0]
	}
	if weight.interleaved {
		l.outputs[1], l.biases[0] = rowsOf(p.Preactivation), p.Bias
	} else {
		value, gate := p.Halves(p.Preactivation)
		l.outputs[1], l.outputs[2] = rowsOf(value), rowsOf(gate)
		l.biases[0], l.biases[1] = p.Halves(p.Bias)
		ok = ok && t.takesAll(value, gate)
	}
	function := b.groupedKernel(t, "gated_linear_", activation.GateKernels(p.Formula), weight.layout(across))
	if !ok || function == "" {
		return nil
	}
	return func() { t.add(l, b, function) }
}

// groupedHiddenBackwardBy is a program's launches of a hidden activation's backward, or nil where
// there are none. The scaled hidden activation alone needs no product.
func (b *builder) groupedHiddenBackwardBy(t *tileProgram, p *backend.GroupedHiddenBackward) func() {
	if p.GradPreactivation == nil && p.GradBias == nil && p.Sums == nil {
		return nil
	}
	if !b.hasGroups(t, p.Groups, p.GradOutput.Shape[0]) || !t.takesAll(p.Preactivation, p.GradPreactivation, p.Out) {
		return nil
	}
	l := b.ofRows(p.GradOutput, p.Groups, p.Weight.Shape[2])
	across, ok := t.takesPairs(l, withMore(p.GradOutput, p.Weight, p.More), nil)
	l.boxRows, l.scales = backwardRows, p.Scales
	family, formulas, layout := "hidden_backward_", []string{p.Formula}, form(across)
	var pre halvesOf
	if p.Halves != nil {
		pre = inHalves(p.Halves, p.Preactivation)
		family, formulas, layout = "gated_hidden_backward_", activation.GateKernels(p.Formula), pre.layout(across)
		ok = ok && (pre.interleaved || t.takesAll(pre.value, pre.gate))
		l.gateFirst = pre.gateFirst
	}
	function := b.groupedKernel(t, family, formulas, layout)
	if !ok || function == "" {
		return nil
	}
	return func() {
		gradPre := p.GradPreactivation
		if gradPre == nil { // the kernel writes it
			gradPre = b.region(b.dt, p.Preactivation.Shape...)
		}
		l.inputs[0], l.outputs[0] = rowsOf(p.Preactivation), rowsOf(gradPre)
		switch {
		case p.Halves == nil:
			l.outputs[1] = rowsOf(p.Out)
		case pre.interleaved:
			l.outputs[2] = rowsOf(p.Out)
		default:
			gradValue, gradGate := p.Halves(gradPre)
			l.inputs = [2]rowMatrix{rowsOf(pre.value), rowsOf(pre.gate)}
			l.outputs = [3]rowMatrix{rowsOf(gradValue), rowsOf(gradGate), rowsOf(p.Out)}
		}
		if p.Sums != nil {
			l.rowSums = b.region(dtype.Float32, t.partsOfRows*ceilDiv(l.columns, tileColumns), l.rows)
		}
		if p.GradBias != nil {
			l.columnSums = b.region(dtype.Float32, (l.rows/t.rows+l.groups())*t.partsOfColumns, p.GradBias.Shape[1])
		}
		t.add(l, b, function)
		if p.Sums != nil {
			b.finish(false, walkOf([]*tensor.View{p.Sums}), l.rowSums, l.rowSums.Shape[0], l.rows)
		}
		if p.GradBias != nil {
			b.finishSums(&groupSums{ends: p.Groups, sums: p.GradBias, partials: l.columnSums, rows: t.rows, parts: t.partsOfColumns, ofTiles: true})
		}
	}
}

// groupedWeightGradient is a program's launch of a product along groups' rows; nil where there is
// none.
func (b *builder) groupedWeightGradient(t *tileProgram, left, right, out, ends *tensor.View) func() {
	if !b.hasGroups(t, ends, left.Shape[0]) || !t.takesAll(left, right) {
		return nil
	}
	result, across, ok := t.weightOf(out)
	if !ok {
		return nil
	}
	if !across {
		left, right = right, left
	}
	function := t.groupPrefix + "weight_gradient_" + t.name + "_" + b.dt.Short() + "_" + out.DType.Short()
	l := &productLaunch{result: result, ends: ends, rows: left.Shape[0], adds: true}
	if t == sm90 {
		left, right, function = b.turned(l, left, right, out, function)
	}
	l.tokens = b.indexOf(right)
	if l.tokens == nil {
		l.tokens, l.tokensOfLeft = b.indexOf(left), true
	}
	if t == sm80 && l.tokens != nil {
		function += "_tokens"
	}
	l.left, l.pairs[0].rows = rowsOf(left), rowsOf(right)
	l.columns, l.rightColumns = left.Shape[1], right.Shape[1]
	return func() { t.add(l, b, function) }
}

// turned chooses how Hopper's program walks over the tiles of a product along rows, which of the
// operands is the left one, and the kernel.
func (b *builder) turned(l *productLaunch, left, right, out *tensor.View, function string) (newLeft, newRight *tensor.View, kernel string) {
	const fewRows = 768 // of a group
	band := int64(16)
	if left.Shape[0] < fewRows*l.groups() {
		band = 4
	}
	l.band, l.shift, l.pairRows, l.blocks = band, forthAndBack, operandRows, int64(b.device.processors)
	// Tiles are higher than wide, or the other way round: whichever gives fewer of them. Those that
	// are gathered are the right operand's, and a result in float is never turned.
	tiles := func(m, n int64) int64 { return ceilDiv(m, tileColumns) * ceilDiv(n, groupedTileRows) }
	isFloat := b.isFloat(out)
	isTurned := !isFloat && tiles(right.Shape[1], left.Shape[1]) < tiles(left.Shape[1], right.Shape[1])
	switch {
	case b.indexOf(right) != nil:
		isTurned = false
	case b.indexOf(left) != nil && isFloat:
		left = b.scattered(b.tokens.scatter, left.Shape[0])
	case b.indexOf(left) != nil:
		isTurned = true
	}
	if isTurned {
		return right, left, function + "_turned"
	}
	return left, right, function
}
