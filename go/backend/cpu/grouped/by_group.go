package grouped

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
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

// operand is a tensor of a problem: of rows, or with a matrix or a vector for each group. One that
// is nil is absent.
type operand struct {
	view    *tensor.View
	ofGroup bool
}

// division makes the problem of some of the rows, without groups, of one with groups: its operands
// are these, in their order.
type division struct {
	rows     int64
	operands []operand
	// sums tells that something is summed over the rows of a group, which may have none.
	sums bool
}

// ofRows is an operand of a group's problem: so many rows of a tensor of rows.
func (d *division) ofRows(v *tensor.View) *tensor.View {
	d.operands = append(d.operands, operand{v, false})
	return d.numbered(v, func(n *tensor.View) { n.Shape = append([]int64{d.rows}, v.Shape[1:]...) })
}

// ofGroup is an operand of a group's problem: the matrix or vector of one group.
func (d *division) ofGroup(v *tensor.View) *tensor.View {
	d.operands = append(d.operands, operand{v, true})
	return d.numbered(v, func(n *tensor.View) { n.Shape, n.Strides = v.Shape[1:], v.Strides[1:] })
}

// sum is ofGroup for a result.
func (d *division) sum(v *tensor.View) *tensor.View {
	d.sums = d.sums || v != nil
	return d.ofGroup(v)
}

// sumRow is sum for a vector, as a matrix of one row.
func (d *division) sumRow(v *tensor.View) *tensor.View {
	if v = d.sum(v); v == nil {
		return nil
	}
	row := v.Unsqueeze(0)
	return &row
}

// numbered is a copy of the operand that was noted last, from its first element on.
func (d *division) numbered(v *tensor.View, change func(n *tensor.View)) *tensor.View {
	if v == nil {
		return nil
	}
	n := *v
	n.Operand, n.Offset = len(d.operands)-1, 0
	change(&n)
	return &n
}

// part is the problem of the division's rows; nil for one that no engine knows.
func (d *division) part(p backend.Problem) backend.Problem {
	alone := func(h backend.Header) backend.Header {
		h.Groups = nil
		return h
	}
	switch p := p.(type) {
	case *backend.Activation:
		return &backend.Activation{Header: alone(p.Header), Input: d.ofRows(p.Input), Out: d.ofRows(p.Out)}
	case *backend.ActivationBackward:
		return &backend.ActivationBackward{
			Header: alone(p.Header), GradOutput: d.ofRows(p.GradOutput), Input: d.ofRows(p.Input),
			GradInput: d.ofRows(p.GradInput), Out: d.ofRows(p.Out), GradBias: d.sumRow(p.GradBias),
		}
	case *backend.Gated:
		return &backend.Gated{Header: alone(p.Header), Value: d.ofRows(p.Value), Gate: d.ofRows(p.Gate), Out: d.ofRows(p.Out)}
	case *backend.GatedBackward:
		return &backend.GatedBackward{
			Header: alone(p.Header), GradOutput: d.ofRows(p.GradOutput), Value: d.ofRows(p.Value), Gate: d.ofRows(p.Gate),
			GradValue: d.ofRows(p.GradValue), GradGate: d.ofRows(p.GradGate),
			GradBiasValue: d.sumRow(p.GradBiasValue), GradBiasGate: d.sumRow(p.GradBiasGate),
		}
	case *backend.GemmEpilogue:
		part := &backend.GemmEpilogue{
			Header: alone(p.Header), A: d.ofRows(p.A), B: d.ofGroup(p.B), Bias: d.ofGroup(p.Bias),
			Out: d.ofRows(p.Out), Preactivation: d.ofRows(p.Preactivation),
		}
		for _, pair := range p.More {
			part.More = append(part.More, backend.Pair{A: d.ofRows(pair.A), B: d.ofGroup(pair.B)})
		}
		return part
	case *backend.GemmEpilogueBackward:
		return &backend.GemmEpilogueBackward{
			Header: alone(p.Header), GradOutput: d.ofRows(p.GradOutput), A: d.ofRows(p.A), B: d.ofGroup(p.B), Bias: d.ofGroup(p.Bias),
			Preactivation: d.ofRows(p.Preactivation), Output: d.ofRows(p.Output),
			GradA: d.ofRows(p.GradA), GradB: d.sum(p.GradB), GradBias: d.sum(p.GradBias),
		}
	}
	return nil
}

// byGroup is a kernel that has an engine solve the problem of each group.
type byGroup struct {
	kernel.Facts
	*perRows
	division
	groups *tensor.View
}

// newByGroup makes the kernel of a problem with groups; nil for one that an engine could not solve
// for a group's rows.
func newByGroup(p backend.Problem, engine Selector) (backend.Kernel, error) {
	whole := division{rows: backend.Views(p)[0].Shape[0]} // the first operand is of rows
	if whole.part(p) == nil {
		return nil, nil
	}
	rows, err := newPerRows(engine, whole.rows, func(rows int64) backend.Problem {
		some := division{rows: rows}
		return some.part(p)
	})
	if err != nil {
		return nil, err
	}
	name := "grouped:" + rows.whole.Sku().Kernel
	return &byGroup{kernel.FactsOf(p, name).Of(rows.whole), rows, whole, p.Grouping()}, nil
}

// Run implements backend.Kernel. Where no operand is of a group the rows of all are solved at once.
func (k *byGroup) Run(r *backend.Run) error {
	groups := groupsOf(k.groups, r)
	if !slices.ContainsFunc(k.operands, func(o operand) bool { return o.ofGroup && o.view != nil }) {
		groups = []group{{0, 0, rowsOf(k.groups, r)}}
	}
	for _, g := range groups {
		if g.rows() == 0 && !k.sums {
			continue
		}
		of, err := k.of(g.rows())
		if err != nil {
			return err
		}
		part := *r
		part.Bases = k.bases(r, g)
		if err := of.Run(&part); err != nil {
			return err
		}
	}
	return nil
}

// bases are where a group's operands begin: at its first row, or at its matrix.
func (k *byGroup) bases(r *backend.Run, g group) []unsafe.Pointer {
	bases := make([]unsafe.Pointer, len(k.operands))
	for i, o := range k.operands {
		switch {
		case o.view == nil || o.view.IsEmpty():
		case o.ofGroup:
			bases[i] = address(o.view, r, g.number)
		case g.rows() > 0: // an empty tensor's address may be invalid
			bases[i] = address(o.view, r, g.first)
		}
	}
	return bases
}
