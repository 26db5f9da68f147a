package epigrad_test

import (
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/epigrad"
)

// TestSeeds draws a problem from each seed, compares the results with a reference in float64, and
// prints a line with a hash of their bits: the problems of tests/api/seeds.c, which says what
// is drawn. EPIGRAD_CHECK_SEED is the first seed, EPIGRAD_CHECK_PROBLEMS how many there are.
func TestSeeds(t *testing.T) {
	number := func(variable string, otherwise uint64) uint64 {
		if text := os.Getenv(variable); text != "" {
			value, err := strconv.ParseUint(text, 10, 64)
			require.NoError(t, err, variable)
			return value
		}
		return otherwise
	}
	first := number("EPIGRAD_CHECK_SEED", 1)
	for seed := first; seed-first < number("EPIGRAD_CHECK_PROBLEMS", 300); seed++ {
		s := seeds(seed)
		// the constants are of the tables below
		op := s.below(6)
		kinds := [6][]string{activations, gates, {"-"}, activations, activations, gates}[op]
		kind := 0
		if op != 2 {
			kind = s.below(len(kinds))
		}
		if s.below(2) == 1 {
			fmt.Printf("%d %s %s float64 %016x\n", seed, operations[op].name, kinds[kind], solve[float64](t, &s, seed, op, kind, 0x1p-52))
		} else {
			fmt.Printf("%d %s %s float32 %016x\n", seed, operations[op].name, kinds[kind], solve[float32](t, &s, seed, op, kind, 0x1p-23))
		}
	}
}

// The operations and the kinds that they take. A gate is the activation at its place.
var (
	activations = []string{"none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2"}
	gates       = []string{"bilinear", "reglu", "geglu", "geglu_tanh", "swiglu", "glu"}
	operations  = [6]struct {
		name            string
		inputs, outputs []string // their sizes
	}{
		{"matmul_bias_activation", []string{"mk", "kn", "n"}, []string{"mn"}},
		{"gated_product", []string{"mk", "mk"}, []string{"mk"}},
		{"lerp", []string{"mk", "mk", "mk"}, []string{"mk"}},
		{"linear", []string{"mk", "nk", "n"}, []string{"mn"}},
		{"linear_backward", []string{"mn", "mk", "nk", "n", "mn"}, []string{"mk", "nk", "n"}},
		{"gated_linear", []string{"mk", "nk", "nk", "n", "n"}, []string{"mn"}},
	}
)

// seeds is splitmix64.
type seeds uint64

func (s *seeds) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *seeds) below(n int) int { return int(s.next() % uint64(n)) }

// draw makes a tensor in memory that is NaN elsewhere.
func draw[T float32 | float64](s *seeds, letters string, sizes map[rune]int, filled bool) *epigrad.Tensor[T] {
	rows, columns := sizes[rune(letters[0])], 1
	if len(letters) == 2 {
		columns = sizes[rune(letters[1])]
	}
	strides := [3][]int{{columns, 1}, {1, rows}, {columns + 3, 1}}[s.below(3)]
	t := &epigrad.Tensor[T]{Shape: []int{rows, columns}[:len(letters)], Strides: strides[:len(letters)]}
	t.Data = make([]T, 1+(rows-1)*strides[0]+(columns-1)*strides[1])
	for i := range t.Data {
		t.Data[i] = T(math.NaN())
	}
	for i := range rows * columns {
		if filled {
			t.Data[i/columns*strides[0]+i%columns*strides[1]] = T(float64(s.next()>>40)/(1<<22) - 2)
		}
	}
	return t
}

// at is an element; a vector has one column.
func at[T float32 | float64](t *epigrad.Tensor[T], i, j int) float64 {
	return float64(t.Data[place(t, i, j)])
}

func place[T float32 | float64](t *epigrad.Tensor[T], i, j int) int {
	if len(t.Shape) == 1 {
		return i * t.Strides[0]
	}
	return i*t.Strides[0] + j*t.Strides[1]
}

// solve computes a problem and returns the hash of the results.
func solve[T float32 | float64](t *testing.T, s *seeds, seed uint64, op, kind int, epsilon float64) uint64 {
	sizes := map[rune]int{}
	for _, letter := range "mnk" {
		sizes[letter] = 1 + s.below(40)
	}
	var in, out []*epigrad.Tensor[T]
	for _, letters := range operations[op].inputs {
		in = append(in, draw[T](s, letters, sizes, true))
	}
	for _, letters := range operations[op].outputs {
		out = append(out, draw[T](s, letters, sizes, false))
	}
	require.NoError(t, compute(op, kind, in, out), "seed %d", seed)
	r, hash := seedReference[T]{in, kind, epsilon}, fnv.New64a()
	for number, result := range out {
		rows, columns := result.Shape[0], 1
		if len(result.Shape) == 2 {
			columns = result.Shape[1]
		}
		for i := range rows * columns {
			want, off := r.of(op, number, i/columns, i%columns)
			element := place(result, i/columns, i%columns)
			got := float64(result.Data[element])
			require.LessOrEqual(t, math.Abs(got-want), off, "seed %d: output %d [%d, %d]: got %v, want %v", seed, number, i/columns, i%columns, got, want)
			bits, size := math.Float64bits(got), 8
			if epsilon == 0x1p-23 {
				bits, size = uint64(math.Float32bits(float32(got))), 4
			}
			for b := range size {
				hash.Write([]byte{byte(bits >> (8 * b))})
			}
			result.Data[element] = T(math.NaN())
		}
		for _, value := range result.Data {
			require.True(t, math.IsNaN(float64(value)), "seed %d: memory beside output %d was written", seed, number)
		}
	}
	return hash.Sum64()
}

func compute[T float32 | float64](op, kind int, in, out []*epigrad.Tensor[T]) error {
	switch operations[op].name {
	case "matmul_bias_activation":
		return epigrad.Matmul[T]{A: in[0], B: in[1], Bias: in[2], Activation: activations[kind]}.Forward(out[0], nil)
	case "gated_product":
		return epigrad.GatedProduct[T]{Value: in[0], Gate: in[1], Kind: gates[kind]}.Forward(out[0])
	case "lerp":
		return epigrad.Lerp[T]{Start: in[0], End: in[1], Weight: in[2]}.Forward(out[0])
	case "linear":
		return epigrad.Linear[T]{Input: in[0], Weight: in[1], Bias: in[2], Activation: activations[kind]}.Forward(out[0], nil)
	case "linear_backward":
		return epigrad.Linear[T]{Input: in[1], Weight: in[2], Bias: in[3], Activation: activations[kind]}.Backward(
			in[0], epigrad.Saved[T]{Preactivation: in[4]}, epigrad.LinearGradients[T]{Input: out[0], Weight: out[1], Bias: out[2]})
	default:
		return epigrad.GatedLinear[T]{
			Input: in[0], WeightValue: in[1], WeightGate: in[2], BiasValue: in[3], BiasGate: in[4], Kind: gates[kind],
		}.Forward(out[0], nil)
	}
}

// seedReference tells what a result is to be, and how far it may be off.
type seedReference[T float32 | float64] struct {
	in      []*epigrad.Tensor[T]
	kind    int
	epsilon float64
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// formula is the activation's value and slope.
func (r *seedReference[T]) formula(x float64) (value, slope float64) {
	step := 0.0
	if x > 0 {
		step = 1
	}
	switch activations[r.kind] {
	case "none":
		return x, 1
	case "relu":
		return x * step, step
	case "gelu":
		below := math.Erfc(-x/math.Sqrt2) / 2
		return x * below, below + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	case "gelu_tanh":
		root := math.Sqrt(2 / math.Pi)
		s := logistic(2 * root * (x + 0.044715*x*x*x))
		return x * s, s + x*s*(1-s)*2*root*(1+3*0.044715*x*x)
	case "silu":
		return x * logistic(x), logistic(x) * (1 + x*logistic(-x))
	case "sigmoid":
		return logistic(x), logistic(x) * logistic(-x)
	case "tanh":
		return math.Tanh(x), 1 / (math.Cosh(x) * math.Cosh(x))
	default:
		return x * x * step, 2 * x * step
	}
}

// applied is the activation of a number that is off already.
func (r *seedReference[T]) applied(x, off float64) (float64, float64) {
	value, _ := r.formula(x)
	steepest := 1.2
	if activations[r.kind] == "relu2" {
		steepest = 2 * (math.Abs(x) + off)
	}
	return value, steepest*(off+4*r.epsilon*math.Abs(x)) + 16*r.epsilon*math.Abs(value)
}

// product is an element of input weightᵀ + bias.
func (r *seedReference[T]) product(i, j, weight, bias int) (float64, float64) {
	sum := at(r.in[bias], j, 0)
	size, depth := math.Abs(sum), r.in[0].Shape[1]
	for l := range depth {
		term := at(r.in[0], i, l) * at(r.in[weight], j, l)
		sum += term
		size += math.Abs(term)
	}
	return sum, float64(depth+2) * r.epsilon * size
}

func (r *seedReference[T]) multiplied(value, valueOff, act, actOff float64) (float64, float64) {
	return value * act, math.Abs(value)*actOff + math.Abs(act)*valueOff + 2*r.epsilon*math.Abs(value*act)
}

// gradient is an element of the gradient to a layer's input, weight or bias.
func (r *seedReference[T]) gradient(output, i, j int) (sum, off float64) {
	terms := r.in[0].Shape[0]
	if output == 0 {
		terms = r.in[0].Shape[1]
	}
	size := 0.0
	for l := range terms {
		row, column, factor := l, i, 1.0
		switch output {
		case 0:
			row, column, factor = i, l, at(r.in[2], l, j)
		case 1:
			factor = at(r.in[1], l, j)
		}
		pre, factor := at(r.in[4], row, column), factor*at(r.in[0], row, column)
		_, slope := r.formula(pre)
		sum += factor * slope
		size += math.Abs(factor * slope)
		off += math.Abs(factor) * r.epsilon * (16*math.Abs(slope) + 4*(1+math.Abs(pre)))
	}
	return sum, off + float64(terms+6)*r.epsilon*size
}

func (r *seedReference[T]) of(op, output, i, j int) (want, off float64) {
	switch operations[op].name {
	case "matmul_bias_activation":
		b := r.in[1]
		r.in[1] = &epigrad.Tensor[T]{Data: b.Data, Shape: []int{b.Shape[1], b.Shape[0]}, Strides: []int{b.Strides[1], b.Strides[0]}}
		defer func() { r.in[1] = b }()
		return r.applied(r.product(i, j, 1, 2))
	case "gated_product":
		act, off := r.applied(at(r.in[1], i, j), 0)
		return r.multiplied(at(r.in[0], i, j), 0, act, off)
	case "lerp":
		start, end, weight := at(r.in[0], i, j), at(r.in[1], i, j), at(r.in[2], i, j)
		return start + weight*(end-start), 8 * r.epsilon * (1 + math.Abs(weight)) * (math.Abs(start) + math.Abs(end))
	case "linear":
		return r.applied(r.product(i, j, 1, 2))
	case "linear_backward":
		return r.gradient(output, i, j)
	default:
		value, valueOff := r.product(i, j, 1, 3)
		act, actOff := r.applied(r.product(i, j, 2, 4))
		return r.multiplied(value, valueOff, act, actOff)
	}
}
