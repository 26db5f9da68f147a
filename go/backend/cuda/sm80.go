//go:build cgo

package cuda

import (
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// Constants of kernels/cuda/product_sm80.cuh.
const (
	sm80Threads = 128
	sm80Shared  = 3 * 2 * 8192 // bytes
	sm80Tile    = 128          // rows of a tile
)

// isNear reports whether the columns of a matrix are contiguous.
func (m *matrix) isNear() bool { return m.columnStride == 1 || m.columns <= 1 }

func isNear(v *tensor.View) bool { return !v.IsEmpty() && (v.Strides[1] == 1 || v.Shape[1] == 1) }

func (*weight) isNear() bool { return true }

// rows are the addresses and strides of matrices, and weights those of weights.
func (p *parameters) rows(operands ...rowMatrix) {
	for _, o := range operands {
		p.address(o.view)
		p.int64(o.rowStride)
	}
}

func (p *parameters) weights(weights ...*weight) {
	for _, w := range weights {
		if w == nil {
			w = &weight{}
		}
		p.address(w.view)
		p.int64(w.outerStride)
		p.int64(w.groupStride)
	}
}

// addSM80 adds the launch of a kernel.
func (l *productLaunch) addSM80(b *builder, function string) {
	p := &parameters{}
	isDepth := l.result != nil
	if isDepth {
		p.rows(l.left, l.pairs[0].rows)
		p.weights(l.result, nil, nil, nil)
	} else {
		p.rows(l.pairs[0].rows, l.pairs[1].rows)
		p.weights(l.pairs[0].weights[0], l.pairs[0].weights[1], l.pairs[1].weights[0], l.pairs[1].weights[1])
	}
	p.rows(l.inputs[:]...)
	p.rows(l.outputs[:]...)
	for _, v := range []*tensor.View{l.ends, l.tokens, l.biases[0], l.biases[1], l.scales, l.rowSums, l.columnSums} {
		p.address(v)
	}
	p.numbers(numbers{})
	p.sizes(l.groups(), l.rows, l.pairs[0].rows.columns, l.pairs[1].rows.columns, l.columns, l.rightColumns, l.biasStride, l.band)
	p.bool(l.gateFirst)
	p.bool(l.tokensOfLeft)
	p.accumulate(l.adds)
	p.sizes(0)
	var tiles int64
	switch {
	case isDepth:
		tiles = l.groups() * ceilDiv(l.columns, sm80Tile) * ceilDiv(l.rightColumns, sm80Tile)
	case l.ends != nil:
		tiles = (l.rows/sm80Tile + l.groups()) * ceilDiv(l.columns, l.tileColumns)
	default:
		tiles = ceilDiv(l.rows, sm80Tile) * ceilDiv(l.columns, l.tileColumns)
	}
	q := p.launch(function, tiles)
	q.block[0], q.shared = sm80Threads, sm80Shared
	b.launch(step{general: q})
	b.tf32 = b.tf32 || b.dt == dtype.Float32
}
