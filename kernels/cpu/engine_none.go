//go:build !cgo || !(amd64 || arm64)

package cpu

import "unsafe"

const (
	built       = false
	whyNotBuilt = "vector kernels need cgo, and amd64 or arm64"
)

type table struct{}

// Kernel is one of an engine's kernels.
type Kernel struct{}

func newEngine(string, int) *Engine { return nil }

func requestAMX() error { return nil }

// SlowWithDenormals tells that this processor multiplies denormal numbers much more slowly than
// others.
func SlowWithDenormals() bool { return false }

// Elementwise computes the elements [first, first+count) of a walk.
func (*Engine) Elementwise(*Crew, Kernel, *Loops, int64, int64, int64, *Parameters, *Addresses) {}

// NewPass returns an epg_program of a walk.
func (*Engine) NewPass(Kernel, *Loops, int64, *[Operands]int64, *[Operands]int64) unsafe.Pointer {
	return nil
}

// FreePass ends what NewPass returned.
func FreePass(unsafe.Pointer) {}

// Allocate returns memory that starts on a cache line.
func Allocate(int64) unsafe.Pointer { return nil }

// Free gives back what Allocate returned.
func Free(unsafe.Pointer) {}

// Sum sums a kernel's results.
func (*Engine) Sum(*Crew, Kernel, *Sums, int64, *Parameters, *Addresses, *[Outputs]unsafe.Pointer, []float64, []int32) {
}

// Widths are the rows of a panel of the left and of the right operand.
func (*Engine) Widths(Form) (left, right int64) { return 0, 0 }

// Product packs operands and computes a block.
func (*Engine) Product(*Crew, *Packing, *Packing, *Tile, *Cut, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer) {
}

// Largest returns the exponent of the largest magnitude.
func (*Engine) Largest(*Crew, *Panels) int64 { return 0 }

// Lift multiplies numbers by a power of two.
func (*Engine) Lift(*Crew, *Panels, int64) {}
