// Package dtype is the table of element types that epigrad computes with, and of the integers that
// name rows of tensors.
//
// A dtype has a storage form (what lies in memory) and an accumulator (what sums are kept in). To
// add one, add a row to the table here and one load/store pair in each kernel language.
package dtype

import (
	"fmt"
	"strings"
)

// DType identifies a row of the table. The zero value is no dtype at all.
type DType uint8

// The storage dtypes, and behind them those of indices.
const (
	Invalid DType = iota
	Float32
	Float64
	BFloat16
	Float16
	Int32
	Int64
	floats = Float16
)

// Info is one row of the table.
type Info struct {
	// Name is the word that users write and read: "float32".
	Name string
	// Short is the suffix in kernel names: "f32".
	Short string
	// Size is the bytes of one element.
	Size int64
	// Accumulator is the dtype that sums of this dtype are kept in, and its formulas computed in,
	// by engines and GPUs.
	Accumulator DType
	// Half reports whether it is a half type: stored in 16 bits, with formulas in float32 that
	// kernels have for these types alone, since they round where storage does not show it.
	Half bool
	// DLPackCode and DLPackBits are DLDataType's code and bits.
	DLPackCode uint8
	DLPackBits uint8
}

// DLPack's type codes (dlpack.h, DLDataTypeCode).
const (
	dlInt    = 0
	dlFloat  = 2
	dlBFloat = 4
	dlBool   = 6
)

var table = [...]Info{
	Float32:  {Name: "float32", Short: "f32", Size: 4, Accumulator: Float32, DLPackCode: dlFloat, DLPackBits: 32},
	Float64:  {Name: "float64", Short: "f64", Size: 8, Accumulator: Float64, DLPackCode: dlFloat, DLPackBits: 64},
	BFloat16: {Name: "bfloat16", Short: "bf16", Size: 2, Accumulator: Float32, Half: true, DLPackCode: dlBFloat, DLPackBits: 16},
	Float16:  {Name: "float16", Short: "f16", Size: 2, Accumulator: Float32, Half: true, DLPackCode: dlFloat, DLPackBits: 16},
	Int32:    {Name: "int32", Short: "i32", Size: 4, DLPackCode: dlInt, DLPackBits: 32},
	Int64:    {Name: "int64", Short: "i64", Size: 8, DLPackCode: dlInt, DLPackBits: 64},
}

// All lists the storage dtypes in the table's order.
func All() []DType {
	all := make([]DType, 0, floats)
	for i := Invalid + 1; i <= floats; i++ {
		all = append(all, i)
	}
	return all
}

// IsIndex reports whether a dtype is one of indices, which no formula computes with.
func (d DType) IsIndex() bool { return d == Int32 || d == Int64 }

// Info returns the dtype's row; that of Invalid, or of a value outside the table, is zero.
func (d DType) Info() Info {
	if int(d) >= len(table) {
		return Info{}
	}
	return table[d]
}

// Size returns the bytes of one element.
func (d DType) Size() int64 { return d.Info().Size }

// IsHalf reports whether a dtype is a half type.
func (d DType) IsHalf() bool { return d.Info().Half }

// Accumulator returns the dtype that sums are kept in.
func (d DType) Accumulator() DType { return d.Info().Accumulator }

// Short returns the suffix that kernel names use.
func (d DType) Short() string { return d.Info().Short }

// String returns the name that users write.
func (d DType) String() string {
	if name := d.Info().Name; name != "" {
		return name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Parse returns the dtype of a name and whether there is one.
func Parse(name string) (DType, bool) {
	for _, d := range All() {
		if table[d].Name == name {
			return d, true
		}
	}
	return Invalid, false
}

// FromDLPack returns the dtype of a DLDataType and whether epigrad has it, to compute with or as an
// index. Vector types (lanes other than 1) do not exist here.
func FromDLPack(code, bits uint8, lanes uint16) (DType, bool) {
	for d := Invalid + 1; int(d) < len(table); d++ {
		if table[d].DLPackCode == code && table[d].DLPackBits == bits && lanes == 1 {
			return d, true
		}
	}
	return Invalid, false
}

// Names lists the storage dtypes' names, for messages.
func Names() string {
	names := make([]string, 0, len(table))
	for _, d := range All() {
		names = append(names, d.String())
	}
	return strings.Join(names, ", ")
}

// kinds are DLPack's codes for numbers of any size, small those for numbers of one size; by
// PyTorch's names.
var (
	kinds = [...]string{dlInt: "int", 1: "uint", dlFloat: "float", 3: "opaque", dlBFloat: "bfloat", 5: "complex"}
	small = map[uint8]string{
		7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz", 10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2",
		13: "float8_e5m2fnuz", 14: "float8_e8m0fnu", 15: "float6_e2m3fn", 16: "float6_e3m2fn", 17: "float4_e2m1fn",
	}
)

// DescribeDLPack names a DLDataType for messages, also one outside the table: "int32", "complex64",
// "float8_e4m3fn".
func DescribeDLPack(code, bits uint8, lanes uint16) string {
	text := fmt.Sprintf("of %d bits with DLPack code %d", bits, code)
	switch {
	case code == dlBool:
		text = "bool"
	case int(code) < len(kinds):
		text = fmt.Sprintf("%s%d", kinds[code], bits)
	case small[code] != "":
		text = small[code]
	}
	if lanes != 1 && small[code] != "" {
		text += fmt.Sprintf("_x%d", lanes)
	} else if lanes != 1 {
		text += fmt.Sprintf("x%d", lanes)
	}
	return text
}
