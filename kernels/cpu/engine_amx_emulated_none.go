//go:build cgo && amd64 && !emulation

package cpu

func emulated() table { return nil }
