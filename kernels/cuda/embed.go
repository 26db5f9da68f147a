// Package cuda holds the CUDA kernels: their sources, and what `make kernels` has compiled of them into this build.
//
// A build without compiled kernels works and has no images; the CUDA backend then says so.
package cuda

import (
	"embed"
	"slices"
	"strings"
	"sync"
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
var Images = sync.OnceValue(func() []Image {
	var images []Image
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		name, isImage := strings.CutSuffix(entry.Name(), ".fatbin")
		if !isImage {
			continue
		}
		data, dataErr := files.ReadFile(entry.Name())
		list, listErr := files.ReadFile(name + ".functions")
		if dataErr != nil || listErr != nil {
			return nil
		}
		functions := strings.Fields(string(list))
		slices.Sort(functions)
		images = append(images, Image{Name: name, Data: data, Functions: functions})
	}
	return images
})

// Built reports whether this build has compiled kernels.
func Built() bool { return len(Images()) > 0 }

// ImageOf returns the image that a kernel is in.
func ImageOf(function string) (Image, bool) {
	for _, image := range Images() {
		if _, found := slices.BinarySearch(image.Functions, function); found {
			return image, true
		}
	}
	return Image{}, false
}
