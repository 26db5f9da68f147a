package lower

import (
	"slices"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// Region gives the memory of a contiguous tensor between two parts.
type Region func(dt dtype.DType, shape ...int64) *tensor.View

// Parts returns the problems that a problem is made of, in order: products, passes, and problems on
// rows. It is nil for such a problem itself.
func Parts(p backend.Problem, region Region) []backend.Problem {
	switch p := p.(type) {
	case *backend.GatedLinear:
		return gatedLinear(p, region)
	case *backend.HiddenBackward:
		return hiddenBackward(p)
	case *backend.GatedHiddenBackward:
		return gatedHiddenBackward(p, region)
	case *backend.GroupedLayer:
		return groupedLayer(p, region)
	case *backend.CombinedLayer:
		return combinedLayer(p, region)
	case *backend.GroupedHiddenBackward:
		return groupedHiddenBackward(p, region)
	case *backend.GroupedLayerBackward:
		return groupedLayerBackward(p, region)
	}
	return nil
}

// gatedLinear is one product where values and gates are halves of one weight, else two. Where they
// are not wanted, it asks for the region of the preactivation, or for those of values and gates, in
// this order.
func gatedLinear(p *backend.GatedLinear, region Region) (parts []backend.Problem) {
	value, gate := p.Value, p.Gate
	if p.Both != nil {
		both := *p.Both
		if value == nil {
			shape := slices.Clone(p.Out.Shape)
			shape[len(shape)-1] *= 2
			pre := region(p.DType, shape...)
			value, gate = p.Halves(pre)
			both.Out = tensor.Aligned(pre, both.A.Rank())
		}
		parts = append(parts, &both)
	} else {
		if value == nil {
			value, gate = region(p.DType, p.Out.Shape...), region(p.DType, p.Out.Shape...)
		}
		h := p.Header.Plain("linear")
		parts = append(parts,
			&backend.GemmEpilogue{Header: h, A: p.Input, B: tensor.Exchanged(p.WeightValue, 0, 1), Bias: p.BiasValue, Out: value},
			&backend.GemmEpilogue{Header: h, A: p.Input, B: tensor.Exchanged(p.WeightGate, 0, 1), Bias: p.BiasGate, Out: gate})
	}
	if p.Out != nil {
		parts = append(parts, &backend.Gated{Header: p.Header.As("gated_product"), Value: value, Gate: gate, Out: p.Out})
	}
	return parts
}

func hiddenBackward(p *backend.HiddenBackward) []backend.Problem {
	return []backend.Problem{
		throughWeight(p.Header, p.GradOutput, p.Weight, p.Preactivation, p.GradPreactivation),
		&backend.ActivationBackward{
			Header: p.Header.As("activation_backward"), GradOutput: p.GradPreactivation, Input: p.Preactivation,
			GradInput: p.GradPreactivation, Out: p.Out, GradBias: p.GradBias,
		},
	}
}

// gatedHiddenBackward asks for the region of the gradient to the hidden activation.
func gatedHiddenBackward(p *backend.GatedHiddenBackward, region Region) []backend.Problem {
	grad := region(p.DType, p.Value.Shape...)
	parts := []backend.Problem{throughWeight(p.Header, p.GradOutput, p.Weight, p.Value, grad)}
	if p.Out != nil {
		parts = append(parts, &backend.Gated{Header: p.Header.As("gated_activation"), Value: p.Value, Gate: p.Gate, Out: p.Out})
	}
	return append(parts, &backend.GatedBackward{
		Header: p.Header.As("gated_activation_backward"), GradOutput: grad, Value: p.Value, Gate: p.Gate,
		GradValue: p.GradValue, GradGate: p.GradGate, GradBiasValue: p.GradBiasValue, GradBiasGate: p.GradBiasGate,
	})
}

// throughWeight is the gradient to a layer's input, of which only the shape is read.
func throughWeight(h backend.Header, gradOutput, weight, input, gradInput *tensor.View) backend.Problem {
	return &backend.GemmEpilogueBackward{
		Header: h.Plain("linear_backward"), GradOutput: gradOutput, A: input, B: tensor.Exchanged(weight, 0, 1), GradA: gradInput,
	}
}

// ofSlots gives an operand with a row for each of count slots. If there are places, the operand has
// tokens' rows, and parts copy them.
func ofSlots(h backend.Header, operand, places *tensor.View, count int64, region Region) (rows *tensor.View, parts []backend.Problem) {
	if places == nil {
		return operand, nil
	}
	rows = region(h.DType, count, operand.Shape[1])
	return rows, []backend.Problem{&backend.ScatterRows{Header: h, Input: operand, Places: places, Out: rows}}
}

// groupedLayer asks for the region of the rows of tokens first, and then for that of the
// preactivation.
func groupedLayer(p *backend.GroupedLayer, region Region) []backend.Problem {
	rows, parts := ofSlots(p.Header, p.Input, p.Places, p.Rows(), region)
	product := &backend.GemmEpilogue{
		Header: p.Header, A: rows, B: tensor.Exchanged(p.Weight, 1, 2), Bias: p.Bias, More: p.More, Out: p.Out, Preactivation: p.Preactivation,
	}
	parts = append(parts, product)
	if p.Halves != nil {
		product.Formula, product.Out = "none", nil
		if product.Preactivation == nil {
			product.Preactivation = region(p.DType, p.Out.Shape[0], p.Weight.Shape[1])
		}
		if p.Out != nil {
			value, gate := p.Halves(product.Preactivation)
			parts = append(parts, &backend.Gated{Header: p.Header, Value: value, Gate: gate, Out: p.Out})
		}
	}
	if len(p.Rest) > 0 {
		parts = append(parts, &backend.ZeroRows{Header: p.Header, Outputs: p.Rest})
	}
	return parts
}

// combinedLayer asks for the region of the rows.
func combinedLayer(p *backend.CombinedLayer, region Region) []backend.Problem {
	rows := region(p.DType, p.Input.Shape[0], p.Weight.Shape[1])
	layer := &backend.GroupedLayer{Header: p.Header, Input: p.Input, Weight: p.Weight, Bias: p.Bias, Out: rows}
	return append(groupedLayer(layer, region),
		&backend.CombineRows{Header: p.Header, Input: rows, Places: p.Places, Scale: p.Scale, Out: p.Out})
}

// groupedLayerBackward asks for the regions of the rows of tokens.
func groupedLayerBackward(p *backend.GroupedLayerBackward, region Region) []backend.Problem {
	input, parts := ofSlots(p.Header, p.Input, p.Places, p.Rows(), region)
	gradOutput, copies := ofSlots(p.Header, p.GradOutput, p.GradPlaces, p.Rows(), region)
	parts = append(parts, copies...)
	gradBias := p.GradBias
	if p.Scales != nil && gradBias != nil {
		parts = append(parts, &backend.SumRows{Header: p.Header, Input: gradOutput, Scales: p.Scales, Sums: gradBias})
		gradBias = nil
	}
	if p.GradInput != nil || p.GradWeight != nil || gradBias != nil {
		parts = append(parts, &backend.GemmEpilogueBackward{
			Header: p.Header, GradOutput: gradOutput, A: input, B: tensor.Exchanged(p.Weight, 1, 2), Bias: p.Bias, Preactivation: p.Preactivation,
			GradA: p.GradInput, GradB: tensor.Exchanged(p.GradWeight, 1, 2), GradBias: gradBias,
		})
	}
	if p.Rest && p.GradInput != nil {
		parts = append(parts, &backend.ZeroRows{Header: p.Header, Outputs: []*tensor.View{p.GradInput}})
	}
	return parts
}

// groupedHiddenBackward makes the gradient to the hidden activation first, and asks for its region
// before others, but for that of the rows of tokens. What follows is the hidden activation, what is
// made of both row by row, and the slopes.
func groupedHiddenBackward(p *backend.GroupedHiddenBackward, region Region) []backend.Problem {
	gradOutput, parts := ofSlots(p.Header, p.GradOutput, p.Places, p.Preactivation.Shape[0], region)
	add := func(part backend.Problem) { parts = append(parts, part) }
	rows, features := gradOutput.Shape[0], p.Weight.Shape[2]
	sloped := p.GradPreactivation != nil || p.GradBias != nil
	var grad *tensor.View // to the hidden activation
	if sloped || p.Sums != nil {
		h := p.Header
		h.Formula, grad = "none", region(p.DType, rows, features)
		add(&backend.GemmEpilogue{Header: h, A: gradOutput, B: p.Weight, More: p.More, Out: grad})
	}
	value, gate := halves(p.Halves, p.Preactivation)
	hidden := p.Out
	if hidden == nil && p.Sums != nil {
		hidden = region(p.DType, rows, features)
	}
	switch {
	case hidden == nil:
	case gate == nil:
		add(&backend.Activation{Header: p.Header, Input: value, Out: hidden})
	default:
		add(&backend.Gated{Header: p.Header, Value: value, Gate: gate, Out: hidden})
	}
	scales := &backend.ScaleRows{Header: p.Header, Grad: grad, Hidden: hidden, Scales: p.Scales, Sums: p.Sums}
	if p.Scales != nil {
		scales.ScalesGrad, scales.ScalesHidden = sloped, p.Out != nil
	}
	if scales.Sums != nil || scales.ScalesGrad || scales.ScalesHidden {
		add(scales)
	}
	gradValue, gradGate := halves(p.Halves, p.GradPreactivation)
	biasValue, biasGate := halves(p.Halves, p.GradBias)
	switch {
	case !sloped:
	case gate == nil:
		add(&backend.ActivationBackward{Header: p.Header, GradOutput: grad, Input: value, GradInput: gradValue, GradBias: biasValue})
	default:
		add(&backend.GatedBackward{
			Header: p.Header, GradOutput: grad, Value: value, Gate: gate,
			GradValue: gradValue, GradGate: gradGate, GradBiasValue: biasValue, GradBiasGate: biasGate,
		})
	}
	return parts
}

// halves are the values and the gates of a tensor; without gates all are values.
func halves(of func(v *tensor.View) (value, gate *tensor.View), v *tensor.View) (value, gate *tensor.View) {
	if of == nil {
		return v, nil
	}
	return of(v)
}
