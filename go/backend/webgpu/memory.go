package webgpu

/*
#include <unistd.h>
#include "layer.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/epigrad/epigrad/go/status"
)

// memory is a device's buffers: those of the pool, which runs borrow, and the arrays that
// callers hold.
type memory struct {
	largest int64 // bytes of one buffer
	budget  int64 // bytes of all; 0 for what the driver gives
	taken   int64
	idle    map[class][]buffer
	arrays  []array // by address
}

// class tells which buffers can stand in for each other.
type class struct {
	use   int
	bytes int64
}

type buffer struct {
	class
	handle unsafe.Pointer
}

// array is a buffer that a caller holds. It has a range of addresses that nothing else has, so that
// tensors in it are compared and told apart like any others.
type array struct {
	address, bytes uintptr
	buffer         buffer
}

const leastBuffer = 256

// classOf rounds a size up to one of four steps between powers of two, so that few sizes serve all.
func classOf(use int, size int64) class {
	size = max(size, leastBuffer)
	step := int64(1) << max(bits.Len64(uint64(size-1))-3, 4)
	return class{use, (size + step - 1) / step * step}
}

// acquire takes a buffer from the pool, or makes one within the budget.
func (d *device) acquire(use int, size int64) (buffer, error) {
	m := &d.memory
	wanted := classOf(use, size)
	if wanted.bytes > m.largest {
		wanted.bytes = (size + 15) / 16 * 16
	}
	if wanted.bytes > m.largest {
		return buffer{}, noRoom("got %d bytes, want at most %d, the adapter's largest buffer", size, m.largest)
	}
	if list := m.idle[wanted]; len(list) > 0 {
		m.idle[wanted] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	if m.budget > 0 && m.taken+wanted.bytes > m.budget {
		d.trim()
		if m.taken+wanted.bytes > m.budget {
			return buffer{}, noRoom("got %d bytes with %d in use, want at most %d together, the budget: free arrays or raise EPIGRAD_WEBGPU_MEMORY", wanted.bytes, m.taken, m.budget)
		}
	}
	var f C.epg_wgpu_failure
	handle := C.epg_wgpu_buffer_create(d.handle, C.int(use), C.uint64_t(wanted.bytes), &f)
	if handle == nil && f.kind == C.EPG_WGPU_OUT_OF_MEMORY {
		d.trim()
		handle = C.epg_wgpu_buffer_create(d.handle, C.int(use), C.uint64_t(wanted.bytes), &f)
	}
	if handle == nil {
		return buffer{}, failed(&f)
	}
	m.taken += wanted.bytes
	return buffer{wanted, handle}, nil
}

func noRoom(format string, args ...any) error {
	return failure(C.EPG_WGPU_OUT_OF_MEMORY, "allocate", fmt.Sprintf(format, args...))
}

// giveBack returns a buffer to the pool. Work that uses it may still run: what comes after it on
// the queue waits for it.
func (d *device) giveBack(b buffer) {
	d.memory.idle[b.class] = append(d.memory.idle[b.class], b)
}

// trim frees the pool's unused buffers.
func (d *device) trim() {
	for _, list := range d.memory.idle {
		for _, b := range list {
			d.free(b)
		}
	}
	d.memory.idle = map[class][]buffer{}
	var f C.epg_wgpu_failure
	C.epg_wgpu_poll(d.handle, 1, &f)
}

func (d *device) free(b buffer) {
	C.epg_wgpu_buffer_release(b.handle)
	d.memory.taken -= b.bytes
}

// hostMemory is the bytes of memory of this machine.
func hostMemory() int64 {
	return int64(C.sysconf(C._SC_PHYS_PAGES)) * int64(C.sysconf(C._SC_PAGESIZE))
}

// locked gives the device to `use`, with its mutex held.
func locked(use func(d *device) error) error {
	d, err := theDevice()
	if err != nil {
		return err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return use(d)
}

// within gives `use` the buffer that has all bytes from an address on, and the place of the first.
func within(address uintptr, bytes int64, use func(d *device, b buffer, at int64) error) error {
	return locked(func(d *device) error {
		a, err := d.memory.holding(address, bytes)
		if err != nil {
			return err
		}
		return use(d, a.buffer, int64(address-a.address))
	})
}

// Allocate makes an array of this size on the adapter and returns its address, at which the host
// can neither read nor write.
func Allocate(bytes int64) (address uintptr, err error) {
	err = locked(func(d *device) error {
		if bytes < 0 {
			return status.Errorf(status.InvalidProblem, "webgpu: allocate: bytes: got %d, want a number >= 0", bytes)
		}
		b, err := d.acquire(C.EPG_WGPU_STORAGE, bytes)
		if err != nil {
			return err
		}
		if address = uintptr(C.epg_wgpu_reserve(C.uint64_t(b.bytes))); address == 0 {
			d.giveBack(b)
			return failure(C.EPG_WGPU_OUT_OF_MEMORY, "reserve addresses", "the process has no address space left")
		}
		at, _ := d.memory.find(address)
		d.memory.arrays = slices.Insert(d.memory.arrays, at, array{address, uintptr(b.bytes), b})
		return nil
	})
	return address, err
}

// Allocate implements backend.Allocator.
func (*Backend) Allocate(bytes int64) (uintptr, error) { return Allocate(bytes) }

// Free implements backend.Allocator.
func (*Backend) Free(address uintptr) error { return Free(address) }

// Free gives an array back. Calls that use it and have not ended keep what they need.
func Free(address uintptr) error {
	return locked(func(d *device) error {
		at, found := d.memory.find(address)
		if !found {
			return noArray(address)
		}
		a := d.memory.arrays[at]
		d.memory.arrays = slices.Delete(d.memory.arrays, at, at+1)
		C.epg_wgpu_unreserve(C.uintptr_t(a.address), C.uint64_t(a.bytes))
		d.giveBack(a.buffer)
		return nil
	})
}

// Write copies bytes of the host's memory into an array, before whatever is run next.
func Write(address uintptr, from unsafe.Pointer, bytes int64) error {
	return within(address, bytes, func(d *device, b buffer, at int64) error {
		run := &submission{device: d}
		return run.write(b, at, unsafe.Slice((*byte)(from), bytes))
	})
}

// Read waits for the work that was submitted and copies bytes of an array into the host's memory.
func Read(address uintptr, to unsafe.Pointer, bytes int64) error {
	return within(address, bytes, func(d *device, b buffer, at int64) error {
		if bytes == 0 {
			return nil
		}
		data := unsafe.Slice((*byte)(to), bytes)
		run := &submission{device: d}
		defer run.release()
		run.readBack = append(run.readBack, readBack{b, at, bytes, func(read []byte) { copy(data, read) }})
		return run.submit()
	})
}

// Holds implements backend.Keeper.
func (*Backend) Holds(address uintptr, bytes int64) error {
	return within(address, bytes, func(*device, buffer, int64) error { return nil })
}

// find returns where an array with this address is, or would be.
func (m *memory) find(address uintptr) (int, bool) {
	return slices.BinarySearchFunc(m.arrays, address, func(a array, address uintptr) int { return cmp.Compare(a.address, address) })
}

// holding returns the array that has all bytes from an address on.
func (m *memory) holding(address uintptr, bytes int64) (*array, error) {
	at, found := m.find(address)
	if !found {
		at--
	}
	if at < 0 || address-m.arrays[at].address >= m.arrays[at].bytes {
		return nil, noArray(address)
	}
	a := &m.arrays[at]
	if left := int64(a.bytes - (address - a.address)); bytes > left {
		return nil, &status.Error{
			Code: status.BufferTooSmall, Needed: bytes, Got: left,
			Message: status.Errorf(status.BufferTooSmall, "webgpu: tensor: got %d bytes, want at most %d, what its array has from the tensor's offset on", bytes, left).Message,
		}
	}
	return a, nil
}

func noArray(address uintptr) error {
	return status.Errorf(status.InvalidProblem, "webgpu: address: got %#x, want one inside an array that is not freed", address)
}
