//go:build cgo && !windows

package builtin

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cuda"
	"github.com/epigrad/epigrad/go/backend/webgpu"
)

func init() {
	backend.Register(cuda.New())
	backend.Register(webgpu.New())
}
