package vector

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/dtype"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

// Some processors take a hundred cycles for each multiplication with a denormal number. Products of
// bfloat16 may be so small that instructions for pairs take them for zeros; kernels would multiply
// them as floats, at a fraction of the speed. Gradients of smooth activations have such numbers in
// their tails. So packed operands are lifted there: they are multiplied by a power of two, and
// their sums are divided by it (lift in kernels/cpu). A lifted sum loses nothing that a sum without
// lifting would keep.
//
// The numbers that are packed for a block decide whether operands are lifted. Lifting changes bits
// only in sums that were formed from denormals. A batch-invariant call lifts nothing: other rows
// would decide about the bits of such a sum.

// floatRange has the accumulator type's exponents, for lifting.
//
// bias is the exponent of 1 as it is stored, and the exponent of the largest numbers as it is.
//
// An operand with denormal numbers is multiplied by 2^powers: then none of them is denormal.
//
// Instructions for pairs take products of bfloat16 below 2^-126 for zeros. Products lifted by twice
// the powers are then lost below 2^-198, and float32 holds no number so small.
type floatRange struct{ bias, powers int64 }

var (
	float32Range = floatRange{127, 36}
	float64Range = floatRange{1023, 64}
)

func (v *product) floats() floatRange {
	if v.DType == dtype.Float64 {
		return float64Range
	}
	return float32Range
}

// depthBits is log2 of the longest sum of products, rounded up with headroom.
const depthBits = 26

// lift lifts the packed operands of a block for a pass over the depth, or undoes the lift of the
// pass before. It returns by how many powers of two products are larger then.
func (v *product) lift(p *packed, units int64, limit int, first bool) (int64, error) {
	left, right := v.powers(p)
	if left+right > 0 {
		fits, err := v.fits(p, left, right, units, limit, first)
		if err != nil {
			return 0, err
		}
		if !fits {
			left, right = 0, 0
		}
	}
	if err := v.liftOperand(&p.left, left, units, limit); err != nil {
		return 0, err
	}
	return left + right, v.liftOperand(&p.right, right, units, limit)
}

// watches reports whether denormal numbers are looked for: where they are slow, or lost. float32
// has room for all of float16.
func (v *product) watches() bool {
	return v.DType != dtype.Float16 && (v.form.Pairs() || v.slowWithDenormals)
}

// powers returns by how many powers of two each operand has to be lifted. It has to be where it
// holds denormal numbers, and where products of pairs may be too small.
func (v *product) powers(p *packed) (left, right int64) {
	if !v.watches() || v.neverLifts {
		return 0, 0
	}
	powers, pairs := v.floats().powers, v.form.Pairs()
	l, r := p.left.smallest(v.leftWidth), p.right.smallest(v.rightWidth)
	if l == 0 {
		left = powers
	}
	if r == 0 {
		right = powers
	}
	if pairs && l+r < kernels.LeastExponents && (l > 0 || r > 0) {
		if l < r {
			return 2 * powers, 0
		}
		return 0, 2 * powers
	}
	return left, right
}

// smallest is the least exponent that packing found in the operand's panels (kernels.Packing).
func (o *packedOperand) smallest(width int64) int16 {
	return slices.Min(o.packing.Smallest[:divideUp(o.parts[0].count, width)])
}

// liftOperand multiplies a packed operand by a power of two. Whatever it was lifted by before, it
// is lifted by `powers` then.
func (v *product) liftOperand(o *packedOperand, powers, units int64, limit int) error {
	by := powers - o.lifted
	if by == 0 {
		return nil
	}
	o.lifted = powers
	return v.eachPanel(o, units, func(p *kernels.Panels) error {
		return threads.Share(p.Rows, limit, p.Rows*p.Bytes, &lifting{v.engine, p, by})
	})
}

// fits reports whether neither numbers nor products nor sums would become too large.
func (v *product) fits(p *packed, left, right, units int64, limit int, first bool) (bool, error) {
	bias := v.floats().bias
	room := bias - left - right - depthBits
	exponents := int64(0)
	for _, side := range []struct {
		*packedOperand
		powers int64
	}{{&p.left, left}, {&p.right, right}} {
		if side.largest < 0 {
			most := int64(0)
			search := func(p *kernels.Panels) error { return v.search(p, limit, &most) }
			if err := v.eachPanel(side.packedOperand, units, search); err != nil {
				return false, err
			}
			side.largest = most
		}
		if side.largest+side.powers > 2*bias {
			return false, nil
		}
		exponents += side.largest - bias
	}
	if first || exponents > room {
		return exponents <= room, nil
	}
	b, t := &p.block, p.tiles.tile
	before := kernels.Panels{
		Form: kernels.Float32, At: p.tiles.sums, Rows: b.rows, Bytes: v.registers(b.columns), Stride: t.Stride * v.sumSize,
	}
	if v.DType == dtype.Float64 {
		before.Form = kernels.Float64
	}
	most := int64(0)
	err := v.search(&before, limit, &most)
	return most-bias <= room, err
}

// registers returns the bytes of the whole registers that hold these sums.
func (v *product) registers(sums int64) int64 {
	vector := int64(v.engine.VectorBytes)
	return divideUp(sums*v.sumSize, vector) * vector
}

// eachPanel visits an operand's packed panels. The last panel may lack whole registers: it is then
// visited on its own.
func (v *product) eachPanel(o *packedOperand, units int64, visit func(p *kernels.Panels) error) error {
	width := o.operands[0].Width
	bytes := width * units * v.sumSize
	all := kernels.Panels{
		Form: v.form, At: o.packing.To, Rows: divideUp(o.parts[0].count, width), Bytes: bytes, Stride: bytes,
	}
	rest := v.registers(o.parts[0].count % width)
	if rest == 0 || rest == width*v.sumSize || v.form == kernels.BFloat16Tiles {
		return visit(&all)
	}
	all.Rows--
	last := kernels.Panels{
		Form: v.form, At: unsafe.Add(all.At, all.Rows*bytes), Rows: units, Bytes: rest, Stride: width * v.sumSize,
	}
	if err := visit(&all); err != nil {
		return err
	}
	return visit(&last)
}

// lifting is the job that multiplies numbers by a power of two.
type lifting struct {
	engine *kernels.Engine
	panels *kernels.Panels
	powers int64
}

// Call implements threads.Job.
func (j *lifting) Call(crew *kernels.Crew) { j.engine.Lift(crew, j.panels, j.powers) }

// search finds the largest exponent of numbers, if it is larger than what was found before.
func (v *product) search(p *kernels.Panels, limit int, most *int64) error {
	j := searching{engine: v.engine, panels: p}
	err := threads.Share(p.Rows, limit, p.Rows*p.Bytes, &j)
	*most = max(*most, j.most.Load())
	return err
}

// searching is the job that looks for the largest exponent. Each member of the crew finds a part's.
type searching struct {
	engine *kernels.Engine
	panels *kernels.Panels
	most   atomic.Int64
}

// Call implements threads.Job.
func (j *searching) Call(crew *kernels.Crew) {
	found := j.engine.Largest(crew, j.panels)
	for seen := j.most.Load(); found > seen && !j.most.CompareAndSwap(seen, found); {
		seen = j.most.Load()
	}
}
