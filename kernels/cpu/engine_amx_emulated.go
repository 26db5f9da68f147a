//go:build cgo && amd64 && emulation

package cpu

// #include "cpu.h"
import "C"

// Where AMX is emulated, in builds for tests, its engine is the last of all.
func init() {
	instructions = append(instructions, instructionSet{"amx-emulated", 64, avx512, nil})
	tables["amx-emulated"] = &C.epg_engine_amx_emulated
}
