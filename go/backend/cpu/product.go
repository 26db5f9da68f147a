package cpu

import (
	"unsafe"

	"gonum.org/v1/gonum/blas"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// A product is computed tile by tile: at most tileRows x tileColumns of the result, the depth in steps of tileDepth. A tile is one gonum block high and two
// wide, so that gonum stays on the calling goroutine (it starts its own for four blocks or more). The depth's steps fix the order of every sum.
const (
	tileRows    = 64
	tileColumns = 128
	tileDepth   = 256
	// leastTileRows is the height of the tiles of a small result, which is cut finer for the sake of threads.
	leastTileRows = 16
	enoughTiles   = 8
	// packedDepth is the most elements between packed rows: no power of two, so that rows do not fall on the same cache sets.
	packedDepth = tileDepth + 16
	// strips is how many strips are turned at a time while packing.
	strips = 16
)

// axis is one logical index of an operand: dimensions walked in row-major order as one.
type axis struct {
	sizes, strides []int64 // bytes; neighbours that are walked as one are merged
	length         int64
}

func newAxis(shape, strides []int64, elementSize int64) axis {
	a := axis{length: 1}
	for d, n := range shape {
		a.length *= n
		if n == 1 {
			continue
		}
		stride := strides[d] * elementSize
		if last := len(a.sizes) - 1; last >= 0 && a.strides[last] == stride*n {
			a.sizes[last] *= n
			a.strides[last] = stride
			continue
		}
		a.sizes, a.strides = append(a.sizes, n), append(a.strides, stride)
	}
	if len(a.sizes) == 0 {
		a.sizes, a.strides = []int64{1}, []int64{0}
	}
	return a
}

// uniform reports whether all steps are equal, and that step.
func (a *axis) uniform() (stride int64, ok bool) { return a.strides[0], len(a.sizes) == 1 }

// offset returns the bytes from the axis's start to an index.
func (a *axis) offset(index int64) (bytes int64) {
	for d := len(a.sizes) - 1; d >= 0; d-- {
		bytes += index % a.sizes[d] * a.strides[d]
		index /= a.sizes[d]
	}
	return bytes
}

// matrix is an operand seen as rows x columns for every index of the batch.
type matrix struct {
	view          *tensor.View
	rows, columns axis
	batch         []int64 // byte strides
}

// newMatrix views [batch..., rows..., columns...], of so many batch dimensions and rows. It is nil
// for an absent operand.
func newMatrix(v *tensor.View, batch, rows int) *matrix {
	if v == nil {
		return nil
	}
	size, first := v.DType.Size(), batch+rows
	m := &matrix{
		view:    v,
		rows:    newAxis(v.Shape[batch:first], v.Strides[batch:first], size),
		columns: newAxis(v.Shape[first:], v.Strides[first:], size),
		batch:   make([]int64, batch),
	}
	for d := range m.batch {
		m.batch[d] = v.Strides[d] * size
	}
	return m
}

// resultOf is a result of a product, or its bias, which has the same rows and columns; nil if absent.
func resultOf(p *lower.Product, operand int) *matrix {
	return newMatrix(p.Result(operand), len(p.Batch), len(p.M))
}

// transposed exchanges rows and columns.
func (m *matrix) transposed() *matrix {
	return &matrix{view: m.view, rows: m.columns, columns: m.rows, batch: m.batch}
}

// at returns the address of a batch item's element [0, 0].
func (m *matrix) at(r *backend.Run, index []int64) unsafe.Pointer {
	p := r.At(m.view)
	for d, stride := range m.batch {
		p = unsafe.Add(p, index[d]*stride)
	}
	return p
}

// product is result[i, j] = sum over l of left[i, l] right[j, l], for every item of the kept batch, summed over the items of the other batch dimensions.
type product struct {
	dt           dtype.DType
	left, right  *matrix
	kept, summed []int64 // sizes of the batch dimensions, which the operands have in this order
	blas         *level3
}

func newProduct(b *level3, p *lower.Product) *product {
	summed, depth := p.K[:p.Summed], p.K[p.Summed:]
	left, right := p.View(lower.Left, p.Batch, summed, p.M, depth), p.View(lower.Right, p.Batch, summed, p.N, depth)
	kept, batch := len(p.Batch), len(p.Batch)+p.Summed
	return &product{
		dt: left.DType, left: newMatrix(left, batch, len(p.M)), right: newMatrix(right, batch, len(p.N)),
		kept: left.Shape[:kept], summed: left.Shape[kept:batch], blas: b,
	}
}

// level3 is the seam to a BLAS library: gonum's interfaces, and whoever implements them.
type level3 struct {
	name string // of the library, for Sku
	f32  blas.Float32Level3
	f64  blas.Float64Level3
}

// routine names what multiplies, for Sku.
func (b *level3) routine(accumulator dtype.DType) string {
	if accumulator == dtype.Float64 {
		return b.name + ".Dgemm"
	}
	return b.name + ".Sgemm"
}

// multiply adds left rightᵀ to acc (row stride tileColumns). The form with a transposed right operand is gonum's only one that multiplies by every zero,
// so that 0 * inf is NaN as it should be.
func multiply[T real](b *level3, m, n, k int, left, right []T, ld int, acc []T) {
	if unsafe.Sizeof(T(0)) == 8 {
		b.f64.Dgemm(blas.NoTrans, blas.Trans, m, n, k, 1, as[float64](left), ld, as[float64](right), ld, 1, as[float64](acc), tileColumns)
		return
	}
	b.f32.Sgemm(blas.NoTrans, blas.Trans, m, n, k, 1, as[float32](left), ld, as[float32](right), ld, 1, as[float32](acc), tileColumns)
}

// as returns a slice under the type that T is known to be.
func as[To, T real](s []T) []To { return *(*[]To)(unsafe.Pointer(&s)) }

// scratch is what one goroutine needs for tiles of accumulator type T. The packed operands start on a page and their rows on 64 bytes: gonum's dot product
// treats the head of a misaligned row apart, and results must not depend on where buffers happen to lie.
type scratch[T real] struct {
	left, right, acc, strip []T
	index                   []int64
}

func newScratch[T real](batchRank int) *scratch[T] {
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

// tile is a rectangle of a result, its values in acc with row stride tileColumns.
type tile[T real] struct {
	batch         []int64
	row, column   int64
	rows, columns int
	acc           []T
}

// line returns the values of a row.
func (t *tile[T]) line(row int) []T { return t.acc[row*tileColumns : row*tileColumns+t.columns] }

// grid is how a result is cut into tiles: batch items x row tiles x column tiles. It depends on the result's shape alone.
type grid struct {
	batch         []int64
	rows, columns int64
	tileRows      int64
	work          int64 // multiply-adds, about
}

// newGrid cuts a result whose elements cost elementWork multiply-adds each.
func newGrid(batch []int64, rows, columns, elementWork int64) grid {
	g := grid{batch, rows, columns, tileRows, tensor.Elements(batch) * rows * columns * elementWork}
	for g.work > goroutineWork && g.tileRows > leastTileRows && g.panels()*g.columnTiles() < enoughTiles {
		g.tileRows /= 2
	}
	return g
}

func (g *grid) rowTiles() int    { return int((g.rows + g.tileRows - 1) / g.tileRows) }
func (g *grid) columnTiles() int { return int((g.columns + tileColumns - 1) / tileColumns) }

// panels is how many tiles there are in a column of them, over the whole batch.
func (g *grid) panels() int { return int(tensor.Elements(g.batch)) * g.rowTiles() }

// place sets a tile's position: the panel is batch item x row tile, in that order.
func place[T real](g *grid, s *scratch[T], panel, columnTile int) tile[T] {
	t := tile[T]{
		batch: s.index[:len(g.batch)],
		row:   int64(panel%g.rowTiles()) * g.tileRows, column: int64(columnTile) * tileColumns, acc: s.acc,
	}
	unravel(t.batch, g.batch, panel/g.rowTiles())
	t.rows = int(min(g.tileRows, g.rows-t.row))
	t.columns = int(min(tileColumns, g.columns-t.column))
	return t
}

func unravel(index, sizes []int64, linear int) {
	for d := len(sizes) - 1; d >= 0; d-- {
		index[d] = int64(linear) % sizes[d]
		linear /= int(sizes[d])
	}
}

func (p *product) grid() grid {
	return newGrid(p.kept, p.left.rows.length, p.right.rows.length, p.depth()*tensor.Elements(p.summed))
}

func (p *product) depth() int64 { return p.left.columns.length }

// forEachTile computes the result tile by tile and hands each to sink.
func forEachTile[T real](p *product, r *backend.Run, sink func(s *scratch[T], t *tile[T])) error {
	g := p.grid()
	panels, columnTiles := g.panels(), g.columnTiles()
	pool := newPool[T](len(p.kept) + len(p.summed))
	return parallel(panels*columnTiles, r.Threads, g.work, func(task int) {
		s := pool.get()
		defer pool.put(s)
		t := place(&g, s, task/columnTiles, task%columnTiles)
		computeTile(p, r, s, &t)
		sink(s, &t)
	})
}

// computeTile forms one tile of the result in its accumulators.
func computeTile[T real](p *product, r *backend.Run, s *scratch[T], t *tile[T]) {
	clear(t.acc[:t.rows*tileColumns])
	if p.depth() == 0 {
		return // the operands have no elements, hence no addresses
	}
	index := s.index[:len(p.kept)+len(p.summed)] // begins with t.batch
	for item := range int(tensor.Elements(p.summed)) {
		unravel(index[len(p.kept):], p.summed, item)
		left, right := p.left.at(r, index), p.right.at(r, index)
		for l, depth := int64(0), p.depth(); l < depth; l += tileDepth {
			k := int(min(tileDepth, depth-l))
			ld := (k+15)&^15 + 16
			pack(s.left, ld, left, p.left, t.row, t.rows, l, k, p.dt, s.strip)
			pack(s.right, ld, right, p.right, t.column, t.columns, l, k, p.dt, s.strip)
			multiply(p.blas, t.rows, t.columns, k, s.left, s.right, ld, t.acc)
		}
	}
}

// pack copies rows x columns of a matrix, from (row, column) on, to dst with row stride ld, converting on the way. It walks memory along the axis
// with the shorter step.
func pack[T real](dst []T, ld int, base unsafe.Pointer, m *matrix, row int64, rows int, column int64, columns int, dt dtype.DType, strip []T) {
	rowStep, evenRows := m.rows.uniform()
	columnStep, evenColumns := m.columns.uniform()
	alongRows := evenRows && (!evenColumns || magnitude(rowStep) < magnitude(columnStep))
	switch {
	case alongRows:
		// Strips along the rows are turned a few at a time, so that what is written is whole cache lines.
		for first := 0; first < columns; first += strips {
			count := min(strips, columns-first)
			for c := range count {
				from := unsafe.Add(base, m.columns.offset(column+int64(first+c))+row*rowStep)
				load(strip[c*tileColumns:c*tileColumns+rows], from, rowStep, dt)
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
			from := unsafe.Add(base, m.rows.offset(row+int64(i))+column*columnStep)
			load(dst[i*ld:i*ld+columns], from, columnStep, dt)
		}
	default:
		for i := range rows {
			for c := range columns {
				from := unsafe.Add(base, m.rows.offset(row+int64(i))+m.columns.offset(column+int64(c)))
				load(dst[i*ld+c:i*ld+c+1], from, dt.Size(), dt)
			}
		}
	}
}

func magnitude(x int64) int64 { return max(x, -x) }
