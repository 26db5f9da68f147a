package op_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/tensor"
)

const (
	// arenaBytes is the memory that all tensors of a fuzzed call lie in, somewhere and often over
	// each other.
	arenaBytes = 1 << 13
	// runnable is the most elements of a tensor with which a valid call is also run.
	runnable = 1 << 10
)

// source reads decisions from fuzzed bytes; at their end it reads zeros.
type source struct{ data []byte }

func (s *source) byte() int64 {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return int64(b)
}

// size is mostly small, sometimes anything.
func (s *source) size() int64 {
	b := s.byte()
	if b < 250 {
		return b % 7
	}
	var wide [8]byte
	copy(wide[:], s.data)
	s.data = s.data[min(8, len(s.data)):]
	return int64(binary.LittleEndian.Uint64(wide[:]))
}

// view reads a tensor in the arena. Its size is stated, so that what is accepted can be run.
func (s *source) view(arena []byte) *tensor.View {
	kind := s.byte()
	if kind%8 == 7 {
		return nil
	}
	dt, device := dtype.Float32, tensor.CPU
	if kind >= 200 {
		dt = dtype.All()[kind%4]
	}
	if kind == 199 {
		device = int32(s.byte())
	}
	var shape, strides []int64
	for range s.byte() % 5 {
		shape = append(shape, s.size())
	}
	if s.byte()%3 == 0 {
		strides = []int64{}
		for range shape {
			stride := s.size()
			if s.byte()%4 == 0 {
				stride = -stride
			}
			strides = append(strides, stride)
		}
	}
	offset := s.byte() * 32
	if kind%16 == 15 {
		offset += s.byte()
	}
	v, err := tensor.New(unsafe.Pointer(&arena[0]), min(offset, arenaBytes-1), dt, tensor.Device{Type: device}, shape, strides, 0)
	if err != nil {
		return nil
	}
	v.NBytes = arenaBytes - v.Offset
	if s.byte()%32 == 31 {
		v.NBytes = max(1, v.NBytes>>(s.byte()%14))
	}
	return &v
}

func (s *source) views(arena []byte, most int) []*tensor.View {
	list := make([]*tensor.View, s.byte()%int64(most+2))
	for i := range list {
		list[i] = s.view(arena)
	}
	return list
}

// fuzzedCall reads a call.
func (s *source) fuzzedCall(arena []byte) *op.Call {
	signatures := op.Signatures()
	signature := signatures[s.byte()%int64(len(signatures))]
	kinds := append(append(activation.Names(), activation.GatedNames()...), "", "no such kind")
	flags := s.byte()
	c := &op.Call{
		Op: signature.Name, Kind: kinds[s.byte()%int64(len(kinds))], Dim: int(int8(s.byte())) % 5,
		Gate: op.Gate(flags >> 1 & 1), Accumulate: flags&4 != 0, Threads: int(flags >> 4),
	}
	if flags&1 != 0 {
		c.Parameters = []float64{0.5}
	}
	if flags&8 != 0 {
		offset := s.byte() * 32
		c.Workspace, c.WorkspaceBytes = unsafe.Pointer(&arena[min(offset, arenaBytes-1)]), max(0, arenaBytes-offset)
	}
	c.Inputs = s.views(arena, len(signature.Inputs))
	c.Outputs = s.views(arena, len(signature.Outputs))
	return c
}

// small reports whether a valid call is little work.
func small(c *op.Call) bool {
	for _, views := range [][]*tensor.View{c.Inputs, c.Outputs} {
		for _, v := range views {
			if v != nil && v.Numel() > runnable {
				return false
			}
		}
	}
	return true
}

// FuzzValidate: whatever a call describes, nothing panics, Validate and Run agree, what is refused
// leaves all memory as it was, and what is computed writes to the outputs and the workspace alone.
func FuzzValidate(f *testing.F) {
	// Each operation on small contiguous tensors, then with strides, overlaps, empties, and sizes
	// that overflow.
	contiguous := func(sizes ...byte) []byte { return append(append([]byte{0, byte(len(sizes))}, sizes...), 1) }
	place := func(view []byte, at byte) []byte { return append(view, at, 0) }
	seed := func(operation, flags, kind, dim byte, workspace []byte, inputs, outputs [][]byte) {
		data := append([]byte{operation, flags, kind, dim}, workspace...)
		for _, views := range [][][]byte{inputs, outputs} {
			data = append(data, byte(len(views)))
			for i, view := range views {
				at := byte(i * 16)
				if &views[0] == &outputs[0] {
					at += 128
				}
				data = append(data, place(view, at)...)
			}
		}
		f.Add(data)
	}
	a, b, out := contiguous(2, 3), contiguous(3, 4), contiguous(2, 4)
	for kind := range byte(16) {
		seed(0, 0, kind, 0, nil, [][]byte{a, b}, [][]byte{out, out})
		seed(1, 8, kind, 0, []byte{240}, [][]byte{out, a, b, contiguous(4)}, [][]byte{a, b, contiguous(4)})
		seed(5, 2, kind, 1, nil, [][]byte{contiguous(2, 4)}, [][]byte{contiguous(2, 2)})
		seed(7, 0, kind, 0, nil, [][]byte{a, a}, [][]byte{a})
	}
	seed(9, 1, 0, 0, nil, [][]byte{a, contiguous(3)}, [][]byte{a})
	seed(10, 0, 0, 0, nil, [][]byte{a, a, contiguous(3), contiguous()}, [][]byte{a, contiguous(3), contiguous()})
	seed(0, 0, 0, 0, nil, [][]byte{contiguous(0, 3), contiguous(3, 0)}, [][]byte{contiguous(0, 0)})
	seed(4, 0, 1, 0, nil, [][]byte{a}, [][]byte{{0, 2, 2, 3, 0, 0, 1, 1, 1}}) // strides [0, 1]
	// strides [-3, -1], before the buffer
	seed(4, 0, 1, 0, nil, [][]byte{{0, 2, 2, 3, 0, 3, 0, 1, 0}}, [][]byte{a})
	huge := []byte{0, 1, 255, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 1} // size 2^62, stride 0
	seed(0, 0, 0, 0, nil, [][]byte{huge, huge}, [][]byte{out})
	f.Fuzz(func(t *testing.T, data []byte) {
		memory := make([]uint64, arenaBytes/8)
		arena := unsafe.Slice((*byte)(unsafe.Pointer(&memory[0])), arenaBytes)
		for i := range arena {
			arena[i] = byte(i*7 + i>>8)
		}
		before := bytes.Clone(arena)
		read := &source{data}
		call := read.fuzzedCall(arena)
		if _, _, err := op.Infer(call, []bool{true, true, true}); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
		if plan, err := op.NewPlan(call, nil, nil); err == nil {
			if err := plan.Validate(call); err != nil && err.Error() == "" {
				t.Error("an error without a text")
			}
		}
		validated := op.Validate(call)
		if !bytes.Equal(before, arena) {
			t.Fatal("validation wrote to memory")
		}
		if validated == nil && !small(call) {
			return
		}
		ran := op.Run(call)
		if validated != nil {
			if ran == nil || ran.Error() != validated.Error() {
				t.Fatalf("Validate says %v, Run says %v", validated, ran)
			}
			if !bytes.Equal(before, arena) {
				t.Fatalf("refused (%v) and yet memory was written to", ran)
			}
			return
		}
		if ran != nil {
			t.Fatalf("Validate accepts, Run says %v", ran)
		}
		if call.Workspace != nil {
			copy(unsafe.Slice((*byte)(call.Workspace), call.WorkspaceBytes), before[arenaBytes-call.WorkspaceBytes:])
		}
		for _, out := range call.Outputs {
			if out != nil {
				restore(arena, before, out, out.Offset, 0)
			}
		}
		if !bytes.Equal(before, arena) {
			t.Fatal("memory outside the outputs and the workspace was written to")
		}
	})
}

// restore undoes the writing to a view's elements.
func restore(arena, before []byte, v *tensor.View, at int64, dim int) {
	size := v.DType.Size()
	if dim == v.Rank() {
		copy(arena[at:at+size], before[at:at+size])
		return
	}
	for i := range v.Shape[dim] {
		restore(arena, before, v, at+i*v.Strides[dim]*size, dim+1)
	}
}
