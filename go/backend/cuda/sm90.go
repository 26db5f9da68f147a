//go:build cgo

package cuda

/*
#include "cuda.h"
*/
import "C"

import (
	"fmt"

	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// Constants of kernels/cuda/product_sm90.cuh, and of the headers that it names.
const (
	sm90Threads = 3 * 128
	sm90Shared  = 227 << 10 // bytes
	// bytes of a tensor map, and of a kernel's parameters
	mapBytes, sm90Parameters = 128, 1600
	// columns of a tile, or of both products of a gated layer
	tileColumns = 128
	// columns of every box that is copied, but for those of float
	mapColumns, floatColumns int64 = 64, 32
	// rows of the boxes that are copied: of groups' operands, of outputs of a forward of groups and
	// of a dense one, and of a backward's inputs and outputs
	operandRows, forwardRows, denseForwardRows, backwardRows int64 = 64, 32, 64, 16
	// sizes of a ragged map: the second, which is the most rows, and the third and fourth
	raggedRows, raggedEnd = 1 << 30, 0x7fff0000
	// longestBoxStride is the most elements between two rows, or groups, that boxes are copied of:
	// ragged needs less than 2^35 bytes.
	longestBoxStride = 1 << 32
	boxUnit          = vectorBytes / 2 // elements that strides are multiples of
)

// mapTypes are CUtensorMapDataType of the dtypes that these products have: float for gradients
// alone.
var mapTypes = map[dtype.DType]C.int32_t{dtype.Float16: 6, dtype.BFloat16: 9, dtype.Float32: 7}

// isHopper reports whether a device has the instructions of product_sm90.cuh: those before and
// after have not.
func isHopper(major, minor int) bool { return major == 9 && minor == 0 }

// canBox reports whether a device, and its driver, can run product_sm90.cuh.
func canBox(handle *C.epg_device) bool {
	return isHopper(int(handle.major), int(handle.minor)) && C.epg_cuda_has_maps() != 0
}

// boxable reports whether a matrix of a half type can be copied by boxes: columns are contiguous,
// and rows start at multiples of 16 bytes where the first one does. A single row gets such a
// stride.
func (m *matrix) boxable() bool {
	if m.rows == 1 {
		m.rowStride = ceilDiv(m.columns, boxUnit) * boxUnit
	}
	return m.columnStride == 1 && m.rowStride%boxUnit == 0 && m.rowStride >= m.columns && m.rowStride <= longestBoxStride &&
		max(m.rows, m.columns) <= raggedRows
}

// boxes is a tensor of rows that is copied by boxes; of nil there is none.
type boxes struct {
	view *tensor.View
	matrix
}

// boxesOf is a tensor as rows and columns, if boxes can be copied of it; one that is not there
// fits.
func boxesOf(v *tensor.View) (all boxes, ok bool) {
	if v == nil {
		return all, true
	}
	strides, ok := rowsAndColumns(v)
	last := v.Rank() - 1
	all = boxes{v, matrix{tensor.Elements(v.Shape[:last]), strides[0], v.Shape[last], strides[1]}}
	return all, ok && all.boxable()
}

// weightBoxes is a matrix for each group, which is copied by boxes: `inner` is contiguous.
type weightBoxes struct {
	view                     *tensor.View
	inner, outer, groups     int64
	outerStride, groupStride int64
	boxColumns, boxRows      int64
}

// weight is a right operand that onePassOf has found as one group's: of one group any stride will
// do.
func (o *onePass) weight() *weightBoxes {
	m := o.right
	return &weightBoxes{o.views[lower.Right], m.columns, m.rows, 1, m.rowStride, m.rowStride, mapColumns, operandRows}
}

// pairBoxes is one of the products that a kernel adds up: the weight, or the value's and the
// gate's, and the rows.
type pairBoxes struct {
	weights [2]*weightBoxes
	rows    boxes
}

// productLaunch is a launch of product_sm90.cuh; what is nil is absent.
type productLaunch struct {
	pairs   [2]pairBoxes
	inputs  [2]boxes
	outputs [3]boxes
	// rows of boxes: of the pairs' rows, and of inputs and outputs
	pairRows, boxRows int64
	// the depth kind's left operand, beside the first pair's rows, and what it has for outputs
	left   boxes
	result *weightBoxes
	// nil where all rows are of one group, or each row is in its place
	ends, tokens                *tensor.View
	biases                      [2]*tensor.View
	scales, rowSums, columnSums *tensor.View
	rows, columns               int64
	rightOfTile                 int64 // columns of the right operand, of the depth kind
	biasStride                  int64
	band, shift                 int64
	gateFirst                   bool
	adds                        bool  // a run may add to the result
	blocks                      int64 // the most that have tiles
}

// ragged adds maps of matrices of rows that end where a copy says, or none.
func (p *parameters) ragged(rows int64, matrices ...boxes) {
	for _, m := range matrices {
		if m.view == nil {
			p.zeros(mapBytes)
			continue
		}
		row := m.rowStride
		p.tensorMap(m.view, []int64{m.columns, raggedRows, raggedEnd, raggedEnd}, []int64{row, row, (1<<35)/m.view.DType.Size() - row},
			[]int64{mapColumns, rows, 1, 1})
	}
}

// ofGroups adds maps of a matrix for each group, or none.
func (p *parameters) ofGroups(weights ...*weightBoxes) {
	for _, w := range weights {
		if w == nil {
			p.zeros(mapBytes)
			continue
		}
		p.tensorMap(w.view, []int64{w.inner, w.outer, w.groups}, []int64{w.outerStride, w.groupStride}, []int64{w.boxColumns, w.boxRows, 1})
	}
}

// add adds the launch of a kernel.
func (l *productLaunch) add(b *builder, function string) {
	p := &parameters{}
	if l.result != nil {
		p.ragged(l.pairRows, l.left)
		p.zeros(mapBytes)
	} else {
		p.ofGroups(l.pairs[0].weights[:]...)
	}
	p.ofGroups(l.pairs[1].weights[:]...)
	p.ragged(l.pairRows, l.pairs[0].rows, l.pairs[1].rows)
	p.ragged(l.boxRows, l.inputs[:]...)
	wanted := int64(0)
	for i, output := range l.outputs {
		if output.view != nil {
			wanted |= 1 << i
		}
	}
	if l.result != nil {
		p.ofGroups(l.result)
		p.ragged(l.boxRows, l.outputs[1:]...)
		wanted = 1
	} else {
		p.ragged(l.boxRows, l.outputs[:]...)
	}
	p.address(l.ends)
	p.address(l.tokens)
	p.address(l.pairs[0].rows.view)
	p.sizes(l.pairs[0].rows.rowStride/boxUnit, 0) // and a gap
	for _, v := range []*tensor.View{l.biases[0], l.biases[1], l.scales, l.rowSums, l.columnSums} {
		p.address(v)
	}
	p.numbers(numbers{})
	groups := int64(1)
	if l.ends != nil {
		groups = l.ends.Shape[0]
	}
	p.sizes(groups, l.rows, l.pairs[0].rows.columns, l.pairs[1].rows.columns, l.columns, l.rightOfTile, l.biasStride, l.band, l.shift)
	p.bool(l.gateFirst)
	p.accumulate(l.adds)
	p.sizes(wanted)
	p.zeros(sm90Parameters - len(p.bytes))
	q := p.launch(function, l.blocks)
	q.block[0], q.shared = sm90Threads, sm90Shared
	b.launch(step{general: q})
}

// dense is the launch of a product with tiles of so many rows, and how many of those there are.
// Bands of tiles have what they share in the second cache.
func (b *builder) dense(o *onePass, tileRows int64) (l *productLaunch, down int64) {
	const bandOfTiles = 16
	down = ceilDiv(o.rows, tileRows)
	l = &productLaunch{
		rows: o.rows, columns: o.columns, pairRows: tileRows, boxRows: denseForwardRows, band: bandOfTiles,
		blocks: min(down*ceilDiv(o.columns, tileColumns), int64(b.device.processors)),
	}
	for i := 0; o != nil; i, o = i+1, o.more {
		weight := o.weight()
		if !o.across {
			weight.boxRows = tileColumns
		}
		l.pairs[i] = pairBoxes{[2]*weightBoxes{weight}, boxes{o.views[lower.Left], o.left}}
	}
	return l, down
}

// takes gives a launch tensors of the result's shape, and tells whether boxes can be copied of all.
func takes(places []boxes, tensors ...*tensor.View) bool {
	for i, v := range tensors {
		var fits bool
		if places[i], fits = boxesOf(v); !fits {
			return false
		}
	}
	return true
}

// denseKernel is the kernel of a family and a formula for tiles of so many rows.
func (b *builder) denseKernel(family, formula string, o *onePass, tileRows int64) string {
	return fmt.Sprintf("%s_%s_%s_%s_%d", family, formula, b.dt.Short(), form(o.across), tileRows)
}

// form names how a right operand lies: with contiguous columns, or a contiguous depth.
func form(across bool) string {
	if across {
		return "nn"
	}
	return "nt"
}

// The rows that tiles have.
const narrowTile, wideTile = 128, 192

// byWay is a tile's rows: those of the builder's way, or what a rule says.
func (b *builder) byWay(rule int64) int64 {
	switch b.way {
	case narrow:
		return narrowTile
	case wide:
		return wideTile
	default:
		return rule
	}
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

// used is the part of all processors' time that goes into elements, with tiles of so many rows: the
// rest is that of tiles' empty rows and columns, and of a last round that is not full.
func (o *onePass) used(processors int, tileRows int64) float64 {
	tiles := ceilDiv(o.rows, tileRows) * ceilDiv(o.columns, tileColumns)
	rounds := ceilDiv(tiles, int64(processors))
	return float64(o.rows*o.columns) / float64(rounds*int64(processors)*tileRows*tileColumns)
}
