//go:build cgo

package cuda

/*
#include "cuda.h"
*/
import "C"

import (
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

// isBoxable reports whether boxes can be copied of a matrix of rows that belong to groups.
func isBoxable(v *tensor.View) bool {
	row := v.Strides[0]
	return !v.IsEmpty() && v.Strides[1] == 1 && v.Shape[1]%boxUnit == 0 && row%boxUnit == 0 && row >= v.Shape[1] && row <= longestBoxStride
}

// isBoxable reports whether boxes can be copied of weights.
func (w *weight) isBoxable() bool {
	unit := vectorBytes / w.view.DType.Size()
	fits := w.inner%boxUnit == 0 && w.outer%boxUnit == 0 && w.outerStride%unit == 0 && w.groupStride%unit == 0
	return fits && w.inner <= w.outerStride && w.outerStride <= longestBoxStride && 0 < w.groupStride && w.groupStride <= longestBoxStride
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

// ragged adds maps of matrices of rows that end where a copy says, or none.
func (p *parameters) ragged(rows int64, matrices ...rowMatrix) {
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
func (p *parameters) ofGroups(weights ...*weight) {
	for _, w := range weights {
		if w == nil {
			p.zeros(mapBytes)
			continue
		}
		columns, rows := mapColumns, w.boxRows
		if w.view.DType == dtype.Float32 {
			columns = floatColumns
		}
		if rows == 0 {
			rows = operandRows
		}
		p.tensorMap(w.view, []int64{w.inner, w.outer, w.groups}, []int64{w.outerStride, w.groupStride}, []int64{columns, rows, 1})
	}
}

// addSM90 adds the launch of a kernel.
func (l *productLaunch) addSM90(b *builder, function string) {
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
	p.sizes(l.groups(), l.rows, l.pairs[0].rows.columns, l.pairs[1].rows.columns, l.columns, l.rightColumns, l.biasStride, l.band, l.shift)
	p.bool(l.gateFirst)
	p.accumulate(l.adds)
	p.sizes(wanted)
	p.zeros(sm90Parameters - len(p.bytes))
	q := p.launch(function, l.blocks)
	q.block[0], q.shared = sm90Threads, sm90Shared
	b.launch(step{general: q})
}
