//go:build cgo

package cuda

import (
	"slices"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// reduction is an elementwise kernel that also sums what it computes over some dimensions
// (kernels/cuda/reduce.cuh).
type reduction struct {
	// the kernel with vectors along a kept dimension; the one without vectors ends with _strided
	columns string
	rows    string // the kernel with vectors along a reduced dimension; "" where there is none
	// outputs have the inputs' shape, and sums the size 1 in the dimensions that are summed over,
	// which are the same for all of them. Outputs that are not wanted, sums that are not, and
	// inputs that are not needed are nil; the first input and one of the sums are there.
	outputs, sums, inputs []*tensor.View
	numbers               numbers
	// groups are where those of the rows end, each of which has sums of its own; nil for none
	groups      *tensor.View
	accumulates bool // whether a run may add to what the sums hold
}

const (
	// mostTerms is how many terms a thread adds one after the other, at most: the error of a sum
	// grows with it.
	mostTerms = 256
	// From manyChunks chunks on a block finishes fewer sums, with more threads for each.
	manyChunks = 256
)

// order is how the terms of a sum are added up. It follows from the shape, from how the first input
// lies in memory and from the number of processors alone, so that the sums do not depend on which
// outputs are wanted, on where these lie, or on the form of the kernel.
type order struct {
	// whether neighbouring threads have neighbouring kept indices, or else reduced ones
	keptFirst bool
	keptLanes int   // the logarithm of how many threads of a block have different kept indices
	unit      int64 // neighbouring reduced elements that one thread adds up by themselves
	run       int64 // units in each of the first longChunks chunks
	shortRun  int64 // and in the others
	// Chunks of the second kind come last and are short, so that processors end together.
	longChunks, chunks int64
}

// reduce adds the launches of a summing kernel, and of those that finish its sums.
func (b *builder) reduce(r *reduction) {
	if r.groups != nil {
		b.sumSlopes(r)
		return
	}
	sum := r.sums[firstOf(r.sums)]
	// The first input comes first: the others do not change in which order it is walked.
	operands := slices.Concat(r.inputs, r.outputs)
	keptViews, reducedViews := tensor.Apart(operands, sum.Shape)
	kept := walkOf(append(keptViews, r.sums...))
	if tensor.Elements(kept.shape) == 0 {
		return
	}
	reduced := walkOf(reducedViews)
	o := b.order(r, walkOf(keptViews[:1]), walkOf(reducedViews[:1]))
	keptPieces, reducedPieces := kept.pieces(), reduced.pieces()
	if len(reducedPieces) > 1 {
		o = b.orderOfPieces(o, reducedPieces[0])
	}
	row, chunks := tensor.Elements(kept.shape), o.chunks*int64(len(reducedPieces))
	partials := make([]*tensor.View, len(r.sums))
	for i, s := range r.sums {
		if s != nil {
			partials[i] = b.region(b.dt.Accumulator(), chunks, row)
		}
	}
	for k, outer := range keptPieces {
		first := int64(k) * tensor.Elements(outer.shape)
		for c, inner := range reducedPieces {
			if chunks == 0 {
				break
			}
			here := make([]*tensor.View, len(partials))
			for i, p := range partials {
				here[i] = moved(p, int64(c)*o.chunks*row+first)
			}
			b.sum(r, o, outer.operands(len(operands)), inner, here, row)
		}
		for i, s := range r.sums {
			if s == nil {
				continue
			}
			b.finish(r.accumulates, outer.only(len(operands)+i), moved(partials[i], first), chunks, row)
		}
	}
}

// only is the walk of one of the operands.
func (w walk) only(i int) walk { return walk{w.views[i : i+1], w.shape, w.strides[i : i+1]} }

// operands is the walk of the first operands.
func (w walk) operands(n int) walk { return walk{w.views[:n], w.shape, w.strides[:n]} }

// order chooses an order from the first input's walks over the kept and over the reduced
// dimensions.
func (b *builder) order(r *reduction, kept, reduced walk) order {
	width := vectorBytes / b.dt.Size()
	keptCount, terms := tensor.Elements(kept.shape), tensor.Elements(reduced.shape)
	if terms == 0 {
		return order{}
	}
	k, c := kept.strides[0][len(kept.shape)-1], reduced.strides[0][len(reduced.shape)-1]
	k, c = max(k, -k), max(c, -c)
	o := order{unit: 1}
	o.keptFirst = keptCount > 1 && (terms == 1 || c == 0 || k != 0 && k <= c)
	blocks, units := ceilDiv(keptCount, width), terms
	if o.keptFirst {
		o.keptLanes = max(min(5, log2(blocks)), blockThreadsLog2-log2(terms))
	} else {
		if r.rows != "" && c <= 1 {
			o.unit = width
		}
		blocks, units = keptCount, ceilDiv(terms, o.unit)
		o.keptLanes = blockThreadsLog2 - min(blockThreadsLog2, log2(units))
	}
	o.cut(units, b.atOnce(r), ceilDiv(blocks, 1<<o.keptLanes), len(r.inputs) > 1)
	return o
}

// atOnce is how many blocks of a summing kernel the processors have at once: reduce.cuh's
// blocks_at_once, or one more a processor for gated kinds in half types, whose sums keep the order
// that they always had.
func (b *builder) atOnce(r *reduction) int64 {
	each := 5 - len(r.outputs)
	if b.dt == dtype.Float64 {
		each--
	}
	return int64(each) * int64(b.device.processors)
}

// cut divides units into chunks, with `blocks` blocks in each. Chunks are as long as they can be
// where all blocks run at once: each costs its block time to begin and to end, and partial sums.
// Processors then wait for the one that memory serves last. So in a long pass half of the units
// goes into chunks an eighth as long. A pass that only reads is too short for what those cost.
func (o *order) cut(units, atOnce, blocks int64, writes bool) {
	lanes := int64(1) << (blockThreadsLog2 - o.keptLanes)
	turns := func(units int64) int64 { return ceilDiv(units, lanes) * lanes }
	even := ceilDiv(units, max(1, atOnce/blocks))
	o.run = turns(min(max(even, 2*lanes), mostTerms/o.unit*lanes))
	o.shortRun = turns(o.run / 16)
	if writes && o.run >= 64*lanes && blocks < 8*atOnce {
		o.run = turns(o.run / 2)
		o.longChunks = (units/2 + o.run/2) / o.run
	} else {
		o.shortRun = o.run
	}
	o.chunks = o.longChunks + ceilDiv(units-o.longChunks*o.run, o.shortRun)
}

// orderOfPieces is the order within each piece of the reduced dimensions, where these are too many
// for one launch.
func (b *builder) orderOfPieces(o order, piece walk) order {
	o.longChunks, o.shortRun = 0, o.run
	o.chunks = ceilDiv(ceilDiv(tensor.Elements(piece.shape), o.unit), o.run)
	return o
}

// vectorForm makes the launch with vectors; nil where strides forbid it.
func (b *builder) vectorForm(r *reduction, o order, kept, reduced walk, partials []*tensor.View, row int64) *launch {
	width := vectorBytes / b.dt.Size()
	switch {
	case o.keptFirst:
		if broadcast, ok := aligned(kept, reduced, len(r.inputs), width); ok {
			return o.launch(r, r.columns, kept.inUnits(width), reduced, tensor.Elements(reduced.shape), broadcast, partials, row)
		}
	case o.unit == width:
		if broadcast, ok := aligned(reduced, kept, len(r.inputs), width); ok {
			return o.launch(r, r.rows, kept, reduced.inUnits(width), tensor.Elements(reduced.shape), broadcast, partials, row)
		}
	}
	return nil
}

// aligned reports whether vectors along the innermost dimension of one of two walks of the same
// operands start at multiples of their width.
func aligned(along, across walk, inputs int, width int64) (broadcast uint32, ok bool) {
	if along.shape[len(along.shape)-1]%width != 0 {
		return 0, false
	}
	broadcast, ok = along.vectors(func(i int) bool { return i < inputs }, width)
	if !ok {
		return 0, false
	}
	all := true
	for i, v := range along.views {
		repeated := broadcast>>i&1 == 1
		if v != nil && !repeated && !multiples(across.strides[i], width) {
			return 0, false
		}
		all = all && (v == nil || repeated)
	}
	return broadcast, !all
}

// inUnits is the walk by steps of one vector along the innermost dimension.
func (w walk) inUnits(width int64) walk {
	inner := len(w.shape) - 1
	units := walk{w.views, slices.Clone(w.shape), make([][]int64, len(w.strides))}
	units.shape[inner] /= width
	for i, strides := range w.strides {
		units.strides[i] = slices.Clone(strides)
		units.strides[i][inner] *= width
	}
	return units
}

// sum adds the launch that writes the partial sums.
func (b *builder) sum(r *reduction, o order, kept, reduced walk, partials []*tensor.View, row int64) {
	b.launch(step{
		vector:  b.vectorForm(r, o, kept, reduced, partials, row),
		general: o.launch(r, r.columns+"_strided", kept, reduced, tensor.Elements(reduced.shape), 0, partials, row),
	})
}

// launch makes a launch with the parameters of reduce.cuh's Reduction, whose operands are the
// outputs and then the inputs. The broadcast bits are in the order of the walks: inputs, outputs.
func (o order) launch(
	r *reduction, function string, kept, reduced walk, terms int64, broadcast uint32, partials []*tensor.View, row int64,
) *launch {
	p := &parameters{}
	var operands []int
	for i := range kept.views {
		operands = append(operands, (len(r.inputs)+i)%len(kept.views))
	}
	repeated := uint32(0)
	for i, at := range operands {
		// Both walks start where the operand does, but for what their pieces skip.
		p.address(skipped(kept.views[at], reduced.views[at], slices.Concat(r.inputs, r.outputs)[at]))
		repeated |= broadcast >> at & 1 << i
	}
	for _, partial := range partials {
		p.address(partial)
	}
	keptCount := tensor.Elements(kept.shape)
	blocks := ceilDiv(keptCount, 1<<o.keptLanes)
	p.numbers(r.numbers)
	p.int64(keptCount)
	p.int64(terms)
	p.int64(o.unit)
	p.int64(o.run)
	p.int64(o.shortRun)
	p.int64(row)
	p.divisor(blocks)
	p.divisors(kept.shape)
	p.divisors(reduced.shape)
	for _, at := range operands {
		p.strides(kept.strides[at])
	}
	for _, at := range operands {
		p.strides(reduced.strides[at])
	}
	p.uint32(uint32(len(kept.shape)))
	p.uint32(uint32(len(reduced.shape)))
	p.uint32(uint32(o.keptLanes))
	p.bool(o.keptFirst)
	p.uint32(repeated)
	p.uint32(uint32(o.longChunks))
	return p.launch(function, blocks*o.chunks)
}

// skipped is a view that starts as much later than the whole as two parts of it do together.
func skipped(one, other, whole *tensor.View) *tensor.View {
	if whole == nil {
		return nil
	}
	return moved(one, (other.Offset-whole.Offset)/whole.DType.Size())
}

// finish adds the launch that adds up a sum's partial sums, with the parameters of reduce.cuh's
// Finish.
func (b *builder) finish(accumulates bool, sum walk, partials *tensor.View, chunks, row int64) {
	n := tensor.Elements(sum.shape)
	widest := 5
	if chunks > manyChunks {
		widest = 3
	}
	lanes := max(min(widest, log2(n)), blockThreadsLog2-log2(max(chunks, 1)))
	p := &parameters{}
	p.address(partials)
	p.address(sum.views[0])
	p.int64(n)
	p.int64(chunks)
	p.int64(row)
	p.strides(sum.strides[0])
	p.divisors(sum.shape)
	p.uint32(uint32(len(sum.shape)))
	p.uint32(uint32(lanes))
	p.accumulate(accumulates)
	p.uint32(0)
	l := p.launch("finish_columns_"+sum.views[0].DType.Short(), ceilDiv(n, 1<<lanes))
	l.early = true
	b.launch(step{general: l, finishes: true})
}
