//go:build cgo && (amd64 || arm64)

// Package mirror names the structs that Go and C share in calls of kernels/cpu, for the test beside
// it: a test itself cannot use cgo.
package mirror

// #include "../../cpu.h"
import "C"

import (
	"reflect"

	"github.com/epigrad/epigrad/kernels/cpu"
)

// Mirror is a struct of Go and the struct of cpu.h that has to have the same layout.
type Mirror struct{ Go, C reflect.Type }

// Mirrors are all that there are. That this package imports kernels/cpu also has it built anew when
// cpu.h changes: the go command sees only headers of a package's own folder.
var Mirrors = []Mirror{
	{reflect.TypeFor[cpu.Loops](), reflect.TypeFor[C.epg_loops]()},
	{reflect.TypeFor[cpu.Sums](), reflect.TypeFor[C.epg_sums]()},
	{reflect.TypeFor[cpu.Axis](), reflect.TypeFor[C.epg_axis]()},
	{reflect.TypeFor[cpu.Operand](), reflect.TypeFor[C.epg_operand]()},
	{reflect.TypeFor[cpu.Result](), reflect.TypeFor[C.epg_result]()},
	{reflect.TypeFor[cpu.Tile](), reflect.TypeFor[C.epg_tile]()},
	{reflect.TypeFor[cpu.Cut](), reflect.TypeFor[C.epg_cut]()},
	{reflect.TypeFor[cpu.Crew](), reflect.TypeFor[C.epg_crew]()},
}
