//go:build linux

package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/optest"
	"github.com/epigrad/epigrad/kernels/cpu"
)

// fenced is memory between two pages that nobody may touch, at their beginning or end.
func fenced(t *testing.T, bytes int64, end bool) []byte {
	const page = 4096
	whole := (bytes + page - 1) / page * page
	all, err := syscall.Mmap(-1, 0, int(whole+2*page), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	require.NoError(t, syscall.Mprotect(all[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(all[page+whole:], syscall.PROT_NONE))
	t.Cleanup(func() { _ = syscall.Munmap(all) })
	if end {
		return all[page+whole-bytes : page+whole : page+whole]
	}
	return all[page : page+bytes : page+bytes]
}

func axes(sizes, strides []int64) (a cpu.Axis) {
	a.Rank, a.Length = int64(len(sizes)), 1
	for i := range sizes {
		a.Length *= sizes[i]
		a.Sizes[i], a.Strides[i] = sizes[i], strides[i]
	}
	return a
}

func offsetOf(a *cpu.Axis, i int64) (o int64) {
	for d := a.Rank - 1; d >= 0; d-- {
		o += i % a.Sizes[d] * a.Strides[d]
		i /= a.Sizes[d]
	}
	return o
}

// Operands of any axes and strides are packed, and products of small integers are exact, by crews
// of any size and cuts of any kind, where every array lies between pages that nobody may touch;
// nothing between a result's rows is written.
func TestCrewsAmongFences(t *testing.T) {
	forEachEngine(t, func(t *testing.T, e *cpu.Engine) {
		random := rand.New(rand.NewPCG(4, 4))
		for formNumber, dt := range packedTypes {
			form := cpu.Form(formNumber)
			lw, rw := e.Widths(form)
			if lw == 0 {
				continue
			}
			size, sumSize := dt.Size(), dt.Accumulator().Size()
			for turn := range 60 {
				t.Run(fmt.Sprint(form, turn), func(t *testing.T) {
					pick := func(list ...int64) int64 { return list[random.IntN(len(list))] }
					split := func(n int64) []int64 {
						if d := pick(2, 3, 4, 5, 7, 16); random.IntN(3) == 0 && n%d == 0 && n > d {
							return []int64{n / d, d}
						}
						return []int64{n}
					}
					operand := func(rows, depth int64) (o cpu.Operand, memory []byte) {
						r, c := split(rows), split(depth)
						all := append(append([]int64{}, r...), c...)
						strides := make([]int64, len(all))
						order := random.Perm(len(all))
						if random.IntN(2) == 0 { // rows or depth innermost
							for i := range order {
								order[i] = len(all) - 1 - i
							}
							if random.IntN(2) == 0 {
								order = append(order[len(c):], order[:len(c)]...)
							}
						}
						step := size
						for n, d := range order {
							strides[d] = step
							step *= all[d]
							if n > 0 || random.IntN(4) == 0 {
								step += size * int64(random.IntN(3))
							}
						}
						total := size
						for d := range all {
							total += (all[d] - 1) * strides[d]
						}
						o = cpu.Operand{Rows: axes(r, strides[:len(r)]), Columns: axes(c, strides[len(r):])}
						memory = fenced(t, total, random.IntN(2) == 0)
						for i := range memory {
							memory[i] = 0xff
						}
						return o, memory
					}
					rows := pick(1, 5, 8, 15, 16, 17, 24, 33, 64, 84, 129, 168, 200)
					columns := pick(1, 7, 16, 24, 31, 32, 33, 48, 64, 65, 96, 144, 200)
					depth := pick(1, 2, 3, 16, 31, 32, 33, 64, 65, 130, 200, 300, 600)
					l, lm := operand(rows, depth)
					r, rm := operand(columns, depth)
					row, first := random.Int64N(rows), random.Int64N(depth)
					if random.IntN(2) == 0 {
						row, first = 0, 0
					}
					// the left part's rows are the matrix's last ones, or whole panels of it
					l.Row, l.Count, l.First, l.Depth = row, rows-row, first, depth-first
					if whole := (rows - row) / lw * lw; whole > 0 && random.IntN(2) == 0 {
						l.Count = whole
					}
					r.Row, r.Count, r.First, r.Depth = 0, columns, first, depth-first
					lv, rv := make([]float64, rows*depth), make([]float64, columns*depth)
					fill := func(o *cpu.Operand, m []byte, v []float64, n int64) {
						for i := range n {
							for k := range depth {
								v[i*depth+k] = float64(random.IntN(7) - 3)
								optest.Put(dt, unsafe.Add(at(m), offsetOf(&o.Rows, i)+offsetOf(&o.Columns, k)), v[i*depth+k])
							}
						}
					}
					fill(&l, lm, lv, rows)
					fill(&r, rm, rv, columns)
					l.Form, r.Form, l.Width, r.Width, l.Left = form, form, lw, rw, 1
					units := form.Words(l.Depth)
					lp, rp := (l.Count+lw-1)/lw, (r.Count+rw-1)/rw
					end := random.IntN(2) == 0
					to := func(panels, width int64) []byte { return fenced(t, panels*width*units*sumSize, end) }
					left := &cpu.Packing{Operand: operands{&l}, From: addresses{at(lm)}, To: at(to(lp, lw)), Smallest: make([]int16, lp)}
					right := &cpu.Packing{Operand: operands{&r}, From: addresses{at(rm)}, To: at(to(rp, rw)), Smallest: make([]int16, rp)}
					share := func(members int64, call func(c *cpu.Crew)) {
						crew := &cpu.Crew{Members: members}
						var all sync.WaitGroup
						// those who come when all are there find nothing to do
						for range members + 2 {
							all.Go(func() { call(crew) })
						}
						all.Wait()
					}
					together := random.IntN(2) == 0 // packed and multiplied in one call
					if !together {
						share(3, func(c *cpu.Crew) { packInto(e, c, left, right) })
						left, right = packed(left), packed(right)
					}
					store, _ := e.Kernel("epilogue_none_" + dt.Short())
					add, _ := e.Kernel("add_" + dt.Short())
					width := rw * pick(4, 8) // whole groups
					members := pick(1, 2, 3, 5)
					m, n := l.Count, columns
					cut := &cpu.Cut{RowUnit: lw * pick(1, 2), ColumnUnit: width, RowByRow: pick(0, 1)}
					down, across := (m+cut.RowUnit-1)/cut.RowUnit, (n+width-1)/width
					cut.Down, cut.Across = 1+random.Int64N(down), 1+random.Int64N(across)
					height := (down + cut.Down - 1) / cut.Down * cut.RowUnit
					width *= (across + cut.Across - 1) / cut.Across
					cut.Scratch = height * width * sumSize
					contiguous := func(a *cpu.Axis) bool { return a.Rank == 1 && a.Strides[0] == size }
					switch {
					case together && m <= 8 && (contiguous(&r.Rows) || contiguous(&r.Columns)) && random.IntN(3) > 0:
						width = inPlace(cut, n, pick(16, 32, 64, 256)*form.Words(2), sumSize)
						if form.Tiles() && contiguous(&r.Columns) {
							l.Left = 0
						}
						right.To = nil
					case together && random.IntN(2) == 0:
						width = inStrips(cut, m, n, lw, rw, units*sumSize, sumSize)
					}
					ld, step := n+int64(random.IntN(3)), int64(1)
					if random.IntN(4) == 0 {
						ld, step = 2*n, 2
					}
					out := fenced(t, ((m-1)*ld+(n-1)*step+1)*size, end)
					for i := range out {
						out[i] = 0xa5
					}
					bias := fenced(t, n*size, end)
					block := &cpu.Tile{
						Form: form, Units: units, Rows: m, Columns: n, Stride: width, First: 1, Last: 1, Size: size, SumSize: sumSize, BiasStride: size, Add: add, Store: store,
						Value: store, Exchanged: int64(turn % 2),
					}
					block.Out = cpu.Result{Rows: axisOf(m, ld*size), ColumnStride: step * size}
					biasAt := at(bias)
					if random.IntN(2) == 0 {
						biasAt = nil
						block.Plain = 1
						if size != sumSize || step != 1 {
							block.Plain = 0
						}
					}
					sums := fenced(t, members*cut.Scratch, end)
					share(members, func(c *cpu.Crew) {
						e.Product(c, left, right, block, cut, at(sums), at(out), nil, biasAt)
					})
					seen := make([]bool, len(out))
					for i := range m {
						for j := range n {
							want := 0.
							for k := first; k < depth; k++ {
								want += lv[(row+i)*depth+k] * rv[j*depth+k]
							}
							rounded := exactly(8)
							optest.Put(dt, at(rounded), want)
							p := (i*ld + j*step) * size
							if got := optest.Get(dt, at(out[p:])); got != optest.Get(dt, at(rounded)) {
								t.Fatalf("%d %d %d row %d first %d: %d %d: %v, want %v", m, n, depth, row, first, i, j, got, want)
							}
							for b := range size {
								seen[p+b] = true
							}
						}
					}
					for i := range out {
						if !seen[i] && out[i] != 0xa5 {
							t.Fatalf("byte %d between rows written", i)
						}
					}
				})
			}
		}
	})
}

// inStrips changes a cut to strips of at most as many panels as they may have, that pack an
// operand's panels for themselves, and returns the columns that have sums.
func inStrips(c *cpu.Cut, rows, columns, leftWidth, rightWidth, panelRow, sumSize int64) int64 {
	up := func(n, unit int64) int64 { return (n + unit - 1) / unit }
	units, panel := up(columns, c.ColumnUnit), rightWidth
	height, unit := up(rows, c.RowUnit)*c.RowUnit, c.ColumnUnit
	if c.RowByRow == 1 {
		units, panel, unit = up(rows, c.RowUnit), leftWidth, c.RowUnit
	}
	strips := up(units, cpu.StripPanels*panel/unit)
	strip := up(units, strips) * unit
	width := strip
	c.Down, c.Across = 1, strips
	if c.RowByRow == 1 {
		c.Down, c.Across = strips, 1
		height, width = strip, up(columns, c.ColumnUnit)*c.ColumnUnit
	}
	c.Panels = height * width * sumSize
	c.Scratch = c.Panels + strip*panelRow
	return width
}

// inPlace changes a cut to strips of few rows, whose right operand is not packed, and returns the
// columns that have sums.
func inPlace(c *cpu.Cut, columns, round, sumSize int64) int64 {
	const unit, most = 2 * cpu.Group, 8
	units := (columns + unit - 1) / unit
	strips := min(units, 3)
	width := (units + strips - 1) / strips * unit
	*c = cpu.Cut{Down: 1, Across: strips, RowUnit: most, ColumnUnit: unit, Round: round, Scratch: 2 * most * width * sumSize}
	return width
}
