package optest

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/dtype"
)

// Put writes an element at p, rounded to the dtype.
func Put(dt dtype.DType, p unsafe.Pointer, x float64) {
	switch dt {
	case dtype.Float32:
		*(*float32)(p) = float32(x)
	case dtype.Float64:
		*(*float64)(p) = x
	case dtype.BFloat16:
		*(*uint16)(p) = dtype.Float64ToBFloat16(x)
	case dtype.Float16:
		*(*uint16)(p) = dtype.Float64ToFloat16(x)
	case dtype.Int32:
		*(*int32)(p) = int32(x)
	case dtype.Int64:
		*(*int64)(p) = int64(x)
	}
}

// Get reads the element at p.
func Get(dt dtype.DType, p unsafe.Pointer) float64 {
	switch dt {
	case dtype.Float32:
		return float64(*(*float32)(p))
	case dtype.BFloat16:
		return float64(dtype.BFloat16ToFloat32(*(*uint16)(p)))
	case dtype.Float16:
		return float64(dtype.Float16ToFloat32(*(*uint16)(p)))
	case dtype.Int32:
		return float64(*(*int32)(p))
	case dtype.Int64:
		return float64(*(*int64)(p))
	default:
		return *(*float64)(p)
	}
}
