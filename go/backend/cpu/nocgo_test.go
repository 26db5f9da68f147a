//go:build !cgo

package cpu

const withC = false
