package cpu_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/kernels/cpu"
)

// Packed numbers are multiplied by a power of two and their largest exponent is found, in so many
// bytes of each row and nowhere else: sanitizers look at what lies behind.
func TestLiftedNumbersAndTheirLargestExponent(t *testing.T) {
	const rows, powers = 5, 36
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for i, dt := range packedTypes {
			form := cpu.Form(i)
			if left, _ := e.Widths(form); left == 0 || dt == dtype.Float16 {
				continue
			}
			// What lies in panels: a pair's halves, or what sums are kept in.
			inside := dt.Accumulator()
			if form.Pairs() {
				inside = dtype.BFloat16
			}
			tiny, bias := map[dtype.DType]float64{dtype.Float32: 0x1p-149, dtype.Float64: 0x1p-1074, dtype.BFloat16: 0x1p-133}[inside], int64(127)
			if inside == dtype.Float64 {
				bias = 1023
			}
			bytes := 3 * int64(e.VectorBytes)
			for _, stride := range []int64{bytes, bytes + 64} {
				values := []float64{tiny, -3 * tiny, 0, math.Copysign(0, -1), 1, -0x1p20, 0.75}
				memory := exactly((rows-1)*stride + bytes)
				visit := func(visit func(number int64, inRow bool)) {
					for at := int64(0); at < int64(len(memory)); at += inside.Size() {
						visit(at/inside.Size(), at%stride < bytes)
					}
				}
				value := func(number int64) float64 { return values[number%int64(len(values))] }
				visit(func(number int64, inRow bool) {
					x := value(number)
					if !inRow {
						x = math.Inf(1)
					}
					optest.Put(inside, at(memory[number*inside.Size():]), x)
				})
				panels := &cpu.Panels{Form: form, At: at(memory), Rows: rows, Bytes: bytes, Stride: stride}
				require.Equal(t, bias+20, e.Largest(cpu.Alone(), panels), "%v", form)
				e.Lift(cpu.Alone(), panels, powers)
				visit(func(number int64, inRow bool) {
					want := value(number) * 0x1p36
					if !inRow {
						want = math.Inf(1)
					}
					require.Equal(t, math.Float64bits(want), math.Float64bits(optest.Get(inside, at(memory[number*inside.Size():]))), "%v: number %d", form, number)
				})
				require.Equal(t, bias+20+powers, e.Largest(cpu.Alone(), panels), "%v", form)
				e.Lift(cpu.Alone(), panels, -powers)
				require.Equal(t, tiny, optest.Get(inside, at(memory)), "%v", form)
				optest.Put(inside, at(memory), math.NaN())
				require.Equal(t, 2*bias+1, e.Largest(cpu.Alone(), panels), "%v", form)
			}
		}
	})
}
