package epigrad

import "github.com/epigrad/epigrad/go/dtype"

// BFloat16 is a bfloat16's bits: float32's exponent and 8 bits of precision. A []uint16 of such
// bits converts element by element.
type BFloat16 uint16

// Float16 is an IEEE 754 binary16's bits.
type Float16 uint16

// ToBFloat16 rounds once, to nearest even.
func ToBFloat16(x float64) BFloat16 { return BFloat16(dtype.Float64ToBFloat16(x)) }

// ToFloat16 rounds once, to nearest even.
func ToFloat16(x float64) Float16 { return Float16(dtype.Float64ToFloat16(x)) }

// Float64 returns the number that the bits stand for.
func (x BFloat16) Float64() float64 { return float64(dtype.BFloat16ToFloat32(uint16(x))) }

// Float64 returns the number that the bits stand for.
func (x Float16) Float64() float64 { return float64(dtype.Float16ToFloat32(uint16(x))) }
