package reference

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/elements"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/backend/cpu/layout"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/kernels/portable"
)

// gemmBackward runs a pass and products. The pass forms a preactivation that was not saved
// itself, tile by tile.
type gemmBackward[T elements.Real] struct {
	kernel.Facts
	pass    *lower.Pass   // nil where the products are all
	formula portable.Make // nil for the identity: grad_preactivation is grad_output itself

	grid              grid // of grad_preactivation
	recompute         *layout.Product
	gradOutput, saved *layout.Matrix
	bias              *layout.Matrix
	gradPreactivation *layout.Matrix // in the workspace; nil where no product needs it
	gradBias          *layout.Matrix
	workspaceBytes    int64
	products          []gradientProduct
}

// gradientProduct is a product that is stored as a gradient.
type gradientProduct struct {
	*layout.Product
	out         *layout.Matrix
	accumulates bool
}

func newGemmBackward[T elements.Real](p *backend.GemmEpilogueBackward) (*gemmBackward[T], error) {
	formula, err := epilogueFormula(p.Formula)
	if err != nil {
		return nil, err
	}
	made := lower.Gradients(p, kernel.InWorkspace)
	k := &gemmBackward[T]{Facts: kernel.FactsOf(p, routine(p.DType.Accumulator())), pass: made.Pass, formula: formula}
	if pass := made.Pass; pass != nil {
		rank, last := p.BatchRank, p.GradOutput.Rank()-1
		k.gradOutput, k.saved = layout.NewMatrix(pass.GradOutput, rank, last-rank), layout.NewMatrix(pass.Saved, rank, last-rank)
		k.gradPreactivation, k.gradBias = layout.NewMatrix(pass.GradPreactivation, rank, last-rank), layout.NewMatrix(pass.GradBias, 0, last)
		k.grid = newGrid(p.GradOutput.Shape[:rank], k.gradOutput.Rows.Length, k.gradOutput.Columns.Length, threads.FormulaWork)
		if pass.GradPreactivation != nil {
			k.workspaceBytes = kernel.Bytes(pass.GradPreactivation)
		}
	}
	if made.Recompute != nil {
		q := lower.Forward(made.Recompute)
		k.recompute, k.bias = layout.NewProduct(q), layout.ResultOf(q, lower.Bias)
	}
	for _, q := range made.Products() {
		k.products = append(k.products, gradientProduct{layout.NewProduct(q), layout.ResultOf(q, lower.Out), q.Accumulates})
	}
	return k, nil
}

func (k *gemmBackward[T]) WorkspaceBytes() int64 { return k.workspaceBytes }

func (k *gemmBackward[T]) Run(r *backend.Run) error {
	if k.pass != nil {
		if err := k.runGradPreactivation(r); err != nil {
			return err
		}
	}
	for _, g := range k.products {
		if err := runGradient[T](g, r); err != nil {
			return err
		}
	}
	return nil
}

// runGradient stores a product as a gradient.
func runGradient[T elements.Real](g gradientProduct, r *backend.Run) error {
	return forEachTile(g.Product, r, func(s *scratch[T], t *tile[T]) {
		for row := range t.rows {
			line := t.line(row)
			address, step := g.out.Address(r, t.batch, t.row+int64(row), t.column)
			if g.accumulates && r.Accumulate {
				old := s.strip[:t.columns]
				elements.Load(old, address, step, g.out.View.DType)
				for i, x := range old {
					line[i] += x
				}
			}
			elements.Store(address, step, line, g.out.View.DType)
		}
	})
}

// runGradPreactivation walks grad_preactivation once: strips of columns, each cut into at most
// maxChunks runs of row panels, so that the column sums are formed in an order that the shapes
// alone decide.
func (k *gemmBackward[T]) runGradPreactivation(r *backend.Run) error {
	panels, strips := k.grid.panels(), k.grid.columnTiles()
	chunks := max(1, min(maxChunks, panels))
	partial := make([]elements.Sums, chunks*strips)
	work := k.grid.work
	if k.recompute != nil {
		work += k.recompute.Work()
	}
	var act *portable.Formula
	if k.formula != nil {
		act = k.formula(r.Parameters[:])
	}
	pool := newPool[T](len(k.grid.batch))
	err := threads.Parallel(chunks*strips, r.Threads, work, func(task int) {
		strip, chunk := task/chunks, task%chunks
		s := pool.get()
		defer pool.put(s)
		if k.gradBias != nil {
			partial[task] = elements.NewSums(tileColumns)
		}
		for panel := panels * chunk / chunks; panel < panels*(chunk+1)/chunks; panel++ {
			t := place(&k.grid, s, panel, strip)
			k.gradientTile(r, s, &t, act, &partial[task])
		}
	})
	if err != nil || k.gradBias == nil {
		return err
	}
	return threads.Parallel(strips, r.Threads, k.grid.columns*int64(chunks), func(strip int) {
		all := &partial[strip*chunks]
		for chunk := 1; chunk < chunks; chunk++ {
			all.Merge(&partial[strip*chunks+chunk])
		}
		column := int64(strip) * tileColumns
		columns := int(min(tileColumns, k.grid.columns-column))
		var total, old [tileColumns]float64
		all.Result(total[:columns])
		address, step := k.gradBias.Address(r, nil, 0, column)
		if r.Accumulate {
			elements.Load(old[:columns], address, step, k.pass.GradBias.DType)
			for i := range columns {
				total[i] += old[i]
			}
		}
		elements.Store(address, step, total[:columns], k.pass.GradBias.DType)
	})
}

// gradientTile forms one tile of grad_preactivation, stores it if it is needed, and adds its rows
// to the column sums.
func (k *gemmBackward[T]) gradientTile(r *backend.Run, s *scratch[T], t *tile[T], act *portable.Formula, columnSums *elements.Sums) {
	dt := k.pass.GradOutput.DType
	if k.recompute != nil {
		computeTile(k.recompute, r, s, t)
		addBias(k.bias, r, s, t, k.recompute.Terms())
	}
	var g, x, gradient [tileColumns]float64
	n := t.columns
	for row := range t.rows {
		address, step := k.gradOutput.Address(r, t.batch, t.row+int64(row), t.column)
		elements.Load(g[:n], address, step, dt)
		switch {
		case act == nil:
			copy(gradient[:n], g[:n])
		case k.recompute != nil:
			elements.Convert(x[:n], t.line(row))
			// as a saved preactivation is, so that both ways give the same bits
			elements.Round(x[:n], dt)
			act.Gradients(gradient[:n], g[:n], x[:n])
		default:
			address, step := k.saved.Address(r, t.batch, t.row+int64(row), t.column)
			elements.Load(x[:n], address, step, dt)
			if k.pass.FromOutput {
				act.GradientsFromOutput(gradient[:n], g[:n], x[:n])
			} else {
				act.Gradients(gradient[:n], g[:n], x[:n])
			}
		}
		if k.gradPreactivation != nil {
			storeLine(k.gradPreactivation, r, t, row, gradient[:n])
		}
		if k.gradBias != nil {
			columnSums.Add(gradient[:n])
		}
	}
}
