#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

uintptr_t epg_wgpu_reserve(uint64_t bytes) {
  void *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? 0 : (uintptr_t)address;
}

void epg_wgpu_unreserve(uintptr_t address, uint64_t bytes) { munmap((void *)address, bytes); }

#ifdef EPG_HAS_WGPU

struct epg_wgpu_library epg_wgpu_library;

int epg_wgpu_library_open(const char *path, char *reason, size_t capacity) {
  static const struct {
    const char *name;
    void *slot; /* of the function pointer */
  } symbols[] = {
#define EPG_SYMBOL(name) {#name, &epg_wgpu_library.name},
      EPG_WGPU_FUNCTIONS(EPG_SYMBOL)
#undef EPG_SYMBOL
  };
  if (epg_wgpu_library.version) return 0;
  if (!*path) {
    snprintf(reason, capacity, "wgpu-native was not found: name its file in EPIGRAD_WGPU_NATIVE, or, in Python, pip install 'epigrad[webgpu]'");
    return -1;
  }
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(reason, capacity, "wgpu-native cannot be loaded: %s", dlerror());
    return -1;
  }
  /* Before anything else is called: another version's structs are laid out otherwise. */
  uint32_t (*get_version)(void) = NULL;
  void *address = dlsym(library, "wgpuGetVersion");
  memcpy(&get_version, &address, sizeof address);
  const uint32_t version = get_version ? get_version() : 0;
  if ((version & ~0xffu) != EPG_WGPU_VERSION) {
    snprintf(reason, capacity, "%s is version %u.%u.%u of wgpu-native, want 29.0.1: pip install 'wgpu>=0.32,<0.33'", path, version >> 24, version >> 16 & 255,
             version >> 8 & 255);
    dlclose(library);
    return -1;
  }
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    address = dlsym(library, symbols[i].name);
    if (!address) {
      snprintf(reason, capacity, "%s has no %s: pip install 'wgpu>=0.32,<0.33' again", path, symbols[i].name);
      dlclose(library);
      return -1;
    }
    memcpy(symbols[i].slot, &address, sizeof address);
  }
  epg_wgpu_library.version = version;
  return 0;
}

uint32_t epg_wgpu_version(void) { return epg_wgpu_library.version; }

#endif
