//go:build cgo

package backend_test

const withC = true
