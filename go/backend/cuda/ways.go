//go:build cgo

package cuda

/*
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

// way is a way to solve a problem whose product and epilogue one kernel can do.
type way byte

const (
	byRule    way = iota // as constants say, which were measured
	narrow               // one kernel, with narrow tiles
	wide                 // one kernel, with wide tiles
	separated            // a product by BLAS, and a pass
	fused                // one kernel, with tiles as constants say
)

// kernelOf makes the kernel of a problem. Inside a tuning block it goes the way that was fastest
// when the problem was first met in one.
func (b *builder) kernelOf(p backend.Problem) (*kernel, error) {
	b.plan(p)
	if choices := p.Tuning(); choices != nil && len(b.ways) > 0 {
		key := b.wayKey(p)
		if choice, ok := choices.Lookup(key); ok && len(choice) == 1 && slices.Contains(b.ways, way(choice[0])) {
			return b.going(way(choice[0]), p)
		}
		kernels := make([]*kernel, len(b.ways))
		for i, w := range b.ways {
			var failed error
			if kernels[i], failed = b.going(w, p); failed != nil {
				return nil, failed
			}
		}
		if winner, timed := fastest(kernels, backend.Views(p)); timed {
			return kernels[winner], choices.Store(key, []byte{byte(b.ways[winner])})
		}
	}
	return b.compile(p)
}

// going makes the kernel that solves a problem one way.
func (b *builder) going(w way, p backend.Problem) (*kernel, error) {
	other := &builder{device: b.device, dt: b.dt, options: b.options, way: w}
	other.plan(p)
	return other.compile(p)
}

// wayKey holds all that the fastest way depends on.
func (b *builder) wayKey(p backend.Problem) string {
	op, kind, dt := p.Describe()
	key := fmt.Sprintf("%s way: %s %s %v %s", b.device.name(), op, kind, dt, b.layers.name)
	if b.allowsTF32 {
		key += " tf32"
	}
	for _, v := range backend.Views(p) {
		key += fmt.Sprintf(" %d %v %v", v.Operand, v.Shape, v.Strides)
	}
	return key
}

// fastest times kernels of one problem, and tells which is the fastest, if there is memory for it.
func fastest(kernels []*kernel, views []*tensor.View) (winner int, timed bool) {
	var bytes [maxOperands]C.uint64_t
	for _, v := range views {
		low, high, err := v.Extent()
		if err != nil || low+v.Offset < 0 {
			return 0, false
		}
		bytes[v.Operand] = max(bytes[v.Operand], C.uint64_t(high+v.Offset))
	}
	programs := make([]*C.epg_cuda_program, len(kernels))
	workspace := int64(0)
	for i, k := range kernels {
		programs[i], workspace = k.memory.program, max(workspace, k.workspace)
	}
	winner = int(C.epg_cuda_fastest(&programs[0], C.int(len(programs)), &bytes[0], maxOperands, C.uint64_t(workspace)))
	return winner, winner >= 0
}
