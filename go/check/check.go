// Package check holds the validation that every operation shares: presence, dtypes, devices, memory
// and aliasing. What an operation asks of its shapes is said in go/op. Every error names the
// operation and the argument, what was given and what is accepted; nothing has been written when
// one is returned.
package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// Operand is a named argument of an operation; View is nil where it is absent.
type Operand struct {
	Name string
	View *tensor.View
	// Replaces names the input that an output may be written over, element by element; "" for none.
	Replaces string
	// Types says which dtypes it may have.
	Types Types
}

// Types are the dtypes that an operand may have.
type Types int

// One dtype in all operands of a call; or where that is a half type float32 as well; or integers.
const (
	OfCall  Types = iota
	OrWider       // the call's dtype, or float32 where that is a half type
	Indices       // int64
	Offsets       // int32 or int64
	Places        // int32
)

// Invalid returns an InvalidProblem error about an argument.
func Invalid(op, argument, format string, args ...any) error {
	return status.Errorf(status.InvalidProblem, "%s: %s: %s", op, argument, fmt.Sprintf(format, args...))
}

// Wrap puts the operation and the argument in front of an error's message.
func Wrap(op, argument string, err error) error {
	e := *status.Of(err)
	e.Message = op + ": " + argument + ": " + e.Message
	return &e
}

// In puts the operation in front of an error's message, which names the argument.
func In(op string, err error) error {
	e := *status.Of(err)
	e.Message = op + ": " + e.Message
	return &e
}

// Sizes writes a shape as Python does: "[4, 8]".
func Sizes(shape []int64) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}

// Shape asks for one shape; name says what it is in the message: "[m, n]", "the output's".
func Shape(op, argument string, got, want []int64, name string) error {
	if slices.Equal(got, want) {
		return nil
	}
	if strings.HasPrefix(name, "[") {
		return Invalid(op, argument, "shape %s, want %s = %s", Sizes(got), name, Sizes(want))
	}
	return Invalid(op, argument, "shape %s, want %s %s", Sizes(got), name, Sizes(want))
}

// DType asks for one dtype in all operands but those that may have another, and returns it; where
// all may, that of the first.
func DType(op string, operands []Operand) (dtype.DType, error) {
	first := slices.IndexFunc(operands, func(o Operand) bool { return o.View != nil && o.Types == OfCall })
	if first < 0 {
		first = slices.IndexFunc(operands, func(o Operand) bool { return o.View != nil })
	}
	if first < 0 {
		return dtype.Invalid, Invalid(op, "inputs", "got none, want at least one tensor")
	}
	want := operands[first]
	dt := want.View.DType
	if dt.IsIndex() && want.Types == OfCall {
		return dtype.Invalid, notComputed(op, want)
	}
	for _, o := range operands {
		if o.View == nil {
			continue
		}
		accepted := o.Types.beside(dt)
		if slices.Contains(accepted, o.View.DType) {
			continue
		}
		if o.Types == OfCall && o.View.DType.IsIndex() {
			return dtype.Invalid, notComputed(op, o)
		}
		if o.Types == OfCall {
			return dtype.Invalid, status.Errorf(status.DTypeMismatch, "%s: %s: dtype %v, want %v as %s has: one dtype per call",
				op, o.Name, o.View.DType, dt, want.Name)
		}
		names := make([]string, len(accepted))
		for i, other := range accepted {
			names[i] = other.String()
		}
		return dtype.Invalid, status.Errorf(status.DTypeMismatch, "%s: %s: dtype %v, want %s", op, o.Name, o.View.DType, strings.Join(names, " or "))
	}
	return dt, nil
}

// Like asks for the dtype that another operand has.
func Like(op string, o Operand, other string, want dtype.DType) error {
	if o.View.DType == want {
		return nil
	}
	return status.Errorf(status.DTypeMismatch, "%s: %s: dtype %v, want %v as %s has", op, o.Name, o.View.DType, want, other)
}

// notComputed is the error for an operand of integers where numbers are computed with.
func notComputed(op string, o Operand) error {
	return status.Errorf(status.DTypeMismatch, "%s: %s: dtype %v, want one of %s", op, o.Name, o.View.DType, dtype.Names())
}

// String is a word for them in the table that Python reads.
func (t Types) String() string { return [...]string{"call", "wider", "index", "offsets", "places"}[t] }

// Names lists the dtypes that an operand may have in some call, for messages.
func (t Types) Names() string {
	if t == OfCall || t == OrWider {
		return "one of " + dtype.Names()
	}
	names := []string{}
	for _, dt := range t.beside(dtype.Invalid) {
		names = append(names, dt.String())
	}
	return strings.Join(names, " or ")
}

// beside lists the dtypes that an operand may have in a call of a dtype.
func (t Types) beside(dt dtype.DType) []dtype.DType {
	switch t {
	case OrWider:
		if wide := dt.Accumulator(); wide != dt {
			return []dtype.DType{dt, wide}
		}
	case Indices:
		return []dtype.DType{dtype.Int64}
	case Offsets:
		return []dtype.DType{dtype.Int32, dtype.Int64}
	case Places:
		return []dtype.DType{dtype.Int32}
	}
	return []dtype.DType{dt}
}

// Device asks for one device in all operands and returns it.
func Device(op string, operands []Operand) (tensor.Device, error) {
	var first *Operand
	for i := range operands {
		o := &operands[i]
		switch {
		case o.View == nil:
		case first == nil:
			first = o
		case o.View.Device != first.View.Device:
			return tensor.Device{}, status.Errorf(status.DeviceMismatch, "%s: %s: on %v, want %v where %s is: one device per call",
				op, o.Name, o.View.Device, first.View.Device, first.Name)
		}
	}
	if first == nil {
		return tensor.Device{}, Invalid(op, "inputs", "got none, want at least one tensor")
	}
	return first.View.Device, nil
}

// Memory asks each operand's buffer to exist, to be aligned to its element and, where its size was
// stated, to hold all elements.
func Memory(op string, operands []Operand) error {
	for _, o := range operands {
		v := o.View
		if v == nil || v.IsEmpty() {
			continue
		}
		if v.Base == nil {
			return Invalid(op, o.Name, "got a null pointer, want memory for shape %s", Sizes(v.Shape))
		}
		if size := v.DType.Size(); (int64(uintptr(v.Base))+v.Offset)%size != 0 {
			return status.Errorf(status.MisalignedOperand, "%s: %s: address %#x, want a multiple of %d bytes (%v): copy it into aligned memory",
				op, o.Name, uintptr(int64(uintptr(v.Base))+v.Offset), size, v.DType)
		}
		if v.NBytes == 0 {
			continue
		}
		lo, hi, err := v.Extent()
		if err != nil {
			return Wrap(op, o.Name, err)
		}
		if lo < 0 || hi > v.NBytes {
			return &status.Error{
				Code: status.BufferTooSmall, Needed: hi - lo, Got: v.NBytes,
				Message: fmt.Sprintf("%s: %s: shape %s with strides %s reaches bytes [%d, %d), want inside the buffer's %d",
					op, o.Name, Sizes(v.Shape), Sizes(v.Strides), lo, hi, v.NBytes),
			}
		}
	}
	return nil
}

// SelfOverlap asks each output to reach every byte once. It depends on geometry alone.
func SelfOverlap(op string, outputs []Operand) error {
	for _, o := range outputs {
		if o.View != nil && tensor.SelfOverlaps(*o.View) {
			return Invalid(op, o.Name, "shape %s with strides %s overlaps itself, want an output that reaches each element once",
				Sizes(o.View.Shape), Sizes(o.View.Strides))
		}
	}
	return nil
}

// Aliasing asks the outputs to share no byte with each other or with an input, but for the input
// that an output may be.
func Aliasing(op string, inputs, outputs []Operand) error {
	for i, out := range outputs {
		if out.View == nil {
			continue
		}
		for _, others := range [2][]Operand{inputs, outputs[:i]} {
			for _, other := range others {
				if out.Replaces != "" && out.Replaces == other.Name && other.View != nil && isSame(out.View, other.View) {
					continue
				}
				if other.View != nil && tensor.Overlaps(*out.View, *other.View) {
					return Invalid(op, out.Name, "shares memory with %s, want an output of its own", other.Name)
				}
			}
		}
	}
	return nil
}

// isSame reports whether two views are one: the same elements in the same places.
func isSame(a, b *tensor.View) bool {
	return unsafe.Add(a.Base, a.Offset) == unsafe.Add(b.Base, b.Offset) && slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Strides, b.Strides)
}

// Workspace asks for enough scratch at an aligned address, apart from every operand.
func Workspace(op string, address uintptr, got, needed, alignment int64, operands []Operand) error {
	if needed == 0 {
		return nil
	}
	if address == 0 || got < needed {
		if address == 0 {
			got = 0
		}
		return &status.Error{
			Code: status.WorkspaceTooSmall, Needed: needed, Got: got,
			Message: fmt.Sprintf("%s: workspace: got %d bytes, want at least %d", op, got, needed),
		}
	}
	if int64(address)%alignment != 0 {
		return status.Errorf(status.MisalignedOperand, "%s: workspace: address %#x, want a multiple of %d bytes", op, address, alignment)
	}
	from, to := int64(address), int64(address)+needed
	for _, o := range operands {
		if o.View == nil || o.View.IsEmpty() {
			continue
		}
		lo, hi, err := o.View.Extent()
		if err != nil {
			return Wrap(op, o.Name, err)
		}
		start := int64(uintptr(o.View.Base)) + o.View.Offset
		if start+lo < to && from < start+hi {
			return Invalid(op, "workspace", "shares memory with %s, want scratch of its own", o.Name)
		}
	}
	return nil
}

// Quote quotes a name that a caller gave. Of a long one it quotes the beginning, so that a message
// has room for the rest.
func Quote(name string) string {
	const most = 64
	if len(name) <= most {
		return strconv.Quote(name)
	}
	end := most
	for end > 0 && !utf8.RuneStart(name[end]) {
		end--
	}
	return fmt.Sprintf("%s... (%d bytes)", strconv.Quote(name[:end]), len(name))
}

// OneOf asks for a listed name. Its error proposes the nearest of them and of the aliases, which
// other code accepts.
func OneOf(op, argument, got string, accepted []string, aliases ...string) error {
	if slices.Contains(accepted, got) {
		return nil
	}
	hint := ""
	if near := nearest(got, slices.Concat(accepted, aliases)); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	return Invalid(op, argument, "got %s, want one of %s%s", Quote(got), strings.Join(accepted, ", "), hint)
}

// nearest returns the name that was probably meant, or "" where that is not certain. Capitals,
// hyphens, spaces and the order of words do not count. One letter may be wrong, or two of ten or
// more, but not the first: it tells relu from celu. Two names as near as each other are no answer.
// Python's messages follow the same rule (epigrad.errors).
func nearest(got string, names []string) string {
	const longest = 64 // the time grows with the length
	if len(got) > longest {
		return ""
	}
	wanted, fewest := words(got), 1
	if len(strings.TrimSpace(got)) >= 10 {
		fewest = 2
	}
	letters := strings.Join(wanted, "")
	slices.Sort(wanted)
	near, spelled, several := "", "", false
	for _, name := range names {
		ofName := words(name)
		other := strings.Join(ofName, "")
		slices.Sort(ofName)
		if other == letters || slices.Equal(ofName, wanted) {
			return name
		}
		switch edits := distance(letters, other); {
		case edits < fewest || edits == fewest && near == "":
			near, spelled, fewest, several = name, other, edits, false
		case edits == fewest && other != spelled:
			several = true
		}
	}
	const shortest = 4 // one letter of fewer is too much
	if several || min(len(letters), len(spelled)) < shortest || letters[0] != spelled[0] {
		return ""
	}
	return near
}

// words are a name's, in lower case.
func words(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '_' || r == '-' || unicode.IsSpace(r) })
}

// distance returns the bytes to insert, delete or replace, and the neighbours to swap, to turn a
// into b.
func distance(a, b string) int {
	// distances from the first i bytes of a, and of i-1 and i-2, to the first j of b
	row, above, twoAbove := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		row, above, twoAbove = twoAbove, row, above
		row[0] = i + 1
		for j := range len(b) {
			replaced := above[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], twoAbove[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
