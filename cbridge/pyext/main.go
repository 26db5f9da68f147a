//go:build pyext

// Package main is the Python extension epigrad._native: the hand-written hot path (native.c and the
// files that it calls), and the control plane, go/control as gopy binds it
// (cbridge/tools/generate.py). One Go runtime serves both. The tag freethreaded is for a Python
// without the interpreter lock, which has no limited API.
package main

// #cgo CFLAGS: -std=gnu11 -I${SRCDIR}/../include -I${SRCDIR}/../../go/backend
// #cgo !freethreaded CFLAGS: -DPy_LIMITED_API=0x030B0000
import "C"

import (
	_ "github.com/go-python/gopy/gopyh" // gopy's own library, which the generated code stands on

	_ "github.com/epigrad/epigrad/cbridge"
	_ "github.com/epigrad/epigrad/cbridge/include" // rebuild when a header changes
	_ "github.com/epigrad/epigrad/cbridge/torch"
)

func main() {}
