//go:build cgo

// Launches of elementwise kernels, by vectors or over any strides.

package cuda

import (
	"math/bits"
	"slices"

	"github.com/epigrad/epigrad/go/tensor"
)

// function is an elementwise kernel.
type function struct {
	name        string
	outputs     int
	vectors     int64  // that a thread of the vector form does: `vectors` of loops.cuh
	interleaved string // the vector form where the last two views take turns in memory; "" for none
}

// elementwise adds the launches of an elementwise kernel; of the views the first are outputs.
// Nothing is launched where there are no elements.
func (b *builder) elementwise(f function, n numbers, views ...*tensor.View) {
	whole := walkOf(views)
	if tensor.Elements(whole.shape) == 0 {
		return
	}
	for _, w := range whole.pieces() {
		s := step{vector: w.vector(f, n), general: w.strided(f.name, n)}
		if s.vector == nil && f.interleaved != "" {
			s.vector = w.interleaved(f, n)
		}
		b.launch(s)
	}
}

// vector makes the vector form of an elementwise launch; nil where strides forbid it.
func (w walk) vector(f function, n numbers) *launch {
	width := vectorBytes / w.views[firstOf(w.views)].DType.Size()
	inner := len(w.shape) - 1
	broadcast, ok := w.vectors(func(i int) bool { return i >= f.outputs }, width)
	if !ok || w.shape[inner] < width {
		return nil
	}
	return w.byVectors(f.name, n, width, f.vectors, broadcast, false)
}

// byVectors makes a launch over vectors of width elements. A thread computes perThread of them.
func (w walk) byVectors(function string, n numbers, width, perThread int64, broadcast uint32, gateFirst bool) *launch {
	inner := len(w.shape) - 1
	shape := slices.Clone(w.shape)
	shape[inner] /= width
	vectors, tail := tensor.Elements(shape), int64(0)
	if inner == 0 {
		tail = w.shape[0] % width
	}
	p := w.parameters(n, vectors, tail, shape)
	p.divisor(1)
	p.uint32(uint32(len(shape)))
	p.uint32(0)
	p.uint32(broadcast)
	p.bool(gateFirst)
	l := p.launch(function, vectors/(vectorThreads*perThread)+1)
	l.block[0] = vectorThreads
	return l
}

// strided makes the form of an elementwise launch that takes any strides.
func (w walk) strided(function string, n numbers) *launch {
	inner := w.shape[len(w.shape)-1]
	rows := tensor.Elements(w.shape[:len(w.shape)-1])
	// Up to 32 threads side by side, so that rows that lie across the operands' memory share its
	// cache lines; all of them where rows are few.
	lanes := max(min(5, log2(inner)), blockThreadsLog2-log2(rows))
	tiles := ceilDiv(inner, elementsPerThread<<lanes)
	p := w.parameters(n, rows, 0, w.shape)
	p.divisor(tiles)
	p.uint32(uint32(len(w.shape)))
	p.uint32(uint32(lanes))
	p.uint32(0)
	p.uint32(0)
	return p.launch(function+"_strided", tiles*ceilDiv(rows, blockThreads>>lanes))
}

// parameters are the fields that both forms begin with.
func (w walk) parameters(n numbers, count, tail int64, shape []int64) *parameters {
	p := &parameters{}
	for _, v := range w.views {
		p.address(v)
	}
	p.numbers(n)
	p.int64(count)
	p.int64(tail)
	for i := range w.views {
		p.strides(w.strides[i])
	}
	p.divisors(shape)
	return p
}

func firstOf(views []*tensor.View) int {
	for i, v := range views {
		if v != nil {
			return i
		}
	}
	return 0
}

// log2 is the logarithm of the power of two from n on, for n > 0.
func log2(n int64) int { return bits.Len64(uint64(n - 1)) }

func ceilDiv(n, d int64) int64 { return (n + d - 1) / d }
