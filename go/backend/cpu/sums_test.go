package cpu_test

import (
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

// array is a tensor of any layout, in memory of its own that is poison around it and between its
// elements.
type array struct {
	memory []byte
	view   tensor.View
}

// arrayOf lays the dimensions of a shape one around the other in a random order, some with gaps
// between their steps; those in which `once` is set have the stride 0.
func arrayOf(random *rand.Rand, dt dtype.DType, operand int, shape []int64, once []bool) *array {
	a := &array{view: tensor.View{Operand: operand, DType: dt, Shape: shape, Strides: make([]int64, len(shape))}}
	order := make([]int, len(shape))
	for i := range order {
		order[i] = i
	}
	if random.IntN(2) == 0 {
		random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	step := int64(1)
	if random.IntN(8) == 0 {
		step = 3
	}
	for i := len(order) - 1; i >= 0; i-- {
		if d := order[i]; once == nil || !once[d] {
			a.view.Strides[d] = step
			step *= shape[d]
			if random.IntN(8) == 0 {
				step += 5
			}
		}
	}
	a.memory = make([]byte, 2*guard+step*dt.Size())
	for i := range a.memory {
		a.memory[i] = 0xa5
	}
	return a
}

func (a *array) place(index []int64) unsafe.Pointer {
	at := int64(guard)
	for d, i := range index {
		at += i * a.view.Strides[d] * a.view.DType.Size()
	}
	return unsafe.Pointer(&a.memory[at])
}

func (a *array) clone() *array { return &array{memory: slices.Clone(a.memory), view: a.view} }

// everywhere visits the indices of a shape.
func everywhere(shape []int64, visit func(index []int64)) {
	index := make([]int64, len(shape))
	for {
		visit(index)
		d := len(shape) - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < shape[d] {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// Whichever dimensions are summed over, however long they are and however they and their neighbours
// lie in memory, a sum is that of its terms, to the last bit where numbers are such that no
// addition rounds, on any number of threads; and nothing else is written.
func TestSumsOverAnyDimensions(t *testing.T) {
	trials := 600
	if testing.Short() {
		trials = 60
	}
	forEachEngine(t, func(t *testing.T, b *cpu.Backend) {
		random := rand.New(rand.NewPCG(5, 6))
		lengths := []int64{1, 2, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 40, 64, 100, 128, 130, 513, 1025}
		for trial := range trials {
			dt := dtype.All()[trial%4]
			var shape, sums []int64
			var goes, once []bool
			count, most := int64(1), int64(40000)
			if trial%10 == 0 {
				most *= 10 // enough for several threads
			}
			for range 1 + random.IntN(5) {
				n := lengths[random.IntN(len(lengths))]
				if count*n > most {
					continue
				}
				count *= n
				shape, goes, once = append(shape, n), append(goes, random.IntN(2) == 0), append(once, random.IntN(2) == 0)
				if goes[len(goes)-1] {
					n = 1
				}
				sums = append(sums, n)
			}
			grad := arrayOf(random, dt, 0, shape, nil)
			gradStart, gradEnd := arrayOf(random, dt, 1, sums, nil), arrayOf(random, dt, 2, shape, nil)
			weight := arrayOf(random, dt, 3, shape, once)
			p := &backend.PointwiseBackward{
				Header: backend.Header{Op: "lerp_backward", Formula: "lerp", DType: dt}, GradOutput: &grad.view,
				Inputs: make([]*tensor.View, 3), Gradients: []*tensor.View{&gradStart.view, nil, nil}, Uses: [][]int{{2}, {2}, {0, 1}},
			}
			start, end := arrayOf(random, dt, 4, shape, nil), arrayOf(random, dt, 5, shape, once)
			gradWeight := arrayOf(random, dt, 6, sums, nil)
			arrays := []*array{grad, gradStart, gradEnd, weight, start, end, gradWeight}
			if random.IntN(2) == 0 {
				p.Inputs[0], p.Inputs[1], p.Gradients[2] = &start.view, &end.view, &gradWeight.view
			}
			if trial%3 > 0 {
				p.Gradients[1] = &gradEnd.view
			}
			weights := func([]int64) float64 { return 0.25 }
			if random.IntN(2) == 0 {
				p.Inputs[2] = &weight.view
				weights = func(index []int64) float64 {
					value := 0.
					for d, i := range index {
						if !once[d] {
							value = float64((int64(4*value) + i) % 3)
							value /= 4
						}
					}
					return value
				}
			}
			wantStart, wantEnd, wantWeight := gradStart.clone(), gradEnd.clone(), gradWeight.clone()
			everywhere(shape, func(index []int64) {
				optest.Put(dt, start.place(index), float64(random.IntN(5)-2))
				optest.Put(dt, end.place(index), float64(random.IntN(5)-2))
			})
			totals := make(map[unsafe.Pointer]float64)
			reduced := make([]int64, len(shape))
			everywhere(shape, func(index []int64) {
				g, w := float64(random.IntN(9)-4), weights(index)
				optest.Put(dt, grad.place(index), g)
				optest.Put(dt, weight.place(index), w)
				for d, i := range index {
					if reduced[d] = i; goes[d] {
						reduced[d] = 0
					}
				}
				totals[wantStart.place(reduced)] += (1 - w) * g
				if p.Gradients[2] != nil {
					totals[wantWeight.place(reduced)] += g * (optest.Get(dt, end.place(index)) - optest.Get(dt, start.place(index)))
				}
				if p.Gradients[1] != nil {
					optest.Put(dt, wantEnd.place(index), w*g+0)
				}
			})
			for place, total := range totals {
				optest.Put(dt, place, total)
			}
			kernel, err := b.Select(p)
			require.NoError(t, err)
			for _, threads := range []int{1, 3} {
				run := &backend.Run{Parameters: [4]float64{0.25}, Threads: threads}
				for _, a := range arrays {
					run.Bases = append(run.Bases, unsafe.Pointer(&a.memory[guard]))
				}
				require.NoError(t, kernel.Run(run))
				what := []any{"%v %v, summed over %v, strides %v, %v and %v, %d threads", dt, shape, goes, grad.view.Strides, gradStart.view.Strides, weight.view.Strides, threads}
				requireSame(t, wantStart, gradStart, what)
				requireSame(t, wantEnd, gradEnd, what)
				requireSame(t, wantWeight, gradWeight, what)
			}
		}
	})
}

// requireSame compares arrays with what lies around their elements; zeros may have either sign.
func requireSame(t *testing.T, want, got *array, what []any) {
	t.Helper()
	size := int(want.view.DType.Size())
	for i := guard; i+size <= len(want.memory)-guard; i += size {
		w, g := want.memory[i:i+size], got.memory[i:i+size]
		if string(w) != string(g) && (!isZero(w) || !isZero(g)) {
			t.Fatalf("element %d: got % x, want % x: "+what[0].(string), append([]any{(i - guard) / size, g, w}, what[1:]...)...)
		}
	}
	require.Equal(t, want.memory[:guard], got.memory[:guard], what...)
	require.Equal(t, want.memory[len(want.memory)-guard:], got.memory[len(got.memory)-guard:], what...)
}

func isZero(b []byte) bool {
	for _, x := range b[:len(b)-1] {
		if x != 0 {
			return false
		}
	}
	return b[len(b)-1]&0x7f == 0
}
