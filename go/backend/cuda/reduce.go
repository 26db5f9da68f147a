package cuda

import (
	"slices"

	"github.com/epigrad/epigrad/go/tensor"
)

// reduction is an elementwise kernel that also sums what it computes over some dimensions (kernels/cuda/reduce.cuh).
type reduction struct {
	columns string // the kernel with vectors along a kept dimension, and with _strided that with none
	rows    string // the kernel with vectors along a reduced dimension; "" where there is none
	// outputs have the inputs' shape, and sums the size 1 in the dimensions that are summed over, which are the same for all of them. Outputs that are
	// not asked for, sums that are not, and inputs that are not needed are nil; the first input and one of the sums are there.
	outputs, sums, inputs []*tensor.View
	weight                scalar
	accumulates           bool // whether a run may add to what the sums hold
}

const (
	// blocksPerProcessor is how many blocks a processor gets at the least, one after the other, where there are terms enough.
	blocksPerProcessor = 12
	// mostTerms is how many terms a thread adds one after the other, at most: the error of a sum grows with it.
	mostTerms = 256
	// manyChunks is from where on fewer sums are finished by a block, with more threads for each.
	manyChunks = 256
)

// form is how a summing kernel is laid out over its operands: what a unit is, and which threads of a block have which indices.
type form struct {
	function      string
	kept, reduced walk
	broadcast     uint32
	keptFirst     bool
	keptLanes     int
	perUnit       int64 // elements of a reduced index
}

// reduce adds the launches of a summing kernel, and of those that finish its sums.
func (b *builder) reduce(r *reduction) error {
	operands := slices.Concat(r.outputs, r.inputs)
	sum := r.sums[firstOf(r.sums)]
	kept := walkOf(append(restricted(operands, sum.Shape, true), r.sums...))
	if elements(kept.shape) == 0 {
		return nil
	}
	reduced := walkOf(restricted(operands, sum.Shape, false))
	keptPieces, reducedPieces := kept.pieces(), reduced.pieces()
	chunks := int64(0)
	if elements(reduced.shape) > 0 {
		chunks = b.chunks(b.preferred(r, keptPieces[0], reducedPieces[0]))
	}
	row := elements(kept.shape)
	partials := make([]*tensor.View, len(r.sums))
	for i, s := range r.sums {
		if s != nil {
			partials[i] = b.region(b.dt.Accumulator(), chunks*int64(len(reducedPieces)), row)
		}
	}
	for k, outer := range keptPieces {
		first := int64(k) * elements(outer.shape)
		for c, inner := range reducedPieces {
			if chunks == 0 {
				break
			}
			here := make([]*tensor.View, len(partials))
			for i, p := range partials {
				here[i] = moved(p, int64(c)*chunks*row+first)
			}
			if err := b.sum(r, outer, inner, here, chunks, row); err != nil {
				return err
			}
		}
		for i, s := range r.sums {
			if s == nil {
				continue
			}
			finished := outer.only(len(operands) + i)
			if err := b.finish(r, finished, moved(partials[i], first), chunks*int64(len(reducedPieces)), row); err != nil {
				return err
			}
		}
	}
	return nil
}

// restricted are views without the dimensions that are summed over, or with those alone.
func restricted(views []*tensor.View, sum []int64, kept bool) []*tensor.View {
	all := make([]*tensor.View, len(views))
	for i, v := range views {
		if v == nil {
			continue
		}
		part := *v
		part.Shape = slices.Clone(v.Shape)
		for d, n := range sum {
			if (n == part.Shape[d]) != kept {
				part.Shape[d] = 1
			}
		}
		all[i] = &part
	}
	return all
}

// only is the walk of one of the operands.
func (w walk) only(i int) walk { return walk{w.views[i : i+1], w.shape, w.strides[i : i+1]} }

// operands is the walk of the first operands.
func (w walk) operands(n int) walk { return walk{w.views[:n], w.shape, w.strides[:n]} }

// preferred is the form with vectors, where strides allow one, or else that without.
func (b *builder) preferred(r *reduction, kept, reduced walk) *form {
	if f := b.withVectors(r, kept, reduced); f != nil {
		return f
	}
	return withoutVectors(r, kept, reduced)
}

// withVectors is a form with vectors along the innermost kept or reduced dimension; nil where strides forbid both.
func (b *builder) withVectors(r *reduction, kept, reduced walk) *form {
	operands := len(r.outputs) + len(r.inputs)
	kept = kept.operands(operands)
	width := vectorBytes / b.dt.Size()
	if broadcast, ok := aligned(kept, reduced, len(r.outputs), width); ok {
		f := &form{function: r.columns, kept: kept.inUnits(width), reduced: reduced, broadcast: broadcast, keptFirst: true, perUnit: 1}
		f.place()
		return f
	}
	if r.rows == "" {
		return nil
	}
	if broadcast, ok := aligned(reduced, kept, len(r.outputs), width); ok {
		f := &form{function: r.rows, kept: kept, reduced: reduced.inUnits(width), broadcast: broadcast, perUnit: width}
		f.place()
		return f
	}
	return nil
}

// aligned reports whether vectors along the innermost dimension of one of two walks of the same operands start at multiples of their width.
func aligned(along, across walk, outputs int, width int64) (broadcast uint32, ok bool) {
	if along.shape[len(along.shape)-1]%width != 0 {
		return 0, false
	}
	broadcast, ok = along.vectors(outputs, width)
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

// withoutVectors is the form that takes any strides. Neighbouring threads go along the dimension in which the first operand that tells lies closer.
func withoutVectors(r *reduction, kept, reduced walk) *form {
	f := &form{function: r.columns + "_strided", kept: kept.operands(len(r.outputs) + len(r.inputs)), reduced: reduced, keptFirst: true, perUnit: 1}
	for i := len(r.outputs); i < len(f.kept.views); i++ {
		k, c := f.kept.strides[i][len(kept.shape)-1], reduced.strides[i][len(reduced.shape)-1]
		k, c = max(k, -k), max(c, -c)
		if k != c {
			f.keptFirst = c == 0 || k != 0 && k < c
			break
		}
	}
	f.place()
	return f
}

// place chooses which threads of a block have which indices.
func (f *form) place() {
	kept, reduced := log2(elements(f.kept.shape)), log2(elements(f.reduced.shape))
	if f.keptFirst {
		f.keptLanes = max(min(5, kept), blockThreadsLog2-reduced)
	} else {
		f.keptLanes = blockThreadsLog2 - min(blockThreadsLog2, reduced)
	}
}

// blocks is how many blocks the kept indices take.
func (f *form) blocks() int64 { return ceilDiv(elements(f.kept.shape), 1<<f.keptLanes) }

// chunks is how many pieces the reduced indices are cut into: as many as give each processor its blocks, as long as threads have more than one term, and
// at least as many as keep a thread's sums short. It depends on the geometry and the device alone.
func (b *builder) chunks(f *form) int64 {
	units := elements(f.reduced.shape)
	lanes := int64(1) << (blockThreadsLog2 - f.keptLanes)
	wanted := ceilDiv(blocksPerProcessor*int64(b.device.processors), f.blocks())
	chunks := max(1, min(wanted, units/(2*lanes)), ceilDiv(units*f.perUnit, mostTerms*lanes))
	// Whole turns of the block's threads in each chunk.
	return ceilDiv(units, ceilDiv(ceilDiv(units, chunks), lanes)*lanes)
}

// sum adds the launch that writes the partial sums of so many chunks.
func (b *builder) sum(r *reduction, kept, reduced walk, partials []*tensor.View, chunks, row int64) error {
	var s step
	var err error
	if f := b.withVectors(r, kept, reduced); f != nil {
		if s.vector, err = f.launch(r, partials, chunks, row); err != nil {
			return err
		}
	}
	if s.general, err = withoutVectors(r, kept, reduced).launch(r, partials, chunks, row); err != nil {
		return err
	}
	b.launch(s)
	return nil
}

// launch makes a launch with the parameters of reduce.cuh's Reduction.
func (f *form) launch(r *reduction, partials []*tensor.View, chunks, row int64) (*launch, error) {
	p := &parameters{}
	// The two walks start at the same places, but for what their pieces skip.
	for i, v := range f.kept.views {
		if v != nil {
			p.address(moved(v, skipped(f.reduced.views[i], slices.Concat(r.outputs, r.inputs)[i])))
		} else {
			p.address(nil)
		}
	}
	for _, partial := range partials {
		p.address(partial)
	}
	units := elements(f.reduced.shape)
	p.float64(r.weight.value)
	p.int64(elements(f.kept.shape))
	p.int64(units)
	p.int64(ceilDiv(units, chunks))
	p.int64(row)
	p.divisor(f.blocks())
	p.divisors(f.kept.shape)
	p.divisors(f.reduced.shape)
	for i := range f.kept.views {
		p.strides(f.kept.strides[i])
	}
	for i := range f.reduced.views {
		p.strides(f.reduced.strides[i])
	}
	p.uint32(uint32(len(f.kept.shape)))
	p.uint32(uint32(len(f.reduced.shape)))
	p.uint32(uint32(f.keptLanes))
	p.uint32(truth(f.keptFirst))
	p.uint32(f.broadcast)
	p.uint32(0)
	return r.weight.launch(p, len(f.kept.views)+len(partials), f.function, f.blocks()*chunks)
}

// skipped is how many elements later than a view a part of it starts.
func skipped(part, whole *tensor.View) int64 { return (part.Offset - whole.Offset) / whole.DType.Size() }

// finish adds the launch that adds up a sum's partial sums, with the parameters of reduce.cuh's Finish.
func (b *builder) finish(r *reduction, sum walk, partials *tensor.View, chunks, row int64) error {
	n := elements(sum.shape)
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
	accumulate := len(p.bytes)
	p.uint32(0)
	p.uint32(0)
	l, err := p.launch("finish_columns_"+b.dt.Short(), ceilDiv(n, 1<<lanes))
	if err != nil {
		return err
	}
	if r.accumulates {
		l.accumulate = accumulate
	}
	b.launch(step{general: l})
	return nil
}

func truth(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
