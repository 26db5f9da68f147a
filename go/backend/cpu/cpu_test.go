package cpu_test

import (
	"testing"

	"github.com/epigrad/epigrad/go/backend/cpu"
	"github.com/epigrad/epigrad/go/optest"
)

// Every engine of this machine runs the whole suite.
func TestBackend(t *testing.T) {
	for _, name := range cpu.Engines() {
		t.Run(name, func(t *testing.T) { optest.Run(t, cpu.NewOn(name)) })
	}
}
