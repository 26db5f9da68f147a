package cpu_test

import (
	"testing"

	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/optest"
)

func TestBackend(t *testing.T) { optest.Run(t, cpu.New()) }
