package webgpu

/*
#include "layer.h"
*/
import "C"

import (
	"slices"
	"unsafe"
)

// submission is one call's work for the device: writes, copies, dispatches and reads.
// The device's mutex is held as long as it lives.
type submission struct {
	device     *device
	before     []C.epg_wgpu_copy
	dispatches []C.epg_wgpu_dispatch
	bindings   []C.epg_wgpu_range
	readBack   []readBack
	borrowed   []buffer
}

// readBack hands a part of a buffer to the host.
type readBack struct {
	buffer        buffer
	offset, bytes int64
	take          func(bytes []byte)
}

// word is the unit of sizes and offsets of copies, in bytes.
const word = 4

func wordsUp(bytes int64) int64 { return (bytes + word - 1) / word * word }

// acquire borrows a buffer until release.
func (s *submission) acquire(use int, bytes int64) (buffer, error) {
	b, err := s.device.acquire(use, bytes)
	if err == nil {
		s.borrowed = append(s.borrowed, b)
	}
	return b, err
}

func (s *submission) release() {
	for _, b := range s.borrowed {
		s.device.giveBack(b)
	}
	s.borrowed = nil
}

// drop frees what was borrowed.
func (s *submission) drop(b buffer) {
	s.borrowed = slices.DeleteFunc(s.borrowed, func(other buffer) bool { return other.handle == b.handle })
	s.device.free(b)
}

// write puts bytes into a buffer before what is submitted; the last word is filled up with zeros.
func (s *submission) write(b buffer, offset int64, data []byte) error {
	var f C.epg_wgpu_failure
	put := func(offset int64, data []byte) error {
		if C.epg_wgpu_write(s.device.handle, b.handle, C.uint64_t(offset), unsafe.Pointer(&data[0]), C.uint64_t(len(data)), &f) != 0 {
			return failed(&f)
		}
		return nil
	}
	// In parts: wgpu-native copies what it is given once more.
	const part = 64 << 20
	for ; len(data) >= word; offset, data = offset+min(part, int64(len(data))/word*word), data[min(part, len(data)/word*word):] {
		if err := put(offset, data[:min(part, len(data)/word*word)]); err != nil {
			return err
		}
	}
	if len(data) == 0 {
		return nil
	}
	var last [word]byte
	copy(last[:], data)
	return put(offset, last[:])
}

// submit sends everything, and waits only where something comes back.
func (s *submission) submit() error {
	after := make([]C.epg_wgpu_copy, len(s.readBack))
	staging := make([]buffer, len(s.readBack))
	for i, r := range s.readBack {
		from := r.offset / word * word
		bytes := wordsUp(r.offset + r.bytes - from)
		var err error
		if staging[i], err = s.acquire(C.EPG_WGPU_READBACK, bytes); err != nil {
			return err
		}
		after[i] = C.epg_wgpu_copy{
			from: C.epg_wgpu_range{r.buffer.handle, C.uint64_t(from), C.uint64_t(bytes)},
			to:   C.epg_wgpu_range{staging[i].handle, 0, C.uint64_t(bytes)},
		}
	}
	var f C.epg_wgpu_failure
	if C.epg_wgpu_submit(s.device.handle, first(s.before), C.int32_t(len(s.before)), first(s.dispatches), C.int32_t(len(s.dispatches)), first(s.bindings),
		first(after), C.int32_t(len(after)), &f) != 0 {
		return failed(&f)
	}
	for i, r := range s.readBack {
		mapped := C.epg_wgpu_map(s.device.handle, staging[i].handle, after[i].to.bytes, &f)
		if mapped == nil {
			// They may be mapped, or be so later, and submitting such a one would end the process:
			// none goes back to the pool.
			for _, b := range staging[i:] {
				s.drop(b)
			}
			return failed(&f)
		}
		r.take(unsafe.Slice((*byte)(unsafe.Add(mapped, r.offset%word)), r.bytes))
		C.epg_wgpu_unmap(staging[i].handle)
	}
	if len(s.readBack) == 0 && C.epg_wgpu_poll(s.device.handle, 0, &f) != 0 {
		return failed(&f)
	}
	return nil
}

func first[T any](list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}
