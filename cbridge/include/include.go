// Package include holds the C headers that several packages share, and what they say. Importing it
// makes the importer's build depend on every header here, which cgo alone does not see.
package include

import (
	"embed"
	"strconv"
	"strings"
)

//go:embed epigrad.h
var header string

//go:embed dlpack.h exchange.h
var _ embed.FS

// Version is epigrad's version, read from the one place that states it: EPG_VERSION in epigrad.h.
func Version() string { return define("EPG_VERSION") }

// ABIVersion is EPG_ABI_VERSION of epigrad.h.
func ABIVersion() int {
	version, err := strconv.Atoi(define("EPG_ABI_VERSION"))
	if err != nil {
		panic(err) // the header is part of this package
	}
	return version
}

func define(name string) string {
	for line := range strings.Lines(header) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "#define" && fields[1] == name {
			return strings.Trim(fields[2], `"`)
		}
	}
	return ""
}
