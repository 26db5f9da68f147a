// Package cpu holds the CPU backend's vector kernels, in C: one body (engine.h) compiled once for
// each instruction set, which engine.go chooses among at run time. Without cgo, and on other
// processors than amd64 and arm64, there are none, and kernels/portable is all there is.
//
// Who calls decides how work is cut into tasks and which threads take them (Crew), and gives the
// scratch (Allocate): no kernel allocates or remembers anything.
//
// The files, in the order in which one reads them:
//
//	cpu.go                  the structs of a call, and the forms of packed operands
//	engine.go               the engines, and which of them this machine can run
//	engine_cgo*.go          the calls into C, and the tables of a processor's engines
//	cached.go               what keeps Go from compiling all this again and again
//	engine_none.go          the same where there are no engines
//	cpu.h                   what Go and the engines share: the structs, and the table of an engine's functions
//	tasks.h                 the functions that Go calls
//	tasks.c                 how threads share the tasks of a call
//	pass.c                  small passes, which need no Go once they are chosen
//	processor_amd64.c       what the processor and the system are asked
//	engine.h                the body of every engine, from the headers below
//	engine_*64.c            the engines, each compiled from engine.h
//	engine_amx_emulated.go  amx with its tiles in plain C, in builds for tests
//	vector.h                what registers of all instruction sets have in common
//	vector_avx512.h         registers of AVX-512
//	vector_avx2.h           registers of AVX2, by the same names
//	vector_neon.h           registers of NEON, by the same names
//	arithmetic.h            exponentials and the normal tail, in three precisions
//	decay.h                 e^-t, in half, exact and a third, wide
//	activation_table.h      the constants and polynomials of these, generated
//	activation.h            the activations' formulas
//	activation_decay.h      those that are made of decays
//	activation_single.h     the same for float32
//	elementwise.h           the kernels of one dtype: activations and gated activations
//	learnable.h             prelu and xielu, whose parameters are tensors
//	lerp.h                  lerp
//	walk.h                  elementwise passes over strided tensors, through these kernels
//	sums.h                  passes that sum over dimensions
//	gemm.h                  products of packed panels
//	pack.h                  packing into panels, and the forms of these
//	pack_panels.h           packing of one form
//	denormals.h             scaling packed operands that have denormal numbers
//	amx.h                   AMX's tiles, and their emulation
//	gemm_amx.h              products on AMX's tiles
//	pack_amx.h              packing for them
//	internal/mirror         the test that Go's structs are those of cpu.h
package cpu

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/activation"
)

// The operands of a kernel: outputs first, then inputs (cpu.h).
const (
	Outputs  = 3
	Inputs   = 5
	Operands = Outputs + Inputs
	// MostRank is the most dimensions of a walk.
	MostRank = 16
	// Group is what a kernel computes at a time at least, and the lanes of a sum over everything.
	Group = 16
	// Block is the most elements that sums are formed of at a time.
	Block = 512
	// StripPanels is the most panels of a strip.
	StripPanels = 8
	// MostPairs is the most pairs whose operands are packed together.
	MostPairs = 4
	// LeastExponents is the least sum of the exponents of two panels' smallest numbers for which
	// the instruction for pairs multiplies them.
	LeastExponents = 2*127 - 100
)

// Addresses are those of the operands' first elements; absent operands are nil.
type Addresses [Operands]unsafe.Pointer

// Loops is a walk over several tensors of one shape, whose last dimension is the innermost loop:
// epg_loops. Strides are in bytes.
type Loops struct {
	ElementSize, Rank int64
	Shape             [MostRank]int64
	Strides           [Operands][MostRank]int64
}

// Parameters are the numbers of an operation's formula (go/activation/kernel.go); lerp has the
// weight first.
type Parameters [activation.MostParameters]float64

// Sums is a pass that sums outputs over some dimensions of the operands' shape: epg_sums.
// Accumulate and Summed are 0 or 1.
type Sums struct {
	DType, Result                          Form
	Accumulate                             int64
	Summed                                 [Outputs]int64
	RowsCount, Kept, Piece, Pieces, Chunks int64
	Run, Terms, Lanes, Width, Block        int64
	Outer, Rows, Inner, To                 Loops
}

// Totals is how many numbers the totals of one task take.
func (s *Sums) Totals() (n int64) {
	for _, summed := range s.Summed {
		n += 2 * summed * s.Width
	}
	return n
}

// WholeGroups is n, rounded up to whole groups.
func WholeGroups(n int64) int64 { return (n + Group - 1) &^ (Group - 1) }

// Form is how an operand of a product is packed: epg_form.
type Form int64

// The forms. Pairs are of bfloat16, two of the depth in one word; tiles are of such pairs, of which
// float16 needs twice as many.
const (
	Float32 Form = iota
	Float64
	BFloat16
	Float16
	BFloat16Pairs
	BFloat16Tiles
	Float16Tiles
	forms
)

var (
	formNames    = [forms]string{"float32", "float64", "bfloat16", "float16", "bfloat16_pairs", "bfloat16_tiles", "float16_tiles"}
	perWord      = [forms]int64{1, 1, 1, 1, 2, 2, 1}
	depthOfBlock = [forms]int64{1, 1, 1, 1, 2, 32, 32}
	tileSizes    = [forms][2]int64{{256, 192}, {192, 96}, {256, 192}, {256, 192}, {256, 192}, {192, 512}, {192, 512}}
)

func (f Form) String() string { return formNames[f] }

// Pairs tells that words are two bfloat16 each.
func (f Form) Pairs() bool { return f == BFloat16Pairs || f == BFloat16Tiles }

// Tiles tells that words are multiplied by AMX.
func (f Form) Tiles() bool { return f == BFloat16Tiles || f == Float16Tiles }

// Depth is how many elements of the depth are packed in so many words.
func (f Form) Depth(words int64) int64 { return words * perWord[f] }

// Words is what a row of so many elements takes when it is packed, in words of a sum's size.
func (f Form) Words(depth int64) int64 {
	block := depthOfBlock[f]
	return (depth + block - 1) / block * block / perWord[f]
}

// Tile is the height and width of the tiles that blocks are best cut into, whole panels of every
// engine: sums, and the part of the left operand that they need at a time, fit into the second
// cache. AMX multiplies so fast that operands have to be read less often.
func (f Form) Tile() (height, width int64) { return tileSizes[f][0], tileSizes[f][1] }

// Axis is one index of a matrix: epg_axis. Strides are in bytes.
type Axis struct {
	Rank, Length   int64
	Sizes, Strides [MostRank]int64
}

// Operand is what is packed of the left or the right operand of a product: epg_operand.
type Operand struct {
	Rows, Columns            Axis
	Form                     Form
	Width, Left, Again       int64 // Left and Again are 0 or 1
	Row, Count, First, Depth int64
	Before, After            int64 // words of a panel that other pairs have
}

// Packing is an operand of each pair that is packed, one behind the other, where they lie and where
// their panels go: nil behind the last, and where all are packed. Smallest has room for what is
// found out about each panel: of pairs and tiles of bfloat16 the exponent of its smallest number;
// of float16's tiles zero if they cannot multiply it; else zero if a number is denormal.
type Packing struct {
	Operand  [MostPairs]*Operand
	From     [MostPairs]unsafe.Pointer
	To       unsafe.Pointer
	Smallest []int16
}

// Panels are packed numbers of a form: Rows rows, Stride bytes apart, of Bytes bytes, which are
// whole registers.
type Panels struct {
	Form                Form
	At                  unsafe.Pointer
	Rows, Bytes, Stride int64
}

// Cut is how a block is cut into tiles: epg_cut. Without Scratch, sums lie together for the whole
// block. With Panels tiles are strips that pack panels for themselves, with Round strips of few
// rows whose right operand is not packed. RowByRow and Pairs are 0 or 1.
type Cut struct {
	Down, Across, RowUnit, ColumnUnit, RowByRow, Scratch, Panels, Round int64
	Refuse                                                              Refusal
	Pairs                                                               int64
}

// Refusal says when operands are packed but not multiplied.
type Refusal int64

// Never, where numbers are so small that operands had better be lifted first, or always.
const (
	Never Refusal = iota
	WhereSmall
	Always
)

// Crew is the threads that share the tasks of one call, Members at most: epg_crew. With Parallel,
// the entry of an OpenMP runtime, they belong to its team; without it they make the call.
type Crew struct {
	Parallel      unsafe.Pointer
	Team, Members int64
	_, _          int64 // what the members count
	Refused       int64 // 1: a product was packed only, since its operands are to be lifted
	_             [3][16]int64
}

// Alone is a crew of the caller's thread.
func Alone() *Crew { return &Crew{Members: 1} }

// Result is a matrix that is written: epg_result.
type Result struct {
	Rows         Axis
	ColumnStride int64
}

// Tile is a product of packed panels and what becomes of it: epg_tile. Booleans are 0 or 1.
type Tile struct {
	Form                    Form
	Units                   int64 // the depth's Words
	Rows, Columns, Stride   int64
	First, Last, Accumulate int64
	Exchanged, Plain        int64
	Lifted                  int64 // a power of two
	Row, Column             int64
	Size, SumSize           int64
	BiasStride              int64
	Parameters              Parameters
	Out, Pre                Result
	Add, Store, Value       Kernel
}
