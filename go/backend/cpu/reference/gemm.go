package reference

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/elements"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/kernels/portable"
)

// gemm is out = act(a b + bias) with accumulators of type T: bias and activation are applied to a
// tile while it is in cache, to the unrounded sums.
type gemm[T elements.Real] struct {
	kernel.Facts
	product            *layout.Product
	formula            portable.Make // nil for the identity
	out, preactivation *layout.Matrix
	bias               *layout.Matrix
}

func newGemm[T elements.Real](p *backend.GemmEpilogue) (*gemm[T], error) {
	formula, err := epilogueFormula(p.Formula)
	if err != nil {
		return nil, err
	}
	q := lower.Forward(p)
	return &gemm[T]{
		Facts:         kernel.FactsOf(p, routine(p.DType.Accumulator())),
		product:       layout.NewProduct(q),
		formula:       formula,
		out:           layout.ResultOf(q, lower.Out),
		preactivation: layout.ResultOf(q, lower.Preactivation),
		bias:          layout.ResultOf(q, lower.Bias),
	}, nil
}

func (*gemm[T]) WorkspaceBytes() int64 { return 0 }

func (k *gemm[T]) Run(r *backend.Run) error {
	var act *portable.Formula
	if k.formula != nil {
		act = k.formula(r.Parameters[:])
	}
	return forEachTile(k.product, r, func(s *scratch[T], t *tile[T]) {
		addBias(k.bias, r, s, t, k.product.Terms())
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
				elements.Convert(x[:t.columns], line)
				act.Values(y[:t.columns], x[:t.columns])
				storeLine(k.out, r, t, row, y[:t.columns])
			}
			return
		}
		storeTile(k.out, r, t)
	})
}

// addBias adds the bias to every row of a tile. A product without terms is the bias itself, to the
// sign of its zeros.
func addBias[T elements.Real](bias *layout.Matrix, r *backend.Run, s *scratch[T], t *tile[T], terms int64) {
	if bias == nil {
		return
	}
	step, _ := bias.Columns.Uniform()
	strip := s.strip[:t.columns]
	elements.Load(strip, unsafe.Add(r.At(bias.View), t.column*step), step, bias.View.DType)
	for row := range t.rows {
		line := t.line(row)
		for i, x := range strip {
			if terms == 0 {
				line[i] = x
			} else {
				line[i] += x
			}
		}
	}
}

func storeLine[T, S elements.Real](m *layout.Matrix, r *backend.Run, t *tile[T], row int, values []S) {
	p, step := m.Address(r, t.batch, t.row+int64(row), t.column)
	elements.Store(p, step, values, m.View.DType)
}

func storeTile[T elements.Real](m *layout.Matrix, r *backend.Run, t *tile[T]) {
	for row := range t.rows {
		storeLine(m, r, t, row, t.line(row))
	}
}

// epilogueFormula makes the activation's formula, nil for the identity.
func epilogueFormula(activation string) (portable.Make, error) {
	if activation == "none" {
		return nil, nil
	}
	return formulaOf(portable.Lookup, activation)
}
