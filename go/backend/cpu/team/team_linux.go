//go:build cgo && linux

package team

// #cgo CFLAGS: -std=c11 -O2
// #cgo LDFLAGS: -ldl
// #include "team.h"
import "C"

import (
	"runtime/cgo"
)

func find() bool { return C.epg_find_team() != 0 }

func run(threads int, member func()) {
	h := cgo.NewHandle(member)
	defer h.Delete()
	C.epg_run_team(C.uintptr_t(h), C.unsigned(threads))
}

//export epgTeamMember
func epgTeamMember(h C.uintptr_t) { cgo.Handle(h).Value().(func())() }
