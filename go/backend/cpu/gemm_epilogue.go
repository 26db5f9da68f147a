package cpu

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/kernels/portable"
)

// gemmEpilogue is out = act(a b + bias) with accumulators of type T: bias and activation are applied to a tile while it is in cache, to the
// unrounded sums.
type gemmEpilogue[T real] struct {
	facts
	product            *product
	formula            portable.Make // nil for the identity
	out, preactivation *matrix
	bias               *matrix
}

func (b *Backend) selectGemmEpilogue(p *backend.GemmEpilogue) (backend.Kernel, error) {
	if p.DType.Accumulator() == dtype.Float64 {
		return newGemmEpilogue[float64](b, p)
	}
	return newGemmEpilogue[float32](b, p)
}

func newGemmEpilogue[T real](b *Backend, p *backend.GemmEpilogue) (*gemmEpilogue[T], error) {
	formula, err := epilogueFormula(p.Kind)
	if err != nil {
		return nil, err
	}
	q := lower.Forward(p)
	return &gemmEpilogue[T]{
		facts:         newFacts(p, b.blas.routine(p.DType.Accumulator())),
		product:       newProduct(&b.blas, q),
		formula:       formula,
		out:           resultOf(q, lower.Out),
		preactivation: resultOf(q, lower.Preactivation),
		bias:          resultOf(q, lower.Bias),
	}, nil
}

func (*gemmEpilogue[T]) WorkspaceBytes() int64 { return 0 }

func (k *gemmEpilogue[T]) Run(r *backend.Run) error {
	var act *portable.Formula
	if k.formula != nil {
		act = k.formula(r.Parameters[:])
	}
	return forEachTile(k.product, r, func(s *scratch[T], t *tile[T]) {
		addBias(k.bias, r, s, t, k.product.depth())
		if k.preactivation != nil {
			storeTile(k.preactivation, r, t)
		}
		if k.out == nil {
			return
		}
		if act != nil {
			var x, y [tileColumns]float64
			for row := range t.rows {
				line := t.line(row)
				convert(x[:t.columns], line)
				act.Values(y[:t.columns], x[:t.columns])
				storeLine(k.out, r, t, row, y[:t.columns])
			}
			return
		}
		storeTile(k.out, r, t)
	})
}

// addBias adds the bias to every row of a tile. A product of depth 0 is the bias itself, to the sign of its zeros.
func addBias[T real](bias *matrix, r *backend.Run, s *scratch[T], t *tile[T], depth int64) {
	if bias == nil {
		return
	}
	step, _ := bias.columns.uniform()
	strip := s.strip[:t.columns]
	load(strip, unsafe.Add(r.At(bias.view), t.column*step), step, bias.view.DType)
	for row := range t.rows {
		line := t.line(row)
		for i, x := range strip {
			if depth == 0 {
				line[i] = x
			} else {
				line[i] += x
			}
		}
	}
}

// address returns where a tile's row starts in a matrix, and the step along it.
func (m *matrix) address(r *backend.Run, batch []int64, row, column int64) (unsafe.Pointer, int64) {
	step, _ := m.columns.uniform()
	return unsafe.Add(m.at(r, batch), m.rows.offset(row)+column*step), step
}

func storeLine[T, S real](m *matrix, r *backend.Run, t *tile[T], row int, values []S) {
	p, step := m.address(r, t.batch, t.row+int64(row), t.column)
	store(p, step, values, m.view.DType)
}

func storeTile[T real](m *matrix, r *backend.Run, t *tile[T]) {
	for row := range t.rows {
		storeLine(m, r, t, row, t.line(row))
	}
}

// epilogueFormula is what makes the activation's formula, nil for the identity.
func epilogueFormula(activation string) (portable.Make, error) {
	if activation == "none" {
		return nil, nil
	}
	return formulaOf(activation)
}
