package op

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/tensor"
)

// Moves of rows between tokens and a buffer, in which experts of other processes get them:
//
//	count_rows      places, and how many rows there are (slots.go)
//	scatter_slots   what a token's slots are, beside its row (slots.go)
//	scatter_rows    out[places[t, r]] = input[t]
//	combine_rows    out[t]            = sum over r of input[places[t, r]]
//
//	places [T, R], contiguous; rows of tokens [T, K]; rows of the buffer [S, K]
//
// Of the last two each is the other's gradient. A place outside of 0 to S-1 is none: nothing is
// written there, and nothing is added. The sum is formed in the order of r, in the accumulator's
// dtype.
//
// Buffers that are scattered to have to be given, and one place names each row of them: what a row
// has that no place names, or two, is undefined.
//
// Python's epigrad.parallel calls them. No table lists them: they are no part of the interface.
var moves = []operation{
	countRows, scatterSlots,
	{
		Signature: Signature{"scatter_rows", typed(check.Places, arguments("input [T, K]", "places [T, R]"), "places"), arguments("out [S, K]")},
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			input, out := inputs[0], c.output(0)
			if err := hasPlaces(c.Op, input, inputs[1]); err != nil {
				return nil, err
			}
			if err := check.Shape(c.Op, "places", inputs[1].Shape[:1], input.Shape[:1], "[T]"); err != nil {
				return nil, err
			}
			if out == nil {
				return nil, check.Invalid(c.Op, "out", "missing, want the tensor whose rows are written")
			}
			if out.Rank() != 2 || out.Shape[1] != input.Shape[1] {
				return nil, check.Invalid(c.Op, "out", "shape %s, want [S, K] with K = %d", check.Sizes(out.Shape), input.Shape[1])
			}
			return [][]int64{out.Shape}, countable(c.Op, "out", out.Shape[0])
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			return &backend.ScatterRows{Header: h, Input: c.input(0), Places: c.input(1), Out: c.output(0)}
		},
	},
	{
		Signature: Signature{"combine_rows", typed(check.Places, arguments("input [S, K]", "places [T, R]"), "places"), arguments("out [T, K]")},
		shapes: func(c *Call, inputs []*tensor.View) ([][]int64, error) {
			input, places := inputs[0], inputs[1]
			if err := hasPlaces(c.Op, input, places); err != nil {
				return nil, err
			}
			out := []int64{places.Shape[0], input.Shape[1]}
			return [][]int64{out}, exists(c.Op, "out", input, out)
		},
		problem: func(c *Call, h backend.Header) backend.Problem {
			return &backend.CombineRows{Header: h, Input: c.input(0), Places: c.input(1), Out: c.output(0)}
		},
	},
}

// hasPlaces asks for rows, and for places that lie as backends read them.
func hasPlaces(op string, input, places *tensor.View) error {
	if err := hasRows(op, input, "two dimensions"); err != nil {
		return err
	}
	switch {
	case places.Rank() != 2:
		return check.Invalid(op, "places", "shape %s, want [T, R]: the rows of each token", check.Sizes(places.Shape))
	case !places.IsContiguous():
		return check.Invalid(op, "places", "strides %s, want contiguous ones", check.Sizes(places.Strides))
	}
	return countable(op, "places", places.Numel())
}
