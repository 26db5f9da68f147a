/* For LD_PRELOAD: allocations that epigrad's C code makes on the calling thread fail where a test
 * says so (test_allocation_failure.py). Others' are as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

/* Go's runtime starts threads when it likes, and ends the process if it has no memory for one. */
#define GO_STARTS_A_THREAD "x_cgo_thread_start"

/* Numbers of the allocations that fail, from 1 on, and how many there were. */
static _Thread_local int64_t first, last, seen;
static _Thread_local int watched;

/* Has allocations from `from` to `to` fail, of those that are watched. */
void fail_allocations(int64_t from, int64_t to) { first = from, last = to, seen = 0; }

/* Whether allocations are watched from now on; returns how many there were. */
int64_t watch_allocations(int on) {
  watched = on;
  return seen;
}

static int fails(const void *caller) {
  Dl_info info;
  if (!watched || !dladdr(caller, &info) || !strstr(info.dli_fname, "_native.abi3.so")) return 0;
  if (info.dli_sname && !strcmp(info.dli_sname, GO_STARTS_A_THREAD)) return 0;
  seen++;
  if (seen < first || seen > last) return 0;
  errno = ENOMEM;
  return 1;
}

#define UNLESS_IT_FAILS(allocate) (fails(__builtin_return_address(0)) ? NULL : (allocate))

void *malloc(size_t bytes) { return UNLESS_IT_FAILS(__libc_malloc(bytes)); }
void *calloc(size_t count, size_t bytes) { return UNLESS_IT_FAILS(__libc_calloc(count, bytes)); }
void *aligned_alloc(size_t alignment, size_t bytes) { return UNLESS_IT_FAILS(__libc_memalign(alignment, bytes)); }
