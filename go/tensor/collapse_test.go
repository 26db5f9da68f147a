package tensor_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

type CollapseSuite struct{ suite.Suite }

func TestCollapse(t *testing.T) { suite.Run(t, new(CollapseSuite)) }

func (s *CollapseSuite) TestExamples() {
	view := func(shape, strides []int64) tensor.View { return at(0, dtype.Float32, shape, strides) }
	for _, c := range []struct {
		name    string
		views   []tensor.View
		shape   []int64
		strides [][]int64
	}{
		{"none", nil, []int64{}, [][]int64{}},
		{"one element", []tensor.View{view(nil, nil)}, []int64{}, [][]int64{{}}},
		{"ones", []tensor.View{view([]int64{1, 1}, []int64{5, 3})}, []int64{}, [][]int64{{}}},
		{"empty", []tensor.View{view([]int64{3, 0}, nil), view([]int64{3, 0}, []int64{0, 9})}, []int64{0}, [][]int64{{0}, {0}}},
		{"contiguous", []tensor.View{view([]int64{2, 1, 3, 4}, nil)}, []int64{24}, [][]int64{{1}}},
		{
			"row broadcast",
			[]tensor.View{view([]int64{2, 3, 4}, nil), view([]int64{2, 3, 4}, []int64{0, 0, 1})},
			[]int64{6, 4},
			[][]int64{{4, 1}, {0, 1}},
		},
		{
			"both transposed",
			[]tensor.View{view([]int64{4, 3}, []int64{1, 4}), view([]int64{4, 3}, []int64{1, 4})},
			[]int64{12},
			[][]int64{{1}, {1}},
		},
		{
			"input transposed",
			[]tensor.View{view([]int64{4, 3}, nil), view([]int64{4, 3}, []int64{1, 4})},
			[]int64{4, 3},
			[][]int64{{3, 1}, {1, 4}},
		},
		{
			"ties keep their order",
			[]tensor.View{view([]int64{2, 3}, []int64{0, 0}), view([]int64{2, 3}, []int64{3, 1})},
			[]int64{6},
			[][]int64{{0}, {1}},
		},
		{
			"half of a gated tensor",
			[]tensor.View{view([]int64{2, 5, 4}, nil), view([]int64{2, 5, 4}, []int64{40, 8, 1})},
			[]int64{10, 4},
			[][]int64{{4, 1}, {8, 1}},
		},
	} {
		s.Run(c.name, func() {
			shape, strides := tensor.Collapse(pointers(c.views))
			s.Equal(c.shape, shape)
			s.Equal(c.strides, strides)
		})
	}
}

// pointers are those of views.
func pointers(views []tensor.View) []*tensor.View {
	all := make([]*tensor.View, len(views))
	for i := range views {
		all[i] = &views[i]
	}
	return all
}

// TestAbsentViews: they change nothing, and have strides 0.
func (s *CollapseSuite) TestAbsentViews() {
	v := at(0, dtype.Float32, []int64{2, 5, 4}, []int64{40, 8, 1})
	shape, strides := tensor.Collapse([]*tensor.View{nil, &v, nil})
	s.Equal([]int64{10, 4}, shape)
	s.Equal([][]int64{{0, 0}, {8, 1}, {0, 0}}, strides)
	_, strides = tensor.Collapse([]*tensor.View{nil})
	s.Equal([][]int64{nil}, strides)
}

// Both walks have to visit the same elements of all views together, and the collapsed one has to be
// in the order stated.
func (s *CollapseSuite) TestVisitsTheSameElements() {
	random := rand.New(rand.NewPCG(7, 8))
	for range 5000 {
		views := []tensor.View{randomView(random)}
		for range random.IntN(3) {
			other := randomView(random)
			other.Shape = views[0].Shape
			other.Strides = make([]int64, len(other.Shape))
			for d := range other.Strides {
				other.Strides[d] = int64(random.IntN(9) - 4)
				if random.IntN(2) == 0 {
					other.Strides[d] = views[0].Strides[d]
				}
			}
			views = append(views, other)
		}
		shape, strides := tensor.Collapse(pointers(views))
		collapsed := make([]tensor.View, len(views))
		for i, v := range views {
			collapsed[i] = v
			collapsed[i].Shape, collapsed[i].Strides = shape, strides[i]
		}
		s.Require().Equal(visits(views), visits(collapsed), "%+v", views)
		s.Require().True(slices.IsSortedFunc(strides[0], func(a, b int64) int { return int(max(b, -b) - max(a, -a)) }))
		for _, n := range shape {
			s.Require().NotEqual(int64(1), n)
		}
	}
}

// visits lists the addresses that are visited together, sorted.
func visits(views []tensor.View) [][]int64 {
	var list [][]int64
	for i, v := range views {
		for at, address := range addresses(v) {
			if i == 0 {
				list = append(list, nil)
			}
			list[at] = append(list[at], address)
		}
	}
	slices.SortFunc(list, slices.Compare)
	return list
}

func (s *CollapseSuite) TestLeavesTheViewsAlone() {
	v := at(0, dtype.Float32, []int64{2, 3, 4}, []int64{1, 2, 6})
	tensor.Collapse([]*tensor.View{&v, nil, &v})
	s.Equal([]int64{2, 3, 4}, v.Shape)
	s.Equal([]int64{1, 2, 6}, v.Strides)
}

func BenchmarkCollapse(b *testing.B) {
	views := []tensor.View{
		at(0, dtype.Float32, []int64{8, 64, 64}, nil),
		at(0, dtype.Float32, []int64{8, 64, 64}, []int64{8192, 128, 1}),
		at(0, dtype.Float32, []int64{8, 64, 64}, []int64{0, 0, 1}),
	}
	all := pointers(views)
	b.ReportAllocs()
	for b.Loop() {
		tensor.Collapse(all)
	}
}
