//go:build cgo && linux

package openmp

// #cgo CFLAGS: -std=c11 -O2
// #cgo LDFLAGS: -ldl
// #include "openmp.h"
import "C"

import (
	"bytes"
	"os"
	"runtime/cgo"
	"strconv"
	"unsafe"
)

// Built reports whether there can be a team.
const Built = true

func find() unsafe.Pointer {
	if forked() {
		return nil
	}
	return unsafe.Pointer(C.epg_find_team())
}

// forked tells a child that was made by fork and runs the same program. It inherited the runtime's
// memory, where threads are noted down that the child does not have: if its parent used them, the
// runtime would wait for them forever.
func forked() bool {
	const (
		flags      = 6    // the field after the parenthesis that closes the program's name
		forkNoExec = 0x40 // PF_FORKNOEXEC
	)
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= flags {
		return false
	}
	value, err := strconv.ParseUint(string(fields[flags]), 10, 64)
	return err == nil && value&forkNoExec != 0
}

func run(threads int, member func()) {
	h := cgo.NewHandle(member)
	defer h.Delete()
	C.epg_run_team((*C.epg_parallel)(Entry()), C.uintptr_t(h), C.unsigned(threads))
}

//export epgTeamMember
func epgTeamMember(h C.uintptr_t) { cgo.Handle(h).Value().(func())() }
