package webgpu

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Wno-unused-parameter
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "layer.h"
*/
import "C"

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/epigrad/epigrad/go/status"
	kernels "github.com/epigrad/epigrad/kernels/webgpu"
)

// limits are what a device allows of one dispatch.
type limits struct {
	bindingBytes int64 // of a buffer that a kernel sees
	groups       int64 // along each dimension of the grid
	trips        int64 // of a loop: software adapters of old stop at 65535
	alignment    int64 // bytes, of where a binding starts
	groupBytes   int64 // of a group's own memory
	// wideTiles is from how many tiles of 128 x 128 on a product is done in those: fewer would
	// leave a large adapter idle.
	wideTiles int64
}

const (
	mostTrips = 65535
	wideTiles = 256
)

// narrowed takes the smaller of each but the alignment; zeros in the other are no limits.
func (l limits) narrowed(other limits) limits {
	least := func(mine, others int64) int64 {
		if others == 0 {
			return mine
		}
		return min(mine, others)
	}
	return limits{least(l.bindingBytes, other.bindingBytes), least(l.groups, other.groups), least(l.trips, other.trips), l.alignment, l.groupBytes, least(l.wideTiles, other.wideTiles)}
}

// Settings are what the environment says of the backend. Python passes them, since Go does not see
// later changes of the environment.
type Settings struct {
	// Library is the file of wgpu-native (EPIGRAD_WGPU_NATIVE), Adapter the number of an adapter or
	// a part of its name (EPIGRAD_WEBGPU_ADAPTER).
	Library, Adapter string
	// MemoryBytes is the most memory that buffers may take (EPIGRAD_WEBGPU_MEMORY); 0 lets the
	// backend choose.
	MemoryBytes int64
}

// FromEnvironment are the settings of the variables; a number of bytes that is none leaves the
// choice to the backend.
func FromEnvironment() Settings {
	s := Settings{Library: os.Getenv("EPIGRAD_WGPU_NATIVE"), Adapter: os.Getenv("EPIGRAD_WEBGPU_ADAPTER")}
	s.MemoryBytes, _ = strconv.ParseInt(os.Getenv("EPIGRAD_WEBGPU_MEMORY"), 10, 64)
	return s
}

// the is the process's one device, and what it is opened by.
var the = struct {
	sync.Mutex
	device   *device
	settings *Settings
}{}

// Configure says by what settings the device is opened; once it is, they change nothing.
func Configure(s Settings) {
	the.Lock()
	defer the.Unlock()
	the.settings = &s
}

// device is one adapter that was opened. Its mutex is held around all of its calls:
// error scopes and the pool belong to all threads together.
type device struct {
	handle *C.epg_wgpu_device
	name   string
	detail string
	limits limits
	// writesOut: what a loop would do a few times is written out in kernels. Software adapters
	// compile that for long.
	writesOut bool
	// readsAlongK: tiles of products are filled along k, one component of a vector by one thread
	// and the next by another. WGSL leaves open what then becomes of the others; Vulkan does not.
	readsAlongK bool

	mutex     sync.Mutex
	pipelines map[string]C.epg_wgpu_pipeline // by source
	probed    map[string]bool                // what probes have found, by their name
	memory    memory
}

// theDevice opens the device, on the first call that succeeds.
func theDevice() (*device, error) {
	the.Lock()
	defer the.Unlock()
	if the.device != nil {
		return the.device, nil
	}
	settings := FromEnvironment()
	if the.settings != nil {
		settings = *the.settings
	}
	d, err := open(settings)
	if err == nil {
		the.device = d
	}
	return d, err
}

func unavailable(format string, args ...any) error {
	return status.Errorf(status.BackendUnavailable, "webgpu: "+format, args...)
}

func open(s Settings) (*device, error) {
	adapters := (*[C.EPG_WGPU_ADAPTERS]C.epg_wgpu_adapter)(C.calloc(C.EPG_WGPU_ADAPTERS, C.sizeof_epg_wgpu_adapter))
	defer C.free(unsafe.Pointer(adapters))
	path := C.CString(s.Library)
	defer C.free(unsafe.Pointer(path))
	const reasonBytes = 1024
	var reason [reasonBytes]C.char
	count := int(C.epg_wgpu_open(path, &adapters[0], &reason[0], reasonBytes))
	if count < 0 {
		return nil, unavailable("%s", C.GoString(&reason[0]))
	}
	chosen, err := choose(adapters[:count], s.Adapter)
	if err != nil {
		return nil, err
	}
	a := &adapters[chosen]
	groupBytes := tiling{parts: 1}.bytes()
	if a.storage_buffers < mostOperands || a.invocations < groupThreads || int64(a.group_bytes) < groupBytes {
		return nil, unavailable("adapter %s: got %d storage buffers, %d threads a group and %d bytes a group, want at least %d, %d and %d", C.GoString(&a.name[0]),
			a.storage_buffers, a.invocations, a.group_bytes, mostOperands, groupThreads, groupBytes)
	}
	var failure C.epg_wgpu_failure
	handle := C.epg_wgpu_device_create(C.int(chosen), &failure)
	if handle == nil {
		return nil, unavailable("adapter %s: it cannot be opened: %s", C.GoString(&a.name[0]), C.GoString(&failure.text[0]))
	}
	d := &device{
		handle: handle, name: C.GoString(&a.name[0]), pipelines: map[string]C.epg_wgpu_pipeline{}, probed: map[string]bool{},
		limits:    limits{int64(a.binding_bytes), int64(a.groups), mostTrips, int64(a.offset_alignment), int64(a.group_bytes), wideTiles},
		writesOut: a.is_software == 0, readsAlongK: a.is_vulkan != 0 && a.is_software == 0,
		memory: memory{largest: int64(a.buffer_bytes), budget: s.MemoryBytes, idle: map[class][]buffer{}},
	}
	if d.memory.budget <= 0 && a.is_software != 0 {
		// it promises more than there is, and is killed for using it
		d.memory.budget = hostMemory() / 2
	}
	d.probed[probeSubgroups] = false
	if a.has_subgroups != 0 {
		delete(d.probed, probeSubgroups)
	}
	version := uint32(C.epg_wgpu_version())
	d.detail = fmt.Sprintf("%s (%s), %d of %d, wgpu-native %d.%d.%d.%d", d.name, C.GoString(&a.driver[0]), chosen, count,
		version>>24, version>>16&255, version>>8&255, version&255)
	if a.is_software != 0 {
		err = d.checkLoops()
	}
	return d, err
}

// choose finds the adapter of a number or of a part of its name, or the first that is not software,
// or the first.
func choose(adapters []C.epg_wgpu_adapter, wanted string) (int, error) {
	if len(adapters) == 0 {
		return 0, unavailable("no adapter: wgpu-native finds no driver for Vulkan, Metal or Direct3D 12: install the GPU vendor's driver, or Mesa's lavapipe, " +
			"which needs no GPU (apt-get install mesa-vulkan-drivers libvulkan1)")
	}
	names := make([]string, len(adapters))
	for i := range adapters {
		names[i] = fmt.Sprintf("%d: %s", i, C.GoString(&adapters[i].name[0]))
	}
	if wanted != "" {
		if i, err := strconv.Atoi(wanted); err == nil && i >= 0 && i < len(adapters) {
			return i, nil
		}
		for i, name := range names {
			if strings.Contains(strings.ToLower(name), strings.ToLower(wanted)) {
				return i, nil
			}
		}
		return 0, unavailable("EPIGRAD_WEBGPU_ADAPTER: got %q, want a number, or a part of one of these names: %s", wanted, strings.Join(names, ", "))
	}
	for i := range adapters {
		if adapters[i].is_software == 0 {
			return i, nil
		}
	}
	return 0, nil
}

// failureNames are the names of epg_wgpu_failure's kinds.
var failureNames = map[int]string{
	C.EPG_WGPU_INVALID: "VALIDATION", C.EPG_WGPU_OUT_OF_MEMORY: "OUT_OF_MEMORY", C.EPG_WGPU_LOST: "DEVICE_LOST", C.EPG_WGPU_OTHER: "OTHER",
}

// failed is the error of a library's call.
func failed(f *C.epg_wgpu_failure) error {
	return failure(int(f.kind), C.GoString(&f.call[0]), C.GoString(&f.text[0]))
}

func failure(kind int, call, text string) error {
	e := status.Errorf(status.DeviceFailure, "webgpu: %s: %s (%d): %s", call, failureNames[kind], kind, strings.TrimSpace(text))
	e.Got = int64(kind)
	return e
}

// pipeline compiles a kernel once; the mutex is held.
func (d *device) pipeline(template string, definitions map[string]string) (C.epg_wgpu_pipeline, error) {
	source, err := kernels.Source(template, definitions)
	if err != nil {
		return C.epg_wgpu_pipeline{}, err
	}
	if p, ok := d.pipelines[source]; ok {
		return p, nil
	}
	if folder := os.Getenv("EPIGRAD_WEBGPU_SOURCES"); folder != "" {
		if err := writeSource(folder, template, definitions); err != nil {
			return C.epg_wgpu_pipeline{}, status.Errorf(status.Internal, "EPIGRAD_WEBGPU_SOURCES: %v", err)
		}
	}
	p, err := d.compile(source)
	if err == nil {
		d.pipelines[source] = p
	}
	return p, err
}

// writeSource writes a kernel for other compilers to check, as the tests do. One that uses
// subgroups says so, which other compilers ask for and naga refuses. One that uses what an adapter
// may lack is written without that too.
func writeSource(folder, template string, definitions map[string]string) error {
	variants := []map[string]string{definitions}
	for name, others := range map[string][]string{"SUBGROUPS": {"enabled", ""}, "NATIVE_HALVES": {"yes", ""}} {
		if definitions[name] == "" {
			continue
		}
		if template == probeSubgroups {
			others = others[:1] // it is about nothing else
		}
		var all []map[string]string
		for _, variant := range variants {
			for _, way := range others {
				other := maps.Clone(variant)
				other[name] = way
				all = append(all, other)
			}
		}
		variants = all
	}
	for _, variant := range variants {
		source, err := kernels.Source(template, variant)
		if err != nil {
			return err
		}
		path := filepath.Join(folder, fmt.Sprintf("%s-%x.wgsl", template, sha256.Sum256([]byte(source))))
		if err := os.WriteFile(path, []byte(source), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compile makes a pipeline of WGSL; the mutex is held.
func (d *device) compile(source string) (C.epg_wgpu_pipeline, error) {
	text := C.CString(source)
	defer C.free(unsafe.Pointer(text))
	var p C.epg_wgpu_pipeline
	var f C.epg_wgpu_failure
	if C.epg_wgpu_pipeline_create(d.handle, text, C.size_t(len(source)), &p, &f) != 0 {
		return p, failed(&f)
	}
	return p, nil
}

// lose makes the device fail from now on, as if the adapter had gone: for tests.
func (d *device) lose() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	C.epg_wgpu_device_lose(d.handle)
}
