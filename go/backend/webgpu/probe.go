package webgpu

/*
#include "layer.h"
*/
import "C"

import (
	"encoding/binary"
)

// Kernels of kernels/webgpu that find out about an adapter.
const (
	probeLoops     = "probe_loops"
	probeSubgroups = "probe_subgroups"
	probeHalves    = "probe_halves"
)

// probeGroups are the groups that look at all there is to look at.
var probeGroups = map[string]uint32{probeSubgroups: 4, probeHalves: 256}

// passes runs a probe that counts in its first word what is not as it should be and in the second
// what it has looked at, once for each device: when it is needed. One that could not be run is not
// passed, and is run again.
func (d *device) passes(probe string) bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	known, ok := d.probed[probe]
	if !ok {
		groups := probeGroups[probe]
		found, err := d.probe(probe, groups, [2]uint32{})
		if err != nil || groups == 0 {
			return false
		}
		known = found == [2]uint32{0, groups * groupThreads}
		d.probed[probe] = known
	}
	return known
}

// probe runs a kernel on two words and returns what it makes of them; the mutex is held.
func (d *device) probe(name string, groups uint32, words [2]uint32) ([2]uint32, error) {
	// What any of the probes asks for, though most ask for neither.
	p, err := d.pipeline(name, map[string]string{"SUBGROUPS": "yes", "NATIVE_HALVES": ""})
	if err != nil {
		return words, err
	}
	run := &submission{device: d}
	defer run.release()
	const size = 2 * word
	cell, err := run.acquire(C.EPG_WGPU_STORAGE, size)
	if err != nil {
		return words, err
	}
	run.bindings = []C.epg_wgpu_range{{cell.handle, 0, size}}
	run.dispatches = []C.epg_wgpu_dispatch{{pipeline: p, groups: [3]C.uint32_t{C.uint32_t(groups), 1, 1}, num_bindings: 1}}
	bytes, err := binary.Append(nil, binary.LittleEndian, words)
	if err == nil {
		err = run.write(cell, 0, bytes)
	}
	if err != nil {
		return words, err
	}
	run.readBack = append(run.readBack, readBack{cell, 0, size, func(bytes []byte) { _, err = binary.Decode(bytes, binary.LittleEndian, &words) }})
	if failed := run.submit(); failed != nil {
		return words, failed
	}
	return words, err
}

// checkLoops runs a loop that goes on for longer than what the software adapters of Mesa before 23
// run silently.
func (d *device) checkLoops() error {
	const trips = 100000
	d.mutex.Lock()
	defer d.mutex.Unlock()
	words, err := d.probe(probeLoops, 1, [2]uint32{trips, 0})
	if err != nil {
		return err
	}
	if words[1] != trips {
		return unavailable("%s is too old: it ends a loop of %d rounds after %d: install a newer driver, such as Mesa 25 (Debian 12 has it in its backports)", d.detail, trips, words[1])
	}
	return nil
}
