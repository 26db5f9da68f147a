//go:build cgo

// The shared library libepigrad.so: the C ABI of cbridge/include/epigrad.h for programs without
// Python.
//
//	go build -buildmode=c-shared -o libepigrad.so ./cbridge/lib
package main

// #cgo CFLAGS: -std=c11 -I${SRCDIR}/../include
import "C"

import (
	"embed"

	_ "github.com/epigrad/epigrad/cbridge" // the exported functions
	_ "github.com/epigrad/epigrad/cbridge/torch"
)

// The linker reads the list of exports, and a change to it has to link anew.
//
//go:embed exports.map
var _ embed.FS

func main() {}
