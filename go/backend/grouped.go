package backend

import (
	"cmp"

	"github.com/epigrad/epigrad/go/tensor"
)

// Problems whose rows belong to groups, each of which has a weight of its own. Header.Groups [e],
// int32, are where the groups' rows end: group e has the rows from Groups[e-1] on. Rows past the
// last group have no meaning: nothing but such rows may depend on them, and they may be left or
// written unless a problem says so.
//
// Groups, Places and Index are data: a backend reads them when it runs, wherever they are, and does
// not wait for a device to do so.
//
// Products and passes (problem.go) have Groups too. A backend may refuse GroupedLayer,
// CombinedLayer, GroupedHiddenBackward and GroupedLayerBackward as Unsupported, since they are made
// of those and of the problems on rows (lower.Parts).

// GroupEnds checks what a caller says of the groups, and gives their Ends. Offsets that fall, are
// negative or exceed Rows are an error on the CPU; a device clamps them to the nearest valid ones.
type GroupEnds struct {
	Header
	Offsets *tensor.View // [e], int32 or int64
	Rows    int64
	Ends    *tensor.View // [e], int32
}

// Route sorts the slots of [t, k] by the group that Index names, and within a group as they lie.
// Places [t, k] is each slot's row, or -1 where Index names no group. There are Rows rows: a slot
// that would have a later one has none, and no group ends behind them.
type Route struct {
	Header
	Index        *tensor.View // [t, k], int64
	Rows         int64
	Ends, Places *tensor.View // [e] and [t, k], int32
}

// ScatterRows copies each row of Input [t, n] to the places of its slots in Out [rows, n], and the
// numbers of Scale [t, k] to Scales [rows], whose dtype is the accumulator's. Slots whose place is
// no row are left out. Scale and Scales, or Input and Out, may be nil.
type ScatterRows struct {
	Header
	Input, Places, Scale *tensor.View
	Out, Scales          *tensor.View
}

// Rows is how many rows there are.
func (p *ScatterRows) Rows() int64 { return cmp.Or(p.Out, p.Scales).Shape[0] }

// CountRows finds the processes that tokens' rows go to: those with an expert that a token's slots
// select. Process r has the experts from Experts[r] to Experts[r+1]-1. The tokens are cut into
// parts of PartTokens, and the parts into chunks: chunk c has those from Parts[c] to Parts[c+1]-1,
// and each part is in one.
//
//	counts[r]    = the rows that r gets of each part, the slots of each part that select an expert
//	               of r, the number of tokens, and the facts
//	places[t, r] = the number of t's row for r among all rows of its chunk, by process and then by
//	               token; -1 where r gets none
//
// All but Index are contiguous.
type CountRows struct {
	Header
	Index                 *tensor.View // [t, k], int64
	Experts, Parts, Facts *tensor.View // [ranks + 1], [chunks + 1], [facts], int64
	Counts                *tensor.View // [ranks, 2 parts + 1 + facts], int64
	Places                *tensor.View // [t, ranks], int32
}

// PartCount is how many parts there are.
func (p *CountRows) PartCount() int64 { return (p.Counts.Shape[1] - 1 - p.Facts.Shape[0]) / 2 }

// PartTokens is how many tokens a part has; the last ones may have fewer.
func (p *CountRows) PartTokens() int64 {
	return max((p.Index.Shape[0]+p.PartCount()-1)/p.PartCount(), 1)
}

// ScatterSlots writes what the slots of a token select to its rows in buffers for processes: with
// row = places[t, r],
//
//	rows_index[row, j] = index[t, j] - experts[r], or -1 where r does not have this expert
//	rows_scale[row, j] = scale[t, j]
//
// Experts are those of CountRows. Places outside of the rows are none.
type ScatterSlots struct {
	Header
	Index, Scale         *tensor.View // [t, k]; int64, and any dtype
	Experts, Places      *tensor.View // [ranks + 1], int64, and [t, ranks], int32
	RowsIndex, RowsScale *tensor.View // [rows, k]; int64, and the accumulator's dtype
}

// CombineRows is out[t] = sum over j of scale[t, j] input[places[t, j]], in the order of j, in the
// accumulator's dtype; slots whose place is no row add nothing. Scale may be nil, which is ones.
type CombineRows struct {
	Header
	Input, Places, Scale *tensor.View // [rows, n], [t, k], [t, k]
	Out                  *tensor.View `role:"out"` // [t, n]
}

// ScaleGradient is
//
//	grad_scale[t, j] = sums[places[t, j]] + <bias[index[t, j]], grad_output[t]>
//
// and 0 in slots without a place. Bias [e, n], and with it GradOutput [t, n], may be nil.
type ScaleGradient struct {
	Header
	Sums, Places, Index *tensor.View // [rows] in the accumulator's dtype, [t, k], [t, k]
	GradOutput, Bias    *tensor.View
	GradScale           *tensor.View // [t, k]
}

// ScaleRows is, for each row of a group,
//
//	sum    = <hidden, grad>
//	grad   = scale grad
//	hidden = scale hidden
//
// Grad and Hidden are [rows, h], and are scaled in place where ScalesGrad and ScalesHidden say so.
// One of them may be nil without Sums. Scales and Sums [rows], in the accumulator's dtype, may be
// nil; then nothing is scaled, or no sum is wanted.
type ScaleRows struct {
	Header
	Grad, Hidden, Scales, Sums *tensor.View
	ScalesGrad, ScalesHidden   bool
}

// SumRows is sums[e] = the sum over the rows of group e of scale input, 0 of a group without rows.
// Input is [rows, n], Scales [rows] in the accumulator's dtype, and Sums [e, n]; a run may add to
// them.
type SumRows struct {
	Header
	Input, Scales *tensor.View
	Sums          *tensor.View `role:"sum"`
}

// ZeroRows writes zeros to the rows of Outputs, each [rows, n], that are of no group.
type ZeroRows struct {
	Header
	Outputs []*tensor.View
}

// GroupedLayer is, for each row of group e,
//
//	pre = input weight[e]ᵀ + bias[e]
//	out = act(pre), or value act(gate) of the halves of pre
//
// Input is [rows, k], Weight [e, n, k], Bias [e, n], Preactivation [rows, n], and Out [rows, n] or
// [rows, n/2]. Halves gives the values and the gates of what has n columns; it is nil without a
// gate. Bias, and one of Out and Preactivation, may be nil. In the tensors of Rest, of these two,
// rows of no group become 0.
//
// With Places [t, j], Input is [t, k], of tokens: its row t is row places[t, j] of the rows. The
// products of More, whose B is [e, depth, n], are added to pre; there are none with Places.
type GroupedLayer struct {
	Header
	Input, Weight, Bias *tensor.View
	More                []Pair
	Places              *tensor.View
	Out, Preactivation  *tensor.View
	Halves              func(v *tensor.View) (value, gate *tensor.View)
	Rest                []*tensor.View
}

// Rows is how many rows there are.
func (p *GroupedLayer) Rows() int64 { return cmp.Or(p.Out, p.Preactivation).Shape[0] }

// CombinedLayer is a layer without an activation, and CombineRows of what it gives, which is
// rounded before that:
//
//	out[t] = sum over j of scale[t, j] (input[places[t, j]] weight[e]ᵀ + bias[e])
//
// Input is [rows, k], Weight [e, n, k], Bias [e, n] or nil, and Out [t, n]. Scale may be nil, which
// is ones. A lean one has few of its rows' columns in memory at a time: the call has no other
// tensor of all of them.
type CombinedLayer struct {
	Header
	Input, Weight, Bias, Places, Scale *tensor.View
	Out                                *tensor.View
	Lean                               bool
}

// GroupedHiddenBackward is the backward of a layer's input that was a hidden activation, whose
// output's rows were scaled: for each row of group e
//
//	g         = grad_output weight[e] + the products of More
//	sum       = <hidden(pre), g>
//	grad_pre  = (scale g) hidden'(pre)
//	out       = scale hidden(pre)
//
// and GradBias[e] is the sum over the group's rows of grad_pre, before it is rounded; a run may add
// to it. Shapes are as in GroupedLayer: GradOutput [rows, k], Weight [e, k, h], Preactivation
// [rows, h] or [rows, 2h], and Scales and Sums [rows] in the accumulator's dtype. Results are nil
// where they are not wanted. With Places [t, j], GradOutput is of tokens, as Input of GroupedLayer.
type GroupedHiddenBackward struct {
	Header
	GradOutput, Weight, Preactivation, Scales *tensor.View
	More                                      []Pair
	Places                                    *tensor.View
	GradPreactivation, Out, Sums, GradBias    *tensor.View
	Halves                                    func(v *tensor.View) (value, gate *tensor.View)
}

// GroupedLayerBackward is the gradients of a GroupedLayer without a gate: for group e and its rows,
// with g = grad_output act'(pre),
//
//	grad_input     = g weight[e]
//	grad_weight[e] = gᵀ input
//	grad_bias[e]   = the sum over the rows of scale g
//
// GradOutput and Preactivation are [rows, n], Input and GradInput [rows, k], Weight and GradWeight
// [e, n, k], Bias and GradBias [e, n]. Preactivation is formed again where it is nil and needed.
// Scales [rows], in the accumulator's dtype, are ones where they are nil; only layers without an
// activation have some. A group without rows has gradients 0. Runs that accumulate add to
// GradWeight and GradBias. With Rest, rows of GradInput of no group become 0.
//
// With Places [t, j], Input is of tokens, as that of GroupedLayer, and GradWeight is all that is
// wanted. With GradPlaces, GradOutput is of tokens, GradInput is not wanted, and there are Scales.
type GroupedLayerBackward struct {
	Header
	GradOutput, Input, Weight, Bias *tensor.View
	Places, GradPlaces              *tensor.View
	Preactivation, Scales           *tensor.View
	GradInput, GradWeight, GradBias *tensor.View
	Rest                            bool
}

// Rows is how many rows there are.
func (p *GroupedLayerBackward) Rows() int64 {
	if p.GradPlaces != nil {
		return p.Scales.Shape[0]
	}
	return p.GradOutput.Shape[0]
}
