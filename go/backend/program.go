package backend

import (
	"embed"

	"github.com/epigrad/epigrad/go/status"
)

// What includes the header is built again when it changes, which cgo alone does not see.
//
//go:embed program.h
var _ embed.FS

// Failed is the error of a backend's call of a library that failed: the library's code and name for
// it, which DeviceError carries.
func Failed(backend, call, name string, code int, text string) error {
	e := status.Errorf(status.DeviceFailure, "%s: %s: %s (%d): %s", backend, call, name, code, text)
	e.Got = int64(code)
	return e
}
