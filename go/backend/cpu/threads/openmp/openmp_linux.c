#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "_cgo_export.h"
#include "openmp.h"

epg_parallel *epg_find_team(void) {
  void *pytorch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void *symbol = pytorch ? dlsym(pytorch, "GOMP_parallel") : 0; /* also of what it is linked with */
  epg_parallel *parallel;
  memcpy(&parallel, &symbol, sizeof symbol);
  return parallel;
}

static void member(void *data) { epgTeamMember((uintptr_t)data); }

void epg_run_team(epg_parallel *parallel, uintptr_t handle, unsigned threads) { parallel(member, (void *)handle, threads, 0); }
