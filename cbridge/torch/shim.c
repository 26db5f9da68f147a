/* Finds PyTorch in this process. Python loads it where dlsym alone does not look, so the libraries
 * are asked for by name; a program may also have it in itself. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "shim.h"

#include <dlfcn.h>

struct epg_torch_shim epg_torch;

static void *find(const char *name) {
  static const char *const libraries[] = {"libtorch_cpu.so", "libtorch_cuda.so", "libtorch_cpu.dylib"};
  void *function = dlsym(RTLD_DEFAULT, name);
  for (size_t i = 0; !function && i < sizeof libraries / sizeof *libraries; i++) {
    void *library = dlopen(libraries[i], RTLD_NOLOAD | RTLD_LAZY);
    if (!library) continue;
    function = dlsym(library, name);
    dlclose(library); /* it stays: it was there before */
  }
  return function;
}

const char *epg_torch_find(void) {
#define FIND(result, name, parameters) *(void **)&epg_torch.name = find(#name);
#define NEED(result, name, parameters) \
  if (!(*(void **)&epg_torch.name = find(#name))) return #name;
  EPG_TORCH_NEEDED(NEED)
  EPG_TORCH_OPTIONAL(FIND)
#undef NEED
#undef FIND
  *(void **)&epg_torch.operator_delete = find("_ZdlPv");
  return epg_torch.torch_delete_stable_ivalue || epg_torch.operator_delete ? NULL : "torch_delete_stable_ivalue";
}
