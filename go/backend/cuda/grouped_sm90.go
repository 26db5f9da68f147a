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
	// threads of a block of grouped_sums_sm90.cu
	columnSumsThreads = 128
	// rows of a tile
	groupedTileRows = 192
	// mostFeaturesOfTokens is the most hidden features of a layer that reads tokens where they lie,
	// and mostFeaturesBackward that of a mixture whose backward does. Boxes of copied rows are
	// multiplied faster: with more features that pays for the copy.
	mostFeaturesOfTokens, mostFeaturesBackward = 512, 256

	forthAndBack = -1 // a launch's shift
)

// hasGroups reports whether this device has the kernels of product_sm90.cuh for a problem of
// groups.
func (b *builder) hasGroups(ends *tensor.View, rows int64) bool {
	groups := ends.Shape[0]
	return b.dt.IsHalf() && b.device.boxes && !b.blasAlone && 0 < groups && groups <= mostGroups && 0 < rows && rows <= raggedRows
}

// areBoxable reports whether boxes can be copied of all these matrices of rows; of nil they can.
func areBoxable(matrices ...*tensor.View) bool {
	for _, v := range matrices {
		if v == nil {
			continue
		}
		row := v.Strides[0]
		if v.IsEmpty() || v.Strides[1] != 1 || v.Shape[1]%boxUnit != 0 || row%boxUnit != 0 || row < v.Shape[1] || row > longestBoxStride {
			return false
		}
	}
	return true
}

// rowsOf is a matrix that areBoxable is true of.
func rowsOf(v *tensor.View) boxes {
	if v == nil {
		return boxes{}
	}
	return boxes{v, matrix{v.Shape[0], v.Strides[0], v.Shape[1], v.Strides[1]}}
}

// isPlainBias reports whether the kernels can read a bias of groups, or nil: columns are contiguous
// and the stride of groups has 31 bits.
func isPlainBias(v *tensor.View) bool {
	return v == nil || v.Strides[1] == 1 && 0 <= v.Strides[0] && v.Strides[0] <= math.MaxInt32
}

// weightBoxesOf is a tensor [e, rows, columns] of which boxes are copied; `across` tells that its
// columns are contiguous, else its rows are.
func weightBoxesOf(v *tensor.View) (w *weightBoxes, across, ok bool) {
	rows, columns := v.Shape[1], v.Shape[2]
	w = &weightBoxes{view: v, groups: v.Shape[0], groupStride: v.Strides[0], boxColumns: mapColumns, boxRows: operandRows}
	if v.DType == dtype.Float32 {
		w.boxColumns = floatColumns
	}
	switch across = v.Strides[2] == 1; {
	case across:
		w.inner, w.outer, w.outerStride = columns, rows, v.Strides[1]
	case v.Strides[1] == 1:
		w.inner, w.outer, w.outerStride = rows, columns, v.Strides[2]
	default:
		return w, false, false
	}
	unit := vectorBytes / v.DType.Size()
	fits := !v.IsEmpty() && w.inner%boxUnit == 0 && w.outer%boxUnit == 0 && w.outerStride%unit == 0 && w.groupStride%unit == 0
	return w, across, fits && w.inner <= w.outerStride && w.outerStride <= longestBoxStride && 0 < w.groupStride && w.groupStride <= longestBoxStride
}

// groupedKernel is the kernel of a family for the first of these formulas that it is compiled for;
// "" for none. How operands lie is the end of its name.
func (b *builder) groupedKernel(family string, formulas []string, layout string) string {
	for _, formula := range formulas {
		if function := family + "_" + formula + "_" + b.dt.Short() + "_" + layout; b.device.compiled(function) {
			return function
		}
	}
	return ""
}

// ofRows is a launch of the rows kind: tiles of a long depth share more of the cache where fewer of
// them are walked together, and in turn.
func (b *builder) ofRows(rows, ends *tensor.View, columns int64) *productLaunch {
	const longDepth = 8192
	l := &productLaunch{
		ends: ends, tokens: b.indexOf(rows), rows: rows.Shape[0], columns: columns, band: 8, shift: 1,
		pairRows: operandRows, boxRows: forwardRows, blocks: int64(b.device.processors),
	}
	if rows.Shape[1] >= longDepth {
		l.band, l.shift = 4, 0
	}
	return l
}

// takesPairs gives a launch products with right operands [e, depth, columns], of which halves are
// the values and the gates, if there are some. It tells whether boxes can be copied of all, and
// whether columns are contiguous, as in all right operands or in none.
func (l *productLaunch) takesPairs(pairs []backend.Pair, halves func(v *tensor.View) (value, gate *tensor.View)) (across, ok bool) {
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
		if !areBoxable(pair.A) {
			return false, false
		}
		for side, right := range rights {
			if right == nil {
				continue
			}
			weight, lies, fits := weightBoxesOf(right)
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

// groupedLinearSM90 is the launch of a product of groups, or of the sum of two, with right operands
// [e, depth, columns], a bias and an activation; nil where there is none.
func (b *builder) groupedLinearSM90(formula string, bias, out, pre, ends *tensor.View, pairs ...backend.Pair) func() {
	if !b.hasGroups(ends, pairs[0].A.Shape[0]) || out == nil || !areBoxable(out, pre) || !isPlainBias(bias) {
		return nil
	}
	l := b.ofRows(pairs[0].A, ends, out.Shape[1])
	l.outputs[0], l.outputs[1], l.biases[0] = rowsOf(out), rowsOf(pre), bias
	across, ok := l.takesPairs(pairs, nil)
	function := b.groupedKernel("grouped_linear_sm90", []string{formula}, form(across))
	if !ok || function == "" {
		return nil
	}
	if bias != nil {
		l.biasStride = bias.Strides[0]
	}
	return func() { l.add(b, function) }
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

// groupedGatedLinearSM90 is the launch of a gated layer of groups; nil where there is none.
func (b *builder) groupedGatedLinearSM90(p *backend.GroupedLayer) func() {
	if !b.hasGroups(p.Groups, p.Input.Shape[0]) || p.Out == nil || !isPlainBias(p.Bias) || !areBoxable(p.Out, p.Preactivation) {
		return nil
	}
	columns := tensor.Exchanged(p.Weight, 1, 2) // [e, k, 2h]
	weight := inHalves(p.Halves, columns)
	l := b.ofRows(p.Input, p.Groups, p.Out.Shape[1])
	across, ok := l.takesPairs(withMore(p.Input, columns, p.More), p.Halves)
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
		ok = ok && areBoxable(value, gate)
	}
	function := b.groupedKernel("grouped_gated_linear_sm90", activation.GateKernels(p.Formula), weight.layout(across))
	if !ok || function == "" {
		return nil
	}
	return func() { l.add(b, function) }
}

// groupedHiddenBackwardSM90 is the launches of a hidden activation's backward; nil where there are
// none.
func (b *builder) groupedHiddenBackwardSM90(p *backend.GroupedHiddenBackward) func() {
	if !b.hasGroups(p.Groups, p.GradOutput.Shape[0]) || !isPlainBias(p.GradBias) || !areBoxable(p.Preactivation, p.GradPreactivation, p.Out) {
		return nil
	}
	l := b.ofRows(p.GradOutput, p.Groups, p.Weight.Shape[2])
	across, ok := l.takesPairs(withMore(p.GradOutput, p.Weight, p.More), nil)
	l.boxRows, l.scales = backwardRows, p.Scales
	family, formulas, layout := "grouped_hidden_backward_sm90", []string{p.Formula}, form(across)
	var pre halvesOf
	if p.Halves != nil {
		pre = inHalves(p.Halves, p.Preactivation)
		family, formulas, layout = "grouped_gated_hidden_backward_sm90", activation.GateKernels(p.Formula), pre.layout(across)
		ok = ok && (pre.interleaved || areBoxable(pre.value, pre.gate))
		l.gateFirst = pre.gateFirst
	}
	function := b.groupedKernel(family, formulas, layout)
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
			l.inputs = [2]boxes{rowsOf(pre.value), rowsOf(pre.gate)}
			l.outputs = [3]boxes{rowsOf(gradValue), rowsOf(gradGate), rowsOf(p.Out)}
		}
		if p.Sums != nil {
			l.rowSums = b.region(dtype.Float32, 4*ceilDiv(l.columns, tileColumns), l.rows)
		}
		if p.GradBias != nil {
			l.columnSums = b.region(dtype.Float32, l.rows/groupedTileRows+p.Groups.Shape[0], p.GradBias.Shape[1])
		}
		l.add(b, function)
		if p.Sums != nil {
			b.finish(false, walkOf([]*tensor.View{p.Sums}), l.rowSums, l.rowSums.Shape[0], l.rows)
		}
		if p.GradBias != nil {
			b.addColumnSums(l.columnSums, p.GradBias, p.Groups)
		}
	}
}

// addColumnSums adds the launch that adds up sums along the columns of groups.
func (b *builder) addColumnSums(parts, sums, ends *tensor.View) {
	q := &parameters{}
	q.address(parts)
	q.address(ends)
	q.address(sums)
	q.int64(sums.Strides[0])
	q.sizes(sums.Shape[1])
	q.accumulate(true)
	l := q.launch("grouped_column_sums_sm90_"+sums.DType.Short(), ceilDiv(sums.Shape[1], columnSumsThreads))
	l.grid[1], l.block[0] = sums.Shape[0], columnSumsThreads
	b.launch(step{general: l})
}

// groupedWeightGradientSM90 is the launch of a product along groups' rows; nil where there is none.
func (b *builder) groupedWeightGradientSM90(left, right, out, ends *tensor.View) func() {
	if !b.hasGroups(ends, left.Shape[0]) || !areBoxable(left, right) {
		return nil
	}
	result, across, ok := weightBoxesOf(out)
	if !ok {
		return nil
	}
	if !across {
		left, right = right, left
	}
	const fewRows = 768 // of a group
	band := int64(16)
	if left.Shape[0] < fewRows*ends.Shape[0] {
		band = 4
	}
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
	function := "grouped_weight_gradient_sm90_" + b.dt.Short() + "_" + out.DType.Short()
	if isTurned {
		left, right = right, left
		function += "_turned"
	}
	l := &productLaunch{
		left: rowsOf(left), result: result, ends: ends, tokens: b.indexOf(right), rows: left.Shape[0], columns: left.Shape[1], rightOfTile: right.Shape[1],
		band: band, shift: forthAndBack, pairRows: operandRows, adds: true, blocks: int64(b.device.processors),
	}
	l.pairs[0].rows = rowsOf(right)
	return func() { l.add(b, function) }
}
