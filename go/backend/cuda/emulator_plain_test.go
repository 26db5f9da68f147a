//go:build cgo && !asan

package cuda

// Sanitized reports whether AddressSanitizer is at work: the emulator has it then, too, and UBSan.
const Sanitized = false

const emulatorName = "cuda-emulator"

var emulatorFlags = []string{}
