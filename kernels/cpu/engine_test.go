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

// These tests allocate exactly what a kernel may touch, so that AddressSanitizer (make sanitize) sees any other access; go/backend/cpu compares
// results with the references.

func forEachEngine(t *testing.T, visit func(t *testing.T, e *cpu.Engine)) {
	optest.ForEachEngine(t, cpu.Names(), cpu.Open, visit)
}

func exactly(bytes int64) []byte { return make([]byte, bytes) }

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// Every activation and gated kind of the table has its kernels.
func TestEveryRowHasItsKernels(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for _, dt := range dtype.All() {
			var names []string
			for _, info := range activation.All() {
				for _, op := range []string{"activation_", "epilogue_", "activation_backward_"} {
					names = append(names, op+info.Name)
				}
				if info.FromOutput {
					names = append(names, "from_output_"+info.Name)
				}
			}
			for _, info := range activation.AllGated() {
				names = append(names, "gated_"+info.Activation, "gated_backward_"+info.Activation)
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
	{"from_output_tanh", 1, 2},
	{"gated_sigmoid", 1, 2},
	{"gated_backward_gelu_tanh", 2, 3},
	{"lerp", 1, 3},
	{"lerp_backward", 3, 4},
}

// An element's result is the same in a long run, in a short one, among gaps and past the caches; nothing else is read or written.
func TestElementsDoNotDependOnTheirPlace(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		random := rand.New(rand.NewPCG(1, 2))
		for _, family := range families {
			for _, dt := range dtype.All() {
				kernel, ok := e.Kernel(family.name + "_" + dt.Short())
				require.True(t, ok)
				for _, n := range []int64{1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1100} {
					inputs := make([][]float64, family.inputs)
					for i := range inputs {
						inputs[i] = make([]float64, n)
						for j := range inputs[i] {
							inputs[i][j] = random.NormFloat64()
						}
					}
					want := runKernel(e, kernel, dt, family.outputs, inputs, 1, n, 0)
					for turn, gap := range []int64{2, 3, 1} {
						stream := int64(turn / 2)
						require.Equal(t, want, runKernel(e, kernel, dt, family.outputs, inputs, gap, n, stream), "%s_%s, %d elements, %d apart", family.name, dt.Short(), n, gap)
					}
				}
			}
		}
	})
}

// runKernel computes n elements, gap apart, and returns the outputs' values.
func runKernel(e *cpu.Engine, kernel cpu.Kernel, dt dtype.DType, outputs int, inputs [][]float64, gap, n, stream int64) [][]float64 {
	size := dt.Size()
	loops := cpu.Loops{ElementSize: size, Rank: 1, Stream: stream}
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
			put(dt, unsafe.Add(at(buffers[cpu.Outputs+i]), int64(j)*gap*size), x)
		}
	}
	first := n / 2
	e.Elementwise(cpu.Alone(), kernel, &loops, 0, first, 16, &cpu.Numbers{}, &addresses)
	e.Elementwise(cpu.Alone(), kernel, &loops, first, n-first, n, &cpu.Numbers{}, &addresses)
	results := make([][]float64, outputs)
	for i := range results {
		for j := range n {
			results[i] = append(results[i], get(dt, unsafe.Add(at(buffers[i]), j*gap*size)))
		}
	}
	return results
}

func put(dt dtype.DType, p unsafe.Pointer, x float64) {
	switch dt {
	case dtype.Float32:
		*(*float32)(p) = float32(x)
	case dtype.Float64:
		*(*float64)(p) = x
	case dtype.BFloat16:
		*(*uint16)(p) = dtype.Float64ToBFloat16(x)
	case dtype.Float16:
		*(*uint16)(p) = dtype.Float64ToFloat16(x)
	}
}

func get(dt dtype.DType, p unsafe.Pointer) float64 {
	switch dt {
	case dtype.Float32:
		return float64(*(*float32)(p))
	case dtype.BFloat16:
		return float64(dtype.BFloat16ToFloat32(*(*uint16)(p)))
	case dtype.Float16:
		return float64(dtype.Float16ToFloat32(*(*uint16)(p)))
	}
	return *(*float64)(p)
}

// Sums over rows and over everything are those of the terms, for lengths around a block's, and rows around those that half types add in float.
func TestSums(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for _, dt := range dtype.All() {
			kernel, ok := e.Kernel("activation_backward_none_" + dt.Short())
			require.True(t, ok)
			size := dt.Size()
			for _, rows := range []int64{5, 32, 33, 65} {
				for _, columns := range []int64{1, 15, 16, 17, 511, 512} {
					g := exactly(rows * columns * size)
					want := make([]float64, columns)
					all := 0.
					for i := range rows * columns {
						term := float64(i % 97) // of which 32 are added exactly, also in float
						put(dt, unsafe.Add(at(g), i*size), term)
						want[i%columns] += term
						all += term
					}
					addresses := cpu.Addresses{3: at(g), 4: at(g)}
					width := cpu.WholeGroups(int(columns))
					walk := cpu.Loops{ElementSize: size, Rank: 1}
					walk.Shape[0], walk.Strides[3][0], walk.Strides[4][0] = rows, columns*size, columns*size
					row := cpu.Row{ElementSize: size, Count: columns}
					row.Strides[3], row.Strides[4] = size, size
					for _, chunks := range []int64{1, 3} {
						parts := cpu.Parts{Rows: rows, Chunks: chunks, Columns: 1, Width: int64(width), Summed: [cpu.Outputs]int64{1}}
						sums, got := make([]float64, 2*int64(width)*chunks), make([]float64, columns)
						e.Sum(cpu.Alone(), kernel, &walk, &row, &parts, []cpu.Column{{Count: columns}}, &cpu.Numbers{}, &addresses, sums)
						for i := range columns {
							for chunk := range chunks {
								got[i] += sums[2*int64(width)*chunk+i]
							}
						}
						require.Equal(t, want, got, "%v: %d x %d", dt, rows, columns)
					}

					walk.Shape[0], walk.Strides[3][0], walk.Strides[4][0] = rows*columns, size, size
					parts := cpu.Parts{Rows: rows * columns, Chunks: 1, Columns: 1, Width: cpu.Group, All: 1, Summed: [cpu.Outputs]int64{1}}
					lanes := make([]float64, 2*cpu.Group)
					e.Sum(cpu.Alone(), kernel, &walk, &row, &parts, []cpu.Column{{Count: 1}}, &cpu.Numbers{}, &addresses, lanes)
					total := 0.
					for _, x := range lanes[:cpu.Group] {
						total += x
					}
					require.Equal(t, all, total, "%v: %d x %d", dt, rows, columns)
				}
			}
		}
	})
}

// What each form packs.
var packedTypes = []dtype.DType{
	cpu.Float32: dtype.Float32, cpu.Float64: dtype.Float64, cpu.BFloat16: dtype.BFloat16, cpu.Float16: dtype.Float16,
	cpu.BFloat16Pairs: dtype.BFloat16, cpu.BFloat16Tiles: dtype.BFloat16, cpu.Float16Tiles: dtype.Float16,
}

// Products of small integers are exact, in every form and from every layout: rows x depth contiguous either way, and neither. The last are deeper than any form's parts.
func TestPanels(t *testing.T) {
	sizes := [][3]int64{{1, 1, 1}, {3, 15, 2}, {13, 31, 7}, {14, 32, 8}, {15, 33, 17}, {16, 64, 31}, {17, 16, 32}, {29, 65, 33}, {33, 31, 65}, {6, 16, 257}, {33, 17, 513}, {7, 33, 1057}}
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
					e.Multiply(cpu.Alone(), &tile, &cpu.Cut{Height: m, Width: n, Uncut: 1, Pieces: 1, Tasks: 1}, at(left.bytes), at(right.bytes), left.smallest, right.smallest, at(sums), at(out), nil, at(bias))
					for i := range m {
						for j := range n {
							want := 0.
							for l := range k {
								want += leftValues[i*k+l] * rightValues[j*k+l]
							}
							place := unsafe.Add(at(out), (i*n+j)*dt.Size())
							rounded := exactly(8)
							put(dt, at(rounded), want)
							require.Equal(t, get(dt, at(rounded)), get(dt, place), "%v %v layout %d: %d, %d", dt, size, layout, i, j)
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
			put(dt, unsafe.Add(at(memory), i*rowStep+l*depthStep), values[i*depth+l])
		}
	}
	leftWidth, width := e.Widths(form)
	if left == 1 {
		width = leftWidth
	}
	units, count := form.Words(depth), (rows+width-1)/width
	p := panels{exactly(count * width * units * dt.Accumulator().Size()), make([]int16, count)}
	o := cpu.Operand{Rows: axisOf(rows, rowStep), Columns: axisOf(depth, depthStep), Form: form, Width: width, Left: left, Count: rows, Depth: depth}
	e.Pack(cpu.Alone(), &cpu.Packing{Operand: &o, From: at(memory), To: at(p.bytes), Smallest: p.smallest}, nil)
	return p
}

// Half types' formulas are exact to far below their rounding, also where the answer is denormal.
func TestDenormalResults(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			kernel, _ := e.Kernel("activation_sigmoid_" + dt.Short())
			got := runKernel(e, kernel, dt, 1, [][]float64{{-88.5, -90, -110, math.Inf(-1)}}, 1, 4, 0)[0]
			require.InEpsilon(t, math.Exp(-88.5), got[0], 0.01, strings.ToUpper(dt.Short()))
			require.InEpsilon(t, math.Exp(-90), got[1], 0.1)
			require.Equal(t, []float64{0, 0}, got[2:])
		}
	})
}
