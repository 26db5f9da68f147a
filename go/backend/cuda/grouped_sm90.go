//go:build cgo

package cuda

import (
	"math"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// Constants of kernels/cuda/grouped_tiles_sm90.cuh.
const (
	groupedParameters = 1152 // bytes
	mostGroups        = 512
	// sizes of a ragged map: the second, which is the most rows, and the third and fourth
	raggedRows, raggedEnd = 1 << 30, 0x7fff0000
	// threads of a block of grouped_sums_sm90.cu
	columnSumsThreads = 128
	// columns and rows of a tile, and rows of the boxes that are copied: of operands, of a
	// forward's outputs, and of a backward's
	groupedColumns, groupedTileRows              = 128, 192
	operandRows, forwardRows, backwardRows int64 = 64, 32, 16
	// columns of a box of float
	floatColumns int64 = 32
)

// groupedLaunch is a launch of grouped_sm90.cuh; nil fields are absent.
type groupedLaunch struct {
	left    [2]*weightBoxes
	right   *tensor.View
	inputs  [2]*tensor.View
	outputs [3]*tensor.View
	// of outputs and inputs that are rows, and of the depth kind's output
	boxRows     int64
	weight      *weightBoxes
	leftRows    *tensor.View // of the depth kind
	ends        *tensor.View
	biases      [2]*tensor.View
	scales      *tensor.View
	rowSums     *tensor.View
	columnSums  *tensor.View
	rows        int64
	depth       int64
	columns     int64
	rightOfTile int64 // columns of the right operand, of the depth kind
	biasStride  int64
	band, shift int64
	gateFirst   bool
	adds        bool // a run may add to the output
}

// weightBoxes is a matrix for each group, which is copied by boxes: `inner` is contiguous.
type weightBoxes struct {
	view                     *tensor.View
	inner, outer             int64
	outerStride, groupStride int64
	columns                  int64 // of a box
}

// hasGroups reports whether this device has the kernels of grouped_sm90.cuh for a problem.
func (b *builder) hasGroups(ends *tensor.View, rows *tensor.View) bool {
	groups := ends.Shape[0]
	return b.dt.IsHalf() && b.device.boxes && !b.blasAlone && 0 < groups && groups <= mostGroups && !rows.IsEmpty() &&
		rows.Shape[0] <= raggedRows
}

const boxUnit = vectorBytes / 2 // elements that strides are multiples of

// longestBoxStride is the most elements between two rows, or groups, that boxes are copied of:
// ragged needs less than 2^35 bytes.
const longestBoxStride = 1 << 32

// isBoxed reports whether boxes can be copied of all these matrices of rows; of nil they can.
func isBoxed(matrices ...*tensor.View) bool {
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

// isPlainBias reports whether the kernels can read a bias of groups, or nil: columns are contiguous
// and the stride of groups has 31 bits.
func isPlainBias(v *tensor.View) bool {
	return v == nil || v.Strides[1] == 1 && 0 <= v.Strides[0] && v.Strides[0] <= math.MaxInt32
}

// weightBoxesOf is a tensor [e, rows, columns] of which boxes are copied; `across` tells that its
// columns are contiguous, else its rows are.
func weightBoxesOf(v *tensor.View) (w *weightBoxes, across, ok bool) {
	rows, columns := v.Shape[1], v.Shape[2]
	w = &weightBoxes{view: v, groupStride: v.Strides[0], columns: mapColumns}
	if v.DType == dtype.Float32 {
		w.columns = floatColumns
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

// ragged adds a map of a matrix of rows that ends where a copy says, or none.
func (p *parameters) ragged(maps *[]tensorMap, v *tensor.View, rows int64) {
	if v != nil {
		row := v.Strides[0]
		*maps = append(*maps, tensorMap{
			pointer{len(p.bytes), v},
			[]int64{v.Shape[1], raggedRows, raggedEnd, raggedEnd},
			[]int64{row, row, (1<<35)/v.DType.Size() - row},
			[]int64{mapColumns, rows, 1, 1},
		})
	}
	p.bytes = append(p.bytes, make([]byte, mapBytes)...)
}

// ofGroup adds a map of a matrix for each group, or none.
func (p *parameters) ofGroup(maps *[]tensorMap, w *weightBoxes) {
	if w != nil {
		*maps = append(*maps, tensorMap{
			pointer{len(p.bytes), w.view},
			[]int64{w.inner, w.outer, w.view.Shape[0]},
			[]int64{w.outerStride, w.groupStride},
			[]int64{w.columns, operandRows, 1},
		})
	}
	p.bytes = append(p.bytes, make([]byte, mapBytes)...)
}

// add adds the launch of a kernel, whose name goes on behind the dtype.
func (l *groupedLaunch) add(b *builder, family, rest string) {
	function := family + "_" + b.dt.Short() + "_" + rest
	p := &parameters{}
	var maps []tensorMap
	if l.leftRows != nil {
		p.ragged(&maps, l.leftRows, operandRows)
		p.ofGroup(&maps, nil)
	} else {
		p.ofGroup(&maps, l.left[0])
		p.ofGroup(&maps, l.left[1])
	}
	p.ragged(&maps, l.right, operandRows)
	for _, input := range l.inputs {
		p.ragged(&maps, input, l.boxRows)
	}
	wanted := int64(0)
	for i, output := range l.outputs {
		if output != nil {
			wanted |= 1 << i
		}
		if i == 0 && l.weight != nil {
			p.ofGroup(&maps, l.weight)
			wanted = 1
			continue
		}
		p.ragged(&maps, output, l.boxRows)
	}
	for _, v := range []*tensor.View{l.ends, l.biases[0], l.biases[1], l.scales, l.rowSums, l.columnSums} {
		p.address(v)
	}
	p.numbers(numbers{})
	p.sizes(l.ends.Shape[0], l.rows, l.depth, l.columns, l.rightOfTile, l.biasStride, l.band, l.shift)
	p.bool(l.gateFirst)
	p.accumulate(l.adds)
	p.sizes(wanted)
	p.bytes = append(p.bytes, make([]byte, groupedParameters-len(p.bytes))...)
	made := p.launch(function, int64(b.device.processors))
	made.block[0], made.shared, made.maps = sm90Threads, sm90Shared, maps
	b.launch(step{general: made})
}

// ofRows is a launch of the rows kind: tiles of a long depth share more of the cache where fewer of
// them are walked together, and in turn.
func ofRows(right, ends *tensor.View, columns int64) *groupedLaunch {
	const longDepth = 8192
	l := &groupedLaunch{
		right: right, ends: ends, rows: right.Shape[0], depth: right.Shape[1], columns: columns, band: 8, shift: 1, boxRows: forwardRows,
	}
	if l.depth >= longDepth {
		l.band, l.shift = 4, 0
	}
	return l
}

// form names how a weight lies.
func form(across bool) string {
	if across {
		return "nn"
	}
	return "nt"
}

// boxedLinear is the launch of a product of groups, with right operands [e, depth, columns], with a
// bias, and with an activation if it has its own kernel; nil where there is none.
func (b *builder) boxedLinear(formula string, left, right, bias, out, pre, ends *tensor.View) func() {
	if !b.hasGroups(ends, left) || out == nil || !isBoxed(left, out, pre) || !isPlainBias(bias) {
		return nil
	}
	if formula != "none" && formula != "relu2" || formula == "none" && pre != nil {
		return nil
	}
	weight, across, ok := weightBoxesOf(right)
	if !ok {
		return nil
	}
	l := ofRows(left, ends, out.Shape[1])
	l.left[0], l.outputs[0], l.outputs[1], l.biases[0] = weight, out, pre, bias
	if bias != nil {
		l.biasStride = bias.Strides[0]
	}
	return func() { l.add(b, "grouped_linear_sm90_"+formula, form(across)) }
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

// gateKernels are the kernels of gates' formulas. That of swish has all its numbers for silu too
// (go/activation).
var gateKernels = map[string]string{"silu": "swish", "swish": "swish", "gelu_tanh": "gelu_tanh"}

// boxedGated is the launch of a gated layer of groups; nil where there is none.
func (b *builder) boxedGated(p *backend.GroupedLayer) func() {
	gate := gateKernels[p.Formula]
	if gate == "" || !b.hasGroups(p.Groups, p.Input) || p.Out == nil || !isPlainBias(p.Bias) || !isBoxed(p.Input, p.Out, p.Preactivation) {
		return nil
	}
	columns := tensor.Exchanged(p.Weight, 1, 2) // [e, k, 2h]
	weight := inHalves(p.Halves, columns)
	l := ofRows(p.Input, p.Groups, p.Out.Shape[1])
	l.outputs[0], l.gateFirst = p.Out, weight.gateFirst
	if p.Bias != nil {
		l.biasStride = p.Bias.Strides[0]
	}
	if weight.interleaved {
		boxes, across, ok := weightBoxesOf(columns)
		if !ok || !across || gate != "swish" {
			return nil
		}
		l.left[0], l.outputs[1], l.biases[0] = boxes, p.Preactivation, p.Bias
		return func() { l.add(b, "grouped_gated_linear_sm90_"+gate, "nn_interleaved") }
	}
	for i, half := range []*tensor.View{weight.value, weight.gate} {
		boxes, across, ok := weightBoxesOf(half)
		if !ok || across {
			return nil
		}
		l.left[i] = boxes
	}
	l.outputs[1], l.outputs[2] = p.Halves(p.Preactivation)
	l.biases[0], l.biases[1] = p.Halves(p.Bias)
	if !isBoxed(l.outputs[1], l.outputs[2]) {
		return nil
	}
	return func() { l.add(b, "grouped_gated_linear_sm90_"+gate, "nt_halves") }
}

// boxedHiddenBackward is the launches of a hidden activation's backward; nil where there are none.
func (b *builder) boxedHiddenBackward(p *backend.GroupedHiddenBackward) func() {
	if !b.hasGroups(p.Groups, p.GradOutput) || !isPlainBias(p.GradBias) || !isBoxed(p.GradOutput, p.Preactivation, p.GradPreactivation, p.Out) {
		return nil
	}
	weight, across, ok := weightBoxesOf(p.Weight)
	gradPre := p.GradPreactivation
	if gradPre == nil { // the kernel writes it
		gradPre = &tensor.View{Shape: p.Preactivation.Shape, Strides: tensor.ContiguousStrides(p.Preactivation.Shape)}
	}
	l := ofRows(p.GradOutput, p.Groups, p.Weight.Shape[2])
	l.left[0], l.boxRows, l.scales = weight, backwardRows, p.Scales
	family, rest := "", ""
	switch gate := gateKernels[p.Formula]; {
	case !ok:
		return nil
	case p.Halves == nil:
		if p.Formula != "relu2" || !across {
			return nil
		}
		family, rest = "grouped_hidden_backward_sm90_relu2", "nn"
	case gate == "":
		return nil
	default:
		pre := inHalves(p.Halves, p.Preactivation)
		l.gateFirst = pre.gateFirst
		family, rest = "grouped_gated_hidden_backward_sm90_"+gate, "nn_halves"
		if pre.interleaved {
			rest = "nt_interleaved"
		}
		if pre.interleaved == across || pre.interleaved && gate != "swish" || !pre.interleaved && !isBoxed(pre.value, pre.gate) {
			return nil
		}
	}
	return func() {
		if p.GradPreactivation == nil {
			gradPre = b.region(b.dt, gradPre.Shape...)
		}
		switch rest {
		case "nn":
			l.inputs[0], l.outputs[0], l.outputs[1] = p.Preactivation, gradPre, p.Out
		case "nn_halves":
			l.inputs[0], l.inputs[1] = p.Halves(p.Preactivation)
			l.outputs[0], l.outputs[1] = p.Halves(gradPre)
			l.outputs[2] = p.Out
		default:
			l.inputs[0], l.outputs[0], l.outputs[2] = p.Preactivation, gradPre, p.Out
		}
		if p.Sums != nil {
			l.rowSums = b.region(dtype.Float32, 4*ceilDiv(l.columns, groupedColumns), l.rows)
		}
		if p.GradBias != nil {
			l.columnSums = b.region(dtype.Float32, l.rows/groupedTileRows+p.Groups.Shape[0], p.GradBias.Shape[1])
		}
		l.add(b, family, rest)
		if p.Sums != nil {
			b.finish(false, walkOf([]*tensor.View{p.Sums}), l.rowSums, l.rowSums.Shape[0], l.rows)
		}
		b.addColumnSums(l.columnSums, p.GradBias, p.Groups)
	}
}

// addColumnSums adds the launch that adds up sums along the columns of groups, if there are any.
func (b *builder) addColumnSums(parts, sums, ends *tensor.View) {
	if parts == nil {
		return
	}
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

// boxedDepth is the launch of a product along groups' rows; nil where there is none.
func (b *builder) boxedDepth(left, right, out, ends *tensor.View) func() {
	if !b.hasGroups(ends, left) || !isBoxed(left, right) {
		return nil
	}
	boxes, across, ok := weightBoxesOf(out)
	if !ok {
		return nil
	}
	if !across {
		left, right = right, left
	}
	const fewRows = 768 // of a group
	l := &groupedLaunch{
		leftRows: left, right: right, weight: boxes, ends: ends, rows: left.Shape[0], columns: left.Shape[1], rightOfTile: right.Shape[1],
		band: 16, shift: -1, adds: true,
	}
	if l.rows < fewRows*ends.Shape[0] {
		l.band = 4
	}
	name := out.DType.Short()
	// Tiles are higher than wide, or the other way round: whichever gives fewer of them.
	tiles := func(m, n int64) int64 { return ceilDiv(m, groupedColumns) * ceilDiv(n, groupedTileRows) }
	if !b.isFloat(out) && tiles(l.rightOfTile, l.columns) < tiles(l.columns, l.rightOfTile) {
		l.leftRows, l.right, l.columns, l.rightOfTile = right, left, l.rightOfTile, l.columns
		name += "_turned"
	}
	return func() { l.add(b, "grouped_weight_gradient_sm90", name) }
}
