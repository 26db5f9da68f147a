package tensor

import "math"

// SelfOverlaps reports whether two different indices of a view reach the same element, as a stride
// 0 or the windows of as_strided do. The answer is exact, except that true is also given where the
// search exceeds searchBudget or the extent is beyond 64 bits.
func SelfOverlaps(v View) bool {
	if v.isContiguous() || v.isEmpty() {
		return false
	}
	if _, _, ok := v.extent(); !ok {
		return true
	}
	var steps sumSearch
	for d, n := range v.Shape {
		if n == 1 {
			continue
		}
		if v.Strides[d] == 0 {
			return true
		}
		steps.add(int64(magnitude(v.Strides[d])), n-1)
	}
	return steps.hasEqualSums()
}

// Overlaps reports whether two views share a byte. The answer is exact for any strides, element
// sizes and offsets, so that disjoint parts of one buffer (column slices, interleaved columns, the
// halves of a gated tensor) are told from shared ones, except that true is also given where the
// search exceeds searchBudget or a view reaches beyond 64 bits.
//
// On WebGPU a Base is a handle, so only views of one handle can share. A nil Base is no address:
// views that only describe are compared by their offsets where they describe the same operand, and
// share nothing otherwise.
func Overlaps(a, b View) bool {
	if a.Base != b.Base {
		if a.Base == nil || b.Base == nil || a.Device.Type == WebGPU || b.Device.Type == WebGPU {
			return false
		}
	} else if a.Base == nil && a.Operand != b.Operand {
		return false
	}
	loA, hiA, okA := a.addresses()
	loB, hiB, okB := b.addresses()
	if !okA || !okB {
		return !a.isEmpty() && !b.isEmpty()
	}
	if loA == hiA || loB == hiB || hiA <= loB || hiB <= loA {
		return false
	}
	if a.isContiguous() && b.isContiguous() {
		return true
	}
	return sharesByte(&a, &b, hiB-loB, hiB-loA)
}

// addresses returns the half-open range of addresses that the view reaches, and whether 63 bits
// hold it.
func (v *View) addresses() (lo, hi int64, ok bool) {
	lo, hi, ok = v.extent()
	base := uint64(uintptr(v.Base))
	if !ok || base > math.MaxInt64 {
		return 0, 0, false
	}
	// extent has checked that Offset can be added to both ends.
	lo, hi = lo+v.Offset, hi+v.Offset
	if hi > math.MaxInt64-int64(base) {
		return 0, 0, false
	}
	return lo + int64(base), hi + int64(base), true
}

// sharesByte asks whether byte p of some element of a is byte q of some element of b. Measured from
// a's lowest address, with all strides taken positive and b's indices y and q counted down from
// their ends, that is
//
//	Σ strideA·x + Σ strideB·y + p + q = toEndOfB - 1
//
// which is a question about a sum of bounded multiples: the bytes p and q make its target an
// interval.
func sharesByte(a, b *View, spanB, toEndOfB int64) bool {
	if toEndOfB > math.MaxInt64-spanB {
		// The two spans together might be beyond 64 bits, which no memory is.
		return true
	}
	var steps sumSearch
	for _, v := range [...]*View{a, b} {
		size := v.DType.Size()
		for d, n := range v.Shape {
			if n != 1 && v.Strides[d] != 0 {
				steps.add(int64(magnitude(v.Strides[d]))*size, n-1)
			}
		}
	}
	return steps.hasSum(toEndOfB+1-a.DType.Size()-b.DType.Size(), toEndOfB-1)
}
