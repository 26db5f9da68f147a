#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "_cgo_export.h"
#include "team.h"

/* What compilers call for a parallel region: GCC's runtime and LLVM's both have it. */
static void (*parallel)(void (*member)(void *), void *data, unsigned threads, unsigned flags);

int epg_find_team(void) {
  void *pytorch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void *symbol = pytorch ? dlsym(pytorch, "GOMP_parallel") : 0; /* also of what it is linked with */
  memcpy(&parallel, &symbol, sizeof symbol);
  return symbol != 0;
}

static void member(void *data) { epgTeamMember((uintptr_t)data); }

void epg_run_team(uintptr_t handle, unsigned threads) { parallel(member, (void *)handle, threads, 0); }
