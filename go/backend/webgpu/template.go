//go:build cgo

package webgpu

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
)

// formula is a kernel's function of each element (kernels/webgpu/formulas.wgsl).
type formula struct {
	name, kind string
	// hasLast reports whether the last input is a tensor. A number may stand for lerp's, the
	// weight.
	hasLast bool
	// accumulates: results are added to the output's values, if the run says so.
	accumulates bool
}

// operand is a tensor of a kernel: one of the formula's inputs or outputs, by its place among them.
type operand struct {
	view    *tensor.View
	place   int
	written bool
	// quads: elements are read and written four at a time.
	quads bool
	// accumulates: results are added to the output's values.
	accumulates bool
}

// operands lists those that are there, outputs first.
func operands(outputs, inputs []*tensor.View) []operand {
	var all []operand
	for i, v := range outputs {
		if v != nil {
			all = append(all, operand{view: v, place: i, written: true})
		}
	}
	for i, v := range inputs {
		if v != nil {
			all = append(all, operand{view: v, place: i})
		}
	}
	return all
}

// template is a kernel of kernels/webgpu with the definitions that make it one.
type template struct {
	file, name  string
	definitions map[string]string
	bindings    []binding
}

// template makes the definitions for operands.
func (b *builder) template(file string, f formula, all []operand) *template {
	d := map[string]string{
		"COUNT": fmt.Sprintf("%du", len(all)), "REAL": "f32", "FORMULA": f.name, "KIND": f.kind, "WEIGHT": "number", "ACCUMULATES": "", "APPROXIMATE": "",
		"NATIVE_HALVES": "",
	}
	if f.kind == "" {
		d["KIND"] = "none"
	}
	if f.hasLast {
		d["WEIGHT"] = "tensor"
	}
	if b.dt.IsHalf() {
		d["APPROXIMATE"] = "yes"
	}
	bits := f.name == "identity" && !f.accumulates && file == "elementwise"
	for _, o := range all {
		bits = bits && o.view.DType == all[0].view.DType
	}
	if bits {
		d["REAL"] = "u32"
	}
	t := &template{file: file, name: file + "_" + f.name, definitions: d}
	if file != "reduce" && f.kind != "" {
		t.name += "_" + f.kind
	}
	t.name += "_" + b.dt.Short()
	if !b.portable && slices.ContainsFunc(all, func(o operand) bool { return o.view.DType == dtype.Float16 }) && b.device.passes(probeHalves) {
		d["NATIVE_HALVES"] = "yes"
	}
	lists := map[string][]string{"OPERANDS": nil, "INPUTS": nil, "OUTPUTS": nil, "READ": nil, "WRITTEN": nil, "QUADS_READ": nil, "QUADS_WRITTEN": nil}
	for j, o := range all {
		number := fmt.Sprint(j)
		add := func(names ...string) {
			for _, name := range names {
				lists[name] = append(lists[name], number)
			}
		}
		short, access, wordType, way := o.view.DType.Short(), "read", "u32", ""
		switch {
		case o.quads && o.view.DType.IsHalf():
			wordType, way = "vec2<u32>", "QUADS_"
		case o.quads:
			wordType, way = "vec4<u32>", "QUADS_"
		case o.written && o.view.DType.IsHalf():
			wordType = "atomic<u32>" // the other half may be another thread's
		}
		d["QUAD"+number] = way
		add("OPERANDS")
		if o.written {
			access = "read_write"
			add("OUTPUTS", way+"WRITTEN")
		} else {
			add("INPUTS")
		}
		if !o.written || o.accumulates {
			add(way + "READ")
		}
		if o.accumulates {
			d["ACCUMULATES"] = "run"
		}
		d["SLOT"+number], d["ACCESS"+number], d["WORD"+number], d["PLACE"+number] = fmt.Sprint(j+1), access, wordType, fmt.Sprint(o.place)
		d["TYPE"+number], d["CODE"+number] = short, short
		if o.view.DType == dtype.Int32 { // which is read as it is
			d["TYPE"+number] = "f32"
		}
		if bits {
			d["CODE"+number] = fmt.Sprintf("bits%d", 8*o.view.DType.Size())
		}
	}
	for name, list := range lists {
		d[name] = strings.Join(list, " ")
	}
	return t
}

// bind says what of its slot each operand of a dispatch reaches, over loops with these sizes and
// strides.
func (t *template) bind(all []operand, offsets []int64, shape []int64, strides [][]int64) {
	t.bindings = nil
	for j, o := range all {
		size := o.view.DType.Size()
		lo, hi := reach(shape, strides[j])
		at := offsets[j]
		t.bindings = append(t.bindings, binding{
			slot: o.view.Operand, base: at * size, from: (at + lo) * size, to: (at + hi + 1) * size, size: size, quads: o.quads, written: o.written,
		})
	}
}

// reach is how far, in elements, strides lead to both sides.
func reach(shape, strides []int64) (lo, hi int64) {
	for d, n := range shape {
		lo, hi = lo+min(0, (n-1)*strides[d]), hi+max(0, (n-1)*strides[d])
	}
	return lo, hi
}

// params are a kernel's parameters (kernels/webgpu/loops.wgsl).
type params struct{ bytes []byte }

// newParams writes the loops, innermost first, and each operand's strides.
func newParams(shape []int64, strides [][]int64) *params {
	p := &params{make([]byte, paramOperands+len(strides)*operandBytes)}
	p.set(8, int64(len(shape)))
	for d := range shape {
		p.set(paramShape+4*d, shape[d])
		for j := range strides {
			p.set(paramOperands+j*operandBytes+16+4*d, strides[j][d])
		}
	}
	return p
}

// set writes a number modulo 2^32.
func (p *params) set(at int, x int64) { binary.LittleEndian.PutUint32(p.bytes[at:], uint32(x)) }

// grid spreads the groups of these threads over x and y.
func (b *builder) grid(p *params, threads int64) [3]uint32 {
	groups := ceilDiv(threads, groupThreads)
	row := min(groups, b.limits.groups)
	p.set(4, row)
	return [3]uint32{uint32(row), uint32(ceilDiv(groups, row)), 1}
}

func ceilDiv(n, d int64) int64 { return (n + d - 1) / d }
