// Package elements loads elements of any dtype and stride into slices of numbers, stores them, and
// adds numbers up. It is no part of epigrad's API and may change in any release.
package elements

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/dtype"
)

// Real is the type of numbers in registers: float64 in formulas, the accumulator's type in
// products.
type Real interface{ float32 | float64 }

// Load reads len(dst) elements, stride bytes apart, starting with p. Widening is exact.
func Load[T Real](dst []T, p unsafe.Pointer, stride int64, dt dtype.DType) {
	if isNative[T](dt) && stride == dt.Size() {
		copy(dst, unsafe.Slice((*T)(p), len(dst)))
		return
	}
	switch dt {
	case dtype.Float32:
		for i := range dst {
			dst[i] = T(*(*float32)(unsafe.Add(p, int64(i)*stride)))
		}
	case dtype.Float64:
		for i := range dst {
			dst[i] = T(*(*float64)(unsafe.Add(p, int64(i)*stride)))
		}
	case dtype.BFloat16:
		for i := range dst {
			dst[i] = T(dtype.BFloat16ToFloat32(*(*uint16)(unsafe.Add(p, int64(i)*stride))))
		}
	case dtype.Float16:
		for i := range dst {
			dst[i] = T(dtype.Float16ToFloat32(*(*uint16)(unsafe.Add(p, int64(i)*stride))))
		}
	}
}

// Store writes src to elements stride bytes apart, starting with p, each rounded once to nearest
// even.
func Store[T Real](p unsafe.Pointer, stride int64, src []T, dt dtype.DType) {
	if isNative[T](dt) && stride == dt.Size() {
		copy(unsafe.Slice((*T)(p), len(src)), src)
		return
	}
	switch dt {
	case dtype.Float32:
		for i, x := range src {
			*(*float32)(unsafe.Add(p, int64(i)*stride)) = float32(x)
		}
	case dtype.Float64:
		for i, x := range src {
			*(*float64)(unsafe.Add(p, int64(i)*stride)) = float64(x)
		}
	case dtype.BFloat16:
		for i, x := range src {
			*(*uint16)(unsafe.Add(p, int64(i)*stride)) = dtype.Float64ToBFloat16(float64(x))
		}
	case dtype.Float16:
		for i, x := range src {
			*(*uint16)(unsafe.Add(p, int64(i)*stride)) = dtype.Float64ToFloat16(float64(x))
		}
	}
}

// isNative reports whether the dtype's storage form is T itself.
func isNative[T Real](dt dtype.DType) bool {
	return dt == dtype.Float32 && unsafe.Sizeof(T(0)) == 4 || dt == dtype.Float64 && unsafe.Sizeof(T(0)) == 8
}

// Convert writes src, which is as long as dst, in another type.
func Convert[D, S Real](dst []D, src []S) {
	for i := range dst {
		dst[i] = D(src[i])
	}
}

// Round rounds values to what a dtype can store.
func Round(values []float64, dt dtype.DType) {
	switch dt {
	case dtype.Float32:
		for i, x := range values {
			values[i] = float64(float32(x))
		}
	case dtype.BFloat16:
		for i, x := range values {
			values[i] = float64(dtype.BFloat16ToFloat32(dtype.Float64ToBFloat16(x)))
		}
	case dtype.Float16:
		for i, x := range values {
			values[i] = float64(dtype.Float16ToFloat32(dtype.Float64ToFloat16(x)))
		}
	}
}
