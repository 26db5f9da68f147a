/* The exported functions of epigrad.h. A Go runtime does not survive fork(): a call into it from
 * the child would hang at the next collection. So each function, which is plain C, refuses a forked
 * child before it enters Go. */
#include <pthread.h>
#include <string.h>

#include "_cgo_export.h"
#include "bridge.h"

static volatile int forked;

static void mark_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, mark_child); }

int epg_forked(void) { return forked; }

int32_t epg_refuse_forked(void) {
  static const char text[] =
      "epigrad was used before fork(), and its Go runtime does not survive in the child: use epigrad for the first time in the child, or, in Python, "
      "start workers with the spawn or forkserver method";
  epg_set_last_error(text, sizeof text - 1, 0, 0);
  return EPG_BACKEND_UNAVAILABLE;
}

#define UNLESS_FORKED(call) (__builtin_expect(forked, 0) ? epg_refuse_forked() : (call))

int32_t epg_abi_version(void) { return EPG_ABI_VERSION; }

const char *epg_version(void) { return EPG_VERSION; }

int32_t epg_run(const epg_call *call) { return UNLESS_FORKED(epgGoRun((epg_call *)call)); }

int32_t epg_validate(const epg_call *call) { return UNLESS_FORKED(epgGoValidate((epg_call *)call)); }

int32_t epg_infer(const epg_call *call, const uint8_t *wanted, int64_t *shapes, int32_t *ranks, uint64_t *workspace_nbytes) {
  return UNLESS_FORKED(epgGoInfer((epg_call *)call, (uint8_t *)wanted, shapes, ranks, workspace_nbytes));
}

int32_t epg_plan_create(const epg_call *call, const uint8_t *exact_strides, epg_plan *plan) {
  return UNLESS_FORKED(epgGoPlanCreate((epg_call *)call, (uint8_t *)exact_strides, plan));
}

int32_t epg_plan_workspace(epg_plan plan, uint64_t *workspace_nbytes) { return UNLESS_FORKED(epgGoPlanWorkspace(plan, workspace_nbytes)); }

int32_t epg_plan_query(epg_plan plan, epg_plan_facts *facts) { return UNLESS_FORKED(epgGoPlanQuery(plan, facts)); }

int32_t epg_plan_run(epg_plan plan, const epg_call *call) { return UNLESS_FORKED(epgGoPlanRun(plan, (epg_call *)call)); }

int32_t epg_plan_validate(epg_plan plan, const epg_call *call) { return UNLESS_FORKED(epgGoPlanValidate(plan, (epg_call *)call)); }

int32_t epg_plan_destroy(epg_plan plan) { return UNLESS_FORKED(epgGoPlanDestroy(plan)); }

int32_t epg_backends(char *text, uint64_t capacity, uint64_t *needed) { return UNLESS_FORKED(epgGoBackends(text, capacity, needed)); }

int32_t epg_kinds(char *text, uint64_t capacity, uint64_t *needed) { return UNLESS_FORKED(epgGoKinds(text, capacity, needed)); }

int32_t epg_webgpu_configure(const char *library, const char *adapter, uint64_t memory_nbytes) {
  return UNLESS_FORKED(epgGoWebGPUConfigure((char *)library, (char *)adapter, memory_nbytes));
}

int32_t epg_webgpu_alloc(uint64_t nbytes, void **data) { return UNLESS_FORKED(epgGoWebGPUAlloc(nbytes, data)); }

int32_t epg_webgpu_free(void *data) { return UNLESS_FORKED(epgGoWebGPUFree((uintptr_t)data)); }

int32_t epg_webgpu_write(void *data, const void *from, uint64_t nbytes) { return UNLESS_FORKED(epgGoWebGPUWrite((uintptr_t)data, (void *)from, nbytes)); }

int32_t epg_webgpu_read(const void *data, void *to, uint64_t nbytes) { return UNLESS_FORKED(epgGoWebGPURead((uintptr_t)data, to, nbytes)); }

/* The table itself is go/status; a test compares the two. */
const char *epg_status_class(int32_t status) {
  static const char *const classes[] = {
      "",
      "InvalidProblemError",
      "DTypeError",
      "UnsupportedError",
      "DeviceMismatchError",
      "MisalignedOperandError",
      "WorkspaceTooSmallError",
      "BufferTooSmallError",
      "BackendUnavailableError",
      "DeviceError",
      "EpigradError",
  };
  const int32_t count = sizeof classes / sizeof *classes;
  return classes[status < 0 || status >= count ? EPG_INTERNAL : status];
}
