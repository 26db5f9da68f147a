package cpu

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	"github.com/epigrad/epigrad/kernels/portable"
)

// gemmEpilogueBackward computes grad_preactivation (into the workspace, rounded to the storage dtype) and the bias gradient (from the unrounded values) in
// one pass, then the two products. Whatever is not asked for is not computed.
type gemmEpilogueBackward[T real] struct {
	facts
	problem *backend.GemmEpilogueBackward
	formula portable.Make // nil for the identity: grad_preactivation is grad_output itself

	grid                   grid // of grad_preactivation
	recompute              *product
	gradOutput             matrix
	saved                  *matrix // the preactivation or the output
	bias                   *matrix
	gradPreactivation      *matrix // in the workspace; nil where no product needs it
	workspaceBytes         int64
	productA, productB     *product
	gradA, gradB, gradBias *matrix
}

func (b *Backend) selectGemmEpilogueBackward(p *backend.GemmEpilogueBackward) (backend.Kernel, error) {
	if p.DType.Accumulator() == dtype.Float64 {
		return newGemmEpilogueBackward[float64](b, p)
	}
	return newGemmEpilogueBackward[float32](b, p)
}

func newGemmEpilogueBackward[T real](b *Backend, p *backend.GemmEpilogueBackward) (*gemmEpilogueBackward[T], error) {
	formula, err := epilogueFormula(p.Kind)
	if err != nil {
		return nil, err
	}
	rank := p.BatchRank
	batch := p.GradOutput.Shape[:rank]
	k := &gemmEpilogueBackward[T]{
		facts:      newFacts(p, b.blas.routine(p.DType.Accumulator())),
		problem:    p,
		formula:    formula,
		gradOutput: newMatrix(p.GradOutput, rank),
		bias:       optionalMatrix(p.Bias, 0),
		gradA:      optionalMatrix(p.GradA, rank),
		gradB:      optionalMatrix(p.GradB, rank),
		gradBias:   optionalMatrix(p.GradBias, 0),
	}
	k.grid = newGrid(batch, k.gradOutput.rows.length, k.gradOutput.columns.length, formulaWork)
	gradient := k.gradOutput
	if formula != nil {
		switch {
		case p.Output != nil:
			k.saved = optionalMatrix(p.Output, rank)
		case p.Preactivation != nil:
			k.saved = optionalMatrix(p.Preactivation, rank)
		default:
			forward := forwardProduct(&b.blas, p.A, p.B, rank)
			k.recompute = &forward
		}
		if p.GradA != nil || p.GradB != nil {
			view := tensor.View{
				Operand: backend.WorkspaceOperand, DType: p.DType, Device: p.GradOutput.Device,
				Shape: p.GradOutput.Shape, Strides: tensor.ContiguousStrides(p.GradOutput.Shape),
			}
			k.workspaceBytes = view.Numel() * p.DType.Size()
			gradient = newMatrix(&view, rank)
			k.gradPreactivation = &gradient
		}
	}
	if p.GradA != nil {
		product := newProduct(&b.blas, gradient, newMatrix(p.B, rank), batch, p.GradA)
		k.productA = &product
	}
	if p.GradB != nil {
		product := newProduct(&b.blas, newMatrix(p.A, rank).transposed(), gradient.transposed(), batch, p.GradB)
		k.productB = &product
	}
	return k, nil
}

func (k *gemmEpilogueBackward[T]) WorkspaceBytes() int64 { return k.workspaceBytes }

func (k *gemmEpilogueBackward[T]) Run(r *backend.Run) error {
	if k.gradPreactivation != nil || k.gradBias != nil {
		if err := k.runGradPreactivation(r); err != nil {
			return err
		}
	}
	if k.productA != nil {
		if err := runGradient[T](k.productA, k.gradA, r, false); err != nil {
			return err
		}
	}
	if k.productB != nil {
		return runGradient[T](k.productB, k.gradB, r, r.Accumulate)
	}
	return nil
}

// runGradient stores a product as a gradient.
func runGradient[T real](p *product, gradient *matrix, r *backend.Run, accumulate bool) error {
	return forEachTile(p, r, func(s *scratch[T], t *tile[T]) {
		for row := range t.rows {
			line := t.line(row)
			address, step := gradient.address(r, t.batch, t.row+int64(row), t.column)
			if accumulate {
				old := s.strip[:t.columns]
				load(old, address, step, p.dt)
				for i, x := range old {
					line[i] += x
				}
			}
			store(address, step, line, p.dt)
		}
	})
}

// runGradPreactivation walks grad_preactivation once: strips of columns, each cut into at most maxChunks runs of row panels, so that the
// column sums are formed in an order that the shapes alone decide.
func (k *gemmEpilogueBackward[T]) runGradPreactivation(r *backend.Run) error {
	panels, strips := k.grid.panels(), k.grid.columnTiles()
	chunks := max(1, min(maxChunks, panels))
	partial := make([]sums, chunks*strips)
	work := k.grid.work
	if k.recompute != nil {
		work += k.recompute.grid().work
	}
	var act *portable.Formula
	if k.formula != nil {
		act = k.formula(r.Parameters[:])
	}
	pool := newPool[T](len(k.grid.batch))
	err := parallel(chunks*strips, r.Threads, work, func(task int) {
		strip, chunk := task/chunks, task%chunks
		s := pool.get()
		defer pool.put(s)
		if k.gradBias != nil {
			partial[task] = newSums(tileColumns)
		}
		for panel := panels * chunk / chunks; panel < panels*(chunk+1)/chunks; panel++ {
			t := place(&k.grid, s, panel, strip)
			k.gradientTile(r, s, &t, act, &partial[task])
		}
	})
	if err != nil || k.gradBias == nil {
		return err
	}
	return parallel(strips, r.Threads, k.grid.columns*int64(chunks), func(strip int) {
		all := &partial[strip*chunks]
		for chunk := 1; chunk < chunks; chunk++ {
			all.merge(&partial[strip*chunks+chunk])
		}
		column := int64(strip) * tileColumns
		columns := int(min(tileColumns, k.grid.columns-column))
		var total, old [tileColumns]float64
		all.result(total[:columns])
		address, step := k.gradBias.address(r, nil, 0, column)
		if r.Accumulate {
			load(old[:columns], address, step, k.problem.DType)
			for i := range columns {
				total[i] += old[i]
			}
		}
		store(address, step, total[:columns], k.problem.DType)
	})
}

// gradientTile forms one tile of grad_preactivation, stores it if it is needed, and adds its rows to the column sums.
func (k *gemmEpilogueBackward[T]) gradientTile(r *backend.Run, s *scratch[T], t *tile[T], act *portable.Formula, columnSums *sums) {
	dt := k.problem.DType
	if k.recompute != nil {
		computeTile(k.recompute, r, s, t)
		addBias(k.bias, r, s, t, k.recompute.depth())
	}
	var g, x, gradient [tileColumns]float64
	n := t.columns
	for row := range t.rows {
		address, step := k.gradOutput.address(r, t.batch, t.row+int64(row), t.column)
		load(g[:n], address, step, dt)
		switch {
		case act == nil:
			copy(gradient[:n], g[:n])
		case k.recompute != nil:
			convert(x[:n], t.line(row))
			roundTo(x[:n], dt) // as a saved preactivation is, so that both ways give the same bits
			act.Gradients(gradient[:n], g[:n], x[:n])
		default:
			address, step := k.saved.address(r, t.batch, t.row+int64(row), t.column)
			load(x[:n], address, step, dt)
			if k.problem.Output != nil {
				act.GradientsFromOutput(gradient[:n], g[:n], x[:n])
			} else {
				act.Gradients(gradient[:n], g[:n], x[:n])
			}
		}
		if k.gradPreactivation != nil {
			storeLine(k.gradPreactivation, r, t, row, gradient[:n])
		}
		if k.gradBias != nil {
			columnSums.add(gradient[:n])
		}
	}
}
