//go:build cgo && amd64 && !emulation

package cpu

func emulated(string) table { return nil }
