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

// The functions of engine_cgo.go, which nobody calls: Open gives no engine.
func newEngine(string, int) *Engine { return nil }
func requestAMX() error             { return nil }
func SlowWithDenormals() bool       { return false }
func (*Engine) NewPass(Kernel, *Loops, int64, *[Operands]int64, *[Operands]int64) unsafe.Pointer {
	return nil
}
func FreePass(unsafe.Pointer)                   {}
func Allocate(int64) unsafe.Pointer             { return nil }
func Free(unsafe.Pointer)                       {}
func (*Engine) Widths(Form) (left, right int64) { return 0, 0 }

func (*Engine) Largest(*Crew, *Panels) int64                                                    { return 0 }
func (*Engine) Lift(*Crew, *Panels, int64)                                                      {}
func (*Engine) Elementwise(*Crew, Kernel, *Loops, int64, int64, int64, *Parameters, *Addresses) {}
func (*Engine) Sum(*Crew, Kernel, *Sums, int64, *Parameters, *Addresses, *[Outputs]unsafe.Pointer, []float64, []int32) {
}

func (*Engine) Product(*Crew, *Packing, *Packing, *Tile, *Cut, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer) {
}
