// Package control is the cold side of the binding: gopy turns it into Python functions. Facts cross
// as JSON, and an error's text starts with the Python class it stands for ("ClassName: message"). A
// panic becomes such an error here, since one that reached gopy's code would end the process.
package control

import (
	"encoding/json"
	"errors"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/cpu"

	"github.com/epigrad/epigrad/cbridge/include"
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tuning"
)

// Backends lists what can run here, and why the rest cannot, as JSON.
func Backends() (infos string, err error) {
	defer classed(&err)
	return encode(backend.Infos())
}

// DoctorFacts gives what the Go side knows for `python -m epigrad doctor`, as JSON.
func DoctorFacts() (facts string, err error) {
	defer classed(&err)
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
func ClearPlanCache() (err error) {
	defer classed(&err)
	op.ClearCache()
	return nil
}

// BeginTuning opens a block in which backends time their candidates and keep the choices in the
// file at path.
func BeginTuning(path string) (err error) {
	defer classed(&err)
	return tuning.Begin(path)
}

// EndTuning closes a block.
func EndTuning() (err error) {
	defer classed(&err)
	tuning.End()
	return nil
}

// classed is deferred: it makes a panic an error, and puts the Python class in front of an error's
// text.
func classed(err *error) {
	if panicked := recover(); panicked != nil {
		*err = status.Errorf(status.Internal, "epigrad: a defect: %v\n%s", panicked, debug.Stack())
	}
	if *err != nil {
		e := status.Of(*err)
		*err = errors.New(e.Code.Class() + ": " + e.Message)
	}
}

// encode writes a value as JSON.
func encode(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}
