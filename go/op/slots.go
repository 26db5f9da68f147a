package op

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/tensor"
)

// What rows of tokens go to which process, and what goes beside them (moves.go). Process r has the
// experts from experts[r] to experts[r+1]-1:
//
//	count_rows      counts and places, as backend.CountRows has them
//	scatter_slots   rows_index[places[t, r], j] = index[t, j] - experts[r], or -1 for others' experts
//	                rows_scale[places[t, r], j] = scale[t, j]
//
//	index and scale [T, J]; experts [R+1]; parts [C+1], the first part of each chunk; facts [F];
//	places [T, R]; counts [R, 2P+1+F], for P parts of the tokens
//
// Places are int32, other integers int64. An index that is no expert's selects nothing. All outputs
// have to be given. The scales of rows are in the accumulator's dtype.
var (
	countRows = operation{
		Signature: Signature{
			"count_rows",
			typed(check.Indices, arguments("index [T, J]", "experts [R+1]", "parts [C+1]", "facts [F]"), "index", "experts", "parts", "facts"),
			typed(check.Places, typed(check.Indices, arguments("counts [R, 2P+1+F]", "places [T, R]"), "counts"), "places"),
		},
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			index, counts, places := inputs[0], c.output(0), c.output(1)
			if err := hasSlots(c.Op, index); err != nil {
				return nil, err
			}
			ranks, err := lengthOf(c.Op, "experts", inputs[1], 1)
			if err != nil {
				return nil, err
			}
			if _, err := lengthOf(c.Op, "parts", inputs[2], 2); err != nil {
				return nil, err
			}
			facts, err := lengthOf(c.Op, "facts", inputs[3], 0)
			if err != nil {
				return nil, err
			}
			if counts == nil || places == nil {
				return nil, check.Invalid(c.Op, "outputs", "missing, want counts and places")
			}
			if counts.Rank() != 2 || counts.Shape[1] < facts+3 || (counts.Shape[1]-facts)%2 == 0 {
				return nil, check.Invalid(c.Op, "counts", "shape %s, want [R, 2P+1+F] with F = %d", check.Sizes(counts.Shape), facts)
			}
			for _, v := range []*tensor.View{counts, places} {
				if !v.IsContiguous() {
					return nil, check.Invalid(c.Op, "outputs", "strides %s, want contiguous ones", check.Sizes(v.Strides))
				}
			}
			shape := []int64{index.Shape[0], ranks - 1}
			return [][]int64{{ranks - 1, counts.Shape[1]}, shape}, countable(c.Op, "places", tensor.Elements(shape))
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			return &backend.CountRows{
				Header: h, Index: c.input(0), Experts: c.input(1), Parts: c.input(2), Facts: c.input(3), Counts: c.output(0), Places: c.output(1),
			}
		},
	}
	scatterSlots = operation{
		Signature: Signature{
			"scatter_slots",
			typed(check.Places, typed(check.Indices, arguments("index [T, J]", "scale [T, J]", "experts [R+1]", "places [T, R]"), "index", "experts"), "places"),
			typed(check.OrWider, typed(check.Indices, arguments("rows_index [S, J]", "rows_scale [S, J]"), "rows_index"), "rows_scale"),
		},
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			index, scale, rows, scales := inputs[0], inputs[1], c.output(0), c.output(1)
			if err := hasSlots(c.Op, index); err != nil {
				return nil, err
			}
			if err := check.Shape(c.Op, "scale", scale.Shape, index.Shape, "the index's"); err != nil {
				return nil, err
			}
			ranks, err := lengthOf(c.Op, "experts", inputs[2], 1)
			if err != nil {
				return nil, err
			}
			if err := hasPlaces(c.Op, index, inputs[3]); err != nil {
				return nil, err
			}
			if err := check.Shape(c.Op, "places", inputs[3].Shape, []int64{index.Shape[0], ranks - 1}, "[T, R]"); err != nil {
				return nil, err
			}
			if rows == nil || scales == nil {
				return nil, check.Invalid(c.Op, "outputs", "missing, want rows_index and rows_scale")
			}
			if rows.Rank() != 2 || rows.Shape[1] != index.Shape[1] {
				return nil, check.Invalid(c.Op, "rows_index", "shape %s, want [S, J] with J = %d", check.Sizes(rows.Shape), index.Shape[1])
			}
			if want := scale.DType.Accumulator(); scales.DType != want {
				return nil, check.Invalid(c.Op, "rows_scale", "dtype %v, want %v", scales.DType, want)
			}
			return [][]int64{rows.Shape, rows.Shape}, countable(c.Op, "rows_index", rows.Shape[0])
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			return &backend.ScatterSlots{
				Header: h, Index: c.input(0), Scale: c.input(1), Experts: c.input(2), Places: c.input(3), RowsIndex: c.output(0), RowsScale: c.output(1),
			}
		},
	}
)

// hasSlots asks for the experts of tokens.
func hasSlots(op string, index *tensor.View) error {
	if index.Rank() != 2 {
		return check.Invalid(op, "index", "shape %s, want [T, J]: the experts of each token", check.Sizes(index.Shape))
	}
	if err := exists(op, "index", index, index.Shape); err != nil {
		return err
	}
	return countable(op, "index", tensor.Elements(index.Shape))
}

// lengthOf is the length of a vector, which must be contiguous and have `least` elements or more.
func lengthOf(op, argument string, v *tensor.View, least int64) (int64, error) {
	if v.Rank() != 1 || v.Shape[0] < least || !v.IsContiguous() {
		return 0, check.Invalid(op, argument, "shape %s, want a contiguous vector of %d elements or more", check.Sizes(v.Shape), least)
	}
	return v.Shape[0], nil
}
