//go:build cgo

package cuda

import "github.com/epigrad/epigrad/go/tensor"

// groupedProduct adds out[r] = left[r] right[e] + bias[e] for the rows r of each group e, with
// right operands [e, depth, columns].
func (b *builder) groupedProduct(left, right, bias, out, ends *tensor.View) {
	b.boxedOr(b.boxedLinear("none", left, right, bias, out, nil, ends), func() { b.plainProduct(left, right, bias, out, ends) })
}

// boxedOr adds the launch that copies boxes where there is one, and, for runs whose addresses boxes
// cannot start at, the other way.
func (b *builder) boxedOr(boxed, otherwise func()) {
	if boxed == nil {
		otherwise()
	} else {
		b.either(boxed, otherwise)
	}
}

// plainProduct is groupedProduct for any strides, and any processor.
func (b *builder) plainProduct(left, right, bias, out, ends *tensor.View) {
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
	p.int64(columns)
	p.int64(left.Shape[1])
	p.divisor(across)
	p.int64(0)
	p.sizes(groups, 0)
	b.general(p, "grouped_product_"+b.dt.Short(), (rows/groupedTile+groups)*across)
}

// groupedDepth adds out[e] = leftᵀ right of the rows of each group e, or adds that to out.
func (b *builder) groupedDepth(left, right, out, ends *tensor.View) {
	b.boxedOr(b.boxedDepth(left, right, out, ends), func() { b.plainDepth(left, right, out, ends) })
}

// plainDepth is groupedDepth for any strides, and any processor.
func (b *builder) plainDepth(left, right, out, ends *tensor.View) {
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
