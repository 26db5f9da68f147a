package dtype

import "math"

// Half types are kept as their 16 bits. Widening is exact; narrowing rounds once, to nearest even,
// from float64, so that a value computed in float64 is not rounded twice. Overflow gives infinity,
// underflow is gradual, and NaN stays NaN.

// BFloat16ToFloat32 widens a bfloat16: the upper half of a float32.
func BFloat16ToFloat32(bits uint16) float32 { return math.Float32frombits(uint32(bits) << 16) }

// Float16ToFloat32 widens an IEEE 754 binary16.
func Float16ToFloat32(bits uint16) float32 {
	const (
		rebias       = (127 - 15) << 23
		exponentMask = 0x7c00 << 13
	)
	sign, magnitude := uint32(bits&0x8000)<<16, uint32(bits&0x7fff)<<13
	switch magnitude & exponentMask {
	case exponentMask: // infinity or NaN: the exponent becomes float32's largest
		magnitude += 2 * rebias
	case 0: // denormal: as a normal number with one exponent step more, less what that step added
		least := math.Float32frombits(rebias + 1<<23)
		magnitude = math.Float32bits(math.Float32frombits(magnitude+rebias+1<<23) - least)
	default:
		magnitude += rebias
	}
	return math.Float32frombits(sign | magnitude)
}

// Float64ToBFloat16 rounds to bfloat16.
func Float64ToBFloat16(x float64) uint16 { return narrow(x, 7, 127) }

// Float64ToFloat16 rounds to IEEE 754 binary16.
func Float64ToFloat16(x float64) uint16 { return narrow(x, 10, 15) }

// Float32ToBFloat16 rounds to bfloat16.
func Float32ToBFloat16(x float32) uint16 { return Float64ToBFloat16(float64(x)) }

// Float32ToFloat16 rounds to IEEE 754 binary16.
func Float32ToFloat16(x float32) uint16 { return Float64ToFloat16(float64(x)) }

// narrow rounds to the 16-bit format with these fraction bits and this exponent bias.
func narrow(x float64, fraction, bias uint) uint16 {
	drop := 52 - fraction
	infinity := uint64(2*bias+1) << fraction
	bits := math.Float64bits(x)
	sign := uint16(bits >> 63 << 15)
	bits &^= 1 << 63
	switch least := uint64(1024-bias) << 52; {
	case bits > 0x7ff<<52: // NaN: the quiet one
		return sign | uint16(infinity) | 1<<(fraction-1)
	case bits < least:
		// Below the least normal number the format is fixed-point. A float64 whose last bit has the
		// weight of that point rounds to it when the value is added, and its fraction is then the
		// result.
		point := uint64(1023-bias+1+drop) << 52
		return sign | uint16(math.Float64bits(math.Float64frombits(bits)+math.Float64frombits(point))-point)
	default:
		bits += 1<<(drop-1) - 1 + bits>>drop&1
		return sign | uint16(min(bits>>drop-uint64(1023-bias)<<fraction, infinity))
	}
}
