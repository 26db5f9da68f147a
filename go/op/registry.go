package op

import (
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/status"
)

// kept are the plans that callers outside Go hold, by a number that is never used twice: a stale
// one is an error, never another caller's plan.
var (
	kept     sync.Map
	lastKept atomic.Int64
)

// Keep registers a plan and returns its handle.
func Keep(p *Plan) int64 {
	handle := lastKept.Add(1)
	kept.Store(handle, p)
	return handle
}

// Kept returns the plan of a handle.
func Kept(handle int64) (*Plan, error) {
	if p, ok := kept.Load(handle); ok {
		return p.(*Plan), nil
	}
	return nil, status.Errorf(status.InvalidProblem, "plan: handle %d is not an open plan", handle)
}

// Release forgets a handle.
func Release(handle int64) error {
	if _, ok := kept.LoadAndDelete(handle); !ok {
		return status.Errorf(status.InvalidProblem, "plan: handle %d is not an open plan", handle)
	}
	return nil
}

// description is a plan's JSON for the bindings.
type description struct {
	Sku           backend.Sku       `json:"sku"`
	Precision     backend.Precision `json:"precision_guarantee"`
	WorkspaceSize int64             `json:"workspace_size"`
	Inputs        []string          `json:"inputs"`
	Outputs       []string          `json:"outputs"`
}

// Describe returns the plan's sku, precision guarantee, workspace size in bytes and argument names
// as JSON.
func (p *Plan) Describe() (string, error) {
	d := description{Sku: p.Sku(), Precision: p.Precision(), WorkspaceSize: p.WorkspaceBytes()}
	for _, a := range p.operation.Inputs {
		d.Inputs = append(d.Inputs, a.Name)
	}
	for _, a := range p.operation.Outputs {
		d.Outputs = append(d.Outputs, a.Name)
	}
	text, err := json.Marshal(d)
	return string(text), err
}
