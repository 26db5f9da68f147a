//go:build cgo

package control

import (
	"strconv"

	"github.com/epigrad/epigrad/go/backend/webgpu"
	"github.com/epigrad/epigrad/go/status"
)

// ConfigureWebGPU says by what settings WebGPU is opened: wgpu-native's file, an adapter, and a
// number of bytes. What is empty is not said.
func ConfigureWebGPU(library, adapter, memory string) (err error) {
	defer classed(&err)
	settings := webgpu.Settings{Library: library, Adapter: adapter}
	if memory != "" {
		bytes, err := strconv.ParseInt(memory, 10, 64)
		if err != nil || bytes <= 0 {
			return status.Errorf(status.InvalidProblem, "EPIGRAD_WEBGPU_MEMORY: got %q, want a number of bytes", memory)
		}
		settings.MemoryBytes = bytes
	}
	webgpu.Configure(settings)
	return nil
}
