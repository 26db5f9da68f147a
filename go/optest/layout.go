package optest

import "slices"

// layout places the elements of a shape in memory.
type layout struct {
	name string
	// strides are in elements.
	strides func(shape []int64) []int64
	// offset: the view starts at the buffer's first byte, and its elements lie behind that.
	offset bool
}

// outputLayouts reach each element once.
var outputLayouts = []layout{
	{name: "contiguous", strides: func(shape []int64) []int64 { return dense(shape, 0, 1) }},
	{name: "transposed", strides: func(shape []int64) []int64 {
		turned := slices.Clone(shape)
		slices.Reverse(turned)
		strides := dense(turned, 0, 1)
		slices.Reverse(strides)
		return strides
	}},
	{name: "sliced", strides: func(shape []int64) []int64 { return dense(shape, 3, 2) }},
	{name: "reversed", strides: func(shape []int64) []int64 {
		return signed(dense(shape, 0, 1), func(int) bool { return true })
	}},
	{name: "partly reversed, padded, offset", offset: true, strides: func(shape []int64) []int64 {
		return signed(dense(shape, 1, 1), func(d int) bool { return d%2 == 0 })
	}},
	{name: "offset", offset: true, strides: func(shape []int64) []int64 { return dense(shape, 0, 1) }},
	{name: "odd strides of size 1", strides: func(shape []int64) []int64 {
		strides := dense(shape, 0, 1)
		for d, n := range shape {
			if n == 1 {
				strides[d] = -12345
			}
		}
		return strides
	}},
	{name: "columns of a wider tensor", strides: func(shape []int64) []int64 { return dense(shape, 5, 1) }},
}

// inputLayouts may also reach one element by many indices.
var inputLayouts = append(slices.Clone(outputLayouts),
	layout{name: "expanded first", strides: func(shape []int64) []int64 { return expanded(shape, 0) }},
	layout{name: "expanded last", offset: true, strides: func(shape []int64) []int64 { return expanded(shape, len(shape)-1) }},
	layout{name: "one element", strides: func(shape []int64) []int64 { return make([]int64, len(shape)) }},
)

var contiguous = outputLayouts[0]

// dense are row-major strides with gaps: the last dimension's is step, and each dimension has pad
// sizes to spare.
func dense(shape []int64, pad, step int64) []int64 {
	strides := make([]int64, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = step
		step *= max(shape[d], 1) + pad
	}
	return strides
}

func signed(strides []int64, negative func(d int) bool) []int64 {
	for d := range strides {
		if negative(d) {
			strides[d] = -strides[d]
		}
	}
	return strides
}

// expanded are the strides of a tensor that is broadcast along one dimension.
func expanded(shape []int64, dim int) []int64 {
	if len(shape) == 0 {
		return []int64{}
	}
	stored := slices.Clone(shape)
	stored[dim] = 1
	strides := dense(stored, 0, 1)
	strides[dim] = 0
	return strides
}

// picker deals out layouts: neighbouring operands get different ones.
type picker struct{ next int }

func (p *picker) input() layout {
	p.next++
	return inputLayouts[p.next%len(inputLayouts)]
}

func (p *picker) output() layout {
	p.next++
	return outputLayouts[p.next%len(outputLayouts)]
}
