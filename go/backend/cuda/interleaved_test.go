//go:build cgo

package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// turns are the values and the gates of a tensor along its last dimension, where they take turns.
func turns(v *tensor.View, gateFirst bool) (value, gate *tensor.View) {
	even := *v
	even.Shape = []int64{v.Shape[0], v.Shape[1] / 2}
	even.Strides = []int64{v.Strides[0], 2 * v.Strides[1]}
	odd := even
	odd.Offset += v.DType.Size()
	if gateFirst {
		return &odd, &even
	}
	return &even, &odd
}

// TestInterleaved: values and gates that take turns have a form with vectors, whose bits are those
// of the form for any strides (emulatedKernel compares them).
func TestInterleaved(t *testing.T) {
	row, _ := activation.LookupGated("swiglu")
	formula, numbers := row.Kernel([]float64{1.5, 1.25, 1, 1.702})
	var r backend.Run
	copy(r.Parameters[:], numbers)
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Float16} {
		for _, gateFirst := range []bool{false, true} {
			for _, of := range []struct {
				shape   []int64 // of the output
				row     int64   // elements between two rows of the input
				vectors bool
			}{{[]int64{3, 16}, 32, true}, {[]int64{3, 16}, 48, true}, {[]int64{1, 8}, 16, true}, {[]int64{300, 8}, 16, true}, {[]int64{3, 9}, 18, false}, {[]int64{3, 16}, 33, false}} {
				t.Run(fmt.Sprint(dt, gateFirst, of), func(t *testing.T) {
					c := newCall(t, dt)
					both := func() *tensor.View {
						v := *c.operand([]int64{of.shape[0], of.row})
						v.Shape = []int64{of.shape[0], 2 * of.shape[1]}
						return &v
					}
					h := backend.Header{Op: "gated_activation", Kind: "swiglu", Formula: formula, DType: dt}
					value, gate := turns(both(), gateFirst)
					out := c.operand(of.shape)
					b := c.run(r, func(b *builder) {
						b.gated(&backend.Gated{Header: h, Value: value, Gate: gate, Out: out})
					})
					require.Equal(t, of.vectors, b.hasVectors())

					gradValue, gradGate := turns(both(), gateFirst)
					backward := backend.GatedBackward{Header: h, GradOutput: out, Value: value, Gate: gate, GradValue: gradValue, GradGate: gradGate}
					b = c.run(r, func(b *builder) { b.gatedBackward(&backward) })
					require.Equal(t, of.vectors, b.hasVectors())

					backward.GradValue = nil
					b = c.run(r, func(b *builder) { b.gatedBackward(&backward) })
					require.False(t, b.hasVectors(), "one gradient alone")
				})
			}
		}
	}
}
