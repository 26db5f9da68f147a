//go:build !cgo || !linux

package team

func find() bool { return false }

func run(int, func()) {}
