//go:build cgo

package cuda

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

// groupedLayer adds a layer of each group: one kernel, or the product and the activation's pass.
func (b *builder) groupedLayer(p *backend.GroupedLayer) error {
	var boxed func() error
	switch {
	case p.Halves != nil:
		boxed = b.boxedGated(p)
	case p.Formula != "none":
		boxed = b.boxedLinear(p.Formula, p.Input, exchanged(p.Weight), p.Bias, p.Out, p.Preactivation, p.Ends)
	}
	if err := b.boxedOr(boxed, func() error { return b.layerInPasses(p) }); err != nil {
		return err
	}
	return b.zeroRest(p.Ends, p.Rest...)
}

// layerInPasses adds the product and the activation's pass.
func (b *builder) layerInPasses(p *backend.GroupedLayer) error {
	pre := p.Preactivation
	switch {
	case pre != nil:
	case p.Halves != nil:
		pre = b.region(b.dt, p.Input.Shape[0], p.Weight.Shape[1])
	default:
		pre = p.Out
	}
	if err := b.groupedProduct(p.Input, exchanged(p.Weight), p.Bias, pre, p.Ends); err != nil {
		return err
	}
	switch {
	case p.Out == nil:
		return nil
	case p.Halves != nil:
		value, gate := p.Halves(pre)
		return b.gated(&backend.Gated{Header: p.Header, Value: value, Gate: gate, Out: p.Out})
	case p.Out != pre || p.Formula != "none":
		return b.activation(p.Formula, p.Out, pre)
	}
	return nil
}

// groupedLayerBackward adds the gradients of a layer of each group: the activation's pass, and the
// products.
func (b *builder) groupedLayerBackward(p *backend.GroupedLayerBackward) error {
	grad := p.GradOutput
	switch {
	case p.Formula == "none":
		if p.GradBias != nil {
			if err := b.sumRowsOf(grad, p.GradBias, p.Scales, p.Ends); err != nil {
				return err
			}
		}
	case p.GradInput != nil || p.GradWeight != nil || p.GradBias != nil:
		var err error
		if grad, err = b.groupedSlopes(p); err != nil {
			return err
		}
	}
	if p.GradInput != nil {
		if err := b.groupedProduct(grad, p.Weight, nil, p.GradInput, p.Ends); err != nil {
			return err
		}
	}
	if p.GradWeight != nil {
		if err := b.groupedDepth(grad, p.Input, p.GradWeight, p.Ends); err != nil {
			return err
		}
	}
	if !p.Rest {
		return nil
	}
	return b.zeroRest(p.Ends, p.GradInput)
}

// groupedSlopes adds the gradient of the preactivation, and its sums.
func (b *builder) groupedSlopes(p *backend.GroupedLayerBackward) (grad *tensor.View, err error) {
	pre, shape := p.Preactivation, p.GradOutput.Shape
	if pre == nil {
		pre = b.region(b.dt, shape...)
		if err := b.groupedProduct(p.Input, exchanged(p.Weight), p.Bias, pre, p.Ends); err != nil {
			return nil, err
		}
	} else {
		b.withoutSaved = regionBytes(b.dt, tensor.Elements(shape))
	}
	if p.GradInput != nil || p.GradWeight != nil {
		grad = b.region(b.dt, shape...)
	}
	return grad, b.slopes(p.Formula, p.GradOutput, pre, grad, p.GradBias, p.Scales, p.Ends, false)
}

// slopes adds out = grad act'(pre), which may be nil, and sums of its rows, which may be too.
func (b *builder) slopes(formula string, grad, pre, out, sums, scales, ends *tensor.View, seldom bool) error {
	suffix := formula + "_" + b.dt.Short()
	inputs := []*tensor.View{grad, pre}
	switch {
	case formula == "none":
		if out != nil {
			if err := b.activation("none", out, grad); err != nil {
				return err
			}
		}
		if sums == nil {
			return nil
		}
		return b.sumRowsOf(grad, sums, scales, ends)
	case sums == nil:
		f := function{name: "grad_preactivation_" + suffix, outputs: 1, vectors: vectorsOf(formula, b.dt)}
		return b.elementwise(f, numbers{}, append([]*tensor.View{out}, inputs...)...)
	}
	r := &reduction{columns: "grad_preactivation_columns_" + suffix, outputs: []*tensor.View{out}, sums: []*tensor.View{sums}, inputs: inputs}
	return b.sumSlopes(r, ends, scales, seldom)
}

// gatedSlopes is slopes for the halves of a gated activation's input.
func (b *builder) gatedSlopes(p *backend.GroupedHiddenBackward, grad *tensor.View, seldom bool) error {
	value, gate := p.Halves(p.Preactivation)
	gradValue, gradGate := p.Halves(p.GradPreactivation)
	if p.GradBias == nil {
		return b.gatedBackward(&backend.GatedBackward{
			Header: p.Header, GradOutput: grad, Value: value, Gate: gate, GradValue: gradValue, GradGate: gradGate,
		})
	}
	biasValue, biasGate := p.Halves(p.GradBias)
	r := &reduction{
		columns: "gated_backward_columns_" + p.Formula + "_" + b.dt.Short(), outputs: []*tensor.View{gradValue, gradGate},
		sums: []*tensor.View{biasValue, biasGate}, inputs: []*tensor.View{grad, value, gate},
	}
	return b.sumSlopes(r, p.Ends, nil, seldom)
}

// groupedHiddenBackward adds the backward of a hidden activation of each group: one kernel, or
// several passes.
func (b *builder) groupedHiddenBackward(p *backend.GroupedHiddenBackward) error {
	var boxed func() error
	if p.GradPreactivation != nil || p.GradBias != nil || p.Sums != nil {
		boxed = b.boxedHiddenBackward(p)
	}
	return b.boxedOr(boxed, func() error { return b.hiddenBackwardInPasses(p, boxed != nil) })
}

// hiddenBackwardInPasses adds the product, the hidden activation again, what is made of both row by
// row, and the slopes. With seldom there is a kernel for all of it, and only runs of unaligned
// addresses come here: the gradient to the hidden activation then lies in GradPreactivation, if
// that is there, and takes no memory of its own.
func (b *builder) hiddenBackwardInPasses(p *backend.GroupedHiddenBackward, seldom bool) error {
	rows, features := p.GradOutput.Shape[0], p.Weight.Shape[2]
	sloped := p.GradPreactivation != nil || p.GradBias != nil
	var grad *tensor.View // to the hidden activation
	if sloped || p.Sums != nil {
		switch grad = p.GradPreactivation; {
		case grad == nil || !seldom:
			grad = b.region(b.dt, rows, features)
		case p.Halves != nil:
			grad, _ = p.Halves(grad)
		}
		if err := b.groupedProduct(p.GradOutput, p.Weight, nil, grad, p.Ends); err != nil {
			return err
		}
	}
	hidden := p.Out
	if hidden == nil && p.Sums != nil {
		hidden = b.region(b.dt, rows, features)
	}
	if hidden != nil {
		if err := b.hidden(p, hidden); err != nil {
			return err
		}
	}
	if err := b.scaleHidden(p, grad, hidden, sloped); err != nil {
		return err
	}
	switch {
	case !sloped:
		return nil
	case p.Halves != nil:
		return b.gatedSlopes(p, grad, seldom)
	}
	return b.slopes(p.Formula, grad, p.Preactivation, p.GradPreactivation, p.GradBias, nil, p.Ends, seldom)
}

// hidden adds the hidden activation of a preactivation.
func (b *builder) hidden(p *backend.GroupedHiddenBackward, out *tensor.View) error {
	if p.Halves == nil {
		return b.activation(p.Formula, out, p.Preactivation)
	}
	value, gate := p.Halves(p.Preactivation)
	return b.gated(&backend.Gated{Header: p.Header, Value: value, Gate: gate, Out: out})
}

// scaleHidden adds the launch that multiplies the gradient to the hidden activation with that, row
// by row, and scales both. Either is nil where it is not needed.
func (b *builder) scaleHidden(p *backend.GroupedHiddenBackward, grad, hidden *tensor.View, sloped bool) error {
	rows, features := p.GradOutput.Shape[0], p.Weight.Shape[2]
	scales := p.Scales != nil && (sloped || p.Out != nil)
	if rows == 0 || p.Ends.Shape[0] == 0 || p.Sums == nil && (!scales || features == 0) {
		return nil
	}
	width := vectorWidth(b.dt)
	return b.forms(width, byRows(width, grad, hidden), typed("grouped_scale_hidden_", b.dt), func(q *parameters, _ int64) int64 {
		q.rowsMatrix(grad, 1)
		q.rowsMatrix(hidden, 1)
		q.address(p.Scales)
		q.address(p.Sums)
		q.address(p.Ends)
		q.int64(features)
		q.sizes(p.Ends.Shape[0])
		q.bool(scales && sloped)
		q.bool(scales && p.Out != nil)
		q.uint32(0)
		return ceilDiv(rows, groupedRows)
	})
}
