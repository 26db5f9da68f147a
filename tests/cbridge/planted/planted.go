//go:build cgo

// Package planted has a defect in C for each sanitizer, which its test wants reported: `make
// sanitize` would find nothing where a sanitizer is not at work.
package planted

// #include "planted.h"
import "C"

// Defects are the defects by the sanitizer that reports each, with what it says.
var Defects = map[string]struct {
	Plant  func()
	Report string
}{
	"address":   {func() { C.epg_plant_overflow(16) }, "AddressSanitizer: heap-buffer-overflow"},
	"undefined": {func() { C.epg_plant_shift(32) }, "runtime error: shift exponent 32 is too large"},
	"thread":    {func() { C.epg_plant_race() }, "ThreadSanitizer: data race"},
}
