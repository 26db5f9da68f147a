//go:build cgo

// The parameter structs of kernels (kernels/cuda/loops.cuh).

package cuda

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/tensor"
)

// What kernels/cuda/loops.cuh says of a launch.
const (
	blockThreads      = 256
	blockThreadsLog2  = 8
	vectorThreads     = 128
	maxRank           = 8
	elementsPerThread = 4
	// maxBlocks is the most blocks of a grid along its first dimension.
	maxBlocks = math.MaxInt32
)

// parameters collects a kernel's parameter struct in the order of its fields, which are laid out
// without gaps.
type parameters struct {
	bytes    []byte
	pointers []pointer
	maps     []tensorMap
	// where the run's parameters go, and whether it accumulates; 0, where an address is, for none
	numbersAt, accumulateAt int
}

func (p *parameters) uint32(x uint32)   { p.bytes = binary.LittleEndian.AppendUint32(p.bytes, x) }
func (p *parameters) uint64(x uint64)   { p.bytes = binary.LittleEndian.AppendUint64(p.bytes, x) }
func (p *parameters) int64(x int64)     { p.uint64(uint64(x)) }
func (p *parameters) bool(x bool)       { p.uint32(truth(x)) }
func (p *parameters) float64(x float64) { p.uint64(math.Float64bits(x)) }

// address is a view's first element; a nil view is a null pointer.
func (p *parameters) address(v *tensor.View) {
	if v != nil {
		p.pointers = append(p.pointers, pointer{len(p.bytes), v})
	}
	p.uint64(0)
}

// tensorMap is a map of a tensor.
func (p *parameters) tensorMap(v *tensor.View, sizes, strides, box []int64) {
	p.maps = append(p.maps, tensorMap{pointer{len(p.bytes), v}, sizes, strides, box})
	p.zeros(mapBytes)
}

func (p *parameters) zeros(bytes int) { p.bytes = append(p.bytes, make([]byte, bytes)...) }

// strided is a view's first element and its strides in some dimensions: 0 of the dimension `none`,
// and of a nil view.
func (p *parameters) strided(v *tensor.View, dimensions ...int) {
	p.address(v)
	for _, d := range dimensions {
		stride := int64(0)
		if v != nil && d >= 0 {
			stride = v.Strides[d]
		}
		p.int64(stride)
	}
}

// accumulate is whether a run accumulates, which it may.
func (p *parameters) accumulate(may bool) {
	if may {
		p.accumulateAt = len(p.bytes)
	}
	p.uint32(0)
}

// divisor is a Divisor of loops.cuh.
func (p *parameters) divisor(size int64) {
	var multiplier uint64
	var shift uint32
	if size > 1 {
		log := bits.Len64(uint64(size - 1))
		multiplier, _ = bits.Div64(1<<(log-1), 0, uint64(size))
		multiplier++
		shift = uint32(log - 1)
	}
	p.uint64(multiplier)
	p.int64(size)
	p.uint32(shift)
	p.uint32(0)
}

// divisors are those of a shape, and strides an operand's.
func (p *parameters) divisors(shape []int64)  { dimensions(shape, 1, p.divisor) }
func (p *parameters) strides(strides []int64) { dimensions(strides, 0, p.int64) }

// dimensions puts numbers innermost first, filled up to maxRank.
func dimensions(numbers []int64, rest int64, put func(x int64)) {
	for d := range maxRank {
		if d < len(numbers) {
			put(numbers[len(numbers)-1-d])
		} else {
			put(rest)
		}
	}
}

// launch makes the launch of a kernel with these blocks.
func (p *parameters) launch(function string, blocks int64) *launch {
	return &launch{
		function: function, grid: [3]int64{blocks, 1, 1}, block: [3]uint32{blockThreads, 1, 1},
		params: p.bytes, pointers: p.pointers, maps: p.maps, parameters: cmp.Or(p.numbersAt, none), accumulate: cmp.Or(p.accumulateAt, none),
	}
}

// numbers are what a kernel gets beside its tensors: the run's parameters, or fixed ones, of which
// the first is not zero.
type numbers struct {
	fixed bool
	first float64
}

// numbers are the parameters of a kind.
func (p *parameters) numbers(n numbers) {
	if !n.fixed {
		p.numbersAt = len(p.bytes)
	}
	p.float64(n.first)
	for range activation.MostParameters - 1 {
		p.float64(0)
	}
}

func truth(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
