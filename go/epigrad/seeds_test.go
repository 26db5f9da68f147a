package epigrad_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/epigrad"
)

// TestSeeds draws a problem from each seed, and prints a line with a hash of its results' bits: the
// problems of tests/api/seeds.c, which says what is drawn and compares the results with a
// reference. tests/api/test_seeds.py compares the lines. EPIGRAD_CHECK_SEED is the first seed,
// EPIGRAD_CHECK_PROBLEMS how many there are.
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
			fmt.Printf("%d %s %s float64 %016x\n", seed, operations[op].name, kinds[kind], solve[float64](t, &s, seed, op, kind))
		} else {
			fmt.Printf("%d %s %s float32 %016x\n", seed, operations[op].name, kinds[kind], solve[float32](t, &s, seed, op, kind))
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

// place is where an element is; a vector has one column.
func place[T float32 | float64](t *epigrad.Tensor[T], i, j int) int {
	if len(t.Shape) == 1 {
		return i * t.Strides[0]
	}
	return i*t.Strides[0] + j*t.Strides[1]
}

// solve computes a problem and returns the hash of the results.
func solve[T float32 | float64](t *testing.T, s *seeds, seed uint64, op, kind int) uint64 {
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
	hash := fnv.New64a()
	for number, result := range out {
		rows, columns := result.Shape[0], 1
		if len(result.Shape) == 2 {
			columns = result.Shape[1]
		}
		for i := range rows * columns {
			element := &result.Data[place(result, i/columns, i%columns)]
			require.NoError(t, binary.Write(hash, binary.LittleEndian, *element))
			*element = T(math.NaN())
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
