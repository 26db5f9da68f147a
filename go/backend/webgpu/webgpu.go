//go:build cgo

// Package webgpu is the WebGPU backend: WGSL kernels (kernels/webgpu) on whatever Vulkan, Metal or
// Direct3D 12 reach, through wgpu-native, a library that is found at run time.
//
// A problem becomes a program: dispatches in order, with everything decided but addresses, the
// kind's parameters and whether to accumulate. Tensors in the host's memory are copied into buffers
// of a pool, packed to what they hold; tensors on the adapter are used where they lie. A run is one
// submission, and where results are the host's one readback.
package webgpu

import (
	"strings"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/lower"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

const backendName = "webgpu"

// Backend runs problems through WebGPU.
type Backend struct {
	// limits narrows what adapters allow, for tests; zeros narrow nothing.
	limits limits
	// portable leaves alone what an adapter may lack, for tests.
	portable bool
	// writesOut has kernels written out as for GPUs, for tests.
	writesOut bool
	// readsAlongK has tiles filled along k, for tests.
	readsAlongK bool
	// tiling, if there is one, is that of all products, for tests.
	tiling *tiling
}

// New returns the backend. Nothing is opened before the first use.
func New() *Backend { return &Backend{} }

// Name implements backend.Backend.
func (*Backend) Name() string { return backendName }

// Info implements backend.Backend.
func (*Backend) Info() backend.Info {
	info := backend.Info{Name: backendName, Device: backendName}
	d, err := theDevice()
	if err != nil {
		info.Reason = strings.TrimPrefix(err.Error(), backendName+": ")
		return info
	}
	info.Available, info.Detail = true, d.detail
	return info
}

// WorkspaceAlignment implements backend.Backend. No kernel needs a workspace: scratch is on the
// adapter.
func (*Backend) WorkspaceAlignment() int64 { return 1 }

// TakesHostMemory implements backend.HostBackend.
func (*Backend) TakesHostMemory() bool { return true }

// Select implements backend.Backend.
func (b *Backend) Select(p backend.Problem) (backend.Kernel, error) {
	op, _, dt := p.Describe()
	if !b.Computes(dt) {
		return nil, status.Errorf(status.Unsupported, "%s: dtype: got %v, want float32, bfloat16 or float16: the webgpu backend computes in float32", op, dt)
	}
	d, err := theDevice()
	if err != nil {
		return nil, err
	}
	builder := &builder{
		device: d, limits: d.limits.narrowed(b.limits), op: op, dt: dt, portable: b.portable, writesOut: b.writesOut || d.writesOut,
		readsAlongK: b.readsAlongK || d.readsAlongK, tiling: b.tiling,
	}
	if builder.plan(p); builder.failed != nil {
		return nil, builder.failed
	}
	if builder.dividesDepth && p.IsBatchInvariant() {
		return nil, status.Errorf(status.Unsupported, "%s: batch_invariant: this sum exceeds the adapter's binding size, and its split depends on the batch: use smaller tensors, or leave batch-invariant mode", op)
	}
	return builder.kernel(p), nil
}

// ClampsOffsets reports whether offsets of groups that decrease or exceed the rows are clamped to
// the nearest valid ones.
func (*Backend) ClampsOffsets() bool { return true }

// Computes reports whether there are kernels for a dtype.
func (*Backend) Computes(dt dtype.DType) bool { return dt != dtype.Float64 }

// plan adds the dispatches that solve a problem.
func (b *builder) plan(p backend.Problem) {
	switch p := p.(type) {
	case *backend.Activation:
		p = placed(b, p)
		b.elementwise(formula{name: "activation", kind: p.Formula}, []*tensor.View{p.Out}, []*tensor.View{p.Input})
	case *backend.ActivationBackward:
		b.activationBackward(placed(b, p))
	case *backend.Gated:
		p = placed(b, p)
		b.elementwise(formula{name: "gated", kind: p.Formula}, []*tensor.View{p.Out}, []*tensor.View{p.Value, p.Gate})
	case *backend.GatedBackward:
		b.gatedBackward(placed(b, p))
	case *backend.Pointwise:
		b.pointwise(placed(b, p))
	case *backend.PointwiseBackward:
		b.pointwiseBackward(placed(b, p))
	case *backend.GemmEpilogue:
		b.multiply(lower.Forward(placed(b, p)))
	case *backend.GemmEpilogueBackward:
		b.gemmEpilogueBackward(placed(b, p))
	case *backend.GroupEnds:
		b.groupEnds(p)
	case *backend.Route:
		b.route(p)
	case *backend.ScatterRows:
		b.scatterRows(p)
	case *backend.CombineRows:
		b.combineRows(placed(b, p))
	case *backend.ScaleGradient:
		b.scaleGradient(p)
	case *backend.ScaleRows:
		b.scaleRows(p)
	case *backend.SumRows:
		p = placed(b, p)
		b.sumRows(p.Groups, p.Input, p.Scales, p.Sums)
	case *backend.ZeroRows:
		b.zeroRows(p)
	default:
		op, _, _ := p.Describe()
		b.failed = status.Errorf(status.Unsupported, "%s: the webgpu backend has no kernel for this operation: move the tensors to another device", op)
	}
}

// ComputesInAccumulator reports whether formulas are computed in the accumulator's dtype, and not
// in float64.
func (*Backend) ComputesInAccumulator() bool { return true }
