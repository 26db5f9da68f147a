//go:build cgo

package cuda

import "slices"

// pairs makes the vector form of a launch whose last two views, value and gate, take turns in
// memory, as the outputs do where there are two (elementwise_pairs of kernels/cuda/gated.cu). Other
// views are contiguous along the innermost dimension. It is nil for other strides.
func (w walk) pairs(f function, n numbers) (*launch, error) {
	inner, value := len(w.shape)-1, len(w.views)-2
	dt := w.views[value].DType
	width := vectorBytes / dt.Size()
	if w.shape[inner]%width != 0 {
		return nil, nil
	}
	gateFirst, starts := false, walk{slices.Clone(w.views), w.shape, w.strides}
	for i, v := range w.views {
		stride := int64(1)
		if i >= value || f.outputs == 2 && i < 2 {
			stride = 2
		}
		if v == nil || w.strides[i][inner] != stride || !multiples(w.strides[i][:inner], width) {
			return nil, nil
		}
	}
	for _, i := range []int{value, 0}[:f.outputs] {
		v, gate := w.views[i], w.views[i+1]
		apart := gate.Offset - v.Offset
		before := apart < 0
		if v.Operand != gate.Operand || max(apart, -apart) != dt.Size() || !slices.Equal(w.strides[i], w.strides[i+1]) || i == 0 && before != gateFirst {
			return nil, nil
		}
		if gateFirst = before; before {
			v = gate
		}
		starts.views[i], starts.views[i+1] = v, v
	}
	return starts.byVectors(f.pairs, n, width, 1, 0, gateFirst)
}
