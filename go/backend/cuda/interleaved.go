//go:build cgo

package cuda

import "slices"

// interleaved makes the vector form of a launch whose last two views, value and gate, take turns in
// memory, as the outputs do where there are two (elementwise_pairs of kernels/cuda/gated.cu). Other
// views are contiguous along the innermost dimension. It is nil for other strides.
func (w walk) interleaved(f function, n numbers) *launch {
	inner, value := len(w.shape)-1, len(w.views)-2
	width := vectorBytes / w.views[value].DType.Size()
	if w.shape[inner]%width != 0 {
		return nil
	}
	for i, v := range w.views {
		stride := int64(1)
		if i >= value || f.outputs == 2 && i < 2 {
			stride = 2
		}
		if v == nil || w.strides[i][inner] != stride || !multiples(w.strides[i][:inner], width) {
			return nil
		}
	}
	gateFirst, ok := w.takeTurns(value)
	if !ok {
		return nil
	}
	if f.outputs == 2 {
		if first, ok := w.takeTurns(0); !ok || first != gateFirst {
			return nil
		}
	}
	starts := walk{slices.Clone(w.views), w.shape, w.strides}
	for _, i := range []int{value, 0}[:f.outputs] {
		first := w.views[i]
		if gateFirst {
			first = w.views[i+1]
		}
		starts.views[i], starts.views[i+1] = first, first
	}
	return starts.byVectors(f.interleaved, n, width, 1, 0, gateFirst)
}

// takeTurns reports whether the views i, a value, and i+1, its gate, are neighbours everywhere, and
// which one is first.
func (w walk) takeTurns(i int) (gateFirst, ok bool) {
	value, gate := w.views[i], w.views[i+1]
	apart := gate.Offset - value.Offset
	gateFirst = apart < 0
	return gateFirst, value.Operand == gate.Operand && max(apart, -apart) == value.DType.Size() && slices.Equal(w.strides[i], w.strides[i+1])
}
