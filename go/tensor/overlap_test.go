package tensor_test

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

type OverlapSuite struct{ suite.Suite }

func TestOverlap(t *testing.T) { suite.Run(t, new(OverlapSuite)) }

func at(offset int64, dt dtype.DType, shape, strides []int64) tensor.View {
	v, err := tensor.New(nil, offset, dt, cpu, shape, strides, 0)
	if err != nil {
		panic(err)
	}
	return v
}

// selfOverlapsByEnumeration and overlapsByEnumeration are the oracles: they list every byte.
func selfOverlapsByEnumeration(v tensor.View) bool {
	seen := map[int64]bool{}
	for _, address := range addresses(v) {
		if seen[address] {
			return true
		}
		seen[address] = true
	}
	return false
}

func overlapsByEnumeration(a, b tensor.View) bool {
	bytes := map[int64]bool{}
	for _, address := range addresses(a) {
		for i := range a.DType.Size() {
			bytes[address+i] = true
		}
	}
	for _, address := range addresses(b) {
		for i := range b.DType.Size() {
			if bytes[address+i] {
				return true
			}
		}
	}
	return false
}

func (s *OverlapSuite) TestAgainstEnumeration() {
	random := rand.New(rand.NewPCG(3, 4))
	var counts [2][2]int
	for range 60000 {
		a, b := randomView(random), randomView(random)
		wantSelf, want := selfOverlapsByEnumeration(a), overlapsByEnumeration(a, b)
		s.Require().Equal(wantSelf, tensor.SelfOverlaps(a), "%+v", a)
		s.Require().Equal(want, tensor.Overlaps(a, b), "%+v\n%+v", a, b)
		s.Require().Equal(want, tensor.Overlaps(b, a), "%+v\n%+v", b, a)
		counts[0][index(wantSelf)]++
		counts[1][index(want)]++
	}
	for _, count := range counts {
		s.Greater(count[0], 4000, "the views should tell both answers")
		s.Greater(count[1], 4000, "the views should tell both answers")
	}
}

func index(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Long dimensions with strides that do not nest are where the search does more than compare ends.
func (s *OverlapSuite) TestLongStridesAgainstEnumeration() {
	random := rand.New(rand.NewPCG(5, 6))
	long := func() tensor.View {
		rank := 1 + random.IntN(2)
		shape, strides := make([]int64, rank), make([]int64, rank)
		for d := range shape {
			shape[d], strides[d] = int64(1+random.IntN(12)), int64(1+random.IntN(90))
		}
		return at(int64(random.IntN(400)), dtype.All()[random.IntN(4)], shape, strides)
	}
	for range 30000 {
		a, b := long(), long()
		s.Require().Equal(selfOverlapsByEnumeration(a), tensor.SelfOverlaps(a), "%+v", a)
		s.Require().Equal(overlapsByEnumeration(a, b), tensor.Overlaps(a, b), "%+v\n%+v", a, b)
	}
}

func (s *OverlapSuite) TestDisjointPartsOfOneBuffer() {
	const rows, columns = 4096, 1001
	whole := at(0, dtype.Float32, []int64{rows, columns}, nil)
	part := func(offset, n, step int64) tensor.View {
		return at(4*offset, dtype.Float32, []int64{rows, n}, []int64{columns, step})
	}
	for name, pair := range map[string][2]tensor.View{
		"column slices":       {part(0, 500, 1), part(500, 501, 1)},
		"interleaved columns": {part(0, 501, 2), part(1, 500, 2)},
		"every third":         {part(0, 334, 3), part(2, 333, 3)},
		"transposed halves":   {part(0, 500, 1).Transpose(0, 1), part(500, 501, 1)},
		"rows even and odd": {
			at(0, dtype.Float32, []int64{rows / 2, columns}, []int64{2 * columns, 1}),
			at(4*columns, dtype.Float32, []int64{rows / 2, columns}, []int64{2 * columns, 1}),
		},
		"batched halves": {
			at(0, dtype.Float32, []int64{8, 16, 100, 64}, []int64{204800, 12800, 128, 1}),
			at(4*64, dtype.Float32, []int64{8, 16, 100, 64}, []int64{204800, 12800, 128, 1}),
		},
		"reversed half": {part(499, 500, -1), part(500, 501, 1)},
	} {
		s.False(tensor.Overlaps(pair[0], pair[1]), name)
		s.False(tensor.Overlaps(pair[1], pair[0]), name)
		s.False(tensor.SelfOverlaps(pair[0]), name)
	}
	s.True(tensor.Overlaps(part(0, 501, 1), part(500, 501, 1)), "one shared column")
	s.True(tensor.Overlaps(whole, part(3, 1, 1)))
	s.True(tensor.Overlaps(whole, whole))
}

func (s *OverlapSuite) TestHugeViewsAreDecidedExactly() {
	// Two strides near 2^31, and targets that no search by enumeration would finish.
	a := at(0, dtype.Float32, []int64{1 << 28}, []int64{2147483647})
	s.False(tensor.Overlaps(a, at(4, dtype.Float32, []int64{2}, []int64{2147483647})))
	s.False(tensor.Overlaps(a, at(4, dtype.Float32, []int64{1 << 28}, []int64{2147483629})))
	// 2147483647·238609293 = 16 + 2147483629·238609295 is the first element that the two share.
	s.False(tensor.Overlaps(a, at(64, dtype.Float32, []int64{238609295}, []int64{2147483629})))
	s.True(tensor.Overlaps(a, at(64, dtype.Float32, []int64{238609296}, []int64{2147483629})))
	even := at(0, dtype.Float32, []int64{1 << 27}, []int64{2147483646})
	s.False(tensor.Overlaps(even, at(4, dtype.Float32, []int64{1 << 27}, []int64{2147483630})))
	s.False(tensor.SelfOverlaps(at(0, dtype.Float32, []int64{1 << 27, 1 << 27}, []int64{2147483646, 2147483630})))
	s.False(tensor.SelfOverlaps(at(0, dtype.BFloat16, []int64{1000, 1000}, []int64{1009, 1013})))
	s.True(tensor.SelfOverlaps(at(0, dtype.BFloat16, []int64{1014, 1010}, []int64{1009, 1013})))
}

func (s *OverlapSuite) TestWindowsAndExpansionsReachThemselves() {
	s.True(tensor.SelfOverlaps(at(0, dtype.Float32, []int64{5, 3}, []int64{1, 1})), "sliding window")
	s.False(tensor.SelfOverlaps(at(0, dtype.Float32, []int64{5, 3}, []int64{3, 1})))
	s.True(tensor.SelfOverlaps(at(0, dtype.Float32, []int64{5, 3}, []int64{0, 1})), "expanded rows")
	s.False(tensor.SelfOverlaps(at(0, dtype.Float32, []int64{1, 3}, []int64{0, 1})), "size 1 never steps")
	s.True(tensor.SelfOverlaps(at(0, dtype.Float32, []int64{5, 3}, []int64{-1, 1})))
}

func (s *OverlapSuite) TestUnalignedElementsOfDifferentSizes() {
	// 2-byte elements in the gaps of 8-byte ones that stand 16 bytes apart, then one byte into the
	// next.
	wide := at(0, dtype.Float64, []int64{100}, []int64{2})
	s.False(tensor.Overlaps(wide, at(8, dtype.Float16, []int64{99, 4}, []int64{8, 1})))
	s.True(tensor.Overlaps(wide, at(9, dtype.Float16, []int64{99, 4}, []int64{8, 1})))
	s.False(tensor.Overlaps(wide, at(8+16*3, dtype.Float16, []int64{1}, nil)))
	s.True(tensor.Overlaps(wide, at(7+16*3, dtype.Float16, []int64{1}, nil)))
}

// Sixteen unrelated strides have 2^32 sums spread over 2^46 bytes: no two views meet, but to know
// that takes too long. The call has to end soon, on the safe side.
func (s *OverlapSuite) TestSearchGivesUpOnTheSafeSide() {
	random := rand.New(rand.NewPCG(9, 10))
	unrelated := func(rank int) tensor.View {
		shape, strides := make([]int64, rank), make([]int64, rank)
		for d := range shape {
			shape[d], strides[d] = 4, 1<<39+random.Int64N(1<<39)
		}
		return at(random.Int64N(1<<42), dtype.Float32, shape, strides)
	}
	began := time.Now()
	s.True(tensor.Overlaps(unrelated(8), unrelated(8)))
	s.Less(time.Since(began), 2*time.Second)
	s.False(tensor.Overlaps(unrelated(3), unrelated(3)), "a few unrelated strides are decided")
}

func (s *OverlapSuite) TestBases() {
	buffer := make([]byte, 64)
	bind := func(base int, offset int64, device int32, operand int) tensor.View {
		v, err := tensor.New(unsafe.Pointer(&buffer[base]), offset, dtype.Float32, tensor.Device{Type: device}, []int64{4}, nil, operand)
		s.Require().NoError(err)
		return v
	}
	s.True(tensor.Overlaps(bind(0, 16, tensor.CPU, 0), bind(16, 0, tensor.CPU, 1)), "addresses count, not bases")
	s.False(tensor.Overlaps(bind(0, 16, tensor.CPU, 0), bind(32, 0, tensor.CPU, 1)))
	s.True(tensor.Overlaps(bind(0, 32, tensor.CPU, 0), bind(48, -4, tensor.CPU, 1)))
	s.False(tensor.Overlaps(bind(0, 16, tensor.WebGPU, 0), bind(16, 0, tensor.WebGPU, 1)), "handles are no addresses")
	s.True(tensor.Overlaps(bind(16, 16, tensor.WebGPU, 0), bind(16, 28, tensor.WebGPU, 1)))

	description := at(0, dtype.Float32, []int64{4}, nil)
	other := description
	other.Operand = 1
	s.False(tensor.Overlaps(description, bind(0, 0, tensor.CPU, 0)))
	s.False(tensor.Overlaps(description, other))
	s.True(tensor.Overlaps(description, description))
}

func (s *OverlapSuite) TestUncheckedViewsBeyond64BitsAreRefused() {
	wild := tensor.View{DType: dtype.Float32, Device: cpu, Shape: []int64{1 << 40, 2}, Strides: []int64{1 << 40, 1}}
	s.True(tensor.Overlaps(wild, wild))
	s.True(tensor.SelfOverlaps(wild))
	wild.Shape = []int64{1 << 40, 0}
	s.False(tensor.Overlaps(wild, wild))
}

func (s *OverlapSuite) TestHotPathDoesNotAllocate() {
	a, b := at(0, dtype.Float32, []int64{64, 64}, nil), at(64*64*4, dtype.Float32, []int64{64, 64}, nil)
	left := at(0, dtype.Float32, []int64{64, 32}, []int64{64, 1})
	right := at(128, dtype.Float32, []int64{64, 32}, []int64{64, 1})
	s.Zero(testing.AllocsPerRun(100, func() {
		answer = tensor.Overlaps(a, b) || tensor.SelfOverlaps(a) || tensor.Overlaps(left, right) || tensor.SelfOverlaps(left)
	}))
	s.False(answer)
}

var answer bool

func BenchmarkOverlaps(b *testing.B) {
	part := func(offset int64) tensor.View {
		return at(offset, dtype.Float32, []int64{512, 256}, []int64{512, 1})
	}
	for _, c := range []struct {
		name string
		a, b tensor.View
	}{
		{"contiguous", at(0, dtype.Float32, []int64{8, 64, 64}, nil), at(1<<20, dtype.Float32, []int64{8, 64, 64}, nil)},
		{"halves", part(0), part(1024)},
		{"interleaved", at(0, dtype.Float32, []int64{512, 501}, []int64{1001, 2}), at(4, dtype.Float32, []int64{512, 500}, []int64{1001, 2})},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				answer = tensor.Overlaps(c.a, c.b)
			}
		})
	}
}

func BenchmarkSelfOverlaps(b *testing.B) {
	for _, c := range []struct {
		name string
		v    tensor.View
	}{
		{"contiguous", at(0, dtype.Float32, []int64{8, 64, 64}, nil)},
		{"half", at(0, dtype.Float32, []int64{512, 256}, []int64{512, 1})},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				answer = tensor.SelfOverlaps(c.v)
			}
		})
	}
}
