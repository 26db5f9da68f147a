package cpu

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/epigrad/epigrad/go/dtype"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// Where numbers of a product are denormal, some processors take a hundred cycles for each multiplication with one; and where products of bfloat16 are so small that instructions for pairs
// take them for zeros, kernels multiply as floats, at a fraction of the speed. Gradients of smooth activations have such numbers in their tails. So packed operands are lifted
// there: multiplied by powers of two, by which their sums are divided again (kernels/cpu/lift.h). Of what is lost on the way nothing would be left in a sum that is not lifted.
//
// Whether operands are lifted follows from what is packed for a block, and so do bits; but only those of sums in whose making numbers were denormal differ.

// liftable is what depends on the type of sums: by how many powers of two operands are lifted, and the exponent of 1, which is also the largest one's.
type liftable struct{ powers, bias int64 }

// As many powers leave no number of float32 and float64 denormal; those of a product together leave none of bfloat16 that a sum could hold a zero.
var (
	float32Sums = liftable{36, 127}
	float64Sums = liftable{64, 1023}
)

// slowWithDenormals is whether operands are lifted because numbers are denormal. Tests have it so on every processor.
var slowWithDenormals = kernels.SlowWithDenormals()

// depthBits is the logarithm of how many products are added up at most, and some to spare.
const depthBits = 26

// lift lifts the operands of a block that are packed, or lets them down, for a pass over the depth; it returns by how many powers of two products are larger then.
func (v *vectorProduct) lift(p *packed, units int64, threads int, first bool) (int64, error) {
	of := float32Sums
	if v.sumSize == 8 {
		of = float64Sums
	}
	left, right := v.powers(of, p)
	if left+right > 0 {
		fits, err := v.fits(of, p, left, right, units, threads, first)
		if err != nil {
			return 0, err
		}
		if !fits {
			left, right = 0, 0
		}
	}
	if err := v.raise(&p.left, left, units, threads); err != nil {
		return 0, err
	}
	return left + right, v.raise(&p.right, right, units, threads)
}

// powers are those that the operands need: where numbers are denormal, and where products of pairs may be too small.
func (v *vectorProduct) powers(of liftable, p *packed) (left, right int64) {
	if !v.form.Pairs() && (!slowWithDenormals || v.dt == dtype.Float16) {
		return 0, 0 // float32 has room for all of float16
	}
	l, r := p.left.smallest(v.leftWidth), p.right.smallest(v.rightWidth)
	switch {
	case l > 0 && r > 0 && !(v.form.Pairs() && l+r < kernels.LeastExponents):
		return 0, 0
	case l == 0 && r == 0:
		return of.powers, of.powers
	case !v.form.Pairs():
		return of.powers * (1 - int64(l)), of.powers * (1 - int64(r))
	case l < r:
		return 2 * of.powers, 0
	}
	return 0, 2 * of.powers
}

// raise multiplies what is packed of an operand, so that it is lifted by so many powers in all.
func (v *vectorProduct) raise(o *packedOperand, powers, units int64, threads int) error {
	by := powers - o.lifted
	if by == 0 {
		return nil
	}
	o.lifted = powers
	return v.eachPanel(o, units, threads, &lifting{powers: by})
}

// smallest is that of what was found of each panel.
func (o *packedOperand) smallest(width int64) int16 {
	return slices.Min(o.packing.Smallest[:divideUp(o.part.count, width)])
}

// fits tells that neither numbers nor products nor sums would become too large.
func (v *vectorProduct) fits(of liftable, p *packed, left, right, units int64, threads int, first bool) (bool, error) {
	room := of.bias - left - right - depthBits
	exponents := int64(0)
	for _, side := range []struct {
		*packedOperand
		powers int64
	}{{&p.left, left}, {&p.right, right}} {
		if side.largest < 0 {
			search := &lifting{search: true}
			if err := v.eachPanel(side.packedOperand, units, threads, search); err != nil {
				return false, err
			}
			side.largest = search.most.Load()
		}
		if side.largest+side.powers > 2*of.bias {
			return false, nil
		}
		exponents += side.largest - of.bias
	}
	if first || exponents > room {
		return exponents <= room, nil
	}
	b, t := &p.block, p.tiles.tile
	vector := int64(v.engine.VectorBytes)
	sums := kernels.Panels{
		Form: kernels.Float32, At: p.tiles.sums, Rows: b.rows, Bytes: divideUp(b.columns*v.sumSize, vector) * vector, Stride: t.Stride * v.sumSize,
	}
	if v.sumSize == 8 {
		sums.Form = kernels.Float64
	}
	search := &lifting{search: true}
	if err := v.eachRow(&sums, threads, search); err != nil {
		return false, err
	}
	return search.most.Load()-of.bias <= room, nil
}

// eachPanel does a job on all that is packed of an operand. Of the last panel whole registers may be missing.
func (v *vectorProduct) eachPanel(o *packedOperand, units int64, threads int, j *lifting) error {
	width, vector := o.operand.Width, int64(v.engine.VectorBytes)
	bytes := width * units * v.sumSize
	all := kernels.Panels{Form: v.form, At: o.packing.To, Rows: divideUp(o.part.count, width), Bytes: bytes, Stride: bytes}
	rest := divideUp(o.part.count%width*v.sumSize, vector) * vector
	if rest == 0 || o.operand.Left == 1 || v.form == kernels.BFloat16Tiles {
		return v.eachRow(&all, threads, j)
	}
	all.Rows--
	last := kernels.Panels{Form: v.form, At: unsafe.Add(all.At, all.Rows*bytes), Rows: units, Bytes: rest, Stride: width * v.sumSize}
	if err := v.eachRow(&all, threads, j); err != nil {
		return err
	}
	return v.eachRow(&last, threads, j)
}

func (v *vectorProduct) eachRow(p *kernels.Panels, threads int, j *lifting) error {
	j.engine, j.panels = v.engine, p
	return share(p.Rows, threads, p.Rows*p.Bytes, j)
}

// lifting is a crew's job: numbers that are multiplied by a power of two, or whose largest exponent is searched for.
type lifting struct {
	engine *kernels.Engine
	panels *kernels.Panels
	powers int64
	search bool
	most   atomic.Int64
}

func (j *lifting) call(crew *kernels.Crew) {
	if !j.search {
		j.engine.Lift(crew, j.panels, j.powers)
		return
	}
	found := j.engine.Largest(crew, j.panels)
	for seen := j.most.Load(); found > seen && !j.most.CompareAndSwap(seen, found); {
		seen = j.most.Load()
	}
}
