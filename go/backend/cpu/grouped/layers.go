package grouped

import (
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/elements"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// perRows is a kernel for any number of rows: an engine's kernel for each number that was met.
type perRows struct {
	engine Selector
	// problem makes the problem of so many rows.
	problem func(rows int64) backend.Problem
	mutex   sync.Mutex
	known   map[int64]backend.Kernel
	whole   backend.Kernel // of as many rows as there can be
}

// mostKnown bounds the kernels that are remembered.
const mostKnown = 256

func newPerRows(engine Selector, most int64, problem func(rows int64) backend.Problem) (*perRows, error) {
	p := &perRows{engine: engine, problem: problem, known: map[int64]backend.Kernel{}}
	var err error
	p.whole, err = p.of(most)
	return p, err
}

func (p *perRows) of(rows int64) (backend.Kernel, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if k, ok := p.known[rows]; ok {
		return k, nil
	}
	k, err := p.engine(p.problem(rows))
	if err != nil {
		return nil, err
	}
	if p.whole != nil && k.WorkspaceBytes() > p.whole.WorkspaceBytes() {
		return nil, status.Errorf(status.Internal, "workspace: %d rows need %d bytes, but the plan's most rows only %d",
			rows, k.WorkspaceBytes(), p.whole.WorkspaceBytes())
	}
	if len(p.known) >= mostKnown {
		clear(p.known)
	}
	p.known[rows] = k
	return k, nil
}

// WorkspaceBytes is enough for a kernel of any number of rows.
func (p *perRows) WorkspaceBytes() int64 { return p.whole.WorkspaceBytes() }

// operands are the tensors of a group's kernel, in the order of its problem's operands: each begins
// at the group's first row, or at the group's matrix. One that is nil is absent.
type operands []operand

type operand struct {
	view    *tensor.View
	ofGroup bool // it has a matrix or a vector for each group, else rows
}

func (o operands) bind(r *backend.Run, g group) []unsafe.Pointer {
	bases := make([]unsafe.Pointer, len(o))
	for i, one := range o {
		switch {
		case one.view == nil || one.view.IsEmpty():
		case one.ofGroup:
			bases[i] = address(one.view, r, g.number)
		case g.rows() > 0: // an empty tensor's address may be invalid
			bases[i] = address(one.view, r, g.first)
		}
	}
	return bases
}

// narrowed is an operand of a group's problem: so many rows of a tensor of rows.
func narrowed(v *tensor.View, at int, rows int64) *tensor.View {
	if v == nil {
		return nil
	}
	n := *v
	n.Operand, n.Offset = at, 0
	n.Shape = append([]int64{rows}, v.Shape[1:]...)
	return &n
}

// matrixOf is an operand of a group's problem: the matrix or vector of one group.
func matrixOf(v *tensor.View, at int) *tensor.View {
	if v == nil {
		return nil
	}
	n := *v
	n.Operand, n.Offset = at, 0
	n.Shape, n.Strides = v.Shape[1:], v.Strides[1:]
	return &n
}

func transposed(v *tensor.View) *tensor.View {
	if v == nil {
		return nil
	}
	n := v.Transpose(0, 1)
	return &n
}

// run runs the kernel of a group's rows.
func (p *perRows) run(r *backend.Run, o operands, g group, scratch int64) error {
	k, err := p.of(g.rows())
	if err != nil {
		return err
	}
	part := *r
	part.Bases, part.Workspace = o.bind(r, g), unsafe.Add(r.Workspace, scratch)
	return k.Run(&part)
}

// each runs the kernels of all groups.
func (p *perRows) each(r *backend.Run, ends *tensor.View, o operands, scratch int64, empty bool) error {
	for _, g := range groupsOf(ends, r) {
		if g.rows() == 0 && !empty {
			continue
		}
		if err := p.run(r, o, g, scratch); err != nil {
			return err
		}
	}
	return nil
}

// facts are those of a problem whose products an engine's kernel computes.
func facts(p backend.Problem, of backend.Kernel) kernel.Facts {
	return kernel.FactsOf(p, "grouped:"+of.Sku().Kernel).Of(of)
}

// region is a tensor of rows in the workspace, after its other regions; it advances bytes.
func region(like *tensor.View, rows, columns int64, bytes *int64) *tensor.View {
	v := kernel.InWorkspace(like.DType, rows, columns)
	v.Offset = *bytes
	*bytes += (kernel.Bytes(v) + 63) &^ 63
	return v
}

func newLayer(p *backend.GroupedLayer, engine Selector) (backend.Kernel, error) {
	k := &kernel.Sequence{}
	out, pre := p.Out, p.Preactivation
	h := p.Header
	if p.Halves != nil {
		h.Formula, out = "none", nil
		if pre == nil {
			pre = region(p.Input, p.Input.Shape[0], p.Weight.Shape[1], &k.Workspace)
		}
	}
	scratch := k.Workspace
	product, err := newPerRows(engine, p.Input.Shape[0], func(rows int64) backend.Problem {
		return &backend.GemmEpilogue{
			Header: h, A: narrowed(p.Input, 0, rows), B: transposed(matrixOf(p.Weight, 1)), Bias: matrixOf(p.Bias, 2),
			Out: narrowed(out, 3, rows), Preactivation: narrowed(pre, 4, rows),
		}
	})
	if err != nil {
		return nil, err
	}
	o := operands{{p.Input, false}, {p.Weight, true}, {p.Bias, true}, {out, false}, {pre, false}}
	k.Facts = facts(p, product.whole)
	k.Workspace = scratch + product.WorkspaceBytes()
	k.Steps = append(k.Steps, func(r *backend.Run) error { return product.each(r, p.Ends, o, scratch, false) })
	if p.Halves != nil && p.Out != nil {
		value, gate := p.Halves(pre)
		act, err := newPerRows(engine, p.Out.Shape[0], func(rows int64) backend.Problem {
			return &backend.Gated{Header: p.Header, Value: narrowed(value, 0, rows), Gate: narrowed(gate, 1, rows), Out: narrowed(p.Out, 2, rows)}
		})
		if err != nil {
			return nil, err
		}
		k.Steps = append(k.Steps, act.overAll(p.Ends, operands{{value, false}, {gate, false}, {p.Out, false}}, scratch))
		k.Workspace = max(k.Workspace, scratch+act.WorkspaceBytes())
	}
	if len(p.Rest) > 0 {
		k.Steps = append(k.Steps, rest(p.Ends, p.Rest...))
	}
	return k, nil
}

// overAll is a step over the rows of all groups at once.
func (p *perRows) overAll(ends *tensor.View, o operands, scratch int64) kernel.Step {
	return func(r *backend.Run) error {
		if rows := rowsOf(ends, r); rows > 0 {
			return p.run(r, o, group{0, 0, rows}, scratch)
		}
		return nil
	}
}

// rest is a step that writes zeros over rows of no group.
func rest(ends *tensor.View, results ...*tensor.View) kernel.Step {
	return func(r *backend.Run) error {
		for _, v := range results {
			if err := zeroRest(v, r, rowsOf(ends, r)); err != nil {
				return err
			}
		}
		return nil
	}
}

func newLayerBackward(p *backend.GroupedLayerBackward, engine Selector) (backend.Kernel, error) {
	k := &kernel.Sequence{}
	gradBias := p.GradBias
	if p.Scales != nil {
		gradBias = nil
	}
	if p.GradInput != nil || p.GradWeight != nil || gradBias != nil {
		gradients, err := newPerRows(engine, p.GradOutput.Shape[0], func(rows int64) backend.Problem {
			return &backend.GemmEpilogueBackward{
				Header: p.Header, GradOutput: narrowed(p.GradOutput, 0, rows), A: narrowed(p.Input, 1, rows),
				B: transposed(matrixOf(p.Weight, 2)), Bias: matrixOf(p.Bias, 3), Preactivation: narrowed(p.Preactivation, 4, rows),
				GradA: narrowed(p.GradInput, 5, rows), GradB: transposed(matrixOf(p.GradWeight, 6)), GradBias: matrixOf(gradBias, 7),
			}
		})
		if err != nil {
			return nil, err
		}
		o := operands{
			{p.GradOutput, false},
			{p.Input, false},
			{p.Weight, true},
			{p.Bias, true},
			{p.Preactivation, false},
			{p.GradInput, false},
			{p.GradWeight, true},
			{gradBias, true},
		}
		k.Facts, k.Workspace = facts(p, gradients.whole), gradients.WorkspaceBytes()
		k.Steps = append(k.Steps, func(r *backend.Run) error {
			return gradients.each(r, p.Ends, o, 0, p.GradWeight != nil || gradBias != nil)
		})
	} else {
		k.Facts = kernel.FactsOf(p, "")
	}
	if p.GradBias != nil && p.Scales != nil {
		k.Steps = append(k.Steps, func(r *backend.Run) error { return scaledSums(p, r) })
	}
	if p.Rest {
		k.Steps = append(k.Steps, rest(p.Ends, p.GradInput))
	}
	return k, nil
}

// scaledSums adds up the scaled rows of each group. The conversion rounds each product, here and in
// rows.go: without it some processors fuse it with the sum, and give other bits.
func scaledSums(p *backend.GroupedLayerBackward, r *backend.Run) error {
	columns := p.GradBias.Shape[1]
	if columns == 0 {
		return nil
	}
	groups := groupsOf(p.Ends, r)
	return threads.Parallel(len(groups), r.Threads, rowsOf(p.Ends, r)*columns*elementWork, func(task int) {
		g := groups[task]
		sums, row, scale := elements.NewSums(int(columns)), make([]float64, columns), [1]float64{}
		for at := g.first; at < g.end; at++ {
			loadRow(row, p.GradOutput, r, at)
			elements.Load(scale[:], address(p.Scales, r, at), p.Scales.DType.Size(), p.Scales.DType)
			for i, x := range row {
				sums.AddOne(i, float64(scale[0]*x))
			}
		}
		if r.Accumulate {
			loadRow(row, p.GradBias, r, g.number)
			sums.Add(row)
		}
		sums.Result(row)
		storeRow(p.GradBias, r, g.number, row)
	})
}

// newHiddenBackward makes four steps: the products, the hidden activation, what is made of both row
// by row, and the slopes.
func newHiddenBackward(p *backend.GroupedHiddenBackward, engine Selector) (backend.Kernel, error) {
	k := &kernel.Sequence{Facts: kernel.FactsOf(p, "")}
	rows, features := p.GradOutput.Shape[0], p.Weight.Shape[2]
	sloped := p.GradPreactivation != nil || p.GradBias != nil
	var grad *tensor.View // to the hidden activation
	if sloped || p.Sums != nil {
		grad = region(p.GradOutput, rows, features, &k.Workspace)
	}
	hidden := p.Out
	if hidden == nil && p.Sums != nil {
		hidden = region(p.GradOutput, rows, features, &k.Workspace)
	}
	scratch := k.Workspace
	add := func(of *perRows, step kernel.Step) {
		k.Steps = append(k.Steps, step)
		k.Workspace = max(k.Workspace, scratch+of.WorkspaceBytes())
	}
	if grad != nil {
		h := p.Header
		h.Formula = "none"
		product, err := newPerRows(engine, rows, func(rows int64) backend.Problem {
			return &backend.GemmEpilogue{Header: h, A: narrowed(p.GradOutput, 0, rows), B: matrixOf(p.Weight, 1), Out: narrowed(grad, 2, rows)}
		})
		if err != nil {
			return nil, err
		}
		k.Facts = facts(p, product.whole)
		o := operands{{p.GradOutput, false}, {p.Weight, true}, {grad, false}}
		add(product, func(r *backend.Run) error { return product.each(r, p.Ends, o, scratch, false) })
	}
	value, gate := p.Preactivation, (*tensor.View)(nil)
	gradValue, gradGate := p.GradPreactivation, (*tensor.View)(nil)
	biasValue, biasGate := p.GradBias, (*tensor.View)(nil)
	if p.Halves != nil {
		value, gate = p.Halves(p.Preactivation)
		gradValue, gradGate = p.Halves(p.GradPreactivation)
		biasValue, biasGate = p.Halves(p.GradBias)
	}
	if hidden != nil {
		act, err := newPerRows(engine, rows, func(rows int64) backend.Problem {
			if gate == nil {
				return &backend.Activation{Header: p.Header, Input: narrowed(value, 0, rows), Out: narrowed(hidden, 2, rows)}
			}
			return &backend.Gated{Header: p.Header, Value: narrowed(value, 0, rows), Gate: narrowed(gate, 1, rows), Out: narrowed(hidden, 2, rows)}
		})
		if err != nil {
			return nil, err
		}
		add(act, act.overAll(p.Ends, operands{{value, false}, {gate, false}, {hidden, false}}, scratch))
	}
	k.Steps = append(k.Steps, func(r *backend.Run) error { return scaleHidden(p, grad, hidden, r) })
	if sloped {
		slopes, err := newPerRows(engine, rows, func(rows int64) backend.Problem {
			grad, value, gate := narrowed(grad, 0, rows), narrowed(value, 1, rows), narrowed(gate, 2, rows)
			gradValue, gradGate := narrowed(gradValue, 3, rows), narrowed(gradGate, 4, rows)
			biasValue, biasGate := asRow(matrixOf(biasValue, 5)), asRow(matrixOf(biasGate, 6))
			if gate == nil {
				return &backend.ActivationBackward{Header: p.Header, GradOutput: grad, Input: value, GradInput: gradValue, GradBias: biasValue}
			}
			return &backend.GatedBackward{
				Header: p.Header, GradOutput: grad, Value: value, Gate: gate,
				GradValue: gradValue, GradGate: gradGate, GradBiasValue: biasValue, GradBiasGate: biasGate,
			}
		})
		if err != nil {
			return nil, err
		}
		o := operands{{grad, false}, {value, false}, {gate, false}, {gradValue, false}, {gradGate, false}, {biasValue, true}, {biasGate, true}}
		if p.GradBias == nil {
			add(slopes, slopes.overAll(p.Ends, o, scratch))
		} else {
			add(slopes, func(r *backend.Run) error { return slopes.each(r, p.Ends, o, scratch, true) })
		}
	}
	return k, nil
}

// asRow is a vector as a matrix of one row; nil of nil.
func asRow(v *tensor.View) *tensor.View {
	if v == nil {
		return nil
	}
	row := v.Unsqueeze(0)
	return &row
}

// scaleHidden multiplies the gradient to the hidden activation with that, row by row, and scales
// both. Either is nil where it is not needed.
func scaleHidden(p *backend.GroupedHiddenBackward, grad, hidden *tensor.View, r *backend.Run) error {
	features := p.Weight.Shape[2]
	return eachRow(r, rowsOf(p.Ends, r), 2*features, func(first, end int64) {
		x, y, scale := make([]float64, features), make([]float64, features), [1]float64{1}
		for row := first; row < end; row++ {
			if grad != nil && features > 0 {
				loadRow(x, grad, r, row)
			}
			if hidden != nil && features > 0 {
				loadRow(y, hidden, r, row)
			}
			if p.Sums != nil {
				sum := [1]float64{dot(x, y)}
				elements.Store(address(p.Sums, r, row), p.Sums.DType.Size(), sum[:], p.Sums.DType)
			}
			if p.Scales != nil {
				elements.Load(scale[:], address(p.Scales, r, row), p.Scales.DType.Size(), p.Scales.DType)
			}
			if features == 0 {
				continue
			}
			if grad != nil && (p.GradPreactivation != nil || p.GradBias != nil) {
				storeScaled(grad, r, row, x, scale[0])
			}
			if p.Out != nil {
				storeScaled(p.Out, r, row, y, scale[0])
			}
		}
	})
}

func storeScaled(v *tensor.View, r *backend.Run, row int64, values []float64, scale float64) {
	for i := range values {
		values[i] *= scale
	}
	storeRow(v, r, row, values)
}
