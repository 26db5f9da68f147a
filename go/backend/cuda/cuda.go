// Package cuda is the CUDA backend: kernels compiled ahead of time (kernels/cuda), products by
// cuBLASLt, both through libraries that are found at run time.
//
// A problem becomes a program: kernel launches, products and fills in order, with everything
// decided but addresses, parameters and whether to accumulate. Running one is a single call to C,
// which allocates nothing and waits for nothing, so that CUDA graphs capture it.
package cuda

/*
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strings"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

const backendName = "cuda"

// Backend runs problems on NVIDIA's GPUs.
type Backend struct {
	// BLASAlone leaves every product to cuBLASLt, that of a small problem too: to test and to
	// compare both.
	BLASAlone bool
	// OneKernel has one kernel do a product and its epilogue wherever it can, where BLAS is faster
	// too: to test it with small tensors.
	OneKernel bool
	// Program is "sm80" for the products of product_sm80.cuh wherever they can run, on Hopper too.
	Program string
}

// New returns the backend, with BLASAlone where the environment has EPIGRAD_CUDA_BLAS_ALONE=1,
// OneKernel with EPIGRAD_CUDA_ONE_KERNEL=1, and Program as EPIGRAD_CUDA_PROGRAM says. Nothing is
// opened before the first use.
func New() *Backend {
	isOn := func(name string) bool { return os.Getenv(name) == "1" }
	return &Backend{
		BLASAlone: isOn("EPIGRAD_CUDA_BLAS_ALONE"), OneKernel: isOn("EPIGRAD_CUDA_ONE_KERNEL"), Program: os.Getenv("EPIGRAD_CUDA_PROGRAM"),
	}
}

// Name implements backend.Backend.
func (*Backend) Name() string { return backendName }

// requireProgram refuses a program that there is not.
func (c *Backend) requireProgram() error {
	if c.Program == "" || c.Program == sm80.name {
		return nil
	}
	return status.Errorf(status.BackendUnavailable, "cuda: EPIGRAD_CUDA_PROGRAM: got %q, want %q, or unset it", c.Program, sm80.name)
}

// Info implements backend.Backend.
func (c *Backend) Info() backend.Info {
	info := backend.Info{Name: backendName, Device: backendName}
	detail, err := describe()
	if err == nil {
		err = c.requireProgram()
	}
	if err != nil {
		info.Reason = strings.TrimPrefix(err.Error(), backendName+": ")
		return info
	}
	info.Available, info.Detail = true, detail
	return info
}

// describe tells of the first GPU that kernels can run on.
func describe() (string, error) {
	if err := requireLibraries(); err != nil {
		return "", err
	}
	count, err := countDevices()
	if err != nil {
		return "", err
	}
	err = status.Errorf(status.BackendUnavailable, "cuda: NVIDIA's driver sees no GPU: is CUDA_VISIBLE_DEVICES empty?")
	for ordinal := range count {
		var d C.epg_device
		refused := requireKnown(ordinal, &d)
		if refused == nil {
			name, blas := nameOf(&d), int(C.epg_blas_version())
			if count > 1 {
				name = fmt.Sprintf("%d GPUs, cuda:%d: %s", count, ordinal, name)
			}
			return fmt.Sprintf("%s (%s), driver for CUDA %s, cuBLASLt %d.%d.%d", name, archOf(&d), driverOf(&d), blas/10000, blas/100%100, blas%100), nil
		}
		if ordinal == 0 {
			err = refused
		}
	}
	return "", err
}

// WorkspaceAlignment implements backend.Backend.
func (*Backend) WorkspaceAlignment() int64 { return workspaceAlignment }

// Select implements backend.Backend.
func (c *Backend) Select(p backend.Problem) (backend.Kernel, error) {
	if err := c.requireProgram(); err != nil {
		return nil, err
	}
	d, err := deviceOf(ordinal(p))
	if err != nil {
		return nil, err
	}
	return c.builder(d, p).kernelOf(p)
}

// builder begins the program of a problem.
func (c *Backend) builder(d *device, p backend.Problem) *builder {
	_, _, dt := p.Describe()
	forced := c.Program == sm80.name
	b := &builder{device: d, dt: dt, options: options{
		blasAlone: c.BLASAlone, boxes: d.boxes && !forced, forced: forced, tilesAlone: forced && c.OneKernel,
		invariant: p.IsBatchInvariant(), allowsTF32: p.AllowsTF32(),
	}}
	switch {
	case b.boxes:
		b.layers = sm90
	case d.fuses || forced:
		b.layers = sm80
	}
	if c.OneKernel {
		b.way = fused
	}
	return b
}

// plan adds the operations that solve a problem.
func (b *builder) plan(p backend.Problem) {
	switch p := p.(type) {
	case *backend.Activation:
		b.activation(p.Formula, p.Out, p.Input)
	case *backend.ActivationBackward:
		b.activationBackward(p)
	case *backend.Gated:
		b.gated(p)
	case *backend.GatedBackward:
		b.gatedBackward(p)
	case *backend.ActivationCurvature:
		b.activationCurvature(p)
	case *backend.GatedCurvature:
		b.gatedCurvature(p)
	case *backend.Pointwise:
		b.pointwise(p)
	case *backend.PointwiseBackward:
		b.pointwiseBackward(p)
	case *backend.HiddenBackward:
		b.hiddenBackward(p)
	case *backend.GatedHiddenBackward:
		b.gatedHiddenBackward(p)
	case *backend.GatedLinear:
		b.gatedLinear(p)
	case *backend.GemmEpilogue:
		b.gemmEpilogue(p)
	case *backend.GemmEpilogueBackward:
		b.gemmEpilogueBackward(p)
	case *backend.GroupEnds:
		b.groupEnds(p)
	case *backend.Route:
		b.route(p)
	case *backend.CountRows:
		b.countRows(p)
	case *backend.ScatterSlots:
		b.scatterSlots(p)
	case *backend.ScatterRows:
		b.scatterRows(p)
	case *backend.CombineRows:
		b.combineRows(p)
	case *backend.ScaleGradient:
		b.scaleGradient(p)
	case *backend.ScaleRows:
		b.scaleRows(p)
	case *backend.SumRows:
		b.sumRowsOf(p.Input, p.Sums, p.Scales, p.Groups)
	case *backend.ZeroRows:
		b.zeroRest(p.Groups, p.Outputs...)
	case *backend.GroupedLayer:
		b.groupedLayer(p)
	case *backend.CombinedLayer:
		b.combinedLayer(p)
	case *backend.GroupedLayerBackward:
		b.groupedLayerBackward(p)
	case *backend.GroupedHiddenBackward:
		b.groupedHiddenBackward(p)
	default:
		b.refuse(p)
	}
}

// ClampsOffsets reports whether offsets of groups that decrease or exceed the rows are clamped to
// the nearest valid ones.
func (*Backend) ClampsOffsets() bool { return true }

// ReadsTokens implements backend.TokenReader.
func (*Backend) ReadsTokens(h backend.Header, features int64, backward bool) bool {
	most := int64(mostFeaturesOfTokens)
	if backward {
		most = mostFeaturesBackward
	}
	return !h.DType.IsHalf() || features <= most
}

// ordinal is the index of the device that a problem's tensors are on.
func ordinal(p backend.Problem) int {
	for _, v := range backend.Views(p) {
		if v.Device.Type == tensor.CUDA {
			return int(v.Device.Index)
		}
	}
	return 0
}
