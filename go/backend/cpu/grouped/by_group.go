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
	// problem makes the problem of a number of rows.
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

// operand is a tensor of a problem: of rows, or with a matrix or a vector for each group.
type operand struct {
	view    *tensor.View
	ofGroup bool
}

// division makes the problem of some of the rows, without groups, of one with groups: its operands
// are these, in their order.
type division struct {
	rows     int64
	operands []operand
	// sums reports whether something is summed over the rows of a group, which may have none.
	sums bool
}

// part is the problem of the division's rows; nil for one that no engine knows.
func (d *division) part(p backend.Problem) backend.Problem {
	isPass := false // whose sums have the rank of rows
	switch p.(type) {
	case *backend.Activation, *backend.ActivationBackward, *backend.Gated, *backend.GatedBackward:
		isPass = true
	case *backend.GemmEpilogue, *backend.GemmEpilogueBackward:
	default:
		return nil
	}
	return backend.Replaced(p, func(v *tensor.View, role backend.Role) *tensor.View {
		if role == backend.Ends {
			return nil
		}
		sums := role == backend.Sum
		ofGroup := sums || role == backend.GroupInput
		n := *v
		n.Operand, n.Offset = len(d.operands), 0
		if ofGroup {
			n.Shape, n.Strides = v.Shape[1:], v.Strides[1:]
		} else {
			n.Shape = append([]int64{d.rows}, v.Shape[1:]...)
		}
		if sums && isPass {
			n = n.Unsqueeze(0)
		}
		d.operands, d.sums = append(d.operands, operand{v, ofGroup}), d.sums || sums
		return &n
	})
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
	if !slices.ContainsFunc(k.operands, func(o operand) bool { return o.ofGroup }) {
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
		case o.view.IsEmpty():
		case o.ofGroup:
			bases[i] = address(o.view, r, g.number)
		case g.rows() > 0: // an empty tensor's address may be invalid
			bases[i] = address(o.view, r, g.first)
		}
	}
	return bases
}
