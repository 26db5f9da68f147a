package tensor

import "slices"

// Collapse returns the fewest loops that walk all views together, outermost first: a shape, and for
// each view its strides in elements. All views have one shape, expanded where they broadcast; those
// that are nil have strides 0.
//
// Dimensions of size 1 are dropped; the others are ordered so that the first view, which is the
// output, is walked by descending stride (equal strides keep their order); neighbours that every
// view walks as one are merged. An empty shape is one element, and the shape [0] is none.
func Collapse(views []*View) (shape []int64, strides [][]int64) {
	strides = make([][]int64, len(views))
	at := slices.IndexFunc(views, func(v *View) bool { return v != nil })
	if at < 0 {
		return []int64{}, strides
	}
	first := views[at]
	if first.isEmpty() {
		for i := range strides {
			strides[i] = []int64{0}
		}
		return []int64{0}, strides
	}
	order := make([]int, 0, len(first.Shape))
	for d, n := range first.Shape {
		if n != 1 {
			order = append(order, d)
		}
	}
	slices.SortStableFunc(order, func(d, e int) int {
		outer, inner := magnitude(first.Strides[d]), magnitude(first.Strides[e])
		switch {
		case outer > inner:
			return -1
		case outer < inner:
			return 1
		default:
			return 0
		}
	})
	shape = make([]int64, 0, len(order))
	all := make([]int64, len(views)*len(order))
	for i := range strides {
		strides[i] = all[i*len(order) : i*len(order) : (i+1)*len(order)]
	}
	for at, d := range order {
		if at > 0 && mergeable(views, order[at-1], d) {
			last := len(shape) - 1
			shape[last] *= first.Shape[d]
			for i, v := range views {
				strides[i][last] = v.stride(d)
			}
			continue
		}
		shape = append(shape, first.Shape[d])
		for i, v := range views {
			strides[i] = append(strides[i], v.stride(d))
		}
	}
	return shape, strides
}

// Apart returns views over the dimensions that a sum keeps, and over those that it sums over, in
// which it has the size 1 and they have not. Views that are nil stay so.
func Apart(views []*View, sum []int64) (kept, summed []*View) {
	kept, summed = make([]*View, len(views)), make([]*View, len(views))
	for i, v := range views {
		if v == nil {
			continue
		}
		stay, leave := *v, *v
		stay.Shape, leave.Shape = slices.Clone(v.Shape), slices.Clone(v.Shape)
		for d, n := range sum {
			if n == v.Shape[d] {
				leave.Shape[d] = 1
			} else {
				stay.Shape[d] = 1
			}
		}
		kept[i], summed[i] = &stay, &leave
	}
	return kept, summed
}

// mergeable reports whether a step of the outer dimension is, in every view, what follows the last
// step of the inner one.
func mergeable(views []*View, outer, inner int) bool {
	for _, v := range views {
		if v != nil && v.Strides[outer] != v.Strides[inner]*v.Shape[inner] {
			return false
		}
	}
	return true
}

// stride is a dimension's, 0 of no view.
func (v *View) stride(d int) int64 {
	if v == nil {
		return 0
	}
	return v.Strides[d]
}
