package portable_test

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/kernels/portable"
)

// maxULP is the promise of docs/accuracy.md for float64.
const maxULP = 4

// goldenRow is a line of testdata/activation_golden.json, which tests/tools/golden.py makes with
// 60-digit arithmetic.
type goldenRow struct {
	name                        string
	x, value, slope, slopeScale float64
}

func (r *goldenRow) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&r.name, (*number)(&r.x), (*number)(&r.value), (*number)(&r.slope), (*number)(&r.slopeScale)})
}

// number is a float64 in JSON: a number, or the string "inf" or "-inf".
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	value, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	*n = number(value)
	return err
}

func goldenRows(t *testing.T) []goldenRow {
	t.Helper()
	text, err := os.ReadFile("testdata/activation_golden.json")
	require.NoError(t, err)
	var rows []goldenRow
	require.NoError(t, json.Unmarshal(text, &rows))
	return rows
}

// ulps is |got - want| in units in the last place of scale. An infinity is right where the other is
// the same one, and only there.
func ulps(got, want, scale float64) float64 {
	if math.IsInf(got, 0) || math.IsInf(want, 0) {
		if got == want {
			return 0
		}
		return math.Inf(1)
	}
	// The largest number's unit is that of its neighbour, since above it there is none.
	scale = min(math.Abs(scale), math.Nextafter(math.MaxFloat64, 0))
	return math.Abs(got-want) / (math.Nextafter(scale, math.Inf(1)) - scale)
}

// formula is that of an activation, with the default parameters or with those given.
func formula(t testing.TB, name string, parameters ...float64) *portable.Formula {
	t.Helper()
	row, ok := activation.Lookup(name)
	require.True(t, ok, name)
	values, err := activation.Complete(row.Parameters, parameters)
	require.NoError(t, err)
	made, ok := portable.Lookup(first(row.Kernel(values)))
	require.True(t, ok, name)
	_, numbers := row.Kernel(values)
	return made(numbers)
}

func first(name string, _ []float64) string { return name }

func TestFormulasPairWithTheTable(t *testing.T) {
	assert.ElementsMatch(t, activation.Kernels(), portable.Names())
	for _, row := range activation.All() {
		f := formula(t, row.Name)
		assert.NotNil(t, f.Value, row.Name)
		assert.NotNil(t, f.Gradient, row.Name)
		assert.Equal(t, row.FromOutput, f.GradientFromOutput != nil, row.Name)
	}
	assert.ElementsMatch(t, activation.GatedKernels(), portable.GatedNames())
	for _, row := range activation.AllGated() {
		assert.NotNil(t, gated(t, row.Name), row.Name)
	}
	for _, name := range []string{"quick_gelu", "leaky"} {
		_, ok := portable.Lookup(name)
		assert.False(t, ok)
		_, ok = portable.LookupGated(name)
		assert.False(t, ok)
	}
}

func TestGolden(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range goldenRows(t) {
		seen[row.name] = true
		f := formula(t, row.name)
		value, slope := f.Value(row.x), f.Gradient(1, row.x)
		assert.LessOrEqual(t, ulps(value, row.value, row.value), float64(maxULP), "%s(%g) = %g, want %g", row.name, row.x, value, row.value)
		// slopeScale is the slope, or the larger of its terms where they cancel.
		assert.LessOrEqual(t, ulps(slope, row.slope, row.slopeScale), float64(maxULP), "%s'(%g) = %g, want %g", row.name, row.x, slope, row.slope)
	}
	assert.Len(t, seen, len(activation.All()))
}

func TestGradientFromOutput(t *testing.T) {
	for _, row := range goldenRows(t) {
		f := formula(t, row.name)
		if f.GradientFromOutput == nil {
			continue
		}
		y := f.Value(row.x)
		switch row.name {
		case "relu":
			assert.Equal(t, f.Gradient(3, row.x), f.GradientFromOutput(3, y), row.x)
		case "sigmoid":
			// The error of y, up to 2 ULP, is the derivative's too.
			assert.InDelta(t, row.slope, f.GradientFromOutput(1, y), 0x1p-52, row.x)
		case "tanh":
			// The error of y counts 2 y times.
			assert.InDelta(t, row.slope, f.GradientFromOutput(1, y), 0x1p-51, row.x)
		default:
			t.Errorf("%s: no expectation", row.name)
		}
	}
}

// TestSpecialValues holds what PyTorch's CPU kernels (2.15) give at infinities, zeros and NaN; see
// Formula for where they disagree.
func TestSpecialValues(t *testing.T) {
	inf, nan, zero := math.Inf(1), math.NaN(), math.Copysign(0, -1)
	for _, c := range []struct {
		name            string
		x, value, slope float64
	}{
		{"none", inf, inf, 1},
		{"none", -inf, -inf, 1},
		{"none", nan, nan, 1},
		{"none", zero, zero, 1},
		{"relu", inf, inf, 1},
		{"relu", -inf, 0, 0},
		{"relu", nan, nan, 1},
		{"relu", 0, 0, 0},
		{"relu", zero, zero, 0},
		{"gelu", inf, inf, nan},
		{"gelu", -inf, nan, nan},
		{"gelu", nan, nan, nan},
		{"gelu", zero, zero, 0.5},
		{"gelu", 1e300, 1e300, 1},
		{"gelu", -1e300, zero, 0},
		{"gelu_tanh", inf, inf, nan},
		{"gelu_tanh", -inf, nan, nan},
		{"gelu_tanh", nan, nan, nan},
		{"gelu_tanh", zero, zero, 0.5},
		{"gelu_tanh", 1e300, 1e300, 1},
		{"gelu_tanh", -1e300, zero, zero},
		{"silu", inf, inf, nan},
		{"silu", -inf, nan, nan},
		{"silu", nan, nan, nan},
		{"silu", zero, zero, 0.5},
		{"silu", 1e300, 1e300, 1},
		{"silu", -1e300, zero, zero},
		{"sigmoid", inf, 1, 0},
		{"sigmoid", -inf, 0, 0},
		{"sigmoid", nan, nan, nan},
		{"sigmoid", zero, 0.5, 0.25},
		{"tanh", inf, 1, 0},
		{"tanh", -inf, -1, 0},
		{"tanh", nan, nan, nan},
		{"tanh", zero, zero, 1},
		{"swish", inf, inf, nan},
		{"swish", -inf, nan, nan},
		{"quick_gelu", inf, inf, nan},
		{"quick_gelu", -inf, nan, nan},
		{"quick_gelu", nan, nan, nan},
		{"quick_gelu", zero, zero, 0.5},
		{"quick_gelu", 1.7e308, 1.7e308, 1}, // beta x overflows
		{"quick_gelu", -1.7e308, zero, zero},
		{"elu", inf, inf, 1},
		{"elu", -inf, -1, 0},
		{"elu", nan, nan, 1},
		{"elu", zero, zero, 1},
		{"selu", -inf, -1.7580993408473768602, 0},
		{"selu", 0, 0, 1.7580993408473768602},
		{"selu", nan, nan, 1.0507009873554804935},
		{"celu", -inf, -1, 0},
		{"celu", nan, nan, 1},
		{"softplus", inf, inf, 1},
		{"softplus", -inf, 0, 0},
		{"softplus", nan, nan, nan},
		{"softplus", zero, math.Ln2, 0.5},
		{"mish", inf, inf, nan},
		{"mish", -inf, nan, nan},
		{"mish", nan, nan, nan},
		{"mish", zero, zero, 0.6},
		{"mish", 1e308, 1e308, 1},
		{"mish", -1e308, zero, zero},
		{"hardswish", inf, inf, 1},
		{"hardswish", -inf, nan, 0},
		{"hardswish", nan, nan, 1},
		{"hardswish", -3, zero, 0},
		{"hardswish", 3, 3, 1},
		{"hardswish", zero, zero, 0.5},
		{"hardsigmoid", inf, 1, 0},
		{"hardsigmoid", -inf, 0, 0},
		{"hardsigmoid", nan, nan, 0},
		{"hardsigmoid", -3, 0, 0},
		{"hardsigmoid", 3, 1, 0},
		{"relu6", inf, 6, 0},
		{"relu6", -inf, 0, 0},
		{"relu6", nan, nan, 1},
		{"relu6", zero, zero, 0},
		{"relu6", 6, 6, 0},
		{"hardtanh", nan, nan, 1},
		{"hardtanh", -1, -1, 0},
		{"hardtanh", 1, 1, 0},
		{"softcap", inf, 30, 0},
		{"softcap", -inf, -30, 0},
		{"softcap", nan, nan, nan},
		{"softcap", zero, zero, 1},
	} {
		f := formula(t, c.name)
		assertSame(t, c.value, f.Value(c.x), "%s(%g)", c.name, c.x)
		assertSame(t, c.slope, f.Gradient(1, c.x), "%s'(%g)", c.name, c.x)
		if f.GradientFromOutput != nil {
			assertSame(t, c.slope, f.GradientFromOutput(1, f.Value(c.x)), "%s'(%g) from the output", c.name, c.x)
		}
	}
}

// assertSame compares with the sign of zeros; NaN is NaN.
func assertSame(t *testing.T, want, got float64, format string, args ...any) {
	t.Helper()
	same := want == got && math.Signbit(want) == math.Signbit(got) || math.IsNaN(want) && math.IsNaN(got)
	assert.Truef(t, same, format+": got %g, want %g", append(args, got, want)...)
}

func TestGradientOfReluSelects(t *testing.T) {
	f := formula(t, "relu")
	for _, g := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), -1} {
		for _, x := range []float64{0, math.Copysign(0, -1), -1, math.Inf(-1)} {
			assertSame(t, 0, f.Gradient(g, x), "g = %g, x = %g", g, x)
		}
		assertSame(t, g, f.Gradient(g, 2), "g = %g", g)
		assertSame(t, g, f.Gradient(g, math.NaN()), "g = %g, x = NaN", g)
	}
}

func TestGradientMultiplies(t *testing.T) {
	for _, name := range []string{"gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "swish", "softplus", "mish", "softcap"} {
		f := formula(t, name)
		assert.Equal(t, -8*f.Gradient(1, 0.75), f.Gradient(-8, 0.75), name)
		assert.True(t, math.IsNaN(f.Gradient(math.NaN(), 0.75)), name)
		assert.True(t, math.IsInf(f.Gradient(math.Inf(1), 0.75), 1), name)
	}
}

func TestSymmetry(t *testing.T) {
	for i := range 4000 {
		x := math.Ldexp(1+float64(i%97)/97, i/97-30)
		for _, name := range []string{"sigmoid", "tanh", "softcap"} {
			f := formula(t, name)
			assert.Equal(t, f.Gradient(1, x), f.Gradient(1, -x), "%s'(%g)", name, x)
		}
		tanh := formula(t, "tanh")
		assert.Equal(t, -tanh.Value(x), tanh.Value(-x), "tanh(%g)", x)
		for _, name := range []string{"gelu", "gelu_tanh", "silu", "quick_gelu"} {
			f := formula(t, name)
			assert.InDelta(t, 1, (f.Value(x)-f.Value(-x))/x, 8*0x1p-53, "%s(%g)", name, x)
			assert.InDelta(t, 1, f.Gradient(1, x)+f.Gradient(1, -x), 8*0x1p-53, "%s'(%g)", name, x)
		}
	}
}

// TestOneFormMeetsTheNext checks both sides of each border between two ways to compute one
// function.
func TestOneFormMeetsTheNext(t *testing.T) {
	for _, c := range []struct {
		name   string
		border float64
	}{{"gelu", 0.5}, {"gelu", 5}, {"tanh", 0.55}, {"tanh", math.Ln2 / 512}} {
		f := formula(t, c.name)
		for _, border := range []float64{c.border, -c.border} {
			before := math.Nextafter(border, 0)
			step := f.Gradient(before-border, border)
			assert.LessOrEqual(t, ulps(f.Value(before)-step, f.Value(border), f.Value(border)), float64(2*maxULP), "%s(%g)", c.name, border)
			assert.InDelta(t, f.Gradient(1, before), f.Gradient(1, border), 2*maxULP*0x1p-53, "%s'(%g)", c.name, border)
		}
	}
}

func TestBlocksMayWriteOverTheirInputs(t *testing.T) {
	f := formula(t, "tanh")
	x, g := []float64{-1, 0.5, 3}, []float64{2, 3, 4}
	y := append([]float64(nil), x...)
	f.Values(y, y)
	slopes := append([]float64(nil), g...)
	f.Gradients(slopes, slopes, x)
	fromOutput := append([]float64(nil), g...)
	f.GradientsFromOutput(fromOutput, fromOutput, y)
	for i := range x {
		assert.Equal(t, f.Value(x[i]), y[i])
		assert.Equal(t, f.Gradient(g[i], x[i]), slopes[i])
		assert.Equal(t, f.GradientFromOutput(g[i], y[i]), fromOutput[i])
	}
}

func BenchmarkValue(b *testing.B) { benchmark(b, (*portable.Formula).Values) }

func BenchmarkGradient(b *testing.B) {
	g := make([]float64, 256)
	benchmark(b, func(f *portable.Formula, dst, x []float64) { f.Gradients(dst, g, x) })
}

// benchmark reports the time for one element.
func benchmark(b *testing.B, run func(f *portable.Formula, dst, x []float64)) {
	x := make([]float64, 256)
	for i := range x {
		x[i] = 6*float64(i*97%256)/256 - 3
	}
	dst := make([]float64, len(x))
	for _, name := range activation.Names() {
		b.Run(name, func(b *testing.B) {
			f := formula(b, name)
			for b.Loop() {
				run(f, dst, x)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(x)), "ns/element")
		})
	}
}
