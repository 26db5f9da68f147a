package cpu_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/go/tensor"
)

// numbers is a matrix between guard bands.
type numbers struct {
	dt     dtype.DType
	memory []byte
	view   tensor.View
}

const guard = 64

func matrixOf(dt dtype.DType, rows, columns int64, transposed bool, operand int) *numbers {
	n := &numbers{dt: dt, memory: make([]byte, 2*guard+rows*columns*dt.Size())}
	for i := range n.memory {
		n.memory[i] = 0xa5
	}
	strides := []int64{columns, 1}
	if transposed {
		strides = []int64{1, rows}
	}
	n.view = tensor.View{Operand: operand, DType: dt, Shape: []int64{rows, columns}, Strides: strides}
	return n
}

func (n *numbers) base() unsafe.Pointer { return unsafe.Pointer(&n.memory[guard]) }

func (n *numbers) place(i, j int64) unsafe.Pointer {
	return unsafe.Add(n.base(), (i*n.view.Strides[0]+j*n.view.Strides[1])*n.dt.Size())
}

func (n *numbers) at(i, j int64) float64 { return optest.Get(n.dt, n.place(i, j)) }

func (n *numbers) put(i, j int64, x float64) { optest.Put(n.dt, n.place(i, j), x) }

func (n *numbers) fill(value func() float64) *numbers {
	for i := range n.view.Shape[0] {
		for j := range n.view.Shape[1] {
			n.put(i, j, value())
		}
	}
	return n
}

func (n *numbers) clone() *numbers {
	return &numbers{dt: n.dt, memory: slices.Clone(n.memory), view: n.view}
}

func (n *numbers) guarded() bool {
	poison := func(bytes []byte) bool { return !slices.ContainsFunc(bytes, func(b byte) bool { return b != 0xa5 }) }
	return poison(n.memory[:guard]) && poison(n.memory[len(n.memory)-guard:])
}

// multiply computes a b into a matrix of its own.
func multiply(t *testing.T, b *cpu.Backend, left, right *numbers, threads int) *numbers {
	return multiplyBy(t, b, backend.Header{}, left, right, threads)
}

// multiplyInvariantly returns the product of a batch-invariant call.
func multiplyInvariantly(t *testing.T, b *cpu.Backend, left, right *numbers) *numbers {
	return multiplyBy(t, b, backend.Header{BatchInvariant: true}, left, right, 2)
}

func multiplyBy(t *testing.T, b *cpu.Backend, h backend.Header, left, right *numbers, threads int) *numbers {
	out := matrixOf(left.dt, left.view.Shape[0], right.view.Shape[1], false, 2)
	h.Op, h.Kind, h.Formula, h.DType = "linear", "none", "none", left.dt
	kernel, err := b.Select(&backend.GemmEpilogue{Header: h, A: &left.view, B: &right.view, Out: &out.view})
	require.NoError(t, err)
	require.NoError(t, kernel.Run(&backend.Run{Bases: []unsafe.Pointer{left.base(), right.base(), out.base()}, Threads: threads}))
	require.True(t, out.guarded(), "memory around the result was written to")
	return out
}

var units = map[dtype.DType]float64{dtype.Float32: 0x1p-24, dtype.Float64: 0x1p-53, dtype.BFloat16: 0x1p-8, dtype.Float16: 0x1p-11}

// check compares with sums in float64, in the bound of sums of the accumulator and one rounding.
func check(t *testing.T, left, right, out *numbers) {
	k := left.view.Shape[1]
	accumulator, storage := units[left.dt.Accumulator()], units[left.dt]
	for i := range out.view.Shape[0] {
		for j := range out.view.Shape[1] {
			var sum, size float64
			for l := range k {
				term := left.at(i, l) * right.at(l, j)
				sum, size = sum+term, size+math.Abs(term)
			}
			bound := float64(k+2)*(accumulator+0x1p-53)*size + storage*math.Abs(sum) + 0x1p-133
			if left.dt == dtype.Float16 {
				bound += 0x1p-25 // half the smallest number
			}
			if got := out.at(i, j); !(math.Abs(got-sum) <= bound) {
				t.Fatalf("%v [%d %d %d], strides %v %v: element %d, %d: got %v, want %v within %v", left.dt, out.view.Shape[0], out.view.Shape[1], k,
					left.view.Strides, right.view.Strides, i, j, got, sum, bound)
			}
		}
	}
}

// Sizes on both sides of every register, panel, tile and part of the depth.
func TestProductsAroundEveryEdge(t *testing.T) {
	rows := []int64{1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 63, 191, 192, 193, 255, 256, 257}
	columns := []int64{1, 7, 8, 9, 12, 15, 16, 17, 24, 25, 31, 32, 33, 47, 48, 49, 65, 95, 96, 97, 191, 192, 193, 257, 513}
	depths := []int64{1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 512, 513}
	turns := 3 * len(rows)
	if testing.Short() {
		turns = len(rows) / 2
	}
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(3, 5))
		one := func(dt dtype.DType, m, n, k int64, turn int) {
			left := matrixOf(dt, m, k, turn%2 == 1, 0).fill(random.NormFloat64)
			right := matrixOf(dt, k, n, turn/2%2 == 1, 1).fill(random.NormFloat64)
			check(t, left, right, multiply(t, b, left, right, 1+turn%3))
		}
		for _, dt := range dtype.All() {
			for turn := range turns {
				one(dt, rows[turn%len(rows)], columns[(turn*7+3)%len(columns)], depths[(turn*5+random.IntN(3))%len(depths)], turn)
			}
			// Past a block of the result, and past what is packed of the depth at a time.
			for turn, size := range [][3]int64{{1121, 3, 5}, {2, 1025, 6}, {15, 33, 1025}, {3, 17, 2049}, {2, 5, 4097}} {
				one(dt, size[0], size[1], size[2], turn)
			}
		}
	})
}

// A thread more or less changes no bit, and neither does the place of a row in a larger product.
func TestProductsDoNotDependOnThreadsOrNeighbours(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(8, 13))
		for _, dt := range dtype.All() {
			left, right := matrixOf(dt, 301, 600, false, 0).fill(random.NormFloat64), matrixOf(dt, 600, 277, true, 1).fill(random.NormFloat64)
			want := multiply(t, b, left, right, 1)
			for _, threads := range []int{2, 3, 7} {
				require.Equal(t, want.memory, multiply(t, b, left, right, threads).memory, "%v on %d threads", dt, threads)
			}
			if b.EngineName() == "go" {
				continue // gonum's sums follow the tile
			}
			few := *left
			few.view.Shape = []int64{5, 600}
			got := multiply(t, b, &few, right, 1)
			require.Equal(t, want.memory[guard:guard+5*277*dt.Size()], got.memory[guard:len(got.memory)-guard], "%v", dt)
		}
	})
}

// A result of several blocks, which share packed operands, has the bits of its parts.
func TestBlocksHaveTheBitsOfTheirParts(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		if b.EngineName() == "go" {
			return // gonum's sums follow the tile
		}
		random := rand.New(rand.NewPCG(34, 55))
		// 12 blocks: fewer than would be computed one on a thread
		const rows, columns, batch = 1125, 2050, 2
		depths := []int64{5, 6, 7, 4099}
		for i, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Float16} {
			depth := depths[i]
			left, right := matrixOf(dt, batch*rows, depth, false, 0).fill(random.NormFloat64), matrixOf(dt, depth, columns, true, 1).fill(random.NormFloat64)
			out := matrixOf(dt, batch*rows, columns, false, 2)
			stack := func(v tensor.View, item int64) *tensor.View {
				v.Shape, v.Strides = append([]int64{batch}, v.Shape...), append([]int64{item}, v.Strides...)
				return &v
			}
			leftItems, outItems := left.view, out.view
			leftItems.Shape, outItems.Shape = []int64{rows, depth}, []int64{rows, columns}
			kernel, err := b.Select(&backend.GemmEpilogue{
				Header: backend.Header{Op: "linear", Kind: "none", Formula: "none", DType: dt}, BatchRank: 1,
				A: stack(leftItems, rows*depth), B: stack(right.view, 0), Out: stack(outItems, rows*columns),
			})
			require.NoError(t, err)
			require.NoError(t, kernel.Run(&backend.Run{Bases: []unsafe.Pointer{left.base(), right.base(), out.base()}, Threads: 4}))
			require.True(t, out.guarded(), "memory around the result was written to")
			for _, row := range []int64{0, 1119, 1120, rows, rows + 1120, batch*rows - 1} {
				one := *left
				one.memory, one.view.Shape = left.memory[row*depth*dt.Size():], []int64{1, depth}
				want, from := multiply(t, b, &one, right, 1), guard+row*columns*dt.Size()
				require.Equal(t, want.memory[guard:guard+columns*dt.Size()], out.memory[from:from+columns*dt.Size()], "%v: row %d", dt, row)
			}
		}
	})
}

// A product over pairs is that of the matrices they are parts of: one sum, which is rounded once.
func TestPairsAreOneSum(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(55, 89))
		// Where the kernels, too, begin a part of the depth: all depths here have parts of 64.
		const cut = 512
		for turn, size := range [][3]int64{{5, 7, 525}, {37, 41, 900}, {1125, 3, cut}, {2, 1030, 1000}, {9, 50, 4112}} {
			for _, dt := range dtype.All() {
				left := matrixOf(dt, size[0], size[2], turn%2 == 1, 0).fill(random.NormFloat64)
				right, out := matrixOf(dt, size[2], size[1], turn%2 == 0, 1).fill(random.NormFloat64), matrixOf(dt, size[0], size[1], false, 2)
				part := func(of tensor.View, dim int, start, length int64) *tensor.View {
					v, err := of.Narrow(dim, start, length)
					require.NoError(t, err)
					return &v
				}
				pair := func(start, length int64) backend.Pair {
					return backend.Pair{A: part(left.view, 1, start, length), B: part(right.view, 0, start, length)}
				}
				// Empty pairs; pairs that are packed together; a little one behind a deep one; more
				// of them than are packed together.
				for _, ends := range [][]int64{{0, cut, cut}, {cut}, {size[2] - 16}, {32, 35, 99, 115, 119}} {
					var pairs []backend.Pair
					start := int64(0)
					for _, end := range append(ends, size[2]) {
						pairs = append(pairs, pair(start, end-start))
						start = end
					}
					kernel, err := b.Select(&backend.GemmEpilogue{
						Header: backend.Header{Op: "linear", Kind: "none", Formula: "none", DType: dt},
						A:      pairs[0].A, B: pairs[0].B, More: pairs[1:], Out: &out.view,
					})
					require.NoError(t, err)
					require.NoError(t, kernel.Run(&backend.Run{Bases: []unsafe.Pointer{left.base(), right.base(), out.base()}, Threads: 1 + turn}))
					require.True(t, out.guarded(), "memory around the result was written to")
					check(t, left, right, out)
					// gonum's sums follow the parts of the depth
					if b.EngineName() != "go" && ends[len(ends)-1] == cut && size[2] <= 1000 {
						require.Equal(t, multiply(t, b, left, right, 1).memory, out.memory, "%v: %v to %v", dt, size, ends)
					}
				}
			}
		}
	})
}

// The items of a batch have their own second pair behind a first one that they share, and an item
// has the same bits alone.
func TestPairsOfABatch(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(89, 144))
		const batch, rows, columns, depth, rank = 3, 1125, 50, 40, 5
		for _, dt := range dtype.All() {
			left, right := matrixOf(dt, rows, depth, false, 0).fill(random.NormFloat64), matrixOf(dt, depth, columns, true, 1).fill(random.NormFloat64)
			narrow, wide := matrixOf(dt, batch*rows, rank, false, 2).fill(random.NormFloat64), matrixOf(dt, batch*rank, columns, false, 3).fill(random.NormFloat64)
			run := func(first, items int64) []byte {
				out := matrixOf(dt, items*rows, columns, false, 4)
				item := func(of tensor.View, rows, stride int64) *tensor.View {
					of.Offset += first * stride * dt.Size()
					of.Shape, of.Strides = []int64{items, rows, of.Shape[1]}, append([]int64{stride}, of.Strides...)
					return &of
				}
				outs := out.view
				outs.Shape, outs.Strides = []int64{items, rows, columns}, append([]int64{rows * columns}, outs.Strides...)
				kernel, err := b.Select(&backend.GemmEpilogue{
					Header: backend.Header{Op: "linear", Kind: "none", Formula: "none", DType: dt}, BatchRank: 1,
					A: item(left.view, rows, 0), B: item(right.view, depth, 0), Out: &outs,
					More: []backend.Pair{{A: item(narrow.view, rows, rows*rank), B: item(wide.view, rank, rank*columns)}},
				})
				require.NoError(t, err)
				bases := []unsafe.Pointer{left.base(), right.base(), narrow.base(), wide.base(), out.base()}
				require.NoError(t, kernel.Run(&backend.Run{Bases: bases, Threads: 2}))
				require.True(t, out.guarded(), "memory around the result was written to")
				return out.memory[guard : len(out.memory)-guard]
			}
			var alone []byte
			for i := range int64(batch) {
				alone = append(alone, run(i, 1)...)
			}
			if b.EngineName() != "go" { // gonum's sums follow the tile
				require.Equal(t, alone, run(0, batch), "%v", dt)
			}
		}
	})
}

// What is packed belongs to one product: the next one's operands may lie at the same addresses,
// with other numbers in them.
func TestProductsReadTheirOperandsAnew(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(144, 233))
		// a block on the caller's thread, and one on several
		for _, size := range [][3]int64{{5, 7, 9}, {301, 277, 600}} {
			for _, dt := range dtype.All() {
				left, right := matrixOf(dt, size[0], size[2], false, 0), matrixOf(dt, size[2], size[1], false, 1)
				var lefts, rights, results []*numbers
				for range 3 {
					results = append(results, multiply(t, b, left.fill(random.NormFloat64), right.fill(random.NormFloat64), 2))
					lefts, rights = append(lefts, left.clone()), append(rights, right.clone())
				}
				for i, got := range results {
					require.Equal(t, multiply(t, b, lefts[i], rights[i], 2).memory, got.memory, "%v %v: product %d", dt, size, i)
				}
			}
		}
	})
}

// Sums of a few hundred terms are as exact as those of BLAS libraries that add few rows in lanes:
// each error is below two roundings of the terms' size, where sums in one run have three.
func TestShortSumsAreAddedInParts(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(8, 13))
		for _, k := range []int64{67, 131, 512} {
			left, right := matrixOf(dtype.Float32, 16, k, false, 0).fill(random.NormFloat64), matrixOf(dtype.Float32, k, 300, false, 1).fill(random.NormFloat64)
			out := multiply(t, b, left, right, 1)
			var worst float64
			for i := range int64(16) {
				for j := range int64(300) {
					var sum, size float64
					for l := range k {
						term := left.at(i, l) * right.at(l, j)
						sum, size = sum+term, size+math.Abs(term)
					}
					worst = max(worst, math.Abs(out.at(i, j)-sum)/size)
				}
			}
			t.Logf("%d terms: %.2f roundings", k, worst/units[dtype.Float32])
			require.Less(t, worst, 2*units[dtype.Float32], "%d terms", k)
		}
	})
}

// A gradient that lies in columns is computed with its operands exchanged, and has the same bits.
func TestGradientsInColumnsHaveTheBitsOfRows(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(55, 89))
		const m, k, n = 1030, 167, 131 // large: float16 hides most of the sums' order
		for _, dt := range dtype.All() {
			a, grad := matrixOf(dt, m, k, false, 0).fill(random.NormFloat64), matrixOf(dt, m, n, false, 1).fill(random.NormFloat64)
			weight := matrixOf(dt, k, n, false, 2)
			run := func(inColumns bool) *numbers {
				out := matrixOf(dt, k, n, inColumns, 3)
				kernel, err := b.Select(&backend.GemmEpilogueBackward{
					Header: backend.Header{Op: "linear_backward", Kind: "none", Formula: "none", DType: dt}, GradOutput: &grad.view, A: &a.view, B: &weight.view, GradB: &out.view,
				})
				require.NoError(t, err)
				require.NoError(t, kernel.Run(&backend.Run{Bases: []unsafe.Pointer{a.base(), grad.base(), weight.base(), out.base()}, Threads: 1}))
				require.True(t, out.guarded(), "memory around the result was written to")
				return out
			}
			rows, columns := run(false), run(true)
			for i := range int64(k) {
				for j := range int64(n) {
					require.Equal(t, rows.at(i, j), columns.at(i, j), "%v: element %d, %d", dt, i, j)
				}
			}
		}
	})
}

// Numbers that an instruction for bfloat16 may take for zeros, and those that are no numbers.
func TestProductsOfExtremeNumbers(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(21, 34))
		for _, scales := range [][2]float64{{0x1p-130, 0x1p100}, {0x1p-133, 0x1p127}, {0x1p-64, 0x1p-64}, {0x1p-20, 0x1p-110}} {
			fill := func(scale float64) func() float64 {
				return func() float64 { return scale * random.NormFloat64() / 8 }
			}
			left, right := matrixOf(dtype.BFloat16, 17, 70, false, 0).fill(fill(scales[0])), matrixOf(dtype.BFloat16, 70, 40, false, 1).fill(fill(scales[1]))
			check(t, left, right, multiply(t, b, left, right, 1))
		}
		// A sum that is as small as the numbers in what was packed before of its depth, with
		// nothing but zeros in the rest.
		none := func() float64 { return 0 }
		deepLeft, deepRight := matrixOf(dtype.BFloat16, 3, 4200, false, 0).fill(none), matrixOf(dtype.BFloat16, 4200, 5, false, 1).fill(none)
		deepLeft.put(1, 7, 0x1p-65)
		deepRight.put(7, 2, 0x1p-64)
		check(t, deepLeft, deepRight, multiply(t, b, deepLeft, deepRight, 1))
		// Likewise in the first item of a batch that is summed over.
		a, grad := matrixOf(dtype.BFloat16, 80, 3, false, 0).fill(none), matrixOf(dtype.BFloat16, 80, 5, false, 1).fill(none)
		a.put(7, 1, 0x1p-65)
		grad.put(7, 2, 0x1p-64)
		weight, gradWeight := matrixOf(dtype.BFloat16, 3, 5, false, 2), matrixOf(dtype.BFloat16, 3, 5, false, 3)
		item := func(n *numbers, batch, rows, stride int64) *tensor.View {
			v := n.view
			v.Shape, v.Strides = []int64{batch, rows, v.Shape[1]}, []int64{stride, v.Strides[0], v.Strides[1]}
			return &v
		}
		kernel, err := b.Select(&backend.GemmEpilogueBackward{
			Header: backend.Header{Op: "linear_backward", Kind: "none", Formula: "none", DType: dtype.BFloat16}, BatchRank: 1,
			GradOutput: item(grad, 2, 40, 40*5), A: item(a, 2, 40, 40*3), B: item(weight, 2, 3, 0), GradB: item(gradWeight, 1, 3, 0),
		})
		require.NoError(t, err)
		require.NoError(t, kernel.Run(&backend.Run{Bases: []unsafe.Pointer{a.base(), grad.base(), weight.base(), gradWeight.base()}, Threads: 1}))
		require.Equal(t, 0x1p-129, gradWeight.at(1, 2))
		// All of float16, down to its denormals, and up to where a sum is just finite.
		for _, scales := range [][2]float64{{0x1p-21, 1}, {0x1p-24, 0x1p13}, {0x1p-12, 0x1p-12}, {0x1p4, 0x1p5}} {
			fill := func(scale float64) func() float64 { return func() float64 { return scale * random.NormFloat64() } }
			left, right := matrixOf(dtype.Float16, 35, 70, false, 0).fill(fill(scales[0])), matrixOf(dtype.Float16, 70, 40, false, 1).fill(fill(scales[1]))
			check(t, left, right, multiply(t, b, left, right, 1))
		}
		for _, dt := range dtype.All() {
			left, right := matrixOf(dt, 20, 37, false, 0).fill(random.NormFloat64), matrixOf(dt, 37, 40, true, 1).fill(random.NormFloat64)
			(&numbers{dt: dt, memory: left.memory[3*37*dt.Size()+36*dt.Size():], view: tensor.View{DType: dt, Shape: []int64{1, 1}, Strides: []int64{1, 1}}}).fill(math.NaN)
			out := multiply(t, b, left, right, 1)
			for i := range int64(20) {
				for j := range int64(40) {
					require.Equal(t, i == 3, math.IsNaN(out.at(i, j)), "%v: element %d, %d", dt, i, j)
				}
			}
			// An infinity keeps its sign, and times zero it is no number, whichever operand it is
			// in. Its neighbours are what they are without it.
			for turn := range 2 {
				left, right := matrixOf(dt, 40, 37, turn == 1, 0).fill(random.NormFloat64), matrixOf(dt, 37, 40, turn == 0, 1).fill(random.NormFloat64)
				infinite, other := left, right
				if turn == 1 {
					infinite, other = right, left
				}
				infinite.put(5, 5, math.Inf(1))
				infinite.put(33, 33, math.Inf(-1))
				other.put(5, 7, 0)
				other.put(7, 5, 0)
				out := multiply(t, b, left, right, 1)
				for i := range int64(40) {
					for j := range int64(40) {
						sum, size := 0., 0.
						for l := range int64(37) {
							sum += left.at(i, l) * right.at(l, j)
							size += math.Abs(left.at(i, l) * right.at(l, j))
						}
						switch got := out.at(i, j); {
						case math.IsNaN(sum):
							require.True(t, math.IsNaN(got), "%v: element %d, %d: %v", dt, i, j, got)
						case math.IsInf(sum, 0):
							require.Equal(t, sum, got, "%v: element %d, %d", dt, i, j)
						default:
							require.InDelta(t, sum, got, 40*0x1p-24*size+units[dt]*math.Abs(sum), "%v: element %d, %d", dt, i, j)
						}
					}
				}
			}
		}
	})
}
