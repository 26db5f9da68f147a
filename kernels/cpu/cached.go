//go:build cgo && (amd64 || arm64)

package cpu

import "C"

// epgCached has the go command keep what it compiles of this package for a shared library. Without
// a function that it exports it looks for a header that is not there, and compiles the kernels
// again, a minute long, for every library that is built (Go 1.26).
//
//export epgCached
func epgCached() {}
