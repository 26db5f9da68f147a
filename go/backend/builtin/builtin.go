// Package builtin registers the backends that this build has. Import it for its effect.
package builtin

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/backend/cuda"
	"github.com/epigrad/epigrad/go/backend/webgpu"
)

func init() {
	backend.Register(cpu.New())
	backend.Register(cuda.New())
	backend.Register(webgpu.New())
}
