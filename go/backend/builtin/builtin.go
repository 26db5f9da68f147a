// Package builtin registers the backends that this build has. Import it for its effect.
package builtin

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu"
)

func init() { backend.Register(cpu.New()) }
