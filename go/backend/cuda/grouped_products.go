//go:build cgo

package cuda

import "github.com/epigrad/epigrad/go/tensor"

// plainProduct adds out[r] = left[r] right[e] + bias[e] for the rows r of each group e, with right
// operands [e, depth, columns], of any strides, and on any processor; or, onto out, adds that to
// it. Rows of the left operand may be those of tokens.
func (b *builder) plainProduct(left, right, bias, out, ends *tensor.View, onto bool) {
	rows, columns, groups := out.Shape[0], out.Shape[1], ends.Shape[0]
	if rows*columns == 0 || groups == 0 {
		return
	}
	across := ceilDiv(columns, groupedTile)
	p := &parameters{}
	p.strided(left, none, 0, 1)
	p.strided(right, 0, 1, 2)
	p.strided(bias, 0, none, 1)
	p.strided(out, none, 0, 1)
	p.address(ends)
	p.address(b.indexOf(left))
	p.int64(columns)
	p.int64(left.Shape[1])
	p.divisor(across)
	p.int64(0)
	p.sizes(groups)
	p.bool(onto)
	b.general(p, "grouped_product_"+b.dt.Short(), (rows/groupedTile+groups)*across)
}

// plainDepth adds out[e] = leftᵀ right of the rows of each group e, or adds that to out, likewise.
// Rows of either operand may be those of tokens.
func (b *builder) plainDepth(left, right, out, ends *tensor.View) {
	if b.indexOf(left) != nil {
		left, right, out = right, left, tensor.Exchanged(out, 1, 2)
	}
	groups, rows, columns := out.Shape[0], out.Shape[1], out.Shape[2]
	if groups*rows*columns == 0 {
		return
	}
	down, across := ceilDiv(rows, groupedTile), ceilDiv(columns, groupedTile)
	p := &parameters{}
	p.strided(left, none, 0, 1)
	p.strided(right, none, 0, 1)
	p.strided(nil, none, none, none)
	p.strided(out, 0, 1, 2)
	p.address(ends)
	p.address(b.indexOf(right))
	p.int64(columns)
	p.int64(rows)
	p.divisor(across)
	p.int64(down)
	p.sizes(groups)
	function := "grouped_depth_" + b.dt.Short()
	if b.isFloat(out) {
		function += "_f32"
	}
	p.accumulate(true)
	b.general(p, function, groups*down*across)
}
