#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

#ifdef EPG_HAS_WGPU

struct epg_wgpu_device {
  WGPUDevice device;
  WGPUQueue queue;
  WGPUShaderRuntimeChecks checks; /* that shaders are compiled with */
  char lost[EPG_WGPU_TEXT_BYTES]; /* why; empty while it works */
};

/* The adapters of the process's one instance. */
static struct {
  WGPUAdapter list[EPG_WGPU_ADAPTERS];
  int count;
} adapters;

static void copy_text(char *to, size_t capacity, WGPUStringView from) {
  size_t length = !from.data ? 0 : from.length == WGPU_STRLEN ? strlen(from.data) : from.length;
  if (length >= capacity) length = capacity - 1;
  if (length) memcpy(to, from.data, length);
  to[length] = 0;
}

static int fail(epg_wgpu_failure *failure, int kind, const char *call, const char *text) {
  failure->kind = kind;
  snprintf(failure->call, sizeof failure->call, "%s", call);
  snprintf(failure->text, sizeof failure->text, "%s", text);
  return -1;
}

/* Errors outside of any scope have no caller to go to; without a callback wgpu-native aborts. */
static void on_uncaptured(const WGPUDevice *device, WGPUErrorType type, WGPUStringView message, void *first, void *second) {}

static void on_lost(const WGPUDevice *device, WGPUDeviceLostReason reason, WGPUStringView message, void *first, void *second) {
  epg_wgpu_device *d = first;
  copy_text(d->lost, sizeof d->lost, message);
  if (!*d->lost) strcpy(d->lost, "the device was lost");
}

static void on_error(WGPUPopErrorScopeStatus status, WGPUErrorType type, WGPUStringView message, void *first, void *second) {
  epg_wgpu_failure *failure = first;
  if (type == WGPUErrorType_NoError || failure->kind) return;
  failure->kind = type == WGPUErrorType_Validation ? EPG_WGPU_INVALID : type == WGPUErrorType_OutOfMemory ? EPG_WGPU_OUT_OF_MEMORY : EPG_WGPU_OTHER;
  copy_text(failure->text, sizeof failure->text, message);
  /* What wgpu-native reports of these arrives as validation. */
  if (strstr(failure->text, "ot enough memory")) failure->kind = EPG_WGPU_OUT_OF_MEMORY;
  if (strstr(failure->text, "device is lost")) failure->kind = EPG_WGPU_LOST;
}

static int begin(epg_wgpu_device *d, const char *call, epg_wgpu_failure *failure) {
  memset(failure, 0, sizeof *failure);
  if (*d->lost) return fail(failure, EPG_WGPU_LOST, call, d->lost);
  W(DevicePushErrorScope)(d->device, WGPUErrorFilter_OutOfMemory);
  W(DevicePushErrorScope)(d->device, WGPUErrorFilter_Validation);
  return 0;
}

/* Closes what begin opened; returns 0, or -1 where something failed in between. */
static int end(epg_wgpu_device *d, const char *call, epg_wgpu_failure *failure) {
  const WGPUPopErrorScopeCallbackInfo info = {.mode = WGPUCallbackMode_AllowSpontaneous, .callback = on_error, .userdata1 = failure};
  W(DevicePopErrorScope)(d->device, info);
  W(DevicePopErrorScope)(d->device, info);
  if (!failure->kind) return 0;
  snprintf(failure->call, sizeof failure->call, "%s", call);
  if (failure->kind == EPG_WGPU_LOST) snprintf(d->lost, sizeof d->lost, "%s", failure->text);
  return -1;
}

static void describe(WGPUAdapter handle, epg_wgpu_adapter *adapter) {
  WGPUAdapterInfo info = {0};
  WGPULimits limits = {0};
  W(AdapterGetInfo)(handle, &info);
  copy_text(adapter->name, sizeof adapter->name, info.device);
  copy_text(adapter->driver, sizeof adapter->driver, info.description);
  adapter->is_software = info.adapterType == WGPUAdapterType_CPU;
  adapter->is_vulkan = info.backendType == WGPUBackendType_Vulkan;
  adapter->has_subgroups = (int32_t)W(AdapterHasFeature)(handle, (WGPUFeatureName)WGPUNativeFeature_Subgroup);
  W(AdapterInfoFreeMembers)(info);
  W(AdapterGetLimits)(handle, &limits);
  adapter->storage_buffers = limits.maxStorageBuffersPerShaderStage;
  adapter->offset_alignment = limits.minStorageBufferOffsetAlignment;
  adapter->groups = limits.maxComputeWorkgroupsPerDimension;
  adapter->invocations = limits.maxComputeInvocationsPerWorkgroup;
  adapter->group_bytes = limits.maxComputeWorkgroupStorageSize;
  adapter->binding_bytes = limits.maxStorageBufferBindingSize;
  adapter->buffer_bytes = limits.maxBufferSize;
}

int epg_wgpu_open(const char *path, epg_wgpu_adapter *list, char *reason, size_t capacity) {
  if (epg_wgpu_library_open(path, reason, capacity)) return -1;
  if (!adapters.count) {
    /* Not through OpenGL, whose software adapter would be taken where there is no Vulkan. */
    const WGPUInstanceExtras extras = {.chain.sType = (WGPUSType)WGPUSType_InstanceExtras,
                                       .backends = WGPUInstanceBackend_Vulkan | WGPUInstanceBackend_Metal | WGPUInstanceBackend_DX12};
    const WGPUInstanceDescriptor descriptor = {.nextInChain = (WGPUChainedStruct *)&extras.chain};
    WGPUInstance instance = W(CreateInstance)(&descriptor);
    if (!instance) {
      snprintf(reason, capacity, "wgpu-native cannot create an instance");
      return -1;
    }
    const size_t count = W(InstanceEnumerateAdapters)(instance, NULL, NULL);
    if (count > 0 && count <= EPG_WGPU_ADAPTERS) adapters.count = (int)W(InstanceEnumerateAdapters)(instance, NULL, adapters.list);
  }
  for (int i = 0; i < adapters.count; i++) describe(adapters.list[i], &list[i]);
  return adapters.count;
}

typedef struct {
  WGPUDevice device;
  epg_wgpu_failure *failure;
} device_request;

static void on_device(WGPURequestDeviceStatus status, WGPUDevice device, WGPUStringView message, void *first, void *second) {
  device_request *request = first;
  request->device = status == WGPURequestDeviceStatus_Success ? device : NULL;
  copy_text(request->failure->text, sizeof request->failure->text, message);
}

epg_wgpu_device *epg_wgpu_device_create(int adapter, epg_wgpu_failure *failure) {
  memset(failure, 0, sizeof *failure);
  epg_wgpu_device *d = calloc(1, sizeof *d);
  WGPULimits limits = {0};
  if (d) W(AdapterGetLimits)(adapters.list[adapter], &limits);
  device_request request = {.failure = failure};
  epg_wgpu_adapter described;
  describe(adapters.list[adapter], &described);
  const WGPUFeatureName subgroups = (WGPUFeatureName)WGPUNativeFeature_Subgroup;
  const WGPUDeviceDescriptor descriptor = {
      .requiredFeatures = &subgroups,
      .requiredFeatureCount = described.has_subgroups ? 1 : 0,
      .requiredLimits = &limits,
      .deviceLostCallbackInfo = {.mode = WGPUCallbackMode_AllowSpontaneous, .callback = on_lost, .userdata1 = d},
      .uncapturedErrorCallbackInfo = {.callback = on_uncaptured},
  };
  const WGPURequestDeviceCallbackInfo info = {.mode = WGPUCallbackMode_AllowSpontaneous, .callback = on_device, .userdata1 = &request};
  if (d) W(AdapterRequestDevice)(adapters.list[adapter], &descriptor, info);
  if (!request.device) {
    failure->kind = EPG_WGPU_OTHER;
    snprintf(failure->call, sizeof failure->call, "request device");
    free(d);
    return NULL;
  }
  d->device = request.device;
  d->queue = W(DeviceGetQueue)(d->device);
  /* All loops of the kernels end. Without the counter that wgpu-native puts into each otherwise,
   * drivers unroll them: products take 14 % less time on an H200, and twice the time to compile on
   * Mesa's lavapipe. */
  d->checks = WGPUShaderRuntimeChecks_BoundsChecks | (described.is_software ? WGPUShaderRuntimeChecks_ForceLoopBounding : 0);
  return d;
}

void epg_wgpu_device_lose(epg_wgpu_device *d) {
  W(DeviceDestroy)(d->device);
  strcpy(d->lost, "Parent device is lost");
}

int epg_wgpu_pipeline_create(epg_wgpu_device *d, const char *source, size_t length, epg_wgpu_pipeline *pipeline, epg_wgpu_failure *failure) {
  const char *call = "compile a kernel";
  if (begin(d, call, failure)) return -1;
  const WGPUShaderSourceWGSL wgsl = {.chain.sType = WGPUSType_ShaderSourceWGSL, .code = {source, length}};
  const WGPUShaderModuleDescriptor module_descriptor = {.nextInChain = (WGPUChainedStruct *)&wgsl.chain};
  WGPUShaderModule module = W(DeviceCreateShaderModuleTrusted)(d->device, &module_descriptor, d->checks);
  const WGPUComputePipelineDescriptor descriptor = {.compute = {.module = module, .entryPoint = {"main", WGPU_STRLEN}}};
  int failed = end(d, call, failure) || begin(d, call, failure);
  if (!failed) {
    pipeline->pipeline = W(DeviceCreateComputePipeline)(d->device, &descriptor);
    failed = end(d, call, failure);
    if (failed && pipeline->pipeline) W(ComputePipelineRelease)(pipeline->pipeline);
  }
  if (module) W(ShaderModuleRelease)(module);
  if (failed) return -1;
  pipeline->layout = W(ComputePipelineGetBindGroupLayout)(pipeline->pipeline, 0);
  return 0;
}

void *epg_wgpu_buffer_create(epg_wgpu_device *d, int use, uint64_t bytes, epg_wgpu_failure *failure) {
  static const WGPUBufferUsage usages[] = {
      [EPG_WGPU_STORAGE] = WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst,
      [EPG_WGPU_UNIFORM] = WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst,
      [EPG_WGPU_READBACK] = WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst,
  };
  const char *call = "allocate";
  if (begin(d, call, failure)) return NULL;
  const WGPUBufferDescriptor descriptor = {.size = bytes, .usage = usages[use]};
  WGPUBuffer buffer = W(DeviceCreateBuffer)(d->device, &descriptor);
  if (!end(d, call, failure)) return buffer;
  if (buffer) W(BufferRelease)(buffer);
  return NULL;
}

void epg_wgpu_buffer_release(void *buffer) { W(BufferRelease)(buffer); }

int epg_wgpu_write(epg_wgpu_device *d, void *buffer, uint64_t offset, const void *data, uint64_t bytes, epg_wgpu_failure *failure) {
  const char *call = "write";
  if (begin(d, call, failure)) return -1;
  W(QueueWriteBuffer)(d->queue, buffer, offset, data, bytes);
  return end(d, call, failure);
}

static void encode_copies(WGPUCommandEncoder encoder, const epg_wgpu_copy *copies, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    W(CommandEncoderCopyBufferToBuffer)(encoder, copies[i].from.buffer, copies[i].from.offset, copies[i].to.buffer, copies[i].to.offset, copies[i].from.bytes);
}

enum { MOST_BINDINGS = 16 };

/* Whether wgpu-native can be asked for a dispatch: of a binding without bytes it makes no error,
 * but ends the process. */
static int can_be_asked_for(const epg_wgpu_dispatch *dispatch, const epg_wgpu_range *bindings) {
  if (dispatch->num_bindings > MOST_BINDINGS) return 0;
  for (uint32_t i = 0; i < dispatch->num_bindings; i++)
    if (!bindings[i].bytes) return 0;
  return 1;
}

static void encode_dispatch(WGPUDevice device, WGPUComputePassEncoder pass, const epg_wgpu_dispatch *dispatch, const epg_wgpu_range *bindings) {
  WGPUBindGroupEntry entries[MOST_BINDINGS] = {0};
  for (uint32_t i = 0; i < dispatch->num_bindings; i++)
    entries[i] = (WGPUBindGroupEntry){.binding = i, .buffer = bindings[i].buffer, .offset = bindings[i].offset, .size = bindings[i].bytes};
  const WGPUBindGroupDescriptor descriptor = {.layout = dispatch->pipeline.layout, .entryCount = dispatch->num_bindings, .entries = entries};
  WGPUBindGroup group = W(DeviceCreateBindGroup)(device, &descriptor);
  if (!group) return;
  W(ComputePassEncoderSetPipeline)(pass, dispatch->pipeline.pipeline);
  W(ComputePassEncoderSetBindGroup)(pass, 0, group, 0, NULL);
  W(ComputePassEncoderDispatchWorkgroups)(pass, dispatch->groups[0], dispatch->groups[1], dispatch->groups[2]);
  W(BindGroupRelease)(group);
}

int epg_wgpu_submit(epg_wgpu_device *d, const epg_wgpu_copy *before, int32_t num_before, const epg_wgpu_dispatch *dispatches, int32_t num_dispatches,
                    const epg_wgpu_range *bindings, const epg_wgpu_copy *after, int32_t num_after, epg_wgpu_failure *failure) {
  const char *call = "encode";
  for (int32_t i = 0; i < num_dispatches; i++)
    if (!can_be_asked_for(&dispatches[i], bindings + dispatches[i].first_binding)) {
      memset(failure, 0, sizeof *failure);
      return fail(failure, EPG_WGPU_INVALID, call, "a binding of no bytes, or too many bindings");
    }
  if (begin(d, call, failure)) return -1;
  WGPUCommandEncoder encoder = W(DeviceCreateCommandEncoder)(d->device, NULL);
  encode_copies(encoder, before, num_before);
  if (num_dispatches) {
    WGPUComputePassEncoder pass = W(CommandEncoderBeginComputePass)(encoder, NULL);
    for (int32_t i = 0; i < num_dispatches; i++) encode_dispatch(d->device, pass, &dispatches[i], bindings + dispatches[i].first_binding);
    W(ComputePassEncoderEnd)(pass);
    W(ComputePassEncoderRelease)(pass);
  }
  encode_copies(encoder, after, num_after);
  WGPUCommandBuffer commands = W(CommandEncoderFinish)(encoder, NULL);
  int failed = end(d, call, failure);
  /* Submitting what is not valid aborts the process, so nothing that failed gets that far. */
  if (!failed && !(failed = begin(d, "submit", failure))) {
    W(QueueSubmit)(d->queue, 1, &commands);
    failed = end(d, "submit", failure);
  }
  if (commands) W(CommandBufferRelease)(commands);
  W(CommandEncoderRelease)(encoder);
  return failed;
}

typedef struct {
  WGPUMapAsyncStatus status; /* 0 while it is not known */
  epg_wgpu_failure *failure;
} map_request;

static void on_mapped(WGPUMapAsyncStatus status, WGPUStringView message, void *first, void *second) {
  map_request *request = first;
  request->status = status;
  if (status != WGPUMapAsyncStatus_Success && !request->failure->kind) copy_text(request->failure->text, sizeof request->failure->text, message);
}

const void *epg_wgpu_map(epg_wgpu_device *d, void *buffer, uint64_t bytes, epg_wgpu_failure *failure) {
  const char *call = "read back";
  if (begin(d, call, failure)) return NULL;
  map_request request = {.failure = failure};
  const WGPUBufferMapCallbackInfo info = {.mode = WGPUCallbackMode_AllowSpontaneous, .callback = on_mapped, .userdata1 = &request};
  W(BufferMapAsync)(buffer, WGPUMapMode_Read, 0, bytes, info);
  /* Once everything submitted is done, the callback has been called. */
  if (!request.status) W(DevicePoll)(d->device, 1, NULL);
  if (end(d, call, failure)) return NULL;
  const void *range = request.status == WGPUMapAsyncStatus_Success ? W(BufferGetConstMappedRange)(buffer, 0, bytes) : NULL;
  if (!range) fail(failure, EPG_WGPU_OTHER, call, *failure->text ? failure->text : "nothing was mapped");
  return range;
}

void epg_wgpu_unmap(void *buffer) { W(BufferUnmap)(buffer); }

int epg_wgpu_poll(epg_wgpu_device *d, int wait, epg_wgpu_failure *failure) {
  const char *call = "poll";
  if (begin(d, call, failure)) return -1;
  W(DevicePoll)(d->device, (WGPUBool)wait, NULL);
  return end(d, call, failure);
}

#else

/* A build without the headers: nothing here is reached but the first. */
int epg_wgpu_open(const char *path, epg_wgpu_adapter *list, char *reason, size_t capacity) {
  snprintf(reason, capacity, "this build of epigrad has no WebGPU, because webgpu.h was missing: pip install 'wgpu>=0.32,<0.33', run make, and build again");
  return -1;
}
#define UNREACHED(result, function) \
  result function { return (result)0; }
UNREACHED(uint32_t, epg_wgpu_version(void))
UNREACHED(epg_wgpu_device *, epg_wgpu_device_create(int adapter, epg_wgpu_failure *failure))
UNREACHED(void, epg_wgpu_device_lose(epg_wgpu_device *d))
UNREACHED(int, epg_wgpu_pipeline_create(epg_wgpu_device *d, const char *source, size_t length, epg_wgpu_pipeline *pipeline, epg_wgpu_failure *failure))
UNREACHED(void *, epg_wgpu_buffer_create(epg_wgpu_device *d, int use, uint64_t bytes, epg_wgpu_failure *failure))
UNREACHED(void, epg_wgpu_buffer_release(void *buffer))
UNREACHED(int, epg_wgpu_write(epg_wgpu_device *d, void *buffer, uint64_t offset, const void *data, uint64_t bytes, epg_wgpu_failure *failure))
UNREACHED(int, epg_wgpu_submit(epg_wgpu_device *d, const epg_wgpu_copy *before, int32_t num_before, const epg_wgpu_dispatch *dispatches, int32_t num_dispatches,
                               const epg_wgpu_range *bindings, const epg_wgpu_copy *after, int32_t num_after, epg_wgpu_failure *failure))
UNREACHED(const void *, epg_wgpu_map(epg_wgpu_device *d, void *buffer, uint64_t bytes, epg_wgpu_failure *failure))
UNREACHED(void, epg_wgpu_unmap(void *buffer))
UNREACHED(int, epg_wgpu_poll(epg_wgpu_device *d, int wait, epg_wgpu_failure *failure))

#endif
