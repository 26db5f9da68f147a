// Package grouped has the CPU's kernels of problems whose rows belong to groups: it routes rows,
// and has an engine multiply those of each group. How many rows a group has is data, so the kernel
// of a group is chosen when a call runs. The package is no part of epigrad's API and may change in
// any release.
package grouped

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// Selector chooses an engine's kernel of a problem without groups.
type Selector func(p backend.Problem) (backend.Kernel, error)

// Select returns the kernel of a problem with groups, or on their rows; nil for another.
func Select(p backend.Problem, engine Selector) (backend.Kernel, error) {
	switch p := p.(type) {
	case *backend.GroupEnds:
		return sequence(p, func(r *backend.Run) error { return groupEnds(p, r) }), nil
	case *backend.Route:
		return sequence(p, func(r *backend.Run) error { return route(p, r) }), nil
	case *backend.CountRows:
		return sequence(p, func(r *backend.Run) error { return countRows(p, r) }), nil
	case *backend.ScatterSlots:
		return sequence(p, func(r *backend.Run) error { return scatterSlots(p, r) }), nil
	case *backend.ScatterRows:
		return sequence(p, func(r *backend.Run) error { return scatterRows(p, r) }), nil
	case *backend.CombineRows:
		return sequence(p, func(r *backend.Run) error { return combineRows(p, r) }), nil
	case *backend.ScaleGradient:
		return sequence(p, func(r *backend.Run) error { return scaleGradient(p, r) }), nil
	case *backend.ScaleRows:
		return sequence(p, func(r *backend.Run) error { return scaleRows(p, r) }), nil
	case *backend.SumRows:
		return sequence(p, func(r *backend.Run) error { return sumRows(p, r) }), nil
	case *backend.ZeroRows:
		return sequence(p, func(r *backend.Run) error { return zeroRows(p, r) }), nil
	}
	if p.Grouping() == nil {
		return nil, nil
	}
	return newByGroup(p, engine)
}

// sequence is a kernel that moves rows, whose name says no product.
func sequence(p backend.Problem, steps ...kernel.Step) *kernel.Sequence {
	return &kernel.Sequence{Facts: kernel.FactsOf(p, ""), Steps: steps}
}

// group is the rows [first, end) of a run, and the weight that they have.
type group struct{ number, first, end int64 }

func (g group) rows() int64 { return g.end - g.first }

// groupsOf reads where groups end.
func groupsOf(ends *tensor.View, r *backend.Run) []group {
	groups := make([]group, ends.Shape[0])
	first := int64(0)
	for e := range groups {
		end := integer(ends, r, int64(e))
		groups[e] = group{int64(e), first, end}
		first = end
	}
	return groups
}

// rowsOf is how many rows the groups have in all.
func rowsOf(ends *tensor.View, r *backend.Run) int64 {
	if ends.Shape[0] == 0 {
		return 0
	}
	return integer(ends, r, ends.Shape[0]-1)
}

// integer reads an element of a tensor of integers.
func integer(v *tensor.View, r *backend.Run, index ...int64) int64 {
	at := address(v, r, index...)
	if v.DType == dtype.Int32 {
		return int64(*(*int32)(at))
	}
	return *(*int64)(at)
}

// address returns where an element lies. Indices that are left out at the end are 0.
func address(v *tensor.View, r *backend.Run, index ...int64) unsafe.Pointer {
	offset := int64(0)
	for d, i := range index {
		offset += i * v.Strides[d]
	}
	return unsafe.Add(r.At(v), offset*v.DType.Size())
}
