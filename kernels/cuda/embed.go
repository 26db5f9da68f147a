// Package cuda holds the CUDA kernels: their sources, and what `make kernels` has compiled of them into this build.
//
// A build without compiled kernels works and has no images; the CUDA backend then says so.
package cuda

import (
	"embed"
	"slices"
	"strings"
)

// The pattern takes the sources too, so that it matches something before anything is compiled.
//
//go:embed *.[cf]*
var files embed.FS

// Image is the compiled form of one source, for every architecture.
type Image struct {
	// Name is the source's name without its suffix: "gated".
	Name string
	// Data is a fatbin, as cuLibraryLoadData takes it.
	Data []byte
	// Functions are the kernels in it, sorted.
	Functions []string
}

// Images returns what this build has compiled, sorted by name; nothing where it was built without.
func Images() []Image {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil
	}
	var images []Image
	for _, entry := range entries {
		name, isImage := strings.CutSuffix(entry.Name(), ".fatbin")
		if !isImage {
			continue
		}
		data, err := files.ReadFile(entry.Name())
		if err != nil {
			return nil
		}
		list, err := files.ReadFile(name + ".functions")
		if err != nil {
			return nil
		}
		functions := strings.Fields(string(list))
		slices.Sort(functions)
		images = append(images, Image{Name: name, Data: data, Functions: functions})
	}
	return images
}
