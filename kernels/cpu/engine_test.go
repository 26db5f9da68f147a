package cpu_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/kernels/cpu"
)

// These tests allocate exactly what a kernel may touch, so that AddressSanitizer (make sanitize)
// sees any other access; go/backend/cpu compares results with the references.

func forEachEngine(t *testing.T, visit func(t *testing.T, e *cpu.Engine)) {
	optest.ForEachEngine(t, cpu.Names(), cpu.Open, visit)
}

func exactly(bytes int64) []byte { return make([]byte, bytes) }

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// Every formula of the table has its kernels.
func TestEveryRowHasItsKernels(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for _, dt := range dtype.All() {
			var names []string
			for _, formula := range activation.Kernels() {
				for _, op := range []string{"activation_", "epilogue_", "activation_backward_"} {
					names = append(names, op+formula)
				}
			}
			for _, formula := range activation.NamesFromOutput() {
				names = append(names, "from_output_"+formula)
			}
			for _, formula := range activation.GatedKernels() {
				names = append(names, "gated_"+formula, "gated_backward_"+formula)
			}
			for _, name := range append(names, "add", "lerp", "lerp_backward") {
				_, ok := e.Kernel(name + "_" + dt.Short())
				require.True(t, ok, "%s_%s", name, dt.Short())
			}
		}
	})
}

// operands of the kernel families: outputs that may be asked for, and inputs.
var families = []struct {
	name            string
	outputs, inputs int
}{
	{"activation_gelu", 1, 1},
	{"activation_backward_silu", 2, 2},
	{"activation_backward_swish", 2, 2},
	{"activation_backward_mish", 2, 2},
	{"from_output_tanh", 1, 2},
	{"gated_sigmoid", 1, 2},
	{"gated_backward_gelu_tanh", 2, 3},
	{"gated_backward_swish", 2, 3},
	{"gated_backward_situ", 2, 3},
	{"lerp", 1, 3},
	{"lerp_backward", 3, 4},
}

// An element's result is the same in a long run, in a short one and among gaps; nothing else is
// read or written.
func TestElementsDoNotDependOnTheirPlace(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		random := rand.New(rand.NewPCG(1, 2))
		for _, family := range families {
			for _, dt := range dtype.All() {
				name := family.name + "_" + dt.Short()
				for _, n := range []int64{1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1100, 2048, 4100} {
					inputs := make([][]float64, family.inputs)
					for i := range inputs {
						inputs[i] = make([]float64, n)
						for j := range inputs[i] {
							inputs[i][j] = random.NormFloat64()
						}
					}
					want := runKernel(t, e, name, dt, family.outputs, inputs, 1, n)
					for _, gap := range []int64{2, 3} {
						require.Equal(t, want, runKernel(t, e, name, dt, family.outputs, inputs, gap, n), "%s, %d elements, %d apart", name, n, gap)
					}
				}
			}
		}
	})
}

// numbers are those that kernels are tested with, by the formulas that have some.
var numbers = map[string][]float64{
	"leaky_relu": {0.01}, "swish": {1.702}, "elu": {0.95, 1.758, 0.7}, "softplus": {2, 20}, "hardtanh": {-1, 1.5}, "softcap": {3},
	"gated_swish": {2.5, math.NaN(), 1, 1.702}, "gated_situ": {4, 25},
}

// numbersOf are those of a kernel such as "gated_backward_swish_bf16"; a gated one has no limits
// where the table has no row for it.
func numbersOf(kernel string) (n cpu.Parameters) {
	name := strings.ReplaceAll(kernel[:strings.LastIndexByte(kernel, '_')], "backward_", "")
	own, ok := numbers[strings.TrimPrefix(name, "activation_")]
	if !ok && strings.HasPrefix(name, "gated_") {
		own = []float64{math.NaN(), math.NaN(), math.Copysign(0, -1)}
	}
	copy(n[:], own)
	return n
}

// runKernel computes n elements, gap apart, and returns the outputs' values.
func runKernel(t *testing.T, e *cpu.Engine, name string, dt dtype.DType, outputs int, inputs [][]float64, gap, n int64) [][]float64 {
	return runKernelOf(t, e, name, numbersOf(name), dt, outputs, inputs, gap, n)
}

func runKernelOf(t *testing.T, e *cpu.Engine, name string, parameters cpu.Parameters, dt dtype.DType, outputs int, inputs [][]float64, gap, n int64) [][]float64 {
	t.Helper()
	kernel, ok := e.Kernel(name)
	require.True(t, ok, name)
	size := dt.Size()
	loops := cpu.Loops{ElementSize: size, Rank: 1}
	loops.Shape[0] = n
	var addresses cpu.Addresses
	var buffers [cpu.Operands][]byte
	for i := range buffers {
		if i < outputs || i >= cpu.Outputs && i-cpu.Outputs < len(inputs) {
			buffers[i] = exactly(((n-1)*gap + 1) * size)
			addresses[i], loops.Strides[i][0] = at(buffers[i]), gap*size
		}
	}
	for i, values := range inputs {
		for j, x := range values {
			optest.Put(dt, unsafe.Add(at(buffers[cpu.Outputs+i]), int64(j)*gap*size), x)
		}
	}
	first := n / 2
	e.Elementwise(cpu.Alone(), kernel, &loops, 0, first, 16, &parameters, &addresses)
	e.Elementwise(cpu.Alone(), kernel, &loops, first, n-first, n, &parameters, &addresses)
	results := make([][]float64, outputs)
	for i := range results {
		for j := range n {
			results[i] = append(results[i], optest.Get(dt, unsafe.Add(at(buffers[i]), j*gap*size)))
		}
	}
	return results
}

// Sums are those of the terms, whichever way they are formed: rows of runs, lengths around a
// block's, and rows around those that half types add in float; lanes of runs of any length; and
// short runs with all of their terms. In chunks and in one, into rows that lie apart, and added to
// what is there.
func TestSums(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for _, dt := range dtype.All() {
			kernel, ok := e.Kernel("activation_backward_none_" + dt.Short())
			require.True(t, ok)
			size := dt.Size()
			form := map[dtype.DType]cpu.Form{dtype.Float32: cpu.Float32, dtype.Float64: cpu.Float64, dtype.BFloat16: cpu.BFloat16, dtype.Float16: cpu.Float16}[dt]
			walk := func(shape, strides []int64) (l cpu.Loops) {
				l.ElementSize, l.Rank = size, int64(len(shape))
				for d := range shape {
					l.Shape[d] = shape[d]
					l.Strides[0][d], l.Strides[3][d], l.Strides[4][d] = strides[d]*size, strides[d]*size, strides[d]*size
				}
				return l
			}
			// sum sums [outer, rows, together, terms, run] to [outer, together, run].
			sum := func(s cpu.Sums, outer, rows, together, terms, run int64) {
				s.DType, s.Result, s.Summed, s.Kept = form, form, [cpu.Outputs]int64{1}, together*run
				s.Pieces = (s.Kept + s.Piece - 1) / s.Piece
				count := outer * rows * together * terms * run
				g, kept, out := exactly(count*size), exactly(count*size), exactly(2*outer*s.Kept*size)
				want := make([]float64, 2*outer*s.Kept)
				for i := range 2 * outer * s.Kept {
					optest.Put(dt, unsafe.Add(at(out), i*size), 3)
					want[i] = 3
					if i%2 == 0 && s.Accumulate == 0 {
						want[i] = 0
					}
				}
				columns := outer * s.Pieces
				for i := range count {
					term := float64(i % 5) // sums are exact, in half types too if they are small
					optest.Put(dt, unsafe.Add(at(g), i*size), term)
					j := 2 * ((i/(run*terms*together*rows)*together+i/(run*terms)%together)*run + i%run)
					want[j] += term
				}
				for j := range want {
					p := unsafe.Pointer(unsafe.SliceData(exactly(size)))
					optest.Put(dt, p, want[j])
					want[j] = optest.Get(dt, p)
				}
				s.To = walk([]int64{outer * s.Kept}, []int64{2})
				s.Width += cpu.Group
				total := s.Totals()
				if s.Chunks > 1 {
					total *= columns * s.Chunks
				}
				totals, done := make([]float64, total+64), make([]int32, columns)
				for i := range totals {
					totals[i] = math.NaN()
				}
				marks := totals[total:]
				for i := range marks {
					marks[i] = math.Copysign(0, -1) // which adding zero would change
				}
				totals = totals[:total]
				e.Sum(cpu.Alone(), kernel, &s, columns, &cpu.Parameters{}, &cpu.Addresses{0: at(kept), 3: at(g), 4: at(g)}, &[cpu.Outputs]unsafe.Pointer{at(out)}, totals, done)
				require.Equal(t, g, kept)
				for i, mark := range marks {
					require.True(t, math.Signbit(mark), "%v: %d behind the totals of %d x %d x %d x %d x %d", dt, i, outer, rows, together, terms, run)
				}
				got := make([]float64, len(want))
				for i := range got {
					got[i] = optest.Get(dt, unsafe.Add(at(out), int64(i)*size))
				}
				require.Equal(t, want, got, "%v: %d x %d x %d x %d x %d in %d chunks", dt, outer, rows, together, terms, run, s.Chunks)
			}
			for accumulate, chunks := range []int64{1, 3} {
				begun := cpu.Sums{Accumulate: int64(accumulate), Chunks: chunks}
				for _, rows := range []int64{5, 32, 33, 65} {
					for _, columns := range []int64{1, 15, 16, 17, 260, 511, 512, 700, 1000, 1537, 2500} {
						for _, piece := range []int64{cpu.Block, 3 * cpu.Block} {
							s := begun
							s.RowsCount, s.Run, s.Terms, s.Piece = rows, columns, 1, min(columns, piece)
							s.Width = cpu.WholeGroups(s.Piece)
							s.Outer = walk([]int64{3}, []int64{rows * columns})
							s.Rows, s.Inner = walk([]int64{rows}, []int64{columns}), walk([]int64{columns}, []int64{1})
							if columns%2 == 0 { // in two runs
								s.Inner = walk([]int64{2, columns / 2}, []int64{columns / 2, 1})
							}
							sum(s, 3, rows, 1, 1, columns)
						}
					}
				}
				for _, terms := range []int64{1, 3, 100, 1000} {
					for _, run := range []int64{1, 2, 3, 16, 31} {
						s := begun
						s.RowsCount, s.Run, s.Terms, s.Piece, s.Lanes, s.Width = terms, run, 1, run, 16*run, 16*run
						s.Block = cpu.Block / s.Width * s.Width
						s.Outer, s.Rows = walk([]int64{7}, []int64{terms * run}), walk([]int64{1}, []int64{0})
						s.Inner = walk([]int64{terms, run}, []int64{run, 1})
						sum(s, 7, 1, 1, terms, run)
					}
				}
				for _, terms := range []int64{2, 7, 33, 100} {
					for _, run := range []int64{1, 2, 5} {
						s := begun
						const rows, together = 5, 90
						whole := cpu.Block / (terms * run)
						s.RowsCount, s.Run, s.Terms, s.Block, s.Piece = rows, run, terms, whole*terms*run, whole*run
						s.Width = cpu.WholeGroups(s.Block)
						s.Outer, s.Rows = walk([]int64{2}, []int64{rows * together * terms * run}), walk([]int64{rows}, []int64{together * terms * run})
						s.Inner = walk([]int64{together, terms, run}, []int64{terms * run, run, 1})
						sum(s, 2, rows, together, terms, run)
					}
				}
			}
		}
	})
}

// Of half types' terms no more than 32 are added in float: the others' sum is right, though 2^24 is
// among the first, to which float adds no 1.
func TestFewTermsAreAddedInFloat(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		const rows, columns = 65, 512
		kernel, ok := e.Kernel("activation_backward_none_bf16")
		require.True(t, ok)
		s := cpu.Sums{DType: cpu.BFloat16, Result: cpu.BFloat16, Summed: [cpu.Outputs]int64{1}, RowsCount: rows, Kept: columns, Piece: columns, Pieces: 1, Chunks: 1, Run: columns, Terms: 1, Width: columns + cpu.Group}
		walk := func(n, step int64) cpu.Loops {
			l := cpu.Loops{ElementSize: 2, Rank: 1, Shape: [cpu.MostRank]int64{n}}
			for _, operand := range []int{0, 3, 4} {
				l.Strides[operand][0] = step
			}
			return l
		}
		s.Outer, s.Rows, s.Inner, s.To = walk(1, 0), walk(rows, 2*columns), walk(columns, 2), walk(columns, 2)
		g, out := exactly(rows*columns*2), exactly(columns*2)
		for i := range int64(rows * columns) {
			term := 1.
			switch i / columns {
			case 0:
				term = 0x1p24
			case rows - 1:
				term = -0x1p24
			}
			optest.Put(dtype.BFloat16, unsafe.Add(at(g), 2*i), term)
		}
		e.Sum(cpu.Alone(), kernel, &s, 1, &cpu.Parameters{}, &cpu.Addresses{3: at(g), 4: at(g)}, &[cpu.Outputs]unsafe.Pointer{at(out)}, make([]float64, s.Totals()), make([]int32, 1))
		for i := range int64(columns) {
			require.Equal(t, 32., optest.Get(dtype.BFloat16, unsafe.Add(at(out), 2*i)))
		}
	})
}

// What each form packs.
var packedTypes = []dtype.DType{
	cpu.Float32: dtype.Float32, cpu.Float64: dtype.Float64, cpu.BFloat16: dtype.BFloat16, cpu.Float16: dtype.Float16,
	cpu.BFloat16Pairs: dtype.BFloat16, cpu.BFloat16Tiles: dtype.BFloat16, cpu.Float16Tiles: dtype.Float16,
}

// Products of small integers are exact, in every form and from every layout: rows x depth
// contiguous either way, and neither. The last are deeper than any form's parts.
func TestPanels(t *testing.T) {
	sizes := [][3]int64{{1, 1, 1}, {3, 15, 2}, {4, 12, 3}, {7, 24, 7}, {8, 25, 8}, {9, 33, 17}, {15, 47, 9}, {16, 64, 31}, {17, 16, 32}, {25, 48, 33}, {29, 65, 33}, {33, 49, 65}, {6, 16, 257}, {33, 17, 513}, {7, 33, 1057}}
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for form, dt := range packedTypes {
			leftWidth, _ := e.Widths(cpu.Form(form))
			if leftWidth == 0 {
				continue
			}
			for turn, size := range sizes {
				for layout := range int64(3) {
					m, n, k := size[0], size[1], size[2]
					leftValues, rightValues := integers(m, k), integers(n, k)
					left := pack(e, cpu.Form(form), dt, m, k, layout, 1, leftValues)
					right := pack(e, cpu.Form(form), dt, n, k, (layout+int64(turn))%3, 0, rightValues)
					sumSize, units := dt.Accumulator().Size(), cpu.Form(form).Words(k)
					store, _ := e.Kernel("epilogue_none_" + dt.Short())
					add, _ := e.Kernel("add_" + dt.Short())
					stride := (n + 63) / 64 * 64
					tile := cpu.Tile{
						Form: cpu.Form(form), Units: units, Rows: m, Columns: n, Stride: stride, First: 1, Last: 1, Size: dt.Size(), SumSize: sumSize,
						BiasStride: dt.Size(), Add: add, Store: store, Value: store, Exchanged: int64(turn % 2),
					}
					tile.Out.Rows, tile.Out.ColumnStride = axisOf(m, n*dt.Size()), dt.Size()
					out, bias := exactly(m*n*dt.Size()), exactly(n*dt.Size())
					sums := exactly((m + leftWidth) / leftWidth * leftWidth * stride * sumSize)
					e.Product(cpu.Alone(), left.packing(), right.packing(), &tile, &whole, at(sums), at(out), nil, at(bias))
					for i := range m {
						for j := range n {
							want := 0.
							for l := range k {
								want += leftValues[i*k+l] * rightValues[j*k+l]
							}
							place := unsafe.Add(at(out), (i*n+j)*dt.Size())
							rounded := exactly(8)
							optest.Put(dt, at(rounded), want)
							require.Equal(t, optest.Get(dt, at(rounded)), optest.Get(dt, place), "%v %v layout %d: %d, %d", dt, size, layout, i, j)
						}
					}
				}
			}
		}
	})
}

type panels struct {
	bytes    []byte
	smallest []int16
}

func axisOf(n, stride int64) cpu.Axis {
	a := cpu.Axis{Rank: 1, Length: n}
	a.Sizes[0], a.Strides[0] = n, stride
	return a
}

// integers are the small ones of a matrix, row by row.
func integers(rows, depth int64) (values []float64) {
	for i := range rows {
		for l := range depth {
			values = append(values, float64((i*5+l*3)%7-3))
		}
	}
	return values
}

// pack lays a matrix of rows x depth out and packs it.
func pack(e *cpu.Engine, form cpu.Form, dt dtype.DType, rows, depth, layout, left int64, values []float64) panels {
	size := dt.Size()
	rowStep, depthStep := depth*size, size
	switch layout {
	case 1:
		rowStep, depthStep = size, rows*size
	case 2:
		rowStep, depthStep = 2*size, 2*rows*size
	}
	memory := exactly((rows-1)*rowStep + (depth-1)*depthStep + size)
	for i := range rows {
		for l := range depth {
			optest.Put(dt, unsafe.Add(at(memory), i*rowStep+l*depthStep), values[i*depth+l])
		}
	}
	leftWidth, width := e.Widths(form)
	if left == 1 {
		width = leftWidth
	}
	units, count := form.Words(depth), (rows+width-1)/width
	p := panels{exactly(count * width * units * dt.Accumulator().Size()), make([]int16, count)}
	o := cpu.Operand{Rows: axisOf(rows, rowStep), Columns: axisOf(depth, depthStep), Form: form, Width: width, Left: left, Count: rows, Depth: depth}
	packInto(e, cpu.Alone(), &cpu.Packing{Operand: operands{&o}, From: addresses{at(memory)}, To: at(p.bytes), Smallest: p.smallest}, nil)
	return p
}

// whole is a block in one tile.
var whole = cpu.Cut{Down: 1, Across: 1, RowUnit: 1, ColumnUnit: 1}

// What is packed of a pair's operands.
type (
	operands  = [cpu.MostPairs]*cpu.Operand
	addresses = [cpu.MostPairs]unsafe.Pointer
)

// packInto packs operands, nil if one is not to be packed, and multiplies nothing.
func packInto(e *cpu.Engine, crew *cpu.Crew, left, right *cpu.Packing) {
	if right == nil {
		right = &cpu.Packing{}
	}
	e.Product(crew, left, right, &cpu.Tile{}, &cpu.Cut{}, nil, nil, nil, nil)
}

// packed is an operand that has been packed.
func packed(p *cpu.Packing) *cpu.Packing { return &cpu.Packing{To: p.To, Smallest: p.Smallest} }

func (p panels) packing() *cpu.Packing { return &cpu.Packing{To: at(p.bytes), Smallest: p.smallest} }

// Half types' formulas are exact to far below their rounding, also where the answer is denormal.
func TestDenormalResults(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			got := runKernel(t, e, "activation_sigmoid_"+dt.Short(), dt, 1, [][]float64{{-88.5, -90, -110, math.Inf(-1)}}, 1, 4)[0]
			require.InEpsilon(t, math.Exp(-88.5), got[0], 0.01, strings.ToUpper(dt.Short()))
			require.InEpsilon(t, math.Exp(-90), got[1], 0.1)
			require.Equal(t, []float64{0, 0}, got[2:])
		}
	})
}
