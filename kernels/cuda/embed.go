// Package cuda holds the CUDA kernels: their sources, and what `make kernels` has compiled of them
// into this build.
//
// A build without compiled kernels works and has no images; the CUDA backend then says so.
package cuda

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
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

// build is what this build has compiled.
type build struct {
	images  []Image // sorted by name
	stale   []string
	sources int // how many there should be
}

var built = sync.OnceValue(func() build {
	var b build
	entries, err := files.ReadDir(".")
	if err != nil {
		return b
	}
	for _, entry := range entries {
		name, isSource := strings.CutSuffix(entry.Name(), ".cu")
		if !isSource {
			continue
		}
		b.sources++
		data, dataErr := files.ReadFile(name + ".fatbin")
		list, listErr := files.ReadFile(name + ".functions")
		if dataErr != nil || listErr != nil {
			continue
		}
		lines := strings.Fields(string(list))
		if len(lines) == 0 || lines[0] != hashOf(entries, name) {
			b.stale = append(b.stale, name)
			continue
		}
		functions := lines[1:]
		slices.Sort(functions)
		b.images = append(b.images, Image{Name: name, Data: data, Functions: functions})
	}
	return b
})

// hashOf tells whether an image is of these sources, as kernels/tools/compile_cuda.py does:
// launches are made for them.
func hashOf(entries []fs.DirEntry, name string) string {
	digest := sha256.New()
	add := func(file string) {
		if data, err := files.ReadFile(file); err == nil {
			digest.Write(data)
		}
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".cuh") {
			add(entry.Name())
		}
	}
	add(name + ".cu")
	return hex.EncodeToString(digest.Sum(nil))
}

// Images returns what this build has compiled, sorted by name; nothing where it was built without.
func Images() []Image { return built().images }

// Built reports whether this build has compiled kernels of its sources, all of them.
func Built() bool { return built().sources > 0 && len(built().images) == built().sources }

// Stale returns the names of images that were compiled of other sources than this build has.
func Stale() []string { return built().stale }

// ImageOf returns the image that a kernel is in.
func ImageOf(function string) (Image, bool) {
	for _, image := range Images() {
		if _, found := slices.BinarySearch(image.Functions, function); found {
			return image, true
		}
	}
	return Image{}, false
}
