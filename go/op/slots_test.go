package op_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

func vector(values ...int64) *tensor.View {
	return &tensor.View{
		Base: unsafe.Pointer(unsafe.SliceData(values)), DType: dtype.Int64, Device: tensor.Device{Type: tensor.CPU}, Shape: []int64{int64(len(values))}, Strides: []int64{1},
	}
}

// TestSlots counts rows for processes, numbers them, and sends what their slots select: for few
// tokens and many, parts that have none, an index outside and one of more than 32 bits, a process
// without experts, and one expert of several slots.
func TestSlots(t *testing.T) {
	const parts = 16
	random := rand.New(rand.NewPCG(3, 5))
	for _, tokens := range []int64{0, 1, 15, 16, 100} {
		for _, ranks := range []int64{1, 2, 3, 8} {
			for _, local := range []int64{0, 1, 3} {
				for _, each := range []int64{0, 1, 5} {
					for _, bounds := range [][]int64{{0, 16}, {0, 5, 10, 16}} {
						name := fmt.Sprintf("%d tokens, %d ranks, %d experts, %d slots, parts %v", tokens, ranks, local, each, bounds)
						index, scale := make([]int64, tokens*each), make([]float32, tokens*each)
						for i := range index {
							index[i], scale[i] = random.Int64N(ranks*local+2)-1, float32(i)
							if i%7 == 0 {
								index[i] = []int64{math.MaxInt64, math.MinInt64, 1 << 32}[random.IntN(3)]
							}
						}
						checkSlots(t, name, index, scale, tokens, each, ranks, local, parts, bounds)
					}
				}
			}
		}
	}
}

func checkSlots(t *testing.T, name string, index []int64, scale []float32, tokens, each, ranks, local, parts int64, bounds []int64) {
	t.Helper()
	experts := []int64{}
	for rank := range ranks + 1 {
		experts = append(experts, rank*local)
	}
	width := 2*parts + 3
	counts, places := make([]int64, ranks*width), make([]int32, tokens*ranks)
	is, ss := matrix(dtype.Int64, index, tokens, each, each), matrix(dtype.Float32, scale, tokens, each, each)
	ps := matrix(dtype.Int32, places, tokens, ranks, ranks)
	require.NoError(t, op.Run(&op.Call{
		Op: "count_rows", Inputs: []*tensor.View{is, vector(experts...), vector(bounds...), vector(-4, 1<<40)},
		Outputs: []*tensor.View{matrix(dtype.Int64, counts, ranks, width, width), ps},
	}), name)
	size, next, want := max((tokens+parts-1)/parts, 1), int32(0), make([]int64, ranks*width)
	for rank := range ranks {
		copy(want[rank*width+2*parts:], []int64{tokens, -4, 1 << 40})
	}
	for c := range len(bounds) - 1 {
		next = 0
		for rank := range ranks {
			for token := bounds[c] * size; token < min(bounds[c+1]*size, tokens); token++ {
				slots := int64(0)
				for _, expert := range index[token*each:][:each] {
					if expert >= 0 && expert < ranks*local && expert/local == rank {
						slots++
					}
				}
				place := int32(-1)
				if slots > 0 {
					place = next
					next++
					want[rank*width+token/size]++
					want[rank*width+parts+token/size] += slots
				}
				require.Equal(t, place, places[token*ranks+rank], "%s, token %d, rank %d", name, token, rank)
			}
		}
	}
	require.Equal(t, want, counts, name)
	if len(bounds) > 2 || next == 0 {
		return
	}
	rows, scales := make([]int64, int64(next)*each), make([]float32, int64(next)*each)
	require.NoError(t, op.Run(&op.Call{
		Op: "scatter_slots", Inputs: []*tensor.View{is, ss, vector(experts...), ps},
		Outputs: []*tensor.View{matrix(dtype.Int64, rows, int64(next), each, each), matrix(dtype.Float32, scales, int64(next), each, each)},
	}), name)
	for i, place := range places {
		if place < 0 {
			continue
		}
		token, rank := int64(i)/ranks, int64(i)%ranks
		for j := range each {
			own := index[token*each+j] - rank*local
			if index[token*each+j] < 0 || own < 0 || own >= local {
				own = -1
			}
			require.Equal(t, own, rows[int64(place)*each+j], name)
		}
		require.Equal(t, scale[token*each:][:each], scales[int64(place)*each:][:each], name)
	}
}

func TestErrorsOfSlots(t *testing.T) {
	index, scale := matrix(dtype.Int64, make([]int64, 6), 3, 2, 2), matrix(dtype.BFloat16, make([]uint16, 6), 3, 2, 2)
	experts, parts, facts := vector(0, 2, 4), vector(0, 4), vector(7)
	counts, places := matrix(dtype.Int64, make([]int64, 20), 2, 10, 10), matrix(dtype.Int32, make([]int32, 6), 3, 2, 2)
	rows := matrix(dtype.Int64, make([]int64, 8), 4, 2, 2)
	for message, c := range map[string]*op.Call{
		"count_rows: outputs: missing, want counts and places": {Op: "count_rows", Inputs: []*tensor.View{index, experts, parts, facts}},
		"count_rows: counts: shape [2, 10], want [R, 2P+1+F] with F = 2": {
			Op: "count_rows", Inputs: []*tensor.View{index, experts, parts, vector(1, 2)}, Outputs: []*tensor.View{counts, places},
		},
		"count_rows: parts: shape [1], want a contiguous vector of 2 elements or more": {
			Op: "count_rows", Inputs: []*tensor.View{index, experts, vector(0), facts}, Outputs: []*tensor.View{counts, places},
		},
		"count_rows: experts: dtype int32, want int64": {
			Op: "count_rows", Inputs: []*tensor.View{index, places, parts, facts}, Outputs: []*tensor.View{counts, places},
		},
		"count_rows: index: shape [2], want [T, J]: the experts of each token": {
			Op: "count_rows", Inputs: []*tensor.View{parts, experts, parts, facts}, Outputs: []*tensor.View{counts, places},
		},
		"scatter_slots: rows_scale: dtype bfloat16, want float32": {
			Op: "scatter_slots", Inputs: []*tensor.View{index, scale, experts, places},
			Outputs: []*tensor.View{rows, matrix(dtype.BFloat16, make([]uint16, 8), 4, 2, 2)},
		},
		"scatter_slots: places: shape [3, 2], want [T, R] = [3, 3]": {
			Op: "scatter_slots", Inputs: []*tensor.View{index, scale, vector(0, 1, 2, 3), places},
			Outputs: []*tensor.View{rows, matrix(dtype.Float32, make([]float32, 8), 4, 2, 2)},
		},
	} {
		require.EqualError(t, op.Validate(c), message)
	}
}
