// Package reference is the CPU's portable engine, in Go: correct before fast. It runs where there
// are no vector kernels, computes what has more dimensions than those can walk, and is what they
// are tested against.
//
// Formulas run on float64 blocks whatever the storage dtype, so an element is rounded once.
// Products are gonum's, on packed tiles (product.go). Work is cut by shapes alone, so results do
// not depend on the number of threads. The package is no part of epigrad's API and may change in
// any release.
package reference

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
)

// Name is the engine's name.
const Name = "go"

// Select returns the kernel of a problem.
func Select(p backend.Problem) (backend.Kernel, error) {
	switch p := p.(type) {
	case *backend.Activation:
		return newActivation(p)
	case *backend.ActivationBackward:
		return newActivationBackward(p)
	case *backend.ActivationCurvature:
		return newActivationCurvature(p)
	case *backend.Gated:
		return newGated(p)
	case *backend.GatedBackward:
		return newGatedBackward(p)
	case *backend.GatedCurvature:
		return newGatedCurvature(p)
	case *backend.Pointwise:
		return newPointwise(p)
	case *backend.PointwiseBackward:
		return newPointwiseBackward(p)
	case *backend.GemmEpilogue:
		if p.DType.Accumulator() == dtype.Float64 {
			return newGemm[float64](p)
		}
		return newGemm[float32](p)
	case *backend.GemmEpilogueBackward:
		if p.DType.Accumulator() == dtype.Float64 {
			return newGemmBackward[float64](p)
		}
		return newGemmBackward[float32](p)
	default:
		op, _, _ := p.Describe()
		return nil, status.Errorf(status.Unsupported, "%s: the cpu backend has no kernel for this operation", op)
	}
}

// formulaOf returns what a table of formulas has under a name.
func formulaOf[Row any](lookup func(formula string) (Row, bool), name string) (Row, error) {
	row, ok := lookup(name)
	if !ok {
		return row, status.Errorf(status.Unsupported, "formula: got %q, for which the cpu backend has no code", name)
	}
	return row, nil
}
