//go:build !cgo || !linux

package team

import "unsafe"

func find() unsafe.Pointer { return nil }

func run(int, func()) {}
