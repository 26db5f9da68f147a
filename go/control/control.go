// Package control is the cold side of the binding: gopy turns it into Python classes and functions.
// Everything that is not a number crosses as JSON, and an error's text starts with the Python class
// it stands for ("ClassName: message").
package control

import (
	"encoding/json"
	"errors"
	"runtime"

	"golang.org/x/sys/cpu"

	"github.com/epigrad/epigrad/cbridge/include"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tuning"
)

// Plan is a validated, reusable choice of kernel for one problem.
type Plan struct {
	handle      int64
	description string
}

// SelectPlan validates a problem, given as JSON, and chooses a kernel for it.
func SelectPlan(specJSON string) (*Plan, error) {
	p, err := selectPlan(specJSON)
	if err != nil {
		return nil, classed(err)
	}
	description, err := p.Describe()
	if err != nil {
		return nil, classed(err)
	}
	return &Plan{op.Keep(p), description}, nil
}

// Handle is the number by which the hot path knows the plan; 0 once it is closed.
func (p *Plan) Handle() int64 { return p.handle }

// Describe gives the plan's sku, precision guarantee, workspace size and argument names as JSON.
func (p *Plan) Describe() string { return p.description }

// Close gives the plan back; later calls are harmless.
func (p *Plan) Close() {
	if p.handle != 0 {
		_ = op.Release(p.handle) // the only failure is that it is gone, which is what is wanted
		p.handle = 0
	}
}

// Backends lists what can run here, and why the rest cannot, as JSON.
func Backends() string { return encode(backend.Infos()) }

// DoctorFacts gives what the Go side knows for `python -m epigrad doctor`, as JSON.
func DoctorFacts() string {
	size, hits, misses := op.CacheFacts()
	return encode(map[string]any{
		"go_version": runtime.Version(), "goos": runtime.GOOS, "goarch": runtime.GOARCH,
		"cpu_count": runtime.NumCPU(), "gomaxprocs": runtime.GOMAXPROCS(0), "cpu_features": cpuFeatures(),
		"version": include.Version(), "abi_version": include.ABIVersion(),
		"plan_cache": map[string]any{"size": size, "hits": hits, "misses": misses},
	})
}

// cpuFeatures names the instruction sets that engines are chosen by.
func cpuFeatures() []string {
	features := []string{}
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"avx2", cpu.X86.HasAVX2},
		{"fma", cpu.X86.HasFMA},
		{"avx512f", cpu.X86.HasAVX512F},
		{"avx512bf16", cpu.X86.HasAVX512BF16},
		{"amx_bf16", cpu.X86.HasAMXBF16},
		{"neon", cpu.ARM64.HasASIMD},
	} {
		if f.has {
			features = append(features, f.name)
		}
	}
	return features
}

// PlanCacheSize counts the kernels that are kept for problems met before.
func PlanCacheSize() int {
	size, _, _ := op.CacheFacts()
	return size
}

// ClearPlanCache forgets them.
func ClearPlanCache() { op.ClearCache() }

// BeginTuning opens a block in which backends time their candidates and keep the choices in the
// file at path.
func BeginTuning(path string) error {
	if err := tuning.Begin(path); err != nil {
		return classed(err)
	}
	return nil
}

// EndTuning closes a block.
func EndTuning() { tuning.End() }

// classed puts the Python class in front of an error's text.
func classed(err error) error {
	e := status.Of(err)
	return errors.New(e.Code.Class() + ": " + e.Message)
}

// encode writes a value that has a JSON form.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}
