package tensor_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

var cpu = tensor.Device{Type: tensor.CPU}

type ViewSuite struct{ suite.Suite }

func TestView(t *testing.T) { suite.Run(t, new(ViewSuite)) }

// describe makes a view without memory, whose addresses are its offsets.
func (s *ViewSuite) describe(offset int64, dt dtype.DType, shape, strides []int64) tensor.View {
	v, err := tensor.New(nil, offset, dt, cpu, shape, strides, 0)
	s.Require().NoError(err)
	return v
}

func (s *ViewSuite) fails(err error, code status.Code, text string) {
	s.Require().Error(err)
	s.Equal(code, status.Of(err).Code)
	s.Contains(err.Error(), text)
}

func (s *ViewSuite) TestDeviceNames() {
	s.Equal("cpu", cpu.String())
	s.Equal("cuda:1", tensor.Device{Type: tensor.CUDA, Index: 1}.String())
	s.Equal("webgpu:0", tensor.Device{Type: tensor.WebGPU}.String())
	s.Equal("device(7):2", tensor.Device{Type: 7, Index: 2}.String())
}

func (s *ViewSuite) TestNewFillsContiguousStrides() {
	v := s.describe(8, dtype.Float32, []int64{2, 3, 4}, nil)
	s.Equal([]int64{12, 4, 1}, v.Strides)
	s.Equal(int64(24), v.Numel())
	s.Equal(3, v.Rank())
	s.True(v.IsContiguous())
	lo, hi, err := v.Extent()
	s.Require().NoError(err)
	s.Equal([]int64{0, 96}, []int64{lo, hi})
}

func (s *ViewSuite) TestRankZeroIsOneElement() {
	v := s.describe(0, dtype.Float64, nil, nil)
	s.Equal(int64(1), v.Numel())
	s.True(v.IsContiguous())
	_, hi, err := v.Extent()
	s.Require().NoError(err)
	s.Equal(int64(8), hi)
}

func (s *ViewSuite) TestNewRefuses() {
	const big = int64(1) << 40
	for _, c := range []struct {
		name           string
		offset         int64
		dt             dtype.DType
		shape, strides []int64
		code           status.Code
		text           string
	}{
		{"no dtype", 0, dtype.Invalid, []int64{1}, nil, status.DTypeMismatch, "dtype(0)"},
		{"negative size", 0, dtype.Float32, []int64{2, -1}, nil, status.InvalidProblem, "shape [2, -1] has a negative size"},
		{"negative beside empty", 0, dtype.Float32, []int64{0, -1}, nil, status.InvalidProblem, "negative size"},
		{"strides of another rank", 0, dtype.Float32, []int64{2, 3}, []int64{1}, status.InvalidProblem, "differ in rank"},
		{"rank", 0, dtype.Float32, make([]int64, 65), nil, status.InvalidProblem, "65 dimensions"},
		{"count wraps to 0", 0, dtype.Float32, []int64{big, big}, nil, status.InvalidProblem, "more elements"},
		{"count wraps, stride 0", 0, dtype.Float32, []int64{big, big}, []int64{0, 0}, status.InvalidProblem, "more elements"},
		{"bytes", 0, dtype.Float64, []int64{1 << 60}, nil, status.InvalidProblem, "beyond 64 bits"},
		{"one stride", 0, dtype.BFloat16, []int64{3}, []int64{math.MaxInt64}, status.InvalidProblem, "beyond 64 bits"},
		{"smallest stride", 0, dtype.BFloat16, []int64{2}, []int64{math.MinInt64}, status.InvalidProblem, "beyond 64 bits"},
		{"sum of strides", 0, dtype.BFloat16, []int64{2, 2}, []int64{1 << 61, 1 << 61}, status.InvalidProblem, "beyond 64 bits"},
		{"both directions", 0, dtype.BFloat16, []int64{2, 2}, []int64{1 << 61, -1 << 61}, status.InvalidProblem, "beyond 64 bits"},
		{"offset above", math.MaxInt64 - 3, dtype.Float32, []int64{1}, nil, status.InvalidProblem, "beyond 64 bits"},
		{"offset below", math.MinInt64, dtype.Float32, []int64{2}, []int64{-1}, status.InvalidProblem, "beyond 64 bits"},
	} {
		s.Run(c.name, func() {
			_, err := tensor.New(nil, c.offset, c.dt, cpu, c.shape, c.strides, 0)
			s.fails(err, c.code, c.text)
		})
	}
}

func (s *ViewSuite) TestLargestExtentIsAccepted() {
	v := s.describe(math.MaxInt64-4, dtype.Float32, nil, nil)
	_, hi, err := v.Extent()
	s.Require().NoError(err)
	s.Equal(int64(4), hi)
	// Rank 64 is the limit, not beyond it.
	s.describe(0, dtype.Float32, ones(tensor.MaxRank), nil)
}

func ones(rank int) []int64 {
	shape := make([]int64, rank)
	for d := range shape {
		shape[d] = 1
	}
	return shape
}

func (s *ViewSuite) TestEmptyIsLegalWhateverElse() {
	for _, c := range []struct{ shape, strides []int64 }{
		{[]int64{0}, nil},
		{[]int64{1 << 40, 1 << 40, 0}, nil},
		{[]int64{1 << 40, 0, 1 << 40}, []int64{math.MinInt64, 7, math.MaxInt64}},
	} {
		v := s.describe(16, dtype.Float64, c.shape, c.strides)
		s.Zero(v.Numel())
		s.True(v.IsEmpty())
		s.True(v.IsContiguous())
		lo, hi, err := v.Extent()
		s.Require().NoError(err)
		s.Zero(lo)
		s.Zero(hi)
		s.False(tensor.SelfOverlaps(v))
		s.False(tensor.Overlaps(v, s.describe(0, dtype.Float64, []int64{100}, nil)))
	}
}

func (s *ViewSuite) TestExtentOfNegativeStrides() {
	v := s.describe(100, dtype.Float16, []int64{3, 4}, []int64{-10, 2})
	lo, hi, err := v.Extent()
	s.Require().NoError(err)
	s.Equal(int64(-40), lo)
	s.Equal(int64(14), hi)
}

func (s *ViewSuite) TestIsContiguousIgnoresSizeOne() {
	s.True(s.describe(0, dtype.Float32, []int64{1, 3, 1, 2}, []int64{99, 2, -5, 1}).IsContiguous())
	s.False(s.describe(0, dtype.Float32, []int64{3, 2}, []int64{3, 1}).IsContiguous())
	s.False(s.describe(0, dtype.Float32, []int64{3, 2}, []int64{1, 3}).IsContiguous())
	s.False(s.describe(0, dtype.Float32, []int64{2}, []int64{-1}).IsContiguous())
}

func (s *ViewSuite) TestTransposeAndPermute() {
	v := s.describe(4, dtype.Float32, []int64{2, 3, 4}, nil)
	t := v.Transpose(-1, 0)
	s.Equal([]int64{4, 3, 2}, t.Shape)
	s.Equal([]int64{1, 4, 12}, t.Strides)
	s.Equal([]int64{2, 3, 4}, v.Shape, "the view itself stays as it is")
	p, err := v.Permute(2, 0, -2)
	s.Require().NoError(err)
	s.Equal([]int64{4, 2, 3}, p.Shape)
	s.Equal([]int64{1, 12, 4}, p.Strides)
	for _, dims := range [][]int{{0, 1}, {0, 1, 1}, {0, 1, 3}, {0, 1, -4}, {0, 1, 2, 2}, nil} {
		_, err := v.Permute(dims...)
		s.fails(err, status.InvalidProblem, "not a permutation of its dimensions")
	}
	_, err = s.describe(0, dtype.Float32, nil, nil).Permute()
	s.NoError(err)
}

func (s *ViewSuite) TestEvery() {
	v := s.describe(0, dtype.Float32, []int64{2, 5}, nil)
	every := v.Every(-1, 2)
	s.Equal([]int64{2, 3}, every.Shape)
	s.Equal([]int64{5, 2}, every.Strides)
	s.Equal([]int64{2, 5}, v.Shape)
	s.Equal([]int64{0}, s.describe(0, dtype.Float32, []int64{0}, nil).Every(0, 2).Shape)
}

func (s *ViewSuite) TestNarrow() {
	v := s.describe(4, dtype.Float32, []int64{4, 6}, []int64{-6, 1})
	n, err := v.Narrow(0, 1, 2)
	s.Require().NoError(err)
	s.Equal([]int64{2, 6}, n.Shape)
	s.Equal(int64(4-24), n.Offset)
	n, err = n.Narrow(-1, 3, 3)
	s.Require().NoError(err)
	s.Equal([]int64{2, 3}, n.Shape)
	s.Equal(int64(4-24+12), n.Offset)
	n, err = v.Narrow(1, 6, 0)
	s.Require().NoError(err)
	s.Equal([]int64{4, 0}, n.Shape)
	s.Equal(v.Offset, n.Offset)
	for _, r := range [][2]int64{{-1, 1}, {0, 7}, {7, 0}, {2, -1}, {1, math.MaxInt64}} {
		_, err := v.Narrow(1, r[0], r[1])
		s.fails(err, status.InvalidProblem, "is not inside dimension 1")
	}
}

func (s *ViewSuite) TestNarrowKeepsTheStatedSize() {
	v := s.describe(0, dtype.Float32, []int64{4}, nil)
	v.NBytes = 16
	n, err := v.Narrow(0, 1, 3)
	s.Require().NoError(err)
	s.Equal(int64(12), n.NBytes)
	// A size that reached 0 would read as unknown.
	v.NBytes = 8
	_, err = v.Narrow(0, 2, 2)
	s.fails(err, status.BufferTooSmall, "outside the buffer's 8 bytes")
	s.Equal(int64(12), status.Of(err).Needed)
	s.Equal(int64(8), status.Of(err).Got)
}

func (s *ViewSuite) TestUnsqueezeAndSqueeze() {
	v := s.describe(0, dtype.Float32, []int64{2, 3}, nil)
	for _, c := range []struct {
		dim            int
		shape, strides []int64
	}{
		{0, []int64{1, 2, 3}, []int64{6, 3, 1}},
		{1, []int64{2, 1, 3}, []int64{3, 3, 1}},
		{-1, []int64{2, 3, 1}, []int64{3, 1, 1}},
		{-3, []int64{1, 2, 3}, []int64{6, 3, 1}},
	} {
		u := v.Unsqueeze(c.dim)
		s.Equal(c.shape, u.Shape)
		s.Equal(c.strides, u.Strides)
		s.True(u.IsContiguous())
		s.Equal(v.Shape, u.Squeeze(c.dim).Shape)
		s.Equal(v.Strides, u.Squeeze(c.dim).Strides)
	}
	s.Equal(v, v.Squeeze(0), "a dimension of another size stays")
	s.Panics(func() { v.Transpose(0, 2) })
}

func (s *ViewSuite) TestExpand() {
	v := s.describe(0, dtype.Float32, []int64{3, 1}, nil)
	e, err := v.Expand([]int64{2, 3, 4})
	s.Require().NoError(err)
	s.Equal([]int64{2, 3, 4}, e.Shape)
	s.Equal([]int64{0, 1, 0}, e.Strides)
	e, err = v.Expand([]int64{3, 0})
	s.Require().NoError(err)
	s.True(e.IsEmpty())
	for _, shape := range [][]int64{{3}, {4, 1}, {-1, 3, 1}, {3, -1}} {
		_, err := v.Expand(shape)
		s.fails(err, status.InvalidProblem, "does not broadcast to")
	}
	_, err = v.Expand([]int64{1 << 40, 3, 1 << 40})
	s.fails(err, status.InvalidProblem, "more elements")
}

func (s *ViewSuite) TestFlattenLeading() {
	for _, c := range []struct {
		name                   string
		shape, strides         []int64
		keep                   int
		merged                 bool
		wantShape, wantStrides []int64
	}{
		{"contiguous", []int64{2, 3, 4}, nil, 1, true, []int64{6, 4}, []int64{4, 1}},
		{"padded rows", []int64{2, 3, 4}, []int64{15, 5, 1}, 1, true, []int64{6, 4}, []int64{5, 1}},
		{"size one between", []int64{2, 1, 3, 4}, []int64{12, -7, 4, 1}, 1, true, []int64{6, 4}, []int64{4, 1}},
		{"all of it", []int64{2, 3, 4}, nil, 0, true, []int64{24}, []int64{1}},
		{"nothing to merge", []int64{4}, nil, 1, true, []int64{1, 4}, []int64{4, 1}},
		{"rank 0", nil, nil, 0, true, []int64{1}, []int64{1}},
		{"only ones", []int64{1, 1, 4}, []int64{0, 0, 1}, 1, true, []int64{1, 4}, []int64{4, 1}},
		{"expanded twice", []int64{2, 3, 4}, []int64{0, 0, 1}, 1, true, []int64{6, 4}, []int64{0, 1}},
		{"reversed", []int64{2, 3, 4}, []int64{-12, -4, 1}, 1, true, []int64{6, 4}, []int64{-4, 1}},
		{"expanded outside", []int64{2, 3, 4}, []int64{0, 4, 1}, 1, false, nil, nil},
		{"transposed", []int64{3, 2, 4}, []int64{4, 12, 1}, 1, false, nil, nil},
		{"empty", []int64{3, 0, 4}, []int64{4, 999, 1}, 1, true, []int64{0, 4}, []int64{4, 1}},
		{"empty later", []int64{3, 2, 0}, []int64{4, 999, 1}, 1, true, []int64{6, 0}, []int64{1, 1}},
		{"rank below keep", []int64{3}, nil, 2, false, nil, nil},
		{"uncountable", []int64{1 << 40, 1 << 40, 0}, nil, 1, false, nil, nil},
	} {
		s.Run(c.name, func() {
			v := s.describe(12, dtype.Float32, c.shape, c.strides)
			flat, ok := v.FlattenLeading(c.keep)
			s.Require().Equal(c.merged, ok)
			if ok {
				s.Equal(c.wantShape, flat.Shape)
				s.Equal(c.wantStrides, flat.Strides)
				s.Equal(int64(12), flat.Offset)
				s.ElementsMatch(addresses(v), addresses(flat))
			}
		})
	}
}

func (s *ViewSuite) TestBroadcastShapes() {
	for _, c := range []struct {
		shapes [][]int64
		want   []int64
	}{
		{nil, []int64{}},
		{[][]int64{{}, {3}}, []int64{3}},
		{[][]int64{{2, 1, 4}, {3, 1}}, []int64{2, 3, 4}},
		{[][]int64{{1}, {0}}, []int64{0}},
		{[][]int64{{5, 0}, {5, 1}, {1}}, []int64{5, 0}},
	} {
		got, err := tensor.BroadcastShapes(c.shapes...)
		s.Require().NoError(err)
		s.Equal(c.want, got)
	}
	_, err := tensor.BroadcastShapes([]int64{1, 4}, []int64{2, 3}, []int64{1})
	s.fails(err, status.InvalidProblem, "shape [2, 3] does not broadcast with [1, 4]: sizes 3 and 4 in dimension -1")
	_, err = tensor.BroadcastShapes([]int64{2}, []int64{0})
	s.fails(err, status.InvalidProblem, "does not broadcast")
	_, err = tensor.BroadcastShapes([]int64{-2})
	s.fails(err, status.InvalidProblem, "negative size")
	_, err = tensor.BroadcastShapes([]int64{1 << 40, 1}, []int64{1 << 40})
	s.fails(err, status.InvalidProblem, "all shapes broadcast to [1099511627776, 1099511627776], which has more elements than 64 bits can count")
	_, err = tensor.BroadcastShapes(make([]int64, 65))
	s.fails(err, status.InvalidProblem, "65 dimensions")
}

func (s *ViewSuite) TestExtentIsWhatEnumerationReaches() {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		v := randomView(random)
		lo, hi, err := v.Extent()
		s.Require().NoError(err)
		wantLo, wantHi := int64(0), int64(0)
		for i, address := range addresses(v) {
			if at := address - v.Offset; i == 0 || at < wantLo {
				wantLo = at
			}
			wantHi = max(wantHi, address-v.Offset+v.DType.Size())
		}
		s.Require().Equal([]int64{wantLo, wantHi}, []int64{lo, hi}, "%+v", v)
	}
}

// addresses lists the byte offset of every element, in row-major order.
func addresses(v tensor.View) []int64 {
	list := []int64{v.Offset}
	for d, n := range v.Shape {
		next := make([]int64, 0, int64(len(list))*n)
		for _, address := range list {
			for i := range n {
				next = append(next, address+i*v.Strides[d]*v.DType.Size())
			}
		}
		list = next
	}
	return list
}

// randomView is small enough to enumerate; its strides come from nested, overlapping, reversed and
// odd layouts alike.
func randomView(random *rand.Rand) tensor.View {
	rank := random.IntN(5)
	shape, strides := make([]int64, rank), make([]int64, rank)
	next := int64(1 + random.IntN(3))
	for d := rank - 1; d >= 0; d-- {
		shape[d] = int64(1 + random.IntN(4))
		if random.IntN(40) == 0 {
			shape[d] = 0
		}
		if random.IntN(3) == 0 {
			strides[d] = int64(random.IntN(25))
		} else {
			strides[d] = next + int64(random.IntN(3))
		}
		next = strides[d] * max(shape[d], 1)
		if random.IntN(4) == 0 {
			strides[d] = -strides[d]
		}
	}
	random.Shuffle(rank, func(i, j int) {
		shape[i], shape[j] = shape[j], shape[i]
		strides[i], strides[j] = strides[j], strides[i]
	})
	dt := dtype.All()[random.IntN(len(dtype.All()))]
	offset := int64(random.IntN(160))
	if random.IntN(4) != 0 {
		offset -= offset % dt.Size()
	}
	return tensor.View{Offset: offset, DType: dt, Device: cpu, Shape: shape, Strides: strides}
}
