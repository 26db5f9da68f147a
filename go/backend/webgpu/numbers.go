//go:build cgo

package webgpu

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/epigrad/epigrad/go/activation"
)

// noLimit is larger than the bits of any number.
const noLimit = math.MaxUint32

// putNumbers writes a run's parameters as the step's kernel has them: those of the activation in
// two parts, and those that a gated kind has before them.
func (s *step) putNumbers(params []byte, parameters []float64) {
	putFloat32(params[paramRest:], 1-parameters[0])
	kind := s.definitions["KIND"]
	if strings.HasPrefix(s.definitions["FORMULA"], "gated") && kind != "situ" {
		for i, limit := range parameters[:2] {
			bits := uint32(noLimit)
			if !math.IsNaN(limit) {
				bits = math.Float32bits(float32(limit))
			}
			binary.LittleEndian.PutUint32(params[paramLimits+4*i:], bits)
		}
		putFloat32(params[paramOffset:], parameters[2])
		parameters = parameters[3:]
	}
	for i, x := range numbersOf(kind, parameters) {
		putFloat32(params[paramParameters+4*i:], x)
		if high := float64(float32(x)); !math.IsInf(high, 0) {
			putFloat32(params[paramLows+4*i:], x-high)
		}
	}
}

// numbersOf are the numbers of a formula as kernels/webgpu has them: the host divides, in float64.
func numbersOf(formula string, p []float64) []float64 {
	quotients, ok := activation.Quotients[formula]
	if !ok {
		return p
	}
	numbers := make([]float64, len(quotients))
	for i, q := range quotients {
		numbers[i] = q.Of(p)
	}
	return numbers
}

// putFloat32 writes a number as the kernels have it.
func putFloat32(at []byte, x float64) {
	binary.LittleEndian.PutUint32(at, math.Float32bits(float32(x)))
}
