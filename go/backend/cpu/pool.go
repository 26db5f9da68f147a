package cpu

import (
	"slices"
	"sync"
	"unsafe"
)

// pool hands out scratch, which is large, so that calls do not allocate it anew.
type pool[T real] struct {
	free      *sync.Pool
	batchRank int
}

var (
	freeFloat32 = sync.Pool{}
	freeFloat64 = sync.Pool{}
)

func newPool[T real](batchRank int) pool[T] {
	free := &freeFloat32
	if unsafe.Sizeof(T(0)) == 8 {
		free = &freeFloat64
	}
	return pool[T]{free, batchRank}
}

func (p *pool[T]) get() *scratch[T] {
	if s, ok := p.free.Get().(*scratch[T]); ok {
		s.index = slices.Grow(s.index[:0], p.batchRank)[:p.batchRank]
		return s
	}
	return newScratch[T](p.batchRank)
}

func (p *pool[T]) put(s *scratch[T]) { p.free.Put(s) }
