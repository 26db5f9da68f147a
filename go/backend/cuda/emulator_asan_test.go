//go:build cgo && asan

package cuda

// Sanitized tells whether AddressSanitizer is at work: the emulator has it then, too, and UBSan.
const Sanitized = true

const emulatorName = "cuda-emulator-sanitized"

var emulatorFlags = []string{"-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"}
