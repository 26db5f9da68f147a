//go:build cgo

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// operand is a contiguous tensor in the host's memory.
func operand[T any](at int, dt dtype.DType, values []T, shape ...int64) (*tensor.View, unsafe.Pointer) {
	v := &tensor.View{Operand: at, DType: dt, Shape: shape, Strides: tensor.ContiguousStrides(shape)}
	return v, unsafe.Pointer(unsafe.SliceData(values))
}

// runProblem runs a problem in the emulator.
func runProblem(t *testing.T, p backend.Problem, bases ...unsafe.Pointer) {
	t.Helper()
	k, err := newEmulated(t).Select(p)
	require.NoError(t, err)
	require.NoError(t, k.Run(&backend.Run{Bases: bases}))
}

// runCall runs a call with the workspace that it asks for.
func runCall(t *testing.T, call *op.Call, needs []bool) {
	t.Helper()
	_, bytes, err := op.Infer(call, needs)
	require.NoError(t, err)
	workspace := make([]byte, bytes+workspaceAlignment)
	skip := -uintptr(unsafe.Pointer(&workspace[0])) % workspaceAlignment
	call.Workspace, call.WorkspaceBytes = unsafe.Pointer(&workspace[skip]), bytes
	require.NoError(t, op.Run(call))
}

// TestRoutes sorts slots in one round, in some by one block, and in several rounds of several
// chunks. Slots that no row is left for have none.
func TestRoutes(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	for _, c := range []struct{ tokens, each, groups, rows int64 }{
		{1, 1, 1, 1}, {3, 8, 5, 24}, {64, 4, 300, 256}, {128, 4, 7, 100}, {200, 3, 8, 0}, {500, 8, 128, 3999}, {50001, 6, mostRouted, 100000},
	} {
		index, slots := make([]int64, c.tokens*c.each), c.tokens*c.each
		for i := range index {
			// few experts have most of the slots
			index[i] = int64(math.Pow(random.Float64(), 3)*float64(c.groups+2)) - 1
		}
		ends, places := make([]int32, c.groups), make([]int32, slots)
		v, indexBase := operand(0, dtype.Int64, index, c.tokens, c.each)
		e, endsBase := operand(1, dtype.Int32, ends, c.groups)
		p, placesBase := operand(2, dtype.Int32, places, c.tokens, c.each)
		runProblem(t, &backend.Route{Header: backend.Header{DType: dtype.Float32}, Index: v, Rows: c.rows, Ends: e, Places: p}, indexBase, endsBase, placesBase)
		next := make([]int32, c.groups+1)
		for _, group := range index {
			if group >= 0 && group < c.groups {
				next[group+1]++
			}
		}
		for group := range c.groups {
			next[group+1] += next[group]
			require.Equal(t, min(next[group+1], int32(c.rows)), ends[group], "%v, end of %d", c, group)
		}
		for slot, group := range index {
			want := int32(-1)
			if group >= 0 && group < c.groups {
				if next[group] < int32(c.rows) {
					want = next[group]
				}
				next[group]++
			}
			if places[slot] != want {
				require.Equal(t, want, places[slot], "%v, slot %d", c, slot)
			}
		}
	}
}

func TestTooManyExperts(t *testing.T) {
	none := make([]int64, 4)
	index, _ := operand(0, dtype.Int64, none, 2, 2)
	ends, _ := operand(1, dtype.Int32, []int32(nil), mostRouted+1)
	places, _ := operand(2, dtype.Int32, []int32(nil), 2, 2)
	_, err := newEmulated(t).Select(&backend.Route{Header: backend.Header{Op: "experts", DType: dtype.Float32}, Index: index, Ends: ends, Places: places})
	failure := status.Of(err)
	require.Equal(t, status.Unsupported, failure.Code)
	require.Equal(t, "experts: weight_in: got 8193 experts, want at most 8192 on the cuda backend", failure.Message)
}

// TestEndsOfManyGroups takes more groups than a block has threads.
func TestEndsOfManyGroups(t *testing.T) {
	const groups, rows = 1000, 5000
	random := rand.New(rand.NewPCG(3, 5))
	offsets, ends, largest := make([]int64, groups), make([]int32, groups), int64(0)
	for i := range offsets {
		offsets[i] = int64(i)*6 + random.Int64N(400) - 200
	}
	o, offsetsBase := operand(0, dtype.Int64, offsets, groups)
	e, endsBase := operand(1, dtype.Int32, ends, groups)
	runProblem(t, &backend.GroupEnds{Header: backend.Header{DType: dtype.Float32}, Offsets: o, Rows: rows, Ends: e}, offsetsBase, endsBase)
	for i, offset := range offsets {
		largest = max(largest, min(offset, rows))
		require.EqualValues(t, largest, ends[i], "group %d", i)
	}
}

// TestSumsInPieces: bias gradients do not depend on how many rows' slopes are kept at a time.
func TestSumsInPieces(t *testing.T) {
	b := newEmulated(t)
	backend.Register(b)
	const rows, n, k = 700, 24, 1
	random := rand.New(rand.NewPCG(3, 5))
	view := func(dt dtype.DType, shape ...int64) *tensor.View {
		memory := make([]float32, tensor.Elements(shape))
		for i := range memory {
			memory[i] = float32(random.NormFloat64())
		}
		v, err := tensor.New(unsafe.Pointer(&memory[0]), 0, dt, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
		require.NoError(t, err)
		return &v
	}
	offsets := []int32{90, 90, 650}
	ends, err := tensor.New(unsafe.Pointer(&offsets[0]), 0, dtype.Int32, tensor.Device{Type: tensor.CPU}, []int64{3}, nil, 0)
	require.NoError(t, err)
	inputs := []*tensor.View{
		view(dtype.Float32, rows, n), view(dtype.Float32, rows, k), view(dtype.Float32, 3, n, k), view(dtype.Float32, 3, n), &ends, view(dtype.Float32, rows, n),
	}
	var results [2]string
	defer func(before int64) { mostUnrounded = before }(mostUnrounded)
	for i := range results {
		gradBias := make([]float32, 3*n)
		out, err := tensor.New(unsafe.Pointer(&gradBias[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, []int64{3, n}, nil, 0)
		require.NoError(t, err)
		call := op.Call{Op: "grouped_linear_backward", Kind: "silu", Backend: b.Name(), Inputs: inputs, Outputs: []*tensor.View{nil, nil, &out}}
		runCall(t, &call, []bool{false, false, true})
		results[i] = fmt.Sprint(gradBias)
		mostUnrounded = 1
		op.ClearCache()
	}
	require.Equal(t, results[0], results[1])
	require.NotContains(t, results[0], "NaN")
}

// TestGroupsInTF32: where TF32 is allowed, float32 products of groups are those of tiles, whose
// factors have ten bits.
func TestGroupsInTF32(t *testing.T) {
	b := newEmulated(t)
	backend.Register(b)
	const groups, rows, k, n = 3, 150, 70, 34
	random := rand.New(rand.NewPCG(3, 5))
	filled := func(shape ...int64) (*tensor.View, []float32) {
		values := make([]float32, tensor.Elements(shape))
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
		v, err := tensor.New(unsafe.Pointer(&values[0]), 0, dtype.Float32, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
		require.NoError(t, err)
		return &v, values
	}
	offsets := []int32{60, 60, 149}
	ends, err := tensor.New(unsafe.Pointer(&offsets[0]), 0, dtype.Int32, tensor.Device{Type: tensor.CPU}, []int64{groups}, nil, 0)
	require.NoError(t, err)
	grad, _ := filled(rows, n)
	x, _ := filled(rows, k)
	weight, _ := filled(groups, n, k)
	bias, _ := filled(groups, n)
	pre, _ := filled(rows, n)
	shapes := [][]int64{{rows, n}, {rows, n}, {rows, k}, {groups, n, k}, {groups, n}}
	workspace := make([]byte, 1<<20)
	skip := -uintptr(unsafe.Pointer(&workspace[0])) % workspaceAlignment
	run := func(inTF32 bool) (results [][]float32) {
		var views []*tensor.View
		for _, shape := range shapes {
			v, values := filled(shape...)
			views, results = append(views, v), append(results, values)
		}
		for _, c := range []op.Call{
			{Op: "grouped_linear", Inputs: []*tensor.View{x, weight, bias, &ends}, Outputs: views[:2]},
			{Op: "grouped_linear_backward", Inputs: []*tensor.View{grad, x, weight, bias, &ends, pre}, Outputs: views[2:]},
		} {
			c.Kind, c.AllowTF32, c.Backend = "relu2", inTF32, b.Name()
			c.Workspace, c.WorkspaceBytes = unsafe.Pointer(&workspace[skip]), 1<<19
			require.NoError(t, op.Run(&c))
		}
		return results
	}
	exact, rounded := run(false), run(true)
	for i, want := range exact {
		largest, differ := 0.0, 0
		if i < 3 {
			want = want[:int64(offsets[2])*shapes[i][1]] // the last row is of no group
		}
		for _, x := range want {
			largest = max(largest, math.Abs(float64(x)))
		}
		for at, x := range want {
			require.InDelta(t, x, rounded[i][at], largest*0x1p-9, "result %d at %d", i, at)
			if x != rounded[i][at] {
				differ++
			}
		}
		require.Equal(t, i < 4, differ > len(want)/2, "result %d: %d of %d differ", i, differ, len(want))
	}
}

// TestAGradientOfExpertsAlone: weight_out's gradient has the bits that it has beside others. Alone,
// nothing reads weight_out, and one number may stand for it.
func TestAGradientOfExpertsAlone(t *testing.T) {
	b := newEmulated(t)
	backend.Register(b)
	const experts, tokens, each, k, h = 3, 20, 2, 8, 24
	random := rand.New(rand.NewPCG(7, 2))
	halves := func(shape ...int64) (*tensor.View, []uint16) {
		values := make([]uint16, tensor.Elements(shape))
		for i := range values {
			values[i] = dtype.Float64ToFloat16(random.NormFloat64())
		}
		v, err := tensor.New(unsafe.Pointer(&values[0]), 0, dtype.Float16, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
		require.NoError(t, err)
		return &v, values
	}
	slots := make([]int64, tokens*each)
	for i := range slots {
		slots[i] = int64(i) * 5 % experts
	}
	index, err := tensor.New(unsafe.Pointer(&slots[0]), 0, dtype.Int64, tensor.Device{Type: tensor.CPU}, []int64{tokens, each}, nil, 0)
	require.NoError(t, err)
	var inputs []*tensor.View
	for _, shape := range [][]int64{{tokens, k}, {tokens, k}, {}, {tokens, each}, {experts, 2 * h, k}, {experts, 2 * h}, {experts, k, h}, {experts, k}, {tokens * each, 2 * h}} {
		v := &index
		if len(shape) > 0 {
			v, _ = halves(shape...)
		}
		inputs = append(inputs, v)
	}
	run := func(inputs []*tensor.View, isAlone bool) []uint16 {
		outputs, needs := make([]*tensor.View, 6), make([]bool, 6)
		var result []uint16
		for i, input := range []int{1, 3, 4, 5, 6, 7} {
			if needs[i] = !isAlone || input == 6; needs[i] {
				v, values := halves(inputs[input].Shape...)
				if outputs[i] = v; input == 6 {
					result = values
				}
			}
		}
		call := op.Call{Op: "experts_backward", Kind: "swiglu", Backend: b.Name(), Inputs: inputs, Outputs: outputs}
		runCall(t, &call, needs)
		return result
	}
	want := run(inputs, false)
	standIn := *inputs[6]
	standIn.Strides = make([]int64, 3)
	inputs[6] = &standIn
	require.Equal(t, want, run(inputs, true))
}

func view(dt dtype.DType, shape ...int64) *tensor.View {
	v, err := tensor.New(nil, 0, dt, tensor.Device{Type: tensor.CPU}, shape, nil, 0)
	if err != nil {
		panic(err)
	}
	return &v
}

// onHopper registers a backend whose device stands in for one that has all kernels.
func onHopper(t *testing.T) *emulated {
	b := newEmulated(t)
	b.planner, b.device = Backend{}, &device{processors: 132, boxes: true, compiled: func(string) bool { return true }}
	backend.Register(b)
	op.ClearCache()
	t.Cleanup(op.ClearCache)
	return b
}

// TestForwardReadsTokensInPlace: beside a hidden row of each slot, forward has 1024 columns of the
// rows that it combines, or where it copies tokens, their rows. All else is at most a tenth of
// that.
func TestForwardReadsTokensInPlace(t *testing.T) {
	b := onHopper(t)
	const groups, tokens, each = 64, 8192, 8
	for _, c := range []struct {
		kind                      string
		features, hidden, columns int64
	}{
		{"swiglu", 4096, 256, 256 + 1024},
		{"swiglu", 1536, 512, 512 + 768},
		{"swiglu", 768, 256, 256 + 768},
		{"relu2", 4096, 512, 512 + 1024},
		{"swiglu", 2048, 768, 768 + 2048}, // copies, as the next one does
		{"relu2", 4096, 768, 768 + 4096},
	} {
		columns := c.hidden
		if c.kind == "swiglu" {
			columns *= 2
		}
		bf16, slots := dtype.BFloat16, int64(tokens*each)
		_, bytes, err := op.Infer(&op.Call{Op: "experts", Kind: c.kind, Backend: b.Name(), Inputs: []*tensor.View{
			view(bf16, tokens, c.features), view(dtype.Int64, tokens, each), view(bf16, tokens, each),
			view(bf16, groups, columns, c.features), nil, view(bf16, groups, c.features, c.hidden), nil,
		}}, []bool{true, true})
		require.NoError(t, err)
		require.InEpsilon(t, slots*c.columns*bf16.Size(), bytes, 0.1, "%+v", c)
	}
}

// TestWorkspaceOfExperts: backward has no row of each slot where one fits into the gradient of
// weight_in, or where tokens are read in place. It needs one of the preactivation or, where that is
// in the gradient of weight_out, a hidden one, and half of the columns of rows, or 1024. That holds
// whether the preactivation was saved or not. All else is at most a tenth of that.
func TestWorkspaceOfExperts(t *testing.T) {
	b := onHopper(t)
	for _, c := range []struct {
		name                                   string
		groups, features, hidden, tokens, each int64
		kind                                   string
		biases                                 bool
		columns                                int64 // that the workspace has of each slot
	}{
		{"qwen3-30b-a3b", 128, 2048, 768, 8192, 8, "swiglu", false, 2*768 + 2048/2},
		{"gpt-oss-20b", 32, 2880, 2880, 8192, 4, "swiglu_oai", true, 2880 + 2880/2},
		{"mixtral-like", 8, 4096, 14336, 4096, 2, "swiglu", false, 14336 + 4096/2},
		{"without a gate", 8, 4096, 14336, 4096, 2, "relu2", false, 14336 + 4096/2},
		{"fine", 256, 4096, 256, 32768, 16, "swiglu", false, 2*256 + 1024},
	} {
		columns := 2 * c.hidden
		if c.kind == "relu2" {
			columns = c.hidden
		}
		bf16, slots := dtype.BFloat16, c.tokens*c.each
		var biasIn, biasOut *tensor.View
		if c.biases {
			biasIn, biasOut = view(bf16, c.groups, columns), view(bf16, c.groups, c.features)
		}
		for _, pre := range []*tensor.View{view(bf16, slots, columns), nil} {
			_, bytes, err := op.Infer(&op.Call{Op: "experts_backward", Kind: c.kind, Backend: b.Name(), Inputs: []*tensor.View{
				view(bf16, c.tokens, c.features), view(bf16, c.tokens, c.features), view(dtype.Int64, c.tokens, c.each), view(bf16, c.tokens, c.each),
				view(bf16, c.groups, columns, c.features), biasIn, view(bf16, c.groups, c.features, c.hidden), biasOut, pre,
			}}, []bool{true, true, true, c.biases, true, c.biases})
			require.NoError(t, err, c.name)
			require.InEpsilon(t, slots*c.columns*bf16.Size(), bytes, 0.1, c.name)
		}
	}
}

// TestMovesOfRows: rows with others beside them, by elements and by vectors. A place outside of the
// rows is none.
func TestMovesOfRows(t *testing.T) {
	for _, columns := range []int64{3, 8} {
		const tokens, rows, width = 3, 4, 12
		places := []int32{1, -1, 0, 3, rows, 2}
		input, buffer := make([]float32, tokens*columns), make([]float32, rows*width)
		for i := range input {
			input[i] = float32(i)
		}
		in, inBase := operand(0, dtype.Float32, input, tokens, columns)
		p, placesBase := operand(1, dtype.Int32, places, tokens, 2)
		out, outBase := operand(2, dtype.Float32, buffer, rows, columns)
		out.Strides[0] = width
		header := backend.Header{DType: dtype.Float32}
		runProblem(t, &backend.ScatterRows{Header: header, Input: in, Places: p, Out: out}, inBase, placesBase, outBase)
		for row, token := range []int64{1, 0, 2, 1} {
			from := buffer[row*width:]
			require.Equal(t, input[token*columns:(token+1)*columns], from[:columns])
			require.Equal(t, make([]float32, width-columns), from[columns:width])
		}
		sums := make([]float32, tokens*columns)
		to, toBase := operand(0, dtype.Float32, sums, tokens, columns)
		runProblem(t, &backend.CombineRows{Header: header, Input: out, Places: p, Out: to}, toBase, placesBase, outBase)
		for i, x := range input {
			if int64(i)/columns == 1 { // of two rows
				x *= 2
			}
			require.Equal(t, x, sums[i])
		}
	}
}
