/* What epigrad uses of WebGPU, through wgpu-native, which is opened at run time. Handles are opaque
 * here, so that Go sees no type of webgpu.h: where that header was not there to build with,
 * epg_wgpu_open says so.
 *
 * A device's functions are called by one thread at a time (its mutex is Go's): error scopes belong
 * to the device, not to a thread. Whatever fails is a failure here and no abort; what wgpu-native
 * aborts for (submitting what is not valid or was destroyed, mapping what is not mapped) is not
 * reachable. */
#ifndef EPG_WGPU_LAYER_H
#define EPG_WGPU_LAYER_H

#include <stddef.h>
#include <stdint.h>

enum { EPG_WGPU_TEXT_BYTES = 1024, EPG_WGPU_ADAPTERS = 16 };

/* A failed call: what was being done, and what the library says of it. */
typedef struct {
  enum { EPG_WGPU_FINE, EPG_WGPU_INVALID, EPG_WGPU_OUT_OF_MEMORY, EPG_WGPU_LOST, EPG_WGPU_OTHER } kind;
  char call[32], text[EPG_WGPU_TEXT_BYTES];
} epg_wgpu_failure;

/* An adapter and what it allows. */
typedef struct {
  char name[256], driver[256];
  int32_t is_software, has_subgroups, is_vulkan;
  uint32_t storage_buffers, offset_alignment, groups, invocations, group_bytes;
  uint64_t binding_bytes, buffer_bytes;
} epg_wgpu_adapter;

typedef struct epg_wgpu_device epg_wgpu_device;

/* Opens wgpu-native once for the process and lists the adapters, EPG_WGPU_ADAPTERS at most; returns
 * their number, or -1 with a reason. */
int epg_wgpu_open(const char *library, epg_wgpu_adapter *adapters, char *reason, size_t capacity);
/* Its version, four numbers in four bytes; 0 before it is open. */
uint32_t epg_wgpu_version(void);
/* Makes a device on an adapter of the list. */
epg_wgpu_device *epg_wgpu_device_create(int adapter, epg_wgpu_failure *failure);
/* Makes the device's further calls fail as if it had been lost: for tests. */
void epg_wgpu_device_lose(epg_wgpu_device *device);

/* A compute pipeline of a WGSL source's `main`, with the layout that the source has. */
typedef struct {
  void *pipeline, *layout;
} epg_wgpu_pipeline;
int epg_wgpu_pipeline_create(epg_wgpu_device *device, const char *source, size_t length, epg_wgpu_pipeline *pipeline, epg_wgpu_failure *failure);

enum { EPG_WGPU_STORAGE, EPG_WGPU_UNIFORM, EPG_WGPU_READBACK };
void *epg_wgpu_buffer_create(epg_wgpu_device *device, int use, uint64_t bytes, epg_wgpu_failure *failure);
/* Gives a buffer back; work that was submitted keeps what it needs. */
void epg_wgpu_buffer_release(void *buffer);
/* Puts bytes into a buffer before whatever is submitted next; a multiple of 4 bytes. */
int epg_wgpu_write(epg_wgpu_device *device, void *buffer, uint64_t offset, const void *data, uint64_t bytes, epg_wgpu_failure *failure);

/* A part of a buffer. */
typedef struct {
  void *buffer;
  uint64_t offset, bytes;
} epg_wgpu_range;

/* A kernel over groups of threads; what it is bound to is a part of the submission's list. */
typedef struct {
  epg_wgpu_pipeline pipeline;
  uint32_t groups[3], first_binding, num_bindings;
} epg_wgpu_dispatch;

typedef struct {
  epg_wgpu_range from, to; /* as many bytes */
} epg_wgpu_copy;

/* Encodes copies, dispatches and more copies, and submits them as one. */
int epg_wgpu_submit(epg_wgpu_device *device, const epg_wgpu_copy *before, int32_t num_before, const epg_wgpu_dispatch *dispatches, int32_t num_dispatches,
                    const epg_wgpu_range *bindings, const epg_wgpu_copy *after, int32_t num_after, epg_wgpu_failure *failure);
/* Waits for a readback buffer and returns its bytes, which are there until unmap. */
const void *epg_wgpu_map(epg_wgpu_device *device, void *buffer, uint64_t bytes, epg_wgpu_failure *failure);
void epg_wgpu_unmap(void *buffer);
/* Lets the library recycle what finished work held; waits for all work if asked to. */
int epg_wgpu_poll(epg_wgpu_device *device, int wait, epg_wgpu_failure *failure);

/* A range of addresses that nothing else has and nobody can touch: how a buffer is named to the
 * outside, so that tensors in it have addresses. */
uintptr_t epg_wgpu_reserve(uint64_t bytes);
void epg_wgpu_unreserve(uintptr_t address, uint64_t bytes);

#endif
