//go:build cgo

package cpu

// #cgo noescape epg_slow_with_denormals
// #cgo nocallback epg_slow_with_denormals
// #cgo noescape epg_request_amx
// #cgo nocallback epg_request_amx
// #include "tasks.h"
import "C"

import "syscall"

var tables = map[string]table{
	"amx":        &C.epg_engine_amx,
	"avx512bf16": &C.epg_engine_avx512bf16,
	"avx512":     &C.epg_engine_avx512,
	"avx2":       &C.epg_engine_avx2,
}

// requestAMX asks the system for AMX's registers, which have to be granted to a process before it
// uses them.
func requestAMX() error {
	if number := C.epg_request_amx(); number != 0 {
		return syscall.Errno(number)
	}
	return nil
}

// SlowWithDenormals tells that this processor multiplies denormal numbers much more slowly than
// others.
func SlowWithDenormals() bool { return C.epg_slow_with_denormals() != 0 }
