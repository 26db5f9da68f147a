// Package vector makes kernels of an instruction set's functions (kernels/cpu): passes over
// elements, sums, and products with their epilogues. What an engine cannot compute, mostly more
// dimensions than its functions can walk, is the portable engine's (reference). Work is cut by
// shapes alone, so results do not depend on the number of threads. The package is no part of
// epigrad's API and may change in any release.
package vector

import (
	"cmp"
	"runtime"
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/kernel"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/tensor"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
	"github.com/epigrad/epigrad/kernels/portable"
)

// Engine makes the kernels of one instruction set.
type Engine struct {
	*kernels.Engine
	// SlowWithDenormals reports whether denormal numbers slow the processor down, so that operands
	// are lifted (denormals.go).
	SlowWithDenormals bool
	// neverLifts is for batch-invariant calls: whether a row is lifted follows from other rows.
	neverLifts bool
}

// Open returns an engine by its name, or an error that says what this machine lacks.
func Open(name string) (*Engine, error) {
	engine, err := kernels.Open(name)
	if err != nil {
		return nil, err
	}
	return &Engine{Engine: engine, SlowWithDenormals: kernels.SlowWithDenormals()}, nil
}

// Select returns the engine's kernel of a problem, or nil where it has none.
func (e *Engine) Select(p backend.Problem) backend.Kernel {
	if p.IsBatchInvariant() && !e.neverLifts {
		return (&Engine{Engine: e.Engine, neverLifts: true}).Select(p)
	}
	switch p := p.(type) {
	case *backend.Activation:
		return e.activation(p)
	case *backend.ActivationBackward:
		return e.activationBackward(p)
	case *backend.ActivationCurvature:
		return e.activationCurvature(p)
	case *backend.Gated:
		return e.gated(p)
	case *backend.GatedBackward:
		return e.gatedBackward(p)
	case *backend.GatedCurvature:
		return e.gatedCurvature(p)
	case *backend.Pointwise:
		return e.pointwise(p)
	case *backend.PointwiseBackward:
		return e.pointwiseBackward(p)
	case *backend.GemmEpilogue:
		return e.gemm(p)
	case *backend.GemmEpilogueBackward:
		return e.gemmBackward(p)
	}
	return nil
}

// facts describes a kernel. Formulas of float64 run in float64, others in float32; but where terms
// cancel, float32 runs in float64.
func (e *Engine) facts(p backend.Problem, product string) kernel.Facts {
	_, _, dt := p.Describe()
	math := dt.Accumulator()
	if formula, _ := portable.LookupPointwise(p.Computes()); dt == dtype.Float32 && formula.Cancels {
		math = dtype.Float64
	}
	return kernel.FactsOf(p, product).On(e.Name, e.VectorBytes, math)
}

// kernelOf makes a kernel of passes, or nil where one of them could not be made.
func (e *Engine) kernelOf(p backend.Problem, passes ...kernel.Step) backend.Kernel {
	for _, pass := range passes {
		if pass == nil {
			return nil
		}
	}
	return &kernel.Sequence{Facts: e.facts(p, ""), Steps: passes}
}

// onePass makes the kernel of one pass (into), nil where the engine cannot. C runs a small one
// without Go.
func (e *Engine) onePass(p backend.Problem, s *pass, to targets, like *tensor.View) backend.Kernel {
	run := s.into(to, like)
	if run == nil {
		return nil
	}
	k := &kernel.Sequence{Facts: e.facts(p, ""), Steps: []kernel.Step{run}}
	if to == (targets{}) {
		if program := s.program(); program != nil {
			programmed := &programmed{k, program}
			runtime.AddCleanup(programmed, kernels.FreePass, program)
			return programmed
		}
	}
	return k
}

// programmed is a kernel that C can run by itself.
type programmed struct {
	*kernel.Sequence
	program unsafe.Pointer
}

// Program implements backend.Programmed.
func (k *programmed) Program() unsafe.Pointer { return k.program }

func (e *Engine) activation(p *backend.Activation) backend.Kernel {
	operands := operandsOf([]*tensor.View{p.Out}, p.Input)
	return e.onePass(p, e.pass("activation_"+p.Formula, p.DType, operands), targets{}, nil)
}

func (e *Engine) activationBackward(p *backend.ActivationBackward) backend.Kernel {
	operands := operandsOf([]*tensor.View{p.GradInput, p.Out}, p.GradOutput, p.Input)
	pass := e.pass("activation_backward_"+p.Formula, p.DType, operands)
	return e.onePass(p, pass, targets{p.GradBias}, p.Input)
}

func (e *Engine) activationCurvature(p *backend.ActivationCurvature) backend.Kernel {
	name := "curvature_"
	if p.Output != nil {
		name += "from_output_"
	}
	operands := operandsOf([]*tensor.View{p.GradGradOutput, p.GradInput}, p.GradGradInput, p.GradOutput, cmp.Or(p.Input, p.Output))
	return e.onePass(p, e.pass(name+p.Formula, p.DType, operands), targets{}, nil)
}

func (e *Engine) gatedCurvature(p *backend.GatedCurvature) backend.Kernel {
	operands := operandsOf(
		[]*tensor.View{p.GradGradOutput, p.GradValue, p.GradGate}, p.GradGradValue, p.GradGradGate, p.GradOutput, p.Value, p.Gate,
	)
	return e.onePass(p, e.pass("gated_curvature_"+p.Formula, p.DType, operands), targets{}, nil)
}

func (e *Engine) gated(p *backend.Gated) backend.Kernel {
	operands := operandsOf([]*tensor.View{p.Out}, p.Value, p.Gate)
	return e.onePass(p, e.pass("gated_"+p.Formula, p.DType, operands), targets{}, nil)
}

func (e *Engine) gatedBackward(p *backend.GatedBackward) backend.Kernel {
	operands := operandsOf([]*tensor.View{p.GradValue, p.GradGate}, p.GradOutput, p.Value, p.Gate)
	pass := e.pass("gated_backward_"+p.Formula, p.DType, operands)
	return e.onePass(p, pass, targets{p.GradBiasValue, p.GradBiasGate}, p.Gate)
}
