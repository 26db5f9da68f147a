package reference

import (
	"slices"
	"sync"
	"unsafe"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/elements"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// A product is computed tile by tile: at most tileRows x tileColumns of the result, the depth in
// steps of tileDepth. A tile is one gonum block high and two wide, so that gonum stays on the
// calling goroutine (it starts its own for four blocks or more). The depth's steps fix the order of
// every sum.
const (
	tileRows    = 64
	tileColumns = 128
	tileDepth   = 256
	// leastTileRows is the height of the tiles of a small result, which is cut finer for the sake
	// of threads.
	leastTileRows = 16
	enoughTiles   = 8
	// packedDepth is the most elements between packed rows: no power of two, so that rows do not
	// fall on the same cache sets.
	packedDepth = tileDepth + 16
	// strips is how many strips are turned at a time while packing.
	strips = 16
)

// routine names what multiplies, for Sku.
func routine(accumulator dtype.DType) string {
	if accumulator == dtype.Float64 {
		return "gonum.Dgemm"
	}
	return "gonum.Sgemm"
}

// multiply adds left rightᵀ to acc (row stride tileColumns). The form with a transposed right
// operand is gonum's only one that multiplies by every zero, so that 0 * inf is NaN as it should
// be.
func multiply[T elements.Real](m, n, k int, left, right []T, ld int, acc []T) {
	if unsafe.Sizeof(T(0)) == 8 {
		gonum.Implementation{}.Dgemm(blas.NoTrans, blas.Trans, m, n, k, 1, as[float64](left), ld, as[float64](right), ld, 1, as[float64](acc), tileColumns)
		return
	}
	gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, m, n, k, 1, as[float32](left), ld, as[float32](right), ld, 1, as[float32](acc), tileColumns)
}

// as returns a slice under the type that T is known to be.
func as[To, T elements.Real](s []T) []To { return *(*[]To)(unsafe.Pointer(&s)) }

// scratch is a goroutine's memory for tiles of accumulator type T. The packed operands start on
// a page and their rows on 64 bytes: gonum's dot product treats the head of a misaligned row apart,
// and results must not depend on where buffers happen to lie.
type scratch[T elements.Real] struct {
	left, right, acc, strip []T
	index                   []int64
}

func newScratch[T elements.Real](batchRank int) *scratch[T] {
	buffer := make([]T, (tileRows+tileColumns)*packedDepth+tileRows*tileColumns+strips*tileColumns)
	cut := func(n int) (part []T) {
		part, buffer = buffer[:n], buffer[n:]
		return part
	}
	return &scratch[T]{
		left: cut(tileRows * packedDepth), right: cut(tileColumns * packedDepth), acc: cut(tileRows * tileColumns), strip: cut(strips * tileColumns),
		index: make([]int64, batchRank),
	}
}

// pool hands out scratch, which is large, so that calls do not allocate it anew.
type pool[T elements.Real] struct {
	free      *sync.Pool
	batchRank int
}

var freeFloat32, freeFloat64 sync.Pool

func newPool[T elements.Real](batchRank int) pool[T] {
	free := &freeFloat32
	if unsafe.Sizeof(T(0)) == 8 {
		free = &freeFloat64
	}
	return pool[T]{free, batchRank}
}

func (p *pool[T]) get() *scratch[T] {
	if s, ok := p.free.Get().(*scratch[T]); ok {
		s.index = slices.Grow(s.index[:0], p.batchRank)[:p.batchRank]
		return s
	}
	return newScratch[T](p.batchRank)
}

func (p *pool[T]) put(s *scratch[T]) { p.free.Put(s) }

// tile is a rectangle of a result, its values in acc with row stride tileColumns.
type tile[T elements.Real] struct {
	batch         []int64
	row, column   int64
	rows, columns int
	acc           []T
}

// line returns the values of a row.
func (t *tile[T]) line(row int) []T { return t.acc[row*tileColumns : row*tileColumns+t.columns] }

// grid is how a result is cut into tiles: batch items x row tiles x column tiles. It depends on the
// result's shape alone.
type grid struct {
	batch         []int64
	rows, columns int64
	tileRows      int64
	work          int64 // multiply-adds, about
}

// newGrid cuts a result whose elements cost elementWork multiply-adds each.
func newGrid(batch []int64, rows, columns, elementWork int64) grid {
	g := grid{batch, rows, columns, tileRows, tensor.Elements(batch) * rows * columns * elementWork}
	for g.work > threads.TaskWork && g.tileRows > leastTileRows && g.panels()*g.columnTiles() < enoughTiles {
		g.tileRows /= 2
	}
	return g
}

func (g *grid) rowTiles() int    { return int((g.rows + g.tileRows - 1) / g.tileRows) }
func (g *grid) columnTiles() int { return int((g.columns + tileColumns - 1) / tileColumns) }

// panels is how many tiles there are in a column of them, over the whole batch.
func (g *grid) panels() int { return int(tensor.Elements(g.batch)) * g.rowTiles() }

// place sets a tile's position: the panel is batch item x row tile, in that order.
func place[T elements.Real](g *grid, s *scratch[T], panel, columnTile int) tile[T] {
	t := tile[T]{
		batch: s.index[:len(g.batch)],
		row:   int64(panel%g.rowTiles()) * g.tileRows, column: int64(columnTile) * tileColumns, acc: s.acc,
	}
	layout.Unravel(t.batch, g.batch, int64(panel/g.rowTiles()))
	t.rows = int(min(g.tileRows, g.rows-t.row))
	t.columns = int(min(tileColumns, g.columns-t.column))
	return t
}

// gridOf cuts a product's result.
func gridOf(p *layout.Product) grid {
	return newGrid(p.Kept, p.Left.Rows.Length, p.Right.Rows.Length, p.Terms())
}

// forEachTile computes the result tile by tile and hands each to sink.
func forEachTile[T elements.Real](p *layout.Product, r *backend.Run, sink func(s *scratch[T], t *tile[T])) error {
	g := gridOf(p)
	panels, columnTiles := g.panels(), g.columnTiles()
	pool := newPool[T](len(p.Kept) + len(p.Summed))
	return threads.Parallel(panels*columnTiles, r.Threads, g.work, func(task int) {
		s := pool.get()
		defer pool.put(s)
		t := place(&g, s, task/columnTiles, task%columnTiles)
		computeTile(p, r, s, &t)
		sink(s, &t)
	})
}

// computeTile forms one tile of the result in its accumulators, pair by pair.
func computeTile[T elements.Real](p *layout.Product, r *backend.Run, s *scratch[T], t *tile[T]) {
	clear(t.acc[:t.rows*tileColumns])
	for ; p != nil; p = p.Next {
		if p.Depth() > 0 { // else the operands have no elements, hence no addresses
			addPair(p, r, s, t)
		}
	}
}

// addPair adds one pair's sums to a tile.
func addPair[T elements.Real](p *layout.Product, r *backend.Run, s *scratch[T], t *tile[T]) {
	index := s.index[:len(p.Kept)+len(p.Summed)] // begins with t.batch
	for item := range int(tensor.Elements(p.Summed)) {
		layout.Unravel(index[len(p.Kept):], p.Summed, int64(item))
		left, right := p.Left.At(r, index), p.Right.At(r, index)
		for l, depth := int64(0), p.Depth(); l < depth; l += tileDepth {
			k := int(min(tileDepth, depth-l))
			ld := (k+15)&^15 + 16
			pack(s.left, ld, left, p.Left, t.row, t.rows, l, k, p.DType, s.strip)
			pack(s.right, ld, right, p.Right, t.column, t.columns, l, k, p.DType, s.strip)
			multiply(t.rows, t.columns, k, s.left, s.right, ld, t.acc)
		}
	}
}

// pack copies rows x columns of a matrix, from (row, column) on, to dst with row stride ld,
// converting on the way. It walks memory along the axis with the shorter step.
func pack[T elements.Real](dst []T, ld int, base unsafe.Pointer, m *layout.Matrix, row int64, rows int, column int64, columns int, dt dtype.DType, strip []T) {
	rowStep, evenRows := m.Rows.Uniform()
	columnStep, evenColumns := m.Columns.Uniform()
	alongRows := evenRows && (!evenColumns || magnitude(rowStep) < magnitude(columnStep))
	switch {
	case alongRows:
		// Strips along the rows are turned a few at a time, so that what is written is whole cache
		// lines.
		for first := 0; first < columns; first += strips {
			count := min(strips, columns-first)
			for c := range count {
				from := unsafe.Add(base, m.Columns.Offset(column+int64(first+c))+row*rowStep)
				elements.Load(strip[c*tileColumns:c*tileColumns+rows], from, rowStep, dt)
			}
			for i := range rows {
				line := dst[i*ld+first : i*ld+first+count]
				for c := range line {
					line[c] = strip[c*tileColumns+i]
				}
			}
		}
	case evenColumns:
		for i := range rows {
			from := unsafe.Add(base, m.Rows.Offset(row+int64(i))+column*columnStep)
			elements.Load(dst[i*ld:i*ld+columns], from, columnStep, dt)
		}
	default:
		for i := range rows {
			for c := range columns {
				from := unsafe.Add(base, m.Rows.Offset(row+int64(i))+m.Columns.Offset(column+int64(c)))
				elements.Load(dst[i*ld+c:i*ld+c+1], from, dt.Size(), dt)
			}
		}
	}
}

func magnitude(x int64) int64 { return max(x, -x) }
