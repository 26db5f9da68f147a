// What amd64 processors are asked beyond their features, and what the system is (tasks.h).
#define _GNU_SOURCE  // for syscall
#include <cpuid.h>
#include <errno.h>
#include <string.h>

#include "tasks.h"
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

int epg_slow_with_denormals(void) {
  unsigned most, vendor[3];
  return __get_cpuid(0, &most, &vendor[0], &vendor[2], &vendor[1]) && !memcmp(vendor, "GenuineIntel", sizeof vendor);
}

int epg_request_amx(void) {
#ifdef __linux__
  enum { request_permission = 0x1023, tile_data = 18 };  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) ? errno : 0;
#else
  return ENOSYS;
#endif
}
