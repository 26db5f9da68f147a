//go:build cgo

package webgpu

import (
	"cmp"
	"slices"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// How kernels/webgpu/reduce.wgsl shares out a run of terms.
const (
	mostTerms = 256 // of a run
	sharers   = 4   // threads that add it up
)

// sums adds the sums of f's outputs over the dimensions in which they have the size 1 and the
// inputs have not. Those that are not wanted are nil; they are rounded once.
func (b *builder) sums(f formula, sums, inputs []*tensor.View) {
	at := slices.IndexFunc(sums, func(v *tensor.View) bool { return v != nil })
	if at < 0 || sums[at].IsEmpty() {
		return
	}
	final := formula{name: "identity", accumulates: f.accumulates}
	wanted := make([]bool, len(sums))
	for i, sum := range sums {
		wanted[i] = sum != nil
	}
	partials := b.chunks(f, wanted, sums[at].Shape, inputs)
	for i, sum := range sums {
		if sum == nil {
			continue
		}
		b.elementwise(final, []*tensor.View{sum}, []*tensor.View{partials[i]})
	}
}

// chunks adds the passes that leave one partial sum, in float32, for each element of the sums'
// shape; nil where there are no terms. The outputs of f that are wanted are summed.
func (b *builder) chunks(f formula, wanted []bool, shape []int64, inputs []*tensor.View) []*tensor.View {
	all := make([]*tensor.View, len(wanted))
	keptInputs, summedInputs := tensor.Apart(inputs, shape)
	reduced := b.cutTerms(loopsOf(operands(nil, summedInputs)), operands(nil, inputs), tensor.Elements(shape))
	total := int64(0)
	for _, part := range reduced {
		total += ceilDiv(part.count(), mostTerms)
	}
	if total == 0 {
		return all
	}
	outputs := make([]*tensor.View, len(wanted))
	for i, want := range wanted {
		if want {
			all[i] = b.region(dtype.Float32, append([]int64{total}, shape...)...)
			first := *all[i]
			first.Shape, first.Strides = shape, all[i].Strides[1:]
			outputs[i] = &first
		}
	}
	ops := operands(outputs, inputs)
	kept := loopsOf(operands(outputs, keptInputs))
	chunk := int64(0)
	for _, part := range reduced {
		part = withOutputs(part, ops)
		b.partialSums(f, ops, kept, part, chunk, tensor.Elements(shape))
		chunk += ceilDiv(part.count(), mostTerms)
	}
	for i, partial := range all {
		if partial == nil {
			continue
		}
		if total > 1 {
			partial = b.chunks(formula{name: "identity"}, []bool{true}, append([]int64{1}, shape...), []*tensor.View{partial})[0]
		}
		single := partial.Squeeze(0)
		all[i] = &single
	}
	return all
}

// cutTerms cuts the loops over the terms so that half of a binding holds what they reach, and the
// partial sums.
func (b *builder) cutTerms(l loops, inputs []operand, kept int64) []loops {
	if l.count() == 0 {
		return nil
	}
	half := *b
	half.limits.bindingBytes /= 2
	d, cut := half.tooFar(l, inputs, b.mostIndices())
	if !cut && l.count() > mostTerms && ceilDiv(l.count(), mostTerms)*kept*word > half.limits.bindingBytes {
		d, cut = 0, true
	}
	if !cut {
		return []loops{l}
	}
	halves := l.halves(d)
	return append(b.cutTerms(halves[0], inputs, kept), b.cutTerms(halves[1], inputs, kept)...)
}

// partialSums adds the dispatches for one part of the terms, whose chunks are counted from one on.
func (b *builder) partialSums(f formula, all []operand, kept, reduced loops, chunk, row int64) {
	chunks := ceilDiv(reduced.count(), mostTerms)
	together := loops{slices.Concat(reduced.shape, kept.shape), make([][]int64, len(all)), slices.Clone(kept.offsets)}
	for i, o := range all {
		together.strides[i] = slices.Concat(reduced.strides[i], kept.strides[i])
		together.offsets[i] += reduced.offsets[i]
		if o.written {
			together.offsets[i] += chunk * row
		}
	}
	// The dimension of the chunks, along which outputs alone have a stride, counts for what is
	// reached.
	reached := loops{append([]int64{chunks}, together.shape...), make([][]int64, len(all)), together.offsets}
	for i, o := range all {
		reached.strides[i] = append([]int64{0}, together.strides[i]...)
		if o.written {
			reached.strides[i][0] = row
		}
	}
	outer := len(reduced.shape)
	_, cut := b.tooFar(reached, all, b.mostIndices()*mostTerms/sharers)
	if (cut || kept.count()*chunks*sharers > b.mostIndices() || len(together.shape) > mostRank) && kept.count() > 1 {
		for _, half := range kept.halves(0) {
			b.partialSums(f, all, half, reduced, chunk, row)
		}
		return
	}
	if f.accumulates {
		f.accumulates = false // it is the last pass that does
	}
	shape, strides := reversed(together)
	p := newParams(shape, strides)
	p.set(0, kept.count())
	p.set(20, int64(len(shape)-outer))
	p.set(24, reduced.count())
	p.set(28, mostTerms)
	p.set(32, row)
	p.set(36, chunks)
	groups := b.grid(p, kept.count()*chunks*sharers)
	with := func(quads bool) *step {
		t, operands := b.reduceTemplate(f, all, kept, reduced, quads)
		t.bind(operands, together.offsets, reached.shape, reached.strides)
		return &step{template: t, params: p.bytes, groups: groups}
	}
	s := with(false)
	if termsInQuads(all, kept, reduced) {
		single := s
		s = with(true)
		s.unaligned = single
	}
	b.dispatch(s)
}

// reduceTemplate is the kernel for the way in which the terms lie, and the operands as it reads
// them.
func (b *builder) reduceTemplate(f formula, all []operand, kept, reduced loops, quads bool) (*template, []operand) {
	all = slices.Clone(all)
	for i, o := range all {
		all[i].quads = quads && !o.written && reduced.strides[i][len(reduced.shape)-1] == 1
	}
	t := b.template("reduce", f, all)
	t.definitions["NEIGHBOURS"], t.definitions["APART"], t.definitions["SUBGROUPS"] = "", "64u", ""
	if sideBySide(all, kept, reduced) {
		t.definitions["NEIGHBOURS"], t.definitions["APART"] = "yes", "1u"
		if !b.portable && b.device.passes(probeSubgroups) {
			t.definitions["SUBGROUPS"] = "yes"
		}
	}
	return t, all
}

// sideBySide reports whether of most inputs that have both the terms lie closer to each other than
// what is kept does.
func sideBySide(all []operand, kept, reduced loops) bool {
	closer := 0
	for i, o := range all {
		terms, others := reduced.leastStep(i), kept.leastStep(i)
		if o.written || terms == noStep || others == noStep {
			continue
		}
		closer += cmp.Compare(others, terms)
	}
	return kept.count() == 1 || closer > 0
}

// termsInQuads reports whether terms can be read four at a time.
func termsInQuads(all []operand, kept, reduced loops) bool {
	if !sideBySide(all, kept, reduced) {
		return false
	}
	var inputs []operand
	l := loops{shape: slices.Concat(kept.shape, reduced.shape)}
	for i, o := range all {
		if !o.written {
			inputs = append(inputs, o)
			l.strides = append(l.strides, slices.Concat(kept.strides[i], reduced.strides[i]))
			l.offsets = append(l.offsets, kept.offsets[i]+reduced.offsets[i])
		}
	}
	inQuads, rest := l.quads(inputs)
	return inQuads && rest == 0
}

// withOutputs are loops over the inputs' terms in which outputs stand still.
func withOutputs(l loops, all []operand) loops {
	inputs := loops{l.shape, nil, nil}
	next := 0
	for _, o := range all {
		if o.written {
			inputs.strides, inputs.offsets = append(inputs.strides, make([]int64, len(l.shape))), append(inputs.offsets, 0)
			continue
		}
		inputs.strides = append(inputs.strides, l.strides[next])
		inputs.offsets = append(inputs.offsets, l.offsets[next]-o.view.Offset/o.view.DType.Size())
		next++
	}
	return inputs
}
