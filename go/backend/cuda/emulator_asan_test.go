//go:build cgo && asan

package cuda

// Sanitized reports whether AddressSanitizer is at work: the emulator has it then, and UBSan.
// (Without optimization, and with checks that are calls, it compiles in a third of the time.)
const Sanitized = true

const emulatorName = "cuda-emulator-sanitized"

var emulatorFlags = []string{
	"-O0", "--param", "asan-instrumentation-with-call-threshold=0",
	"-fsanitize=address,alignment,bounds,null,shift,signed-integer-overflow", "-fno-sanitize-recover=all",
}
