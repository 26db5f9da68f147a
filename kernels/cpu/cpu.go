// Package cpu holds the CPU backend's vector kernels, in C: one body (engine.h) compiled once for each instruction set, which engine.go chooses
// among at run time. Without cgo, and on other processors than amd64, there are none, and kernels/portable is all there is.
//
// Who calls decides what a task is and on which thread it runs: nothing here allocates, starts threads or remembers anything.
package cpu

import "unsafe"

// The operands of a kernel: outputs first, then inputs (cpu.h).
const (
	Outputs  = 3
	Inputs   = 4
	Operands = Outputs + Inputs
	// MostRank is the most dimensions of a walk.
	MostRank = 16
	// Group is what a kernel computes at a time at least, and the lanes of a sum over everything.
	Group = 16
	// Block is the most elements of a row of sums.
	Block = 512
)

// Addresses are those of the operands' first elements; absent operands are nil.
type Addresses [Operands]unsafe.Pointer

// Loops is a walk over several tensors of one shape, whose last dimension is the innermost loop: epg_loops. Strides are in bytes. With Stream, results go past the caches.
type Loops struct {
	ElementSize, Rank, Stream int64
	Shape                     [MostRank]int64
	Strides                   [Operands][MostRank]int64
}

// Row is a run of elements along one dimension: epg_run. Strides are in bytes.
type Row struct {
	ElementSize, Count, Stream int64
	Strides                    [Operands]int64
}

// Numbers are an operation's parameters: for lerp the weight, the weight less 1, and 1 less the weight.
type Numbers [3]float64

// Sums are where a kernel's outputs are summed, nil where one is not: totals, and behind them the errors of their additions.
type Sums [Outputs][]float64

func (s *Sums) addresses() (at [Outputs]*float64) {
	for i, sums := range s {
		if len(sums) > 0 {
			at[i] = &sums[0]
		}
	}
	return at
}

// WholeGroups is n, rounded up to whole groups.
func WholeGroups(n int) int { return (n + Group - 1) &^ (Group - 1) }

// Form is how an operand of a product is packed: epg_form.
type Form int64

// The forms. Pairs are of bfloat16, two of the depth in one word.
const (
	Float32 Form = iota
	Float64
	BFloat16
	Float16
	BFloat16Pairs
	forms
)

// Axis is one index of a matrix: epg_axis. Strides are in bytes.
type Axis struct {
	Rank, Length   int64
	Sizes, Strides [MostRank]int64
}

// Operand is what is packed of the left or the right operand of a product: epg_operand.
type Operand struct {
	Rows, Columns            Axis
	Form                     Form
	Width                    int64
	Row, Count, First, Depth int64
}

// Result is a matrix that is written: epg_result.
type Result struct {
	Rows         Axis
	ColumnStride int64
}

// Tile is a product of packed panels and what becomes of it: epg_tile. Booleans are 0 or 1.
type Tile struct {
	Form                    Form
	Units                   int64
	Rows, Columns, Stride   int64
	First, Last, Accumulate int64
	Row, Column             int64
	Size, SumSize           int64
	BiasStride              int64
	Out, Pre                Result
	Add, Store, Value       Kernel
}
