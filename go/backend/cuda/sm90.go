//go:build cgo

package cuda

/*
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"math"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// What kernels/cuda/product_sm90.cuh says of a launch.
const (
	sm90Threads = 3 * 128
	sm90Shared  = 227 << 10 // bytes
	// a tile's rows, and how far into the depth it is copied at a time
	sm90Rows, sm90Depth = 128, 64
	// columns of every box that is copied, and rows of one that is stored
	mapColumns, storedRows = 64, 64
	// bytes of a tensor map, and of the kernel's parameters
	mapBytes, sm90Parameters = 128, 1152
)

// mapTypes are CUtensorMapDataType of the dtypes that these products have.
var mapTypes = map[dtype.DType]C.int32_t{dtype.Float16: 6, dtype.BFloat16: 9}

// isHopper reports whether a device has the instructions of product_sm90.cuh: those before and
// after have not.
func isHopper(major, minor int) bool { return major == 9 && minor == 0 }

// canBox reports whether a device, and its driver, can run product_sm90.cuh.
func canBox(handle *C.epg_device) bool {
	return isHopper(int(handle.major), int(handle.minor)) && C.epg_cuda_has_maps() != 0
}

// onePass is a product with its epilogue as one kernel does it.
type onePass struct {
	left, right, out, pre matrix
	across                bool // the right operand's columns are contiguous, else its depth
	rows, columns, depth  int64
	views                 [lower.Operands]*tensor.View
}

// boxed reports whether a matrix of a half type can be copied by boxes: columns are contiguous, and
// rows start at multiples of 16 bytes where the first one does. A single row gets such a stride.
// The copy engine has limits of its own: 32 bits for a place, 40 for a stride.
func (m *matrix) boxed() bool {
	const unit, longestStride = vectorBytes / 2, 1 << 39
	if m.rows == 1 {
		m.rowStride = ceilDiv(m.columns, unit) * unit
	}
	return m.columnStride == 1 && m.rowStride%unit == 0 && m.rowStride >= m.columns && m.rowStride < longestStride &&
		max(m.rows, m.columns) < math.MaxInt32-sm90Rows
}

// onePassOf tells whether one kernel can do a product with a bias and an activation, and how.
func (b *builder) onePassOf(whole *lower.Product) (o onePass, ok bool) {
	if mapTypes[b.dt] == 0 || b.blasAlone || !b.device.boxes {
		return o, false
	}
	p := *whole
	p.M, p.N, p.K = squeezed(p.M), squeezed(p.N), squeezed(p.K)
	o = onePass{rows: lower.Count(p.M), columns: lower.Count(p.N), depth: lower.Count(p.K), views: p.Views}
	if lower.Count(p.Batch) != 1 || min(o.rows, o.columns, o.depth) == 0 || o.columns%2 != 0 {
		return o, false
	}
	var fits [4]bool
	o.left, fits[0] = matrixOf(p.M, p.K, lower.Left)
	o.right, fits[1] = matrixOf(p.K, p.N, lower.Right)
	o.out, fits[2] = matrixOf(p.M, p.N, lower.Out)
	o.pre, fits[3] = matrixOf(p.M, p.N, lower.Preactivation)
	if fits != [4]bool{true, true, true, true} {
		return o, false
	}
	if o.across = o.right.boxed(); !o.across {
		o.right = o.right.transposed()
	}
	stored := func(m *matrix, operand int) bool { return p.Views[operand] == nil || m.boxed() }
	// where the depth is long beside the columns, an epilogue is little of the time, and BLAS is
	// faster
	const deep = 3
	return o, o.depth < deep*o.columns && o.left.boxed() && o.right.boxed() && stored(&o.out, lower.Out) && stored(&o.pre, lower.Preactivation)
}

// contiguousBias copies a bias that is not contiguous.
func (b *builder) contiguousBias(o *onePass) error {
	bias := o.views[lower.Bias]
	if bias == nil || bias.Numel() == 1 || bias.Strides[0] == 1 {
		return nil
	}
	o.views[lower.Bias] = b.region(bias.DType, bias.Shape...)
	return b.activation("none", o.views[lower.Bias], bias)
}

// onePass adds a product with its bias and its activation in one kernel. Runs whose addresses it
// cannot use do without it, by the operations that otherwise adds.
func (b *builder) onePass(o *onePass, kind string, otherwise func() error) error {
	l := b.boxed(o, o.tileColumns(b.device.processors))
	l.outputs[0], l.outputs[1] = boxes{o.views[lower.Out], o.out}, boxes{o.views[lower.Preactivation], o.pre}
	l.biases[0] = o.views[lower.Bias]
	if err := b.unless(notBoxable, func() error { return l.add("gemm_epilogue_sm90_" + kind) }); err != nil {
		return err
	}
	return b.unless(boxable, otherwise)
}

// hiddenBackward adds a product with the slope of an activation in one kernel, which other devices
// and layouts have no counterpart of.
func (b *builder) hiddenBackward(p *backend.HiddenBackward) error {
	unsupported := status.Errorf(status.Unsupported, "%s: cuda: no kernel for it", p.Op)
	gradient := &backend.GemmEpilogueBackward{
		Header: p.Header, GradOutput: p.GradOutput, A: p.Preactivation, B: transposed(p.Weight), GradA: p.GradPreactivation,
	}
	gradient.Kind = "none"
	product := lower.Gradients(gradient, nil).A
	if _, small := b.smallOf(0, p.Preactivation, p.GradOutput); small || p.Kind == "none" {
		return unsupported
	}
	o, ok := b.onePassOf(product)
	pre, fits := asMatrix(p.Preactivation)
	hidden, alsoFits := asMatrix(p.Out)
	if !ok || !fits || !alsoFits {
		return unsupported
	}
	l := b.boxed(&o, o.tileColumns(b.device.processors))
	l.inputs[0] = boxes{p.Preactivation, pre}
	l.outputs[0], l.outputs[1] = boxes{p.GradPreactivation, o.out}, boxes{p.Out, hidden}
	var sums *tensor.View
	if p.GradBias != nil {
		sums = b.region(dtype.Float32, l.down, o.columns)
		l.sums = sums
	}
	err := b.unless(notBoxable, func() error {
		if err := l.add("hidden_backward_sm90_" + p.Kind); err != nil || sums == nil {
			return err
		}
		return b.finish(&reduction{accumulates: true}, walkOf([]*tensor.View{p.GradBias}), sums, l.down, o.columns)
	})
	if err != nil {
		return err
	}
	return b.unless(boxable, func() error {
		if err := b.multiply(product, p.AllowTF32); err != nil {
			return err
		}
		return b.activationBackward(&backend.ActivationBackward{
			Header: p.Header, GradOutput: p.GradPreactivation, Input: p.Preactivation,
			GradInput: p.GradPreactivation, Out: p.Out, GradBias: p.GradBias,
		})
	})
}

// transposed is a matrix with its dimensions exchanged.
func transposed(v *tensor.View) *tensor.View {
	t := *v
	t.Shape, t.Strides = []int64{v.Shape[1], v.Shape[0]}, []int64{v.Strides[1], v.Strides[0]}
	return &t
}

// asMatrix is a tensor as the rows and columns of a result, if boxes can be copied of it; one that
// is not there fits.
func asMatrix(v *tensor.View) (m matrix, ok bool) {
	if v == nil {
		return m, true
	}
	strides, ok := rowsAndColumns(v)
	last := v.Rank() - 1
	m = matrix{tensor.Elements(v.Shape[:last]), strides[0], v.Shape[last], strides[1]}
	return m, ok && m.boxed()
}

// boxes is a tensor of the result's shape that is copied by boxes; of nil there is none.
type boxes struct {
	view *tensor.View
	matrix
}

// boxedLaunch is a launch of product_sm90.cuh.
type boxedLaunch struct {
	builder      *builder
	product      *onePass
	tileColumns  int64
	down, across int64    // tiles
	rights       [2]boxes // the value's and the gate's where there are two
	inputs       [2]boxes
	outputs      [3]boxes
	biases       [2]*tensor.View
	sums         *tensor.View
}

func (b *builder) boxed(o *onePass, tileColumns int64) *boxedLaunch {
	return &boxedLaunch{
		builder: b, product: o, tileColumns: tileColumns, down: ceilDiv(o.rows, sm90Rows), across: ceilDiv(o.columns, tileColumns),
		rights: [2]boxes{{o.views[lower.Right], o.right}},
	}
}

// add adds the launch of a kernel, whose name goes on with dtype, form and columns.
func (l *boxedLaunch) add(name string) error {
	o, b := l.product, l.builder
	form, rightRows := "nt", l.tileColumns
	if l.rights[1].view != nil {
		rightRows /= 2
	}
	if o.across {
		form, rightRows = "nn", sm90Depth
	}
	p := &parameters{}
	var maps []tensorMap
	add := func(all boxes, rows int64) {
		if all.view != nil {
			maps = append(maps, tensorMap{pointer{len(p.bytes), all.view}, all.matrix, rows})
		}
		p.bytes = append(p.bytes, make([]byte, mapBytes)...)
	}
	add(boxes{o.views[lower.Left], o.left}, sm90Rows)
	for _, right := range l.rights {
		add(right, rightRows)
	}
	for _, input := range l.inputs {
		add(input, storedRows)
	}
	wanted := int64(0)
	for i, output := range l.outputs {
		add(output, storedRows)
		if output.view != nil {
			wanted |= 1 << i
		}
	}
	for _, bias := range l.biases {
		p.address(bias)
	}
	p.address(l.sums)
	p.runsNumbers()
	p.sizes(o.depth, o.columns, l.down, l.across, min(l.down, bandOfTiles), wanted)
	p.bytes = append(p.bytes, make([]byte, sm90Parameters-len(p.bytes))...)
	function := fmt.Sprintf("%s_%s_%s_%d", name, b.dt.Short(), form, l.tileColumns)
	made, err := p.launch(function, min(l.down*l.across, int64(b.device.processors)))
	if err != nil {
		return err
	}
	made.block[0], made.shared, made.maps, made.parameters = sm90Threads, sm90Shared, maps, p.numbersAt
	b.launch(step{general: made})
	return nil
}

// bandOfTiles is how many rows of tiles are walked together, so that what they share stays in the
// second cache.
const bandOfTiles = 16

// tileColumns chooses a tile's columns. The wider tile reads less for each product; the other one
// may leave fewer processors idle in the last round.
func (o *onePass) tileColumns(processors int) int64 {
	const narrow, wide, worth = 128, 192, 1.05
	// the time that all processors take, in times of what the elements alone would
	time := func(columns int64) float64 {
		tiles := ceilDiv(o.rows, sm90Rows) * ceilDiv(o.columns, columns)
		rounds := ceilDiv(tiles, int64(processors))
		return float64(rounds*int64(processors)*sm90Rows*columns) / float64(o.rows*o.columns)
	}
	if worth*time(narrow) < time(wide) {
		return narrow
	}
	return wide
}
