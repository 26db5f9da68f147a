//go:build cgo

package webgpu

import (
	"fmt"
	"slices"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

// loops walk operands together: sizes, outermost first, with each operand's strides and start, all
// in elements.
type loops struct {
	shape   []int64
	strides [][]int64
	offsets []int64
}

// loopsOf collapses the operands' dimensions, in the order that suits the first.
func loopsOf(all []operand) loops {
	views := make([]*tensor.View, len(all))
	offsets := make([]int64, len(all))
	for i, o := range all {
		views[i], offsets[i] = o.view, o.view.Offset/o.view.DType.Size()
	}
	shape, strides := tensor.Collapse(views)
	return loops{shape, strides, offsets}
}

const noStep = 1 << 62

func (l loops) count() int64 { return tensor.Elements(l.shape) }

// leastStep returns the smallest magnitude of an operand's strides other than 0; noStep where all
// are 0.
func (l loops) leastStep(i int) int64 {
	least := int64(noStep)
	for _, stride := range l.strides[i] {
		if stride != 0 {
			least = min(least, magnitude(stride))
		}
	}
	return least
}

// part returns the loops over [from, from+size) of dimension d; a size of 1 drops the dimension.
func (l loops) part(d int, from, size int64) loops {
	p := loops{slices.Clone(l.shape), make([][]int64, len(l.strides)), slices.Clone(l.offsets)}
	p.shape[d] = size
	for i, strides := range l.strides {
		p.offsets[i] += from * strides[d]
		p.strides[i] = slices.Clone(strides)
		if size == 1 {
			p.strides[i] = slices.Delete(p.strides[i], d, d+1)
		}
	}
	if size == 1 {
		p.shape = slices.Delete(p.shape, d, d+1)
	}
	return p
}

// halves cuts a dimension in two. The first half is a multiple of many elements where there are
// many, so that words and vectors stay whole.
func (l loops) halves(d int) [2]loops {
	half := (l.shape[d] + 1) / 2
	for _, unit := range []int64{64, 2} {
		if l.shape[d] > unit {
			half = ceilDiv(half, unit) * unit
			break
		}
	}
	return [2]loops{l.part(d, 0, half), l.part(d, half, l.shape[d]-half)}
}

// tooFar finds the dimension to cut where an operand reaches further than a binding may, or there
// are too many dimensions or indices.
func (b *builder) tooFar(l loops, all []operand, mostIndices int64) (dim int, ok bool) {
	for i, o := range all {
		lo, hi := reach(l.shape, l.strides[i])
		if (hi-lo+1)*o.view.DType.Size()+b.limits.alignment+word <= b.limits.bindingBytes {
			continue
		}
		widest := int64(-1)
		for d, n := range l.shape {
			if steps := (n - 1) * magnitude(l.strides[i][d]); n > 1 && steps > widest {
				dim, widest = d, steps
			}
		}
		return dim, widest > 0
	}
	return 0, len(l.shape) > 0 && (len(l.shape) > mostRank || l.count() > mostIndices)
}

// mostIndices is how many indices one dispatch can have.
func (b *builder) mostIndices() int64 {
	return min(b.limits.groups*b.limits.groups*groupThreads, 1<<31)
}

// elementwise adds outputs = f(inputs), all in one shape with any strides; those that are absent
// are nil. Nothing is added where there are no elements.
func (b *builder) elementwise(f formula, outputs, inputs []*tensor.View) {
	all := operands(outputs, inputs)
	if len(all) == 0 || !all[0].written {
		return
	}
	for i := range all {
		all[i].accumulates = f.accumulates && all[i].written
	}
	b.pieces(f, all, loopsOf(all))
}

func (b *builder) pieces(f formula, all []operand, l loops) {
	if l.count() == 0 {
		return
	}
	if d, cut := b.tooFar(l, all, b.mostIndices()); cut {
		for _, half := range l.halves(d) {
			b.pieces(f, all, half)
		}
		return
	}
	inQuads, rest := l.quads(all)
	single := b.elementwiseStep(f, all, l, false)
	if !inQuads {
		b.dispatch(single)
		return
	}
	if rest > 0 {
		whole := l.count() - rest
		b.pieces(f, all, l.part(0, 0, whole))
		b.pieces(f, all, l.part(0, whole, rest))
		return
	}
	step := b.elementwiseStep(f, all, l, true)
	step.unaligned = single
	b.dispatch(step)
}

// elementwiseStep is one dispatch over the loops, four indices a thread or one.
func (b *builder) elementwiseStep(f formula, all []operand, l loops, inQuads bool) *step {
	all = slices.Clone(all)
	shape, strides := reversed(l)
	per := int64(1)
	if inQuads {
		per = 4
		shape[0] /= per
		for i := range all {
			all[i].quads = strides[i][0] == 1
			strides[i][0] *= per
		}
	}
	t := b.template("elementwise", f, all)
	turns := int64(1)
	t.definitions["PER"], t.definitions["EACH"], t.definitions["TURNS"], t.definitions["FLAT"] = fmt.Sprintf("%du", per), "all", "0", ""
	if inQuads && b.writesOut {
		turns = 2
		t.definitions["EACH"], t.definitions["TURNS"] = "0 1 2 3", "0 1"
		if len(shape) <= 1 {
			t.definitions["FLAT"] = "yes"
		}
	}
	t.definitions["THREADS"] = fmt.Sprintf("%du", turns*groupThreads)
	t.bind(all, l.offsets, l.shape, l.strides)
	p := newParams(shape, strides)
	p.set(0, l.count()/per)
	return &step{template: t, params: p.bytes, groups: b.grid(p, ceilDiv(l.count()/per, turns))}
}

// quads reports whether the operands' elements can be taken four at a time, innermost: they lie
// side by side from a multiple of four on, or one serves for all. A single loop may leave a rest of
// fewer than four.
func (l loops) quads(all []operand) (ok bool, rest int64) {
	inner := len(l.shape) - 1
	if inner < 0 || l.shape[inner] < 4 || inner > 0 && l.shape[inner]%4 != 0 {
		return false, 0
	}
	for i, o := range all {
		if l.strides[i][inner] == 0 && !o.written {
			continue
		}
		if l.strides[i][inner] != 1 || l.offsets[i]%4 != 0 || slices.ContainsFunc(l.strides[i][:inner], func(stride int64) bool { return stride%4 != 0 }) {
			return false, 0
		}
	}
	return true, l.shape[inner] % 4
}

// reversed are the loops innermost first.
func reversed(l loops) (shape []int64, strides [][]int64) {
	shape = slices.Clone(l.shape)
	slices.Reverse(shape)
	for _, s := range l.strides {
		s = slices.Clone(s)
		slices.Reverse(s)
		strides = append(strides, s)
	}
	return shape, strides
}

func (b *builder) activationBackward(p *backend.ActivationBackward) {
	b.slopes(formula{name: "activation_backward", kind: p.Formula}, p.Groups, []*tensor.View{p.GradBias},
		[]*tensor.View{p.GradInput, p.Out}, []*tensor.View{p.GradOutput, p.Input})
}

func (b *builder) gatedBackward(p *backend.GatedBackward) {
	b.slopes(formula{name: "gated_backward", kind: p.Formula}, p.Groups, []*tensor.View{p.GradBiasValue, p.GradBiasGate},
		[]*tensor.View{p.GradValue, p.GradGate}, []*tensor.View{p.GradOutput, p.Value, p.Gate})
}

// slopes adds the sums for biases, and then the results: grad_input may be grad_output's memory.
func (b *builder) slopes(f formula, groups *tensor.View, biases, outputs, inputs []*tensor.View) {
	f.accumulates = true
	b.biasSums(f, groups, biases, inputs)
	f.accumulates = false
	b.elementwise(f, outputs, inputs)
}

func pointwiseFormula(h *backend.Header, backward string, inputs []*tensor.View) formula {
	return formula{name: h.Formula + backward, hasLast: inputs[len(inputs)-1] != nil}
}

func (b *builder) pointwise(p *backend.Pointwise) {
	b.elementwise(pointwiseFormula(&p.Header, "", p.Inputs), []*tensor.View{p.Out}, p.Inputs)
}

// pointwiseBackward makes one pass for all gradients of grad_output's own shape, and one for each
// of those that are summed.
func (b *builder) pointwiseBackward(p *backend.PointwiseBackward) {
	inputs := append([]*tensor.View{p.GradOutput}, p.Inputs...)
	f := pointwiseFormula(&p.Header, "_backward", p.Inputs)
	full := make([]*tensor.View, len(p.Gradients))
	for i, gradient := range p.Gradients {
		if gradient == nil || slices.Equal(gradient.Shape, p.GradOutput.Shape) {
			full[i] = gradient
			continue
		}
		sums := make([]*tensor.View, len(p.Gradients))
		sums[i] = gradient
		b.sums(f, sums, inputs)
	}
	b.elementwise(f, full, inputs)
}

// gradPreactivation is the formula of grad_preactivation from what was saved, which is the
// preactivation or the output.
func gradPreactivation(kind string, fromOutput bool) formula {
	if info, _ := activation.Lookup(kind); fromOutput && info.FromOutput {
		return formula{name: "gradient_from_output", kind: kind}
	}
	return formula{name: "activation_backward", kind: kind}
}
