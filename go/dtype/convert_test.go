package dtype_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/dtype"
)

// half is one 16-bit format, with its conversions and the two numbers that define it.
type half struct {
	name           string
	fraction, bias int
	widen          func(uint16) float32
	narrow32       func(float32) uint16
	narrow64       func(float64) uint16
}

var halves = []half{
	{"bfloat16", 7, 127, dtype.BFloat16ToFloat32, dtype.Float32ToBFloat16, dtype.Float64ToBFloat16},
	{"float16", 10, 15, dtype.Float16ToFloat32, dtype.Float32ToFloat16, dtype.Float64ToFloat16},
}

// infinity is the pattern of +infinity, the first after the finite ones.
func (h half) infinity() uint16 { return uint16(2*h.bias+1) << h.fraction }

// value is the number that a finite, positive pattern stands for, by the definition of the format:
// integers and powers of two. The pattern of infinity gives the number that would follow the
// largest, where rounding to infinity is decided.
func (h half) value(bits uint16) float64 {
	exponent, fraction := int(bits>>h.fraction), int(bits)&(1<<h.fraction-1)
	if exponent == 0 {
		return math.Ldexp(float64(fraction), 1-h.bias-h.fraction)
	}
	return math.Ldexp(float64(1<<h.fraction+fraction), exponent-h.bias-h.fraction)
}

func TestWideningIsExact(t *testing.T) {
	for _, h := range halves {
		for bits := range h.infinity() {
			require.Equal(t, float32(h.value(bits)), h.widen(bits), "%s %#04x", h.name, bits)
			negative := h.widen(bits | 0x8000)
			require.Equal(t, math.Float32bits(float32(h.value(bits)))|1<<31, math.Float32bits(negative), "%s -%#04x", h.name, bits)
		}
		assert.True(t, math.IsInf(float64(h.widen(h.infinity())), 1), h.name)
		assert.True(t, math.IsInf(float64(h.widen(h.infinity()|0x8000)), -1), h.name)
		for bits := h.infinity() + 1; bits < 0x8000; bits++ {
			require.True(t, math.IsNaN(float64(h.widen(bits))), "%s %#04x", h.name, bits)
			require.True(t, math.IsNaN(float64(h.widen(bits|0x8000))), "%s -%#04x", h.name, bits)
		}
	}
}

func TestEveryPatternComesBack(t *testing.T) {
	for _, h := range halves {
		for i := range 1 << 16 {
			bits, want := uint16(i), uint16(i)
			if bits&0x7fff > h.infinity() {
				want |= 1 << (h.fraction - 1) // a signalling NaN becomes quiet
				require.True(t, math.IsNaN(float64(h.widen(h.narrow32(h.widen(bits))))), "%s %#04x", h.name, bits)
				require.True(t, math.IsNaN(float64(h.widen(h.narrow64(float64(h.widen(bits)))))), "%s %#04x", h.name, bits)
				continue
			}
			require.Equal(t, want, h.narrow32(h.widen(bits)), "%s %#04x", h.name, bits)
			require.Equal(t, want, h.narrow64(float64(h.widen(bits))), "%s %#04x", h.name, bits)
		}
	}
}

// TestMidpoints narrows what lies halfway between each pair of neighbours, and the float64 and
// float32 just below and above it.
func TestMidpoints(t *testing.T) {
	for _, h := range halves {
		for bits := range h.infinity() {
			low, high := h.value(bits), h.value(bits+1)
			middle := low + (high-low)/2
			even := bits + bits&1
			for _, sign := range []uint16{0, 0x8000} {
				signed := func(x float64) float64 {
					if sign != 0 {
						return -x
					}
					return x
				}
				require.Equal(t, even|sign, h.narrow64(signed(middle)), "%s %#04x: middle", h.name, bits)
				require.Equal(t, bits|sign, h.narrow64(signed(math.Nextafter(middle, 0))), "%s %#04x: below the middle", h.name, bits)
				require.Equal(t, (bits+1)|sign, h.narrow64(signed(math.Nextafter(middle, math.Inf(1)))), "%s %#04x: above the middle", h.name, bits)
				if middle32 := float32(middle); float64(middle32) == middle {
					above := math.Nextafter32(middle32, float32(math.Inf(1)))
					below := math.Nextafter32(middle32, 0)
					require.Equal(t, even|sign, h.narrow32(float32(signed(middle))), "%s %#04x: middle", h.name, bits)
					require.Equal(t, bits|sign, h.narrow32(float32(signed(float64(below)))), "%s %#04x: below the middle", h.name, bits)
					require.Equal(t, (bits+1)|sign, h.narrow32(float32(signed(float64(above)))), "%s %#04x: above the middle", h.name, bits)
				}
			}
		}
	}
}

// TestNarrowingRoundsOnce: by way of float32 these would fall on a midpoint first and then go to
// the wrong neighbour.
func TestNarrowingRoundsOnce(t *testing.T) {
	for _, h := range halves {
		one := uint16(h.bias) << h.fraction
		middle := 1 + math.Ldexp(1, -h.fraction-1)
		assert.Equal(t, one+1, h.narrow64(middle+0x1p-40), h.name)
		assert.Equal(t, one, h.narrow32(float32(middle+0x1p-40)), "%s: float32 has lost the difference already", h.name)
	}
}

func TestNarrowingLimits(t *testing.T) {
	for _, h := range halves {
		inf := h.infinity()
		for _, x := range []float64{math.Inf(1), math.MaxFloat64, math.MaxFloat32 * 2, h.value(inf)} {
			assert.Equal(t, inf, h.narrow64(x), "%s %g", h.name, x)
			assert.Equal(t, inf|0x8000, h.narrow64(-x), "%s %g", h.name, -x)
		}
		for _, x := range []float64{0, 5e-324, 1e-310, h.value(1) / 2} {
			assert.Equal(t, uint16(0), h.narrow64(x), "%s %g", h.name, x)
			assert.Equal(t, uint16(0x8000), h.narrow64(-x), "%s %g", h.name, -x)
		}
		assert.Equal(t, uint16(1), h.narrow64(math.Nextafter(h.value(1)/2, 1)), h.name)
		assert.Equal(t, uint16(0x8000), h.narrow64(math.Copysign(0, -1)), h.name)
		// A NaN whose payload lies in the dropped bits only.
		assert.True(t, math.IsNaN(float64(h.widen(h.narrow64(math.Float64frombits(0x7ff0000000000001))))), h.name)
		assert.True(t, math.IsNaN(float64(h.widen(h.narrow32(math.Float32frombits(0xff800001))))), h.name)
	}
}

func BenchmarkConvert(b *testing.B) {
	const n = 1024
	bits, values := make([]uint16, n), make([]float64, n)
	for i := range values {
		values[i] = float64(i-n/2) * 0.0371
	}
	for _, h := range halves {
		b.Run(h.name+"/narrow", func(b *testing.B) {
			for b.Loop() {
				for i, x := range values {
					bits[i] = h.narrow64(x)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/element")
		})
		b.Run(h.name+"/widen", func(b *testing.B) {
			for b.Loop() {
				for i, x := range bits {
					values[i] = float64(h.widen(x))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/element")
		})
	}
}

// TestForeignDTypesHavePyTorchsNames: a message says what was given in the words of whoever gave
// it.
func TestForeignDTypesHavePyTorchsNames(t *testing.T) {
	for _, c := range []struct {
		code, bits uint8
		lanes      uint16
		want       string
	}{
		{0, 32, 1, "int32"},
		{1, 8, 1, "uint8"},
		{2, 16, 1, "float16"},
		{4, 16, 1, "bfloat16"},
		{5, 64, 1, "complex64"},
		{6, 8, 1, "bool"},
		{10, 8, 1, "float8_e4m3fn"},
		{11, 8, 1, "float8_e4m3fnuz"},
		{12, 8, 1, "float8_e5m2"},
		{13, 8, 1, "float8_e5m2fnuz"},
		{14, 8, 1, "float8_e8m0fnu"},
		{17, 4, 2, "float4_e2m1fn_x2"},
		{2, 32, 4, "float32x4"},
		{99, 8, 1, "of 8 bits with DLPack code 99"},
	} {
		assert.Equal(t, c.want, dtype.DescribeDLPack(c.code, c.bits, c.lanes))
	}
}
