package grouped

import (
	"cmp"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/elements"
	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// elementWork is the cost of copying or adding an element of a row, in multiply-adds.
const elementWork = 16

// eachRow calls a function for stretches of rows: on several threads if there is enough to do.
func eachRow(r *backend.Run, rows, columns int64, stretch func(first, end int64)) error {
	const together = 8
	return threads.Parallel(int((rows+together-1)/together), r.Threads, rows*max(columns, 1)*elementWork, func(task int) {
		first := int64(task) * together
		stretch(first, min(first+together, rows))
	})
}

func groupEnds(p *backend.GroupEnds, r *backend.Run) error {
	before := int64(0)
	groups := p.Offsets.Shape[0]
	for e := range groups { // nothing is written before all are known to make sense
		end := integer(p.Offsets, r, e)
		if end < before || end > p.Rows {
			return check.Invalid(p.Op, "offsets", "offsets[%d] is %d, want a value in [%d, %d]: offsets are cumulative row ends, which may not decrease", e, end, before, p.Rows)
		}
		before = end
	}
	for e := range groups {
		*(*int32)(address(p.Ends, r, e)) = int32(integer(p.Offsets, r, e))
	}
	return nil
}

// route sorts by counting. Groups are cut off behind the last row.
func route(p *backend.Route, r *backend.Run) error {
	groups, tokens, each := p.Ends.Shape[0], p.Index.Shape[0], p.Index.Shape[1]
	next, rows := make([]int32, groups), int32(p.Rows)
	group := func(t, j int64) (int64, bool) {
		e := integer(p.Index, r, t, j)
		return e, e >= 0 && e < groups
	}
	for t := range tokens {
		for j := range each {
			if e, is := group(t, j); is {
				next[e]++
			}
		}
	}
	end := int32(0)
	for e := range groups {
		end, next[e] = end+next[e], end
		*(*int32)(address(p.Ends, r, e)) = min(end, rows)
	}
	for t := range tokens {
		for j := range each {
			place := int32(-1)
			if e, is := group(t, j); is && next[e] < rows {
				place = next[e]
				next[e]++
			}
			*(*int32)(address(p.Places, r, t, j)) = place
		}
	}
	return nil
}

// rowCopier copies rows of one tensor to rows of another, of the same dtype and as many columns.
type rowCopier struct {
	columns, size          int64
	fromBase, toBase       unsafe.Pointer
	fromStep, toStep       int64 // bytes to the next column
	fromRowStep, toRowStep int64
	contiguous             bool
}

func copierOf(to, from *tensor.View, r *backend.Run) rowCopier {
	size := from.DType.Size()
	c := rowCopier{
		columns: from.Shape[1], size: size, fromStep: from.Strides[1] * size, toStep: to.Strides[1] * size,
		fromRowStep: from.Strides[0] * size, toRowStep: to.Strides[0] * size, fromBase: r.At(from), toBase: r.At(to),
	}
	c.contiguous = c.fromStep == size && c.toStep == size
	return c
}

func (c *rowCopier) copy(to, from int64) {
	source, target := unsafe.Add(c.fromBase, from*c.fromRowStep), unsafe.Add(c.toBase, to*c.toRowStep)
	if c.contiguous {
		copy(unsafe.Slice((*byte)(target), c.columns*c.size), unsafe.Slice((*byte)(source), c.columns*c.size))
		return
	}
	for i := range c.columns {
		one, other := unsafe.Add(target, i*c.toStep), unsafe.Add(source, i*c.fromStep)
		copy(unsafe.Slice((*byte)(one), c.size), unsafe.Slice((*byte)(other), c.size))
	}
}

func scatterRows(p *backend.ScatterRows, r *backend.Run) error {
	tokens, each := p.Places.Shape[0], p.Places.Shape[1]
	if each == 0 {
		return nil
	}
	columns, rows := int64(0), p.Rows()
	var copier rowCopier
	if p.Out != nil {
		if columns = p.Out.Shape[1]; columns > 0 {
			copier = copierOf(p.Out, p.Input, r)
		}
	}
	return eachRow(r, tokens, columns*each, func(first, end int64) {
		var number [1]float64
		for t := first; t < end; t++ {
			for j := range each {
				place := integer(p.Places, r, t, j)
				if place < 0 || place >= rows {
					continue
				}
				if p.Scales != nil {
					elements.Load(number[:], address(p.Scale, r, t, j), p.Scale.DType.Size(), p.Scale.DType)
					elements.Store(address(p.Scales, r, place), p.Scales.DType.Size(), number[:], p.Scales.DType)
				}
				if columns > 0 {
					copier.copy(place, t)
				}
			}
		}
	})
}

// loadRow and storeRow move a row of a matrix.
func loadRow[T elements.Real](to []T, v *tensor.View, r *backend.Run, row int64) {
	elements.Load(to, address(v, r, row), v.Strides[1]*v.DType.Size(), v.DType)
}

func storeRow[T elements.Real](v *tensor.View, r *backend.Run, row int64, from []T) {
	elements.Store(address(v, r, row), v.Strides[1]*v.DType.Size(), from, v.DType)
}

func combineRows(p *backend.CombineRows, r *backend.Run) error {
	if p.DType.Accumulator() == dtype.Float64 {
		return combine[float64](p, r)
	}
	return combine[float32](p, r)
}

func combine[T elements.Real](p *backend.CombineRows, r *backend.Run) error {
	tokens, each, columns := p.Places.Shape[0], p.Places.Shape[1], p.Out.Shape[1]
	if columns == 0 {
		return nil
	}
	return eachRow(r, tokens, columns*(each+1), func(first, end int64) {
		sums, row := make([]T, columns), make([]T, columns)
		scale := []T{1}
		for t := first; t < end; t++ {
			clear(sums)
			for j := range each {
				place := integer(p.Places, r, t, j)
				if place < 0 || place >= p.Input.Shape[0] {
					continue
				}
				loadRow(row, p.Input, r, place)
				if p.Scale != nil {
					elements.Load(scale, address(p.Scale, r, t, j), p.Scale.DType.Size(), p.Scale.DType)
				}
				for i, x := range row {
					sums[i] += T(scale[0] * x)
				}
			}
			storeRow(p.Out, r, t, sums)
		}
	})
}

func scaleGradient(p *backend.ScaleGradient, r *backend.Run) error {
	tokens, each, columns := p.Places.Shape[0], p.Places.Shape[1], int64(0)
	if p.Bias != nil {
		columns = p.Bias.Shape[1]
	}
	return eachRow(r, tokens, columns*(each+1), func(first, end int64) {
		grad, bias := make([]float64, columns), make([]float64, columns)
		for t := first; t < end; t++ {
			if columns > 0 {
				loadRow(grad, p.GradOutput, r, t)
			}
			for j := range each {
				sum := [1]float64{}
				if place := integer(p.Places, r, t, j); place >= 0 {
					elements.Load(sum[:], address(p.Sums, r, place), p.Sums.DType.Size(), p.Sums.DType)
					if columns > 0 {
						e := integer(p.Index, r, t, j)
						loadRow(bias, p.Bias, r, e)
						sum[0] += dot(bias, grad)
					}
				}
				elements.Store(address(p.GradScale, r, t, j), p.GradScale.DType.Size(), sum[:], p.GradScale.DType)
			}
		}
	})
}

// dot is the product of two vectors of one length.
func dot(a, b []float64) float64 {
	sum := 0.0
	for i, x := range a {
		sum += float64(x * b[i])
	}
	return sum
}

// scaleRows loads a row of each, and stores those that are scaled.
func scaleRows(p *backend.ScaleRows, r *backend.Run) error {
	columns := cmp.Or(p.Grad, p.Hidden).Shape[1]
	return eachRow(r, rowsOf(p.Groups, r), 2*columns, func(first, end int64) {
		x, y, scale := make([]float64, columns), make([]float64, columns), [1]float64{1}
		for row := first; row < end; row++ {
			if p.Grad != nil && columns > 0 {
				loadRow(x, p.Grad, r, row)
			}
			if p.Hidden != nil && columns > 0 {
				loadRow(y, p.Hidden, r, row)
			}
			if p.Sums != nil {
				sum := [1]float64{dot(x, y)}
				elements.Store(address(p.Sums, r, row), p.Sums.DType.Size(), sum[:], p.Sums.DType)
			}
			if p.Scales != nil {
				elements.Load(scale[:], address(p.Scales, r, row), p.Scales.DType.Size(), p.Scales.DType)
			}
			if p.ScalesGrad && columns > 0 {
				storeScaled(p.Grad, r, row, x, scale[0])
			}
			if p.ScalesHidden && columns > 0 {
				storeScaled(p.Hidden, r, row, y, scale[0])
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

// sumRows adds up the scaled rows of each group. The conversion rounds each product, here and
// above: without it some processors fuse it with the sum, and give other bits.
func sumRows(p *backend.SumRows, r *backend.Run) error {
	columns := p.Sums.Shape[1]
	if columns == 0 {
		return nil
	}
	groups := groupsOf(p.Groups, r)
	return threads.Parallel(len(groups), r.Threads, rowsOf(p.Groups, r)*columns*elementWork, func(task int) {
		g := groups[task]
		sums, row, scale := elements.NewSums(int(columns)), make([]float64, columns), [1]float64{}
		for at := g.first; at < g.end; at++ {
			loadRow(row, p.Input, r, at)
			elements.Load(scale[:], address(p.Scales, r, at), p.Scales.DType.Size(), p.Scales.DType)
			for i, x := range row {
				sums.AddOne(i, float64(scale[0]*x))
			}
		}
		if r.Accumulate {
			loadRow(row, p.Sums, r, g.number)
			sums.Add(row)
		}
		sums.Result(row)
		storeRow(p.Sums, r, g.number, row)
	})
}

func zeroRows(p *backend.ZeroRows, r *backend.Run) error {
	for _, v := range p.Outputs {
		if err := zeroRest(v, r, rowsOf(p.Groups, r)); err != nil {
			return err
		}
	}
	return nil
}

// zeroRest writes zeros over the rows of a tensor from one on.
func zeroRest(v *tensor.View, r *backend.Run, from int64) error {
	if v == nil || from >= v.Shape[0] || v.Shape[1] == 0 {
		return nil
	}
	zeros := make([]float32, v.Shape[1])
	return eachRow(r, v.Shape[0]-from, v.Shape[1], func(first, end int64) {
		for row := from + first; row < from+end; row++ {
			storeRow(v, r, row, zeros)
		}
	})
}
