//go:build cgo

package cpu

// #include "cpu.h"
import "C"

var tables = map[string]table{"neon": &C.epg_engine_neon}

func requestAMX() error { return nil }

// SlowWithDenormals tells that this processor multiplies denormal numbers much more slowly than
// others. Only Intel's are known to.
func SlowWithDenormals() bool { return false }
