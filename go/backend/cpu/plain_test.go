package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// A result that is the sums as they are, which panel kernels write themselves, has the bits of one
// that is written through sums (whose columns are two apart), for heights that there are kernels
// for and others, depths of no, one and several parts, and rows any distance apart; nothing between
// rows is written.
func TestPlainResults(t *testing.T) {
	oneOf := 6
	if testing.Short() { // the race detector makes filling and comparing take ten times as long
		oneOf = 40
	}
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		if b.EngineName() == "go" {
			return
		}
		random := rand.New(rand.NewPCG(1, 77))
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
			size := dt.Size()
			for _, k := range []int64{0, 1, 7, 128, 129, 513, 1025, 2049, 4100} {
				for _, m := range []int64{1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 15, 16, 17, 18, 20, 24, 25, 32, 33, 192, 193, 256} {
					for _, n := range []int64{8, 12, 16, 17, 24, 32, 48, 64, 96, 192, 288} {
						if random.IntN(oneOf) != 0 || m*n*k > 1<<23 {
							continue
						}
						special := func() float64 {
							switch random.IntN(400) {
							case 0:
								return math.Copysign(0, -1)
							case 1:
								return 0x1p-140
							}
							return random.NormFloat64()
						}
						left := matrixOf(dt, m, k, random.IntN(2) == 1, 0).fill(special)
						right := matrixOf(dt, k, n, random.IntN(2) == 1, 1).fill(special)
						if k > 0 && random.IntN(3) == 0 {
							left.put(random.Int64N(m), random.Int64N(k), math.NaN())
							right.put(random.Int64N(k), random.Int64N(n), math.Inf(-1))
						}
						threads := 1 + random.IntN(7)
						run := func(ld, step int64) ([]byte, tensor.View) {
							memory := make([]byte, 2*guard+((m-1)*ld+(n-1)*step+1)*size)
							for i := range memory {
								memory[i] = 0xa5
							}
							v := tensor.View{Operand: 2, DType: dt, Shape: []int64{m, n}, Strides: []int64{ld, step}}
							kernel, err := b.Select(&backend.GemmEpilogue{
								Header: backend.Header{Op: "linear", Kind: "none", Formula: "none", DType: dt}, A: &left.view, B: &right.view, Out: &v,
							})
							require.NoError(t, err)
							require.NoError(t, kernel.Run(&backend.Run{Bases: []unsafe.Pointer{left.base(), right.base(), unsafe.Pointer(&memory[guard])}, Threads: threads}))
							return memory, v
						}
						ld := n + int64(random.IntN(5))
						got, gv := run(ld, 1)
						want, wv := run(2*n+1, 2)
						seen := make([]bool, len(got))
						for i := range m {
							for j := range n {
								g, w := guard+(i*gv.Strides[0]+j)*size, guard+(i*wv.Strides[0]+j*2)*size
								for x := range size {
									seen[g+x] = true
									if got[g+x] != want[w+x] {
										t.Fatalf("%v %d %d %d ld %d threads %d: element %d %d: % x, % x", dt, m, n, k, ld, threads, i, j, got[g:g+size], want[w:w+size])
									}
								}
							}
						}
						for i, s := range seen {
							if !s && got[i] != 0xa5 {
								t.Fatalf("%v %d %d %d ld %d threads %d: byte %d of a gap written", dt, m, n, k, ld, threads, i)
							}
						}
					}
				}
			}
		}
	})
}

// Rows that are not an even distance apart are no plain result: each of two pieces has its place.
func TestResultsInPieces(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		const m, n, k, gap = 7, 64, 33, 100
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64} {
			random := rand.New(rand.NewPCG(3, 4))
			left, right := matrixOf(dt, 2*m, k, false, 0).fill(random.NormFloat64), matrixOf(dt, k, n, false, 1).fill(random.NormFloat64)
			whole := multiply(t, b, left, right, 2)
			memory := make([]byte, (2*m*n+gap)*dt.Size())
			a := left.view
			a.Shape, a.Strides = []int64{2, m, k}, []int64{m * k, k, 1}
			out := tensor.View{Operand: 2, DType: dt, Shape: []int64{2, m, n}, Strides: []int64{m*n + gap, n, 1}}
			kernel, err := b.Select(&backend.GemmEpilogue{
				Header: backend.Header{Op: "linear", Kind: "none", Formula: "none", DType: dt}, A: &a, B: &right.view, Out: &out,
			})
			require.NoError(t, err)
			require.NoError(t, kernel.Run(&backend.Run{Bases: []unsafe.Pointer{left.base(), right.base(), unsafe.Pointer(&memory[0])}, Threads: 2}))
			half := m * n * dt.Size()
			require.Equal(t, whole.memory[guard:guard+half], memory[:half], "%v", dt)
			require.Equal(t, make([]byte, gap*dt.Size()), memory[half:half+gap*dt.Size()], "%v: between the pieces", dt)
			require.Equal(t, whole.memory[guard+half:guard+2*half], memory[half+gap*dt.Size():], "%v", dt)
		}
	})
}

// A number of threads says how many there may be, not how many there is memory for.
func TestAnyNumberOfThreads(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		const n = 200
		left, right := matrixOf(dtype.Float32, n, n, false, 0).fill(func() float64 { return 1 }), matrixOf(dtype.Float32, n, n, true, 1).fill(func() float64 { return 2 })
		require.Equal(t, multiply(t, b, left, right, 1), multiply(t, b, left, right, math.MaxInt32))
	})
}
