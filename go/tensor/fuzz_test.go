package tensor_test

import (
	"encoding/binary"
	"math"
	"math/big"
	"testing"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// smallView reads a view that can be enumerated: a byte each for dtype, offset and rank, then size
// and stride.
func smallView(data []byte) (tensor.View, []byte) {
	next := func() int64 {
		if len(data) == 0 {
			return 1
		}
		b := data[0]
		data = data[1:]
		return int64(b)
	}
	v := tensor.View{DType: dtype.All()[next()%4], Device: cpu, Offset: next()}
	for range next() % 5 {
		v.Shape = append(v.Shape, next()%6)
		v.Strides = append(v.Strides, int64(int8(next())))
	}
	return v, data
}

func FuzzOverlaps(f *testing.F) {
	f.Add([]byte{0, 0, 2, 4, 10, 5, 1, 0, 20, 2, 4, 10, 5, 1})
	f.Add([]byte{0, 0, 2, 4, 9, 5, 2, 0, 4, 2, 4, 9, 4, 2})
	f.Add([]byte{1, 0, 1, 5, 2, 3, 9, 2, 4, 8, 4, 1})
	f.Add([]byte{2, 200, 3, 5, 0xf9, 5, 13, 5, 0xfb, 3, 7, 3, 5, 17, 5, 19, 5, 23})
	f.Fuzz(func(t *testing.T, data []byte) {
		a, rest := smallView(data)
		b, _ := smallView(rest)
		if got, want := tensor.SelfOverlaps(a), selfOverlapsByEnumeration(a); got != want {
			t.Errorf("SelfOverlaps(%+v) = %v", a, got)
		}
		want := overlapsByEnumeration(a, b)
		if got := tensor.Overlaps(a, b); got != want {
			t.Errorf("Overlaps(%+v, %+v) = %v", a, b, got)
		}
		if got := tensor.Overlaps(b, a); got != want {
			t.Errorf("Overlaps(%+v, %+v) = %v", b, a, got)
		}
	})
}

// FuzzNew checks counts and extents against arithmetic without a limit, and that no view makes a
// function panic.
func FuzzNew(f *testing.F) {
	add := func(kind uint8, offset int64, pairs ...int64) {
		var data []byte
		for _, x := range pairs {
			data = binary.LittleEndian.AppendUint64(data, uint64(x))
		}
		f.Add(kind, offset, data)
	}
	add(0, 0, 4, 8, 8, 1)
	add(1, 16, 1<<40, 1<<40, 1<<40, 1)
	add(2, -8, 1<<40, 0, 1<<40, 0)
	add(3, math.MaxInt64, 3, math.MinInt64, 2, math.MaxInt64)
	add(1, math.MinInt64, 0, 5, 1<<62, 1<<62)
	add(2, 4, -1, 1)
	f.Fuzz(func(t *testing.T, kind uint8, offset int64, data []byte) {
		var shape, strides []int64
		for ; len(data) >= 16; data = data[16:] {
			shape = append(shape, int64(binary.LittleEndian.Uint64(data)))
			strides = append(strides, int64(binary.LittleEndian.Uint64(data[8:])))
		}
		dt := dtype.All()[kind%4]
		v, err := tensor.New(nil, offset, dt, cpu, shape, strides, 0)
		lo, hi, numel, legal := exactly(dt.Size(), offset, shape, strides)
		if legal != (err == nil) {
			t.Fatalf("New(%v, %v, %v, %v) = %v, want legal %v", offset, dt, shape, strides, err, legal)
		}
		if contiguous, err := tensor.New(nil, offset, dt, cpu, shape, nil, 0); err == nil && !contiguous.IsContiguous() {
			t.Errorf("New(%v) without strides is not contiguous", shape)
		}
		if err != nil {
			return
		}
		gotLo, gotHi, err := v.Extent()
		if err != nil || gotLo != lo || gotHi != hi || v.Numel() != numel {
			t.Errorf("%+v: extent %d, %d, numel %d, error %v; want %d, %d, %d", v, gotLo, gotHi, v.Numel(), err, lo, hi, numel)
		}
		if numel > 0 != tensor.Overlaps(v, v) {
			t.Errorf("%+v does not overlap itself", v)
		}
		tensor.SelfOverlaps(v)
		tensor.Collapse([]*tensor.View{&v, &v})
		for keep := range v.Rank() + 1 {
			v.FlattenLeading(keep)
			v.Unsqueeze(keep)
		}
	})
}

// exactly is New's rule in integers without a limit.
func exactly(size, offset int64, shape, strides []int64) (lo, hi, numel int64, legal bool) {
	if len(shape) > tensor.MaxRank {
		return 0, 0, 0, false
	}
	empty, count := false, big.NewInt(1)
	below, above := big.NewInt(0), big.NewInt(size)
	for d, n := range shape {
		if n < 0 {
			return 0, 0, 0, false
		}
		empty = empty || n == 0
		count.Mul(count, big.NewInt(n))
		reach := new(big.Int).Mul(big.NewInt(n-1), big.NewInt(strides[d]))
		reach.Mul(reach, big.NewInt(size))
		if reach.Sign() < 0 {
			below.Add(below, reach)
		} else {
			above.Add(above, reach)
		}
	}
	if empty {
		return 0, 0, 0, true
	}
	start := big.NewInt(offset)
	for _, x := range []*big.Int{
		count, below, above, new(big.Int).Sub(above, below), new(big.Int).Add(start, below), new(big.Int).Add(start, above),
	} {
		if !x.IsInt64() {
			return 0, 0, 0, false
		}
	}
	return below.Int64(), above.Int64(), count.Int64(), true
}
