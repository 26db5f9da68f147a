//go:build cgo

// The shared library libepigrad.so: the C ABI of cbridge/include/epigrad.h for programs without Python.
//
//	go build -buildmode=c-shared -o libepigrad.so ./cbridge/lib
package main

import _ "github.com/epigrad/epigrad/cbridge" // the exported functions

func main() {}
