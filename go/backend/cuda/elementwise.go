//go:build cgo

package cuda

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
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
	bytes     []byte
	pointers  []pointer
	numbersAt int // where runsNumbers are
}

func (p *parameters) uint32(x uint32) { p.bytes = binary.LittleEndian.AppendUint32(p.bytes, x) }
func (p *parameters) uint64(x uint64) { p.bytes = binary.LittleEndian.AppendUint64(p.bytes, x) }
func (p *parameters) int64(x int64)   { p.uint64(uint64(x)) }
func (p *parameters) bool(x bool) {
	if x {
		p.uint32(1)
	} else {
		p.uint32(0)
	}
}
func (p *parameters) float64(x float64) { p.uint64(math.Float64bits(x)) }

// address is a view's first element; a nil view is a null pointer.
func (p *parameters) address(v *tensor.View) {
	if v != nil {
		p.pointers = append(p.pointers, pointer{len(p.bytes), v})
	}
	p.uint64(0)
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

// divisors are those of a shape, innermost first, filled up to maxRank.
func (p *parameters) divisors(shape []int64) {
	for d := range maxRank {
		size := int64(1)
		if d < len(shape) {
			size = shape[len(shape)-1-d]
		}
		p.divisor(size)
	}
}

// strides are an operand's, innermost first, filled up to maxRank.
func (p *parameters) strides(strides []int64) {
	for d := range maxRank {
		stride := int64(0)
		if d < len(strides) {
			stride = strides[len(strides)-1-d]
		}
		p.int64(stride)
	}
}

// launch makes the launch of a kernel of so many blocks.
func (p *parameters) launch(function string, blocks int64) (*launch, error) {
	if blocks > maxBlocks {
		return nil, status.Errorf(status.Unsupported, "cuda: %s: got work for %d blocks, want at most %d, CUDA's limit of a launch: split the tensors", function, blocks, maxBlocks)
	}
	return &launch{
		function: function, grid: [3]uint32{uint32(blocks), 1, 1}, block: [3]uint32{blockThreads, 1, 1},
		params: p.bytes, pointers: p.pointers, parameters: none, accumulate: none,
	}, nil
}

// walk is a set of operands over one set of loops: a shape, outermost first, with each operand's
// strides in elements, and where it starts. Operands that are absent are nil and have strides 0.
type walk struct {
	views   []*tensor.View
	shape   []int64
	strides [][]int64
}

// walkOf collapses views, of which some may be nil, in the order that suits the first that is not.
func walkOf(views []*tensor.View) walk {
	var there []tensor.View
	for _, v := range views {
		if v != nil {
			there = append(there, *v)
		}
	}
	shape, strides := tensor.Collapse(there)
	if len(shape) == 0 {
		shape = []int64{1}
		for i := range strides {
			strides[i] = []int64{0}
		}
	}
	w := walk{views, shape, make([][]int64, len(views))}
	next := 0
	for i, v := range views {
		if v == nil {
			w.strides[i] = make([]int64, len(shape))
			continue
		}
		w.strides[i] = strides[next]
		next++
	}
	return w
}

// pieces cuts a walk into those that kernels can take, of maxRank dimensions at most: one for each
// index of the outer dimensions.
func (w walk) pieces() []walk {
	if len(w.shape) <= maxRank {
		return []walk{w}
	}
	var all []walk
	for index := range w.shape[0] {
		inner := walk{make([]*tensor.View, len(w.views)), w.shape[1:], make([][]int64, len(w.views))}
		for i, v := range w.views {
			inner.views[i], inner.strides[i] = moved(v, index*w.strides[i][0]), w.strides[i][1:]
		}
		all = append(all, inner.pieces()...)
	}
	return all
}

// moved is a view that starts some elements later.
func moved(v *tensor.View, by int64) *tensor.View {
	if v == nil || by == 0 {
		return v
	}
	later := *v
	later.Offset += by * v.DType.Size()
	return &later
}

// vectors reports whether operands can be accessed by vectors along the innermost dimension, as far
// as their strides tell: whether each is contiguous along it, or an input that has one value along
// it (those are the bits of broadcast), and whether all vectors start at a multiple of their width.
func (w walk) vectors(isInput func(i int) bool, width int64) (broadcast uint32, ok bool) {
	inner := len(w.shape) - 1
	if len(w.shape) > 1 && w.shape[inner]%width != 0 {
		return 0, false
	}
	for i, v := range w.views {
		switch {
		case v == nil:
		case w.strides[i][inner] == 0 && isInput(i):
			broadcast |= 1 << i
		case w.strides[i][inner] != 1 || !multiples(w.strides[i][:inner], width):
			return 0, false
		}
	}
	return broadcast, true
}

func multiples(strides []int64, width int64) bool {
	for _, stride := range strides {
		if stride%width != 0 {
			return false
		}
	}
	return true
}

// numbers are what a kernel gets beside its tensors: the run's parameters, or fixed ones, of which
// the first is not zero.
type numbers struct {
	fixed bool
	first float64
}

// function is an elementwise kernel.
type function struct {
	name    string
	outputs int
	vectors int64  // that a thread of the vector form does: `vectors` of loops.cuh
	pairs   string // the vector form where the last two views take turns in memory; "" for none
}

// vectorsOf is how many vectors a thread does that computes an activation: one where that is
// `cheap` (kernels/cuda/activation.cuh).
func vectorsOf(kind string, dt dtype.DType) int64 {
	row, _ := activation.Lookup(kind)
	if row.Cheap || row.CheapInHalf && dt.Size() == 2 {
		return 1
	}
	return 2
}

// elementwise adds the launches of an elementwise kernel; of the views the first are outputs.
// Nothing is launched where there are no elements.
func (b *builder) elementwise(f function, n numbers, views ...*tensor.View) error {
	whole := walkOf(views)
	if tensor.Elements(whole.shape) == 0 {
		return nil
	}
	for _, w := range whole.pieces() {
		s := step{}
		var err error
		if s.general, err = w.strided(f.name, n); err != nil {
			return err
		}
		if s.vector, err = w.vector(f, n); err != nil {
			return err
		}
		if s.vector == nil && f.pairs != "" {
			if s.vector, err = w.pairs(f, n); err != nil {
				return err
			}
		}
		b.launch(s)
	}
	return nil
}

// vector makes the vector form of an elementwise launch; nil where strides forbid it.
func (w walk) vector(f function, n numbers) (*launch, error) {
	width := vectorBytes / w.views[firstOf(w.views)].DType.Size()
	inner := len(w.shape) - 1
	broadcast, ok := w.vectors(func(i int) bool { return i >= f.outputs }, width)
	if !ok || w.shape[inner] < width {
		return nil, nil
	}
	return w.byVectors(f.name, n, width, f.vectors, broadcast, false)
}

// byVectors makes a launch over vectors of so many elements, of which a thread does some.
func (w walk) byVectors(function string, n numbers, width, perThread int64, broadcast uint32, gateFirst bool) (*launch, error) {
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
	l, err := n.launch(p, len(w.views), function, vectors/(vectorThreads*perThread)+1)
	if err == nil {
		l.block[0] = vectorThreads
	}
	return l, err
}

// strided makes the form of an elementwise launch that takes any strides.
func (w walk) strided(function string, n numbers) (*launch, error) {
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
	return n.launch(p, len(w.views), function+"_strided", tiles*ceilDiv(rows, blockThreads>>lanes))
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

// numbers are the parameters of a kind.
func (p *parameters) numbers(n numbers) {
	p.float64(n.first)
	for range activation.MostParameters - 1 {
		p.float64(0)
	}
}

// launch makes a launch whose numbers lie behind so many addresses.
func (n numbers) launch(p *parameters, addresses int, function string, blocks int64) (*launch, error) {
	l, err := p.launch(function, blocks)
	if err == nil && !n.fixed {
		l.parameters = 8 * addresses
	}
	return l, err
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

// activation adds out = act(in), in one shape and any strides; out may be in. "none" copies bits.
func (b *builder) activation(kind string, out, in *tensor.View) error {
	f := function{name: "activation_" + kind + "_" + out.DType.Short(), outputs: 1, vectors: vectorsOf(kind, out.DType)}
	return b.elementwise(f, numbers{}, out, in)
}

// activationBackward adds the gradient, with its column sums in the same pass, and the activation:
// in one pass where both are wanted.
func (b *builder) activationBackward(p *backend.ActivationBackward) error {
	gradient := p.GradInput != nil || p.GradBias != nil
	if gradient && p.Out != nil && p.Formula != "none" {
		what, suffix := "activation_backward_", p.Formula+"_"+p.DType.Short()
		if p.GradBias == nil {
			return b.elementwise(function{name: what + suffix, outputs: 2, vectors: 1}, numbers{}, p.GradInput, p.Out, p.GradOutput, p.Input)
		}
		return b.reduce(&reduction{
			columns: what + "columns_" + suffix, outputs: []*tensor.View{p.GradInput, p.Out}, sums: []*tensor.View{p.GradBias, nil},
			inputs: []*tensor.View{p.GradOutput, p.Input}, accumulates: true,
		})
	}
	if gradient {
		pass := &lower.Pass{Formula: p.Formula, Groups: p.Groups, GradOutput: p.GradOutput, Saved: p.Input, GradPreactivation: p.GradInput, GradBias: p.GradBias}
		if err := b.gradPreactivation(pass); err != nil {
			return err
		}
	}
	if p.Out == nil {
		return nil
	}
	return b.activation(p.Formula, p.Out, p.Input)
}

func (b *builder) gated(p *backend.Gated) error {
	suffix := p.Formula + "_" + p.DType.Short()
	f := function{name: "gated_" + suffix, outputs: 1, vectors: vectorsOf(p.Formula, p.DType), pairs: "gated_pairs_" + suffix}
	return b.elementwise(f, numbers{}, p.Out, p.Value, p.Gate)
}

func (b *builder) gatedBackward(p *backend.GatedBackward) error {
	if p.GradBiasValue != nil || p.GradBiasGate != nil {
		return b.reduce(&reduction{
			columns: "gated_backward_columns_" + p.Formula + "_" + p.DType.Short(),
			outputs: []*tensor.View{p.GradValue, p.GradGate}, sums: []*tensor.View{p.GradBiasValue, p.GradBiasGate},
			inputs: []*tensor.View{p.GradOutput, p.Value, p.Gate}, groups: p.Groups, accumulates: true,
		})
	}
	suffix := p.Formula + "_" + p.DType.Short()
	f := function{name: "gated_backward_" + suffix, outputs: 2, vectors: 1, pairs: "gated_backward_pairs_" + suffix}
	return b.elementwise(f, numbers{}, p.GradValue, p.GradGate, p.GradOutput, p.Value, p.Gate)
}

// gradPreactivation adds a pass, whose views have any strides.
func (b *builder) gradPreactivation(p *lower.Pass) error {
	what, suffix := "grad_preactivation_", p.Formula+"_"+p.GradOutput.DType.Short()
	inputs := []*tensor.View{p.GradOutput, p.Saved}
	switch {
	case p.Formula == "none":
		inputs = inputs[:1]
	case p.FromOutput:
		what += "from_output_"
	}
	if p.Groups != nil && p.Formula == "none" && p.GradBias != nil {
		if err := b.sumRowsOf(p.GradOutput, p.GradBias, nil, p.Groups); err != nil || p.GradPreactivation == nil {
			return err
		}
		return b.activation("none", p.GradPreactivation, p.GradOutput)
	}
	if p.GradBias == nil {
		if p.Formula == "none" {
			return b.activation("none", p.GradPreactivation, p.GradOutput)
		}
		f := function{name: what + suffix, outputs: 1, vectors: vectorsOf(p.Formula, p.GradOutput.DType)}
		if p.FromOutput {
			f.vectors = 1
		}
		return b.elementwise(f, numbers{}, append([]*tensor.View{p.GradPreactivation}, inputs...)...)
	}
	return b.reduce(&reduction{
		columns: what + "columns_" + suffix, outputs: []*tensor.View{p.GradPreactivation}, sums: []*tensor.View{p.GradBias}, inputs: inputs,
		groups: p.Groups, accumulates: true,
	})
}

// ComputesInAccumulator says that formulas are computed in the accumulator's dtype, and not in
// float64.
func (*Backend) ComputesInAccumulator() bool { return true }
