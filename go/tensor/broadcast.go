package tensor

// BroadcastShapes returns the shape that all shapes broadcast to by PyTorch's rule: shapes are
// aligned at their last dimension, and in each dimension the sizes other than 1 agree.
func BroadcastShapes(shapes ...[]int64) ([]int64, error) {
	rank := 0
	for _, shape := range shapes {
		rank = max(rank, len(shape))
	}
	if rank > MaxRank {
		return nil, invalid("got %d dimensions, want at most %d", rank, MaxRank)
	}
	result := make([]int64, rank)
	for d := range result {
		result[d] = 1
	}
	for i, shape := range shapes {
		for d, n := range shape {
			at := rank - len(shape) + d
			switch {
			case n < 0:
				return nil, invalid("shape %s has a negative size", list(shape))
			case n == 1 || n == result[at]:
			case result[at] == 1:
				result[at] = n
			default:
				return nil, invalid("shape %s does not broadcast with %s: sizes %d and %d in dimension %d",
					list(shape), list(shapes[holder(shapes[:i], rank, at)]), n, result[at], at-rank)
			}
		}
	}
	if _, ok := product(result); !ok {
		return nil, invalid("all shapes broadcast to %s, which has more elements than 64 bits can count", list(result))
	}
	return result, nil
}

// holder returns the first shape whose size in a dimension of the result is not 1.
func holder(shapes [][]int64, rank, at int) int {
	for i, shape := range shapes {
		if d := at - (rank - len(shape)); d >= 0 && shape[d] != 1 {
			return i
		}
	}
	return 0
}
