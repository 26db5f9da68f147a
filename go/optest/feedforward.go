package optest

import (
	"bytes"
	"fmt"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
)

// block is a feed-forward block and the arrays of its operands.
type block struct {
	call
	gated                                         bool
	x, weight1, bias1, weight2, bias2, grad       *array
	pre, hidden, out, gradHidden, gradPre, formed *array // what the separate calls write
}

func (s *opSuite) block(name, kind string, gate op.Gate, dt dtype.DType, rows int64, bias bool, pick *picker) *block {
	const inputs, hidden, outputs = 5, 6, 3
	b := &block{gated: name == "gated_mlp"}
	pre := int64(hidden)
	if b.gated {
		pre *= 2
	}
	b.call = call{Call: op.Call{Op: name, Kind: kind, Gate: gate}}
	b.x = newArray(dt, []int64{rows, inputs}, pick.input()).fill(s.normal(1))
	b.weight1 = newArray(dt, []int64{pre, inputs}, pick.input()).fill(s.normal(0.5))
	b.weight2 = newArray(dt, []int64{outputs, hidden}, pick.input()).fill(s.normal(0.5))
	b.grad = newArray(dt, []int64{rows, outputs}, pick.input()).fill(s.normal(1))
	if bias {
		b.bias1 = newArray(dt, []int64{pre}, pick.input()).fill(s.normal(1))
		b.bias2 = newArray(dt, []int64{outputs}, pick.input()).fill(s.normal(1))
	}
	list := []**array{&b.pre, &b.hidden, &b.out, &b.gradHidden, &b.gradPre, &b.formed}
	for i, columns := range []int64{pre, hidden, outputs, hidden, pre, hidden} {
		*list[i] = newArray(dt, []int64{rows, columns}, contiguous)
	}
	return b
}

// next computes a call whose inputs earlier calls may have written.
func (s *opSuite) next(c op.Call, inputs, outputs []*array) {
	s.T().Helper()
	for _, a := range inputs {
		if a != nil {
			a.before = bytes.Clone(a.memory)
		}
	}
	s.run(call{Call: c, inputs: inputs, outputs: outputs})
}

// fresh is an array like another; nil like nil.
func fresh(like *array) *array {
	if like == nil {
		return nil
	}
	return newArray(like.view.DType, like.view.Shape, contiguous)
}

// separately computes the block by the calls of other operations, and its gradients: to the input,
// and to weight and bias of both layers. The first layer's bias gradient is summed before it is
// rounded, by the call between the layers where there is one.
func (s *opSuite) separately(b *block) []*array {
	linear := func(kind string, x, weight, bias, out, pre *array) {
		s.next(op.Call{Op: "linear", Kind: kind}, []*array{x, weight, bias}, []*array{out, pre})
	}
	backward := func(grad, x, weight, bias *array, outputs ...*array) {
		s.next(op.Call{Op: "linear_backward", Kind: "none"}, []*array{grad, x, weight, bias, nil, nil}, outputs)
	}
	between := func(name string, inputs []*array, outputs ...*array) {
		c := op.Call{Op: "activation" + name, Kind: b.Kind}
		if b.gated {
			c = op.Call{Op: "gated_activation" + name, Kind: b.Kind, Gate: b.Gate, Dim: -1}
		}
		s.next(c, inputs, outputs)
	}
	if b.gated {
		linear("none", b.x, b.weight1, b.bias1, b.pre, nil)
		between("", []*array{b.pre}, b.hidden)
	} else {
		linear(b.Kind, b.x, b.weight1, b.bias1, b.hidden, b.pre)
	}
	linear("none", b.hidden, b.weight2, b.bias2, b.out, nil)
	between("", []*array{b.pre}, b.formed)
	grads := []*array{fresh(b.x), fresh(b.weight1), fresh(b.bias1), fresh(b.weight2), fresh(b.bias2)}
	backward(b.grad, b.formed, b.weight2, b.bias2, b.gradHidden, grads[3], grads[4])
	if b.gated {
		between("_backward", []*array{b.gradHidden, b.pre}, b.gradPre, grads[2])
	} else {
		between("_backward", []*array{b.gradHidden, b.pre}, b.gradPre, nil, grads[2])
	}
	backward(b.gradPre, b.x, b.weight1, nil, grads[0], grads[1], nil)
	return grads
}

func (s *opSuite) TestBlocksAreTheirCalls() {
	kinds := map[string][]string{"mlp": {"leaky_relu -0.3", "gelu"}, "gated_mlp": {"swiglu", "bilinear 2 1.5 0.5"}}
	pick := &picker{}
	for _, name := range []string{"mlp", "gated_mlp"} {
		for i, kind := range kinds[name] {
			for _, dt := range s.dtypes() {
				for _, rows := range []int64{1, 7, 0} {
					what := fmt.Sprintf("%s %s %v, %d rows", name, kind, dt, rows)
					gate := op.Gate(0)
					if name == "gated_mlp" {
						gate = gateOf(i == 1)
					}
					b := s.block(name, kind, gate, dt, rows, rows != 1, pick)
					want := s.separately(b)
					out, pre := newArray(dt, b.out.view.Shape, pick.output()), newArray(dt, b.pre.view.Shape, pick.output())
					forward := b.call
					forward.inputs, forward.outputs = []*array{b.x, b.weight1, b.bias1, b.weight2, b.bias2}, []*array{out, pre}
					s.run(forward)
					s.same(out, b.out, "output of %s", what)
					s.same(pre, b.pre, "preactivation of %s", what)
					for mask := 1; mask < 1<<len(want); mask++ {
						if s.takesPairs() && mask != 31 && mask != 1<<(mask%5) {
							continue
						}
						saved := b.pre
						if mask%2 == 0 {
							saved = nil
						}
						got := make([]*array, len(want))
						for place, w := range want {
							if w != nil && mask>>place&1 == 1 {
								got[place] = newArray(dt, w.view.Shape, pick.output())
							}
						}
						backward := b.call
						backward.Op += "_backward"
						backward.Threads = 1 + mask%3
						backward.inputs = []*array{b.grad, b.x, b.weight1, b.bias1, b.weight2, b.bias2, saved}
						backward.outputs = got
						s.run(backward)
						for place, g := range got {
							if g != nil {
								s.same(g, want[place], "gradient %d of %s, mask %b", place, what, mask)
							}
						}
					}
				}
			}
		}
	}
}
