package backend

import (
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/epigrad/epigrad/go/check"
	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tensor"
)

// known names every backend of epigrad's interface, whether or not this build has it, with the
// device type of its tensors and, for messages, what a build needs to have it.
var known = []struct {
	name   string
	device int32
	needs  string
}{
	{"cpu", tensor.CPU, ""},
	{"cuda", tensor.CUDA, needsCgo},
	{"webgpu", tensor.WebGPU, needsCgo},
}

const needsCgo = ", which needs cgo: build with CGO_ENABLED=1 and a C compiler, on a system other than Windows"

var (
	mutex      sync.RWMutex
	registered = map[string]Backend{}
)

// Register adds a backend; go/backend/builtin calls it once for each one that a build has.
func Register(b Backend) {
	mutex.Lock()
	defer mutex.Unlock()
	registered[b.Name()] = b
}

// Infos lists every known backend in a fixed order; one that this build lacks is not available and
// says so.
func Infos() []Info {
	infos := make([]Info, 0, len(known))
	for _, k := range known {
		if b, err := Named(k.name); err == nil {
			infos = append(infos, b.Info())
		} else {
			infos = append(infos, Info{Name: k.name, Device: k.name, Reason: err.Error()})
		}
	}
	return infos
}

// Named returns a backend by its name. The error is InvalidProblem for a name that does not exist
// and BackendUnavailable for a backend that this build lacks.
func Named(name string) (Backend, error) {
	mutex.RLock()
	defer mutex.RUnlock()
	if b, ok := registered[name]; ok {
		return b, nil
	}
	names := make([]string, 0, len(known))
	for _, k := range known {
		if k.name == name {
			return nil, status.Errorf(status.BackendUnavailable,
				"this build of epigrad has no %s backend%s; or move the tensors to one that it has: %s", name, k.needs, strings.Join(have(), ", "))
		}
		names = append(names, k.name)
	}
	return nil, status.Errorf(status.InvalidProblem, "backend: got %s, want one of %s", check.Quote(name), strings.Join(names, ", "))
}

// ForDevice returns the backend that runs tensors of a device.
func ForDevice(d tensor.Device) (Backend, error) {
	for _, k := range known {
		if k.device == d.Type {
			return Named(k.name)
		}
	}
	return nil, status.Errorf(status.Unsupported, "device: got %v, want one of %s", d, strings.Join(have(), ", "))
}

// ForTensors returns the backend that runs tensors of a device: for those in the host's memory the
// one of a name, where a name is given.
func ForTensors(name string, d tensor.Device) (Backend, error) {
	if name == "" || d.Type != tensor.CPU {
		return ForDevice(d)
	}
	b, err := Named(name)
	if err != nil {
		return nil, err
	}
	if host, ok := b.(HostBackend); ok && host.TakesHostMemory() {
		return b, nil
	}
	if info := b.Info(); !info.Available {
		return nil, status.Errorf(status.BackendUnavailable, "%s: %s", name, info.Reason)
	}
	return nil, status.Errorf(status.BackendUnavailable, "%s: this backend cannot run tensors in the host's memory: move them to its device", name)
}

// have lists the registered backends; callers hold the mutex or tolerate a change.
func have() []string {
	names := make([]string, 0, len(registered))
	for name := range registered {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// String gives the kernel's name with what surrounds it, for messages and logs.
func (s Sku) String() string {
	return fmt.Sprintf("%s/%s[%s %s, %s]", s.Backend, s.Kernel, s.DType, s.Layout, s.Arch)
}
