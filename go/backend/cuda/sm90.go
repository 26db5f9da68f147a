//go:build cgo

package cuda

/*
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"math"

	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// What kernels/cuda/product_sm90.cuh says of a launch.
const (
	sm90Threads = 3 * 128
	sm90Shared  = 227 << 10 // bytes
	// a tile's rows, and how far into the depth it is copied at a time
	sm90Rows, sm90Depth = 128, 64
	// columns of every box that is copied, and rows of one that is stored
	mapColumns, storedRows = 64, 64
	// bytes of a tensor map, and of a kernel's parameters, here and in grouped_tiles_sm90.cuh
	mapBytes, sm90Parameters = 128, 1152
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
// stride. The copy engine has limits of its own: 32 bits for a place, 40 for a stride.
func (m *matrix) boxable() bool {
	const unit, longestStride = vectorBytes / 2, 1 << 39
	if m.rows == 1 {
		m.rowStride = ceilDiv(m.columns, unit) * unit
	}
	return m.columnStride == 1 && m.rowStride%unit == 0 && m.rowStride >= m.columns && m.rowStride < longestStride &&
		max(m.rows, m.columns) < math.MaxInt32-sm90Rows
}

// boxes is a tensor of the result's shape that is copied by boxes; of nil there is none.
type boxes struct {
	view *tensor.View
	matrix
}

// boxesOf is a tensor as the rows and columns of a result, if boxes can be copied of it; one that
// is not there fits.
func boxesOf(v *tensor.View) (all boxes, ok bool) {
	if v == nil {
		return all, true
	}
	strides, ok := rowsAndColumns(v)
	last := v.Rank() - 1
	all = boxes{v, matrix{tensor.Elements(v.Shape[:last]), strides[0], v.Shape[last], strides[1]}}
	return all, ok && all.boxable()
}

// productLaunch is a launch of product_sm90.cuh.
type productLaunch struct {
	builder      *builder
	product      *onePass
	tileColumns  int64
	down, across int64    // tiles
	rights       [2]boxes // the value's and the gate's where there are two
	inputs       [2]boxes
	outputs      [3]boxes
	biases       [2]*tensor.View
	sums         *tensor.View
}

func (b *builder) productLaunch(o *onePass, tileColumns int64) *productLaunch {
	return &productLaunch{
		builder: b, product: o, tileColumns: tileColumns, down: ceilDiv(o.rows, sm90Rows), across: ceilDiv(o.columns, tileColumns),
		rights: [2]boxes{{o.views[lower.Right], o.right}},
	}
}

// gatedBy makes another product's right operand the gate's: a tile has half of the columns of each.
func (l *productLaunch) gatedBy(gate *onePass) {
	l.rights[1] = boxes{gate.views[lower.Right], gate.right}
	l.across = ceilDiv(l.product.columns, l.tileColumns/2)
}

// takes gives a launch tensors of the result's shape, and tells whether boxes can be copied of all.
func (l *productLaunch) takes(places []boxes, tensors ...*tensor.View) bool {
	for i, v := range tensors {
		var fits bool
		if places[i], fits = boxesOf(v); !fits {
			return false
		}
	}
	return true
}

// function is the kernel of a family and a formula for this launch.
func (l *productLaunch) function(family, formula string) string {
	return fmt.Sprintf("%s_%s_%s_%s_%d", family, formula, l.builder.dt.Short(), form(l.product.across), l.tileColumns)
}

// add adds the launch.
func (l *productLaunch) add(function string) {
	o, b := l.product, l.builder
	rightRows := l.tileColumns
	if l.rights[1].view != nil {
		rightRows /= 2
	}
	if o.across {
		rightRows = sm90Depth
	}
	p := &parameters{}
	add := func(rows int64, all ...boxes) {
		for _, m := range all {
			if m.view == nil {
				p.zeros(mapBytes)
				continue
			}
			p.tensorMap(m.view, []int64{m.columns, m.rows}, []int64{m.rowStride}, []int64{mapColumns, rows})
		}
	}
	add(sm90Rows, boxes{o.views[lower.Left], o.left})
	add(rightRows, l.rights[:]...)
	add(storedRows, l.inputs[:]...)
	add(storedRows, l.outputs[:]...)
	wanted := int64(0)
	for i, output := range l.outputs {
		if output.view != nil {
			wanted |= 1 << i
		}
	}
	for _, bias := range l.biases {
		p.address(bias)
	}
	p.address(l.sums)
	p.numbers(numbers{})
	p.sizes(o.depth, o.columns, l.down, l.across, min(l.down, bandOfTiles), wanted)
	b.launchSM90(p, function, min(l.down*l.across, int64(b.device.processors)))
}

// form names how a right operand lies: with contiguous columns, or a contiguous depth.
func form(across bool) string {
	if across {
		return "nn"
	}
	return "nt"
}

// launchSM90 adds the launch of a kernel of product_sm90.cuh or grouped_sm90.cuh.
func (b *builder) launchSM90(p *parameters, function string, blocks int64) {
	p.zeros(sm90Parameters - len(p.bytes))
	l := p.launch(function, blocks)
	l.block[0], l.shared = sm90Threads, sm90Shared
	b.launch(step{general: l})
}

// bandOfTiles is how many rows of tiles are walked together, so that what they share stays in the
// second cache.
const bandOfTiles = 16

// The columns that tiles have.
const narrowTile, wideTile = 128, 192

// byWay is a tile's columns: those of the builder's way, or what a rule says.
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

// fewestIdle chooses a tile's columns. The wider tile reads less for each product; the other one
// may leave fewer processors idle in the last round.
func (o *onePass) fewestIdle(processors int) int64 {
	const worth = 1.05
	if o.used(processors, narrowTile) > worth*o.used(processors, wideTile) {
		return narrowTile
	}
	return wideTile
}

// used is the part of all processors' time that goes into elements, with tiles of so many columns:
// the rest is that of tiles' empty rows and columns, and of a last round that is not full.
func (o *onePass) used(processors int, columns int64) float64 {
	tiles := ceilDiv(o.rows, sm90Rows) * ceilDiv(o.columns, columns)
	rounds := ceilDiv(tiles, int64(processors))
	return float64(o.rows*o.columns) / float64(rounds*int64(processors)*sm90Rows*columns)
}
