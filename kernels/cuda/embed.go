// Package cuda holds the CUDA kernels: their sources, and what `make kernels` has compiled of them
// into this build.
//
// A build without compiled kernels works and has no images; the CUDA backend then says so.
package cuda

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"maps"
	"regexp"
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
		if len(lines) == 0 || lines[0] != hashOf(name) {
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
func hashOf(name string) string {
	headers := map[string][]byte{}
	source := readWith(name+".cu", headers)
	digest := sha256.New()
	for _, header := range slices.Sorted(maps.Keys(headers)) {
		digest.Write(headers[header])
	}
	digest.Write(source)
	return hex.EncodeToString(digest.Sum(nil))
}

var includes = regexp.MustCompile(`(?m)^#include "(\w+\.cuh)"$`)

// readWith reads a file, and into headers those that it includes, and that they include.
func readWith(file string, headers map[string][]byte) []byte {
	data, err := files.ReadFile(file)
	if err != nil {
		return nil
	}
	for _, match := range includes.FindAllSubmatch(data, -1) {
		if header := string(match[1]); headers[header] == nil {
			headers[header] = []byte{}
			headers[header] = readWith(header, headers)
		}
	}
	return data
}

// Images returns what this build has compiled, sorted by name; nothing where it was built without.
func Images() []Image { return built().images }

// Built reports whether this build has compiled kernels of its sources, all of them.
func Built() bool { return built().sources > 0 && len(built().images) == built().sources }

// Stale returns the names of images that were compiled of other sources than this build has.
func Stale() []string { return built().stale }

// Has reports whether this build has a kernel of a name.
func Has(function string) bool {
	_, ok := ImageOf(function)
	return ok
}

// ImageOf returns the image that a kernel is in.
func ImageOf(function string) (Image, bool) {
	for _, image := range Images() {
		if _, found := slices.BinarySearch(image.Functions, function); found {
			return image, true
		}
	}
	return Image{}, false
}
