//go:build cgo

package cuda

import (
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// tileProgram is a program whose kernels multiply by tiles of a result, and have the epilogue
// inside.
type tileProgram struct {
	name, groupPrefix string // in kernels' names
	groups            int64  // the most that it takes
	rows              int64  // of a tile of groups
	partsOfColumns    int64  // sums along columns that a tile has
	partsOfRows       int64  // and along its rows
	// what it takes: a matrix of rows, one of rows that belong to groups, and weights
	takesMatrix func(m *matrix) bool
	takesRows   func(v *tensor.View) bool
	takesWeight func(w *weight) bool
	add         func(l *productLaunch, b *builder, function string)
}

// The programs, the faster one first.
var (
	sm90 = &tileProgram{
		name: "sm90", groupPrefix: "grouped_", groups: mostGroups, rows: groupedTileRows, partsOfColumns: 1, partsOfRows: 4,
		takesMatrix: (*matrix).boxable, takesRows: isBoxable, takesWeight: (*weight).isBoxable, add: (*productLaunch).addSM90,
	}
	sm80 = &tileProgram{
		name: "sm80", groups: raggedRows, rows: sm80Tile, partsOfColumns: 2, partsOfRows: 2,
		takesMatrix: (*matrix).isNear, takesRows: isNear, takesWeight: (*weight).isNear, add: (*productLaunch).addSM80,
	}
)

// runs reports whether a program multiplies this problem's dtype on this device.
func (b *builder) runs(t *tileProgram) bool {
	switch {
	case b.blasAlone:
		return false
	case t == sm90:
		return b.boxes && b.dt.IsHalf()
	default:
		return b.dt.IsHalf() || b.dt == dtype.Float32 && b.allowsTF32
	}
}

// hasGroups reports whether a program can multiply this number of rows in these groups.
func (b *builder) hasGroups(t *tileProgram, ends *tensor.View, rows int64) bool {
	groups := ends.Shape[0]
	return b.runs(t) && 0 < groups && groups <= t.groups && 0 < rows && rows <= raggedRows
}

// takesAll reports whether a program takes all these matrices of rows; nil is one that it does.
func (t *tileProgram) takesAll(matrices ...*tensor.View) bool {
	for _, v := range matrices {
		if v != nil && !t.takesRows(v) {
			return false
		}
	}
	return true
}

// groupedKernel is a program's kernel of a family for the first of these formulas that it is
// compiled for; "" for none. How operands lie is the end of its name. Where Hopper's program has no
// kernel of a formula, its product and a pass are faster than the other program.
func (b *builder) groupedKernel(t *tileProgram, family string, formulas []string, layout string) string {
	nameOf := func(t *tileProgram, formula string) string {
		return t.groupPrefix + family + t.name + "_" + formula + "_" + b.dt.Short() + "_" + layout
	}
	for _, formula := range formulas {
		if b.device.compiled(nameOf(t, formula)) && (!b.runs(sm90) || b.device.compiled(nameOf(sm90, formula))) {
			return nameOf(t, formula)
		}
	}
	return ""
}

// byTiles adds the launch of a program, nil where it has none, or else what is done otherwise.
// Hopper's program takes the runs whose addresses boxes can start at, the other one takes any.
func (b *builder) byTiles(launchOf func(t *tileProgram) func(), otherwise func()) {
	b.either(launchOf(sm90), func() {
		if launch := launchOf(sm80); launch != nil {
			launch()
			return
		}
		otherwise()
	})
}

// rowMatrix is a tensor as a matrix of rows; of nil there is none.
type rowMatrix struct {
	view *tensor.View
	matrix
}

// rowMatrixOf is a tensor as rows and columns, if a program takes it. All programs take nil.
func (t *tileProgram) rowMatrixOf(v *tensor.View) (all rowMatrix, ok bool) {
	if v == nil {
		return all, true
	}
	strides, ok := rowsAndColumns(v)
	last := v.Rank() - 1
	all = rowMatrix{v, matrix{tensor.Elements(v.Shape[:last]), strides[0], v.Shape[last], strides[1]}}
	return all, ok && t.takesMatrix(&all.matrix)
}

// takes gives a launch tensors of the result's shape, and tells whether the program takes all.
func (t *tileProgram) takes(places []rowMatrix, tensors ...*tensor.View) bool {
	for i, v := range tensors {
		var fits bool
		if places[i], fits = t.rowMatrixOf(v); !fits {
			return false
		}
	}
	return true
}

// rowsOf is a matrix of rows that belong to groups.
func rowsOf(v *tensor.View) rowMatrix {
	if v == nil {
		return rowMatrix{}
	}
	return rowMatrix{v, matrix{v.Shape[0], v.Strides[0], v.Shape[1], v.Strides[1]}}
}

// weight is a matrix for each group: `inner` is contiguous.
type weight struct {
	view                     *tensor.View
	inner, outer, groups     int64
	outerStride, groupStride int64
	boxRows                  int64 // of Hopper's program, where it is not operandRows
}

// weightOf describes a tensor [e, rows, columns]: `across` if its columns are contiguous, else its
// rows are.
func (t *tileProgram) weightOf(v *tensor.View) (w *weight, across, ok bool) {
	rows, columns := v.Shape[1], v.Shape[2]
	w = &weight{view: v, groups: v.Shape[0], groupStride: v.Strides[0]}
	switch across = v.Strides[2] == 1; {
	case across:
		w.inner, w.outer, w.outerStride = columns, rows, v.Strides[1]
	case v.Strides[1] == 1:
		w.inner, w.outer, w.outerStride = rows, columns, v.Strides[2]
	default:
		return w, false, false
	}
	return w, across, !v.IsEmpty() && max(rows, columns) <= raggedRows && t.takesWeight(w)
}

// weight is the right operand of a product that onePassOf accepts, as the weight of a single group,
// whose stride does not matter.
func (o *onePass) weight() *weight {
	m := o.right
	return &weight{view: o.views[lower.Right], inner: m.columns, outer: m.rows, groups: 1, outerStride: m.rowStride, groupStride: m.rowStride}
}

// product is one of those that a kernel adds up: rows, and their weight, or the value's and the
// gate's.
type product struct {
	weights [2]*weight
	rows    rowMatrix
}

// productLaunch is a launch of a tile program; what is nil is absent.
type productLaunch struct {
	pairs   [2]product
	inputs  [2]rowMatrix
	outputs [3]rowMatrix
	// the depth kind's left operand, beside the first pair's rows, and what it has for outputs
	left   rowMatrix
	result *weight
	// nil where all rows are of one group, or each row is in its place
	ends, tokens                *tensor.View
	tokensOfLeft                bool // of the depth kind: else of the right operand
	biases                      [2]*tensor.View
	scales, rowSums, columnSums *tensor.View
	rows, columns               int64
	tileColumns                 int64 // of the result
	rightColumns                int64 // of the depth kind's right operand
	biasStride                  int64
	gateFirst                   bool
	adds                        bool  // a run may add to the result
	band                        int64 // tiles that are walked together

	// of Hopper's program: rows of boxes, of the pairs' rows and of inputs and outputs, how tiles
	// are walked, and the most blocks that have tiles
	pairRows, boxRows int64
	shift             int64
	blocks            int64
}

// groups is how many a launch has.
func (l *productLaunch) groups() int64 {
	if l.ends == nil {
		return 1
	}
	return l.ends.Shape[0]
}

// dense is the launch of a product with tiles of tileRows rows, and the number of tiles down a
// column. Bands of tiles have what they share in the second cache.
func (b *builder) dense(o *onePass, tileRows int64) (l *productLaunch, down int64) {
	const bandOfTiles = 16
	down = ceilDiv(o.rows, tileRows)
	columns := int64(tileColumns)
	if tileRows == fewRows {
		columns /= 2
	}
	l = &productLaunch{
		rows: o.rows, columns: o.columns, tileColumns: columns, pairRows: tileRows, boxRows: denseForwardRows, band: bandOfTiles,
		blocks: min(down*ceilDiv(o.columns, columns), int64(b.device.processors)),
	}
	for i := 0; o != nil; i, o = i+1, o.more {
		right := o.weight()
		if !o.across {
			right.boxRows = columns
		}
		l.pairs[i] = product{[2]*weight{right}, rowMatrix{o.views[lower.Left], o.left}}
	}
	return l, down
}
