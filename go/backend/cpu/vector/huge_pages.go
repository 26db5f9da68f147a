//go:build !linux

package vector

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/tensor"
)

// hintPages does nothing here.
func hintPages(*backend.Run, ...*tensor.View) {}

// hintMemory does nothing either.
func hintMemory(unsafe.Pointer, int64) {}
