package reference

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/elements"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
)

const (
	// blockLength is the elements that a formula is applied to at a time: a handful of float64
	// blocks stay in the first-level cache.
	blockLength = 256
	// elementsPerTask is the least work that is worth a goroutine's start.
	elementsPerTask = 32 * blockLength
)

// block is one operand's values of a block, in float64.
type block [blockLength]float64

// blocks are those of all operands, outputs first, and what a formula is given of them.
type blocks struct {
	of    [layout.MostOperands]block
	lists [layout.MostOperands][]float64
}

// compute computes n elements: from the blocks of the inputs, into those of the outputs.
type compute func(n int, b *blocks)

// forEachBlock loads the last len(views)-outputs views block by block, has compute fill the first
// outputs blocks, and stores those.
func forEachBlock(w *layout.Walk, r *backend.Run, outputs int, compute compute) error {
	if w.Count == 0 {
		return nil
	}
	base := w.Bind(r)
	tasks := int((w.Count + elementsPerTask - 1) / elementsPerTask)
	return threads.Parallel(tasks, r.Threads, w.Count*threads.FormulaWork, func(task int) {
		var b blocks
		first := int64(task) * elementsPerTask
		for end := min(first+elementsPerTask, w.Count); first < end; {
			n := int(min(blockLength, end-first))
			w.Pieces(&base, first, n, func(p *layout.Piece) {
				for i := outputs; i < len(w.Views); i++ {
					if w.Views[i] == nil {
						continue
					}
					elements.Load(b.of[i][p.Start:p.Start+p.Length], p.At[i], w.InnerStride(i), w.DType)
				}
			})
			compute(n, &b)
			w.Pieces(&base, first, n, func(p *layout.Piece) {
				for i := range outputs {
					if w.Views[i] == nil {
						continue
					}
					elements.Store(p.At[i], w.InnerStride(i), b.of[i][p.Start:p.Start+p.Length], w.DType)
				}
			})
			first += int64(n)
		}
	})
}
