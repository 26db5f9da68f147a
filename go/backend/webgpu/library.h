/* The functions of wgpu-native that are used, each a pointer that is found at run time under its
 * own name. webgpu.h and wgpu.h are those of the `wgpu` wheel whose library is opened: they are
 * laid here while building, and not kept in git. */
#ifndef EPG_WGPU_LIBRARY_H
#define EPG_WGPU_LIBRARY_H

#include "layer.h"

#if __has_include("webgpu.h") && __has_include("wgpu.h")
#define EPG_HAS_WGPU 1
#include "webgpu.h"
#include "wgpu.h"

/* wgpu-native 29.0.1: another one's structs are laid out otherwise. The last byte is free. */
#define EPG_WGPU_VERSION 0x1d000100u

#define EPG_WGPU_FUNCTIONS(X)                 \
  X(wgpuAdapterGetInfo)                       \
  X(wgpuAdapterGetLimits)                     \
  X(wgpuAdapterHasFeature)                    \
  X(wgpuAdapterInfoFreeMembers)               \
  X(wgpuAdapterRequestDevice)                 \
  X(wgpuBindGroupRelease)                     \
  X(wgpuBufferGetConstMappedRange)            \
  X(wgpuBufferMapAsync)                       \
  X(wgpuBufferRelease)                        \
  X(wgpuBufferUnmap)                          \
  X(wgpuCommandBufferRelease)                 \
  X(wgpuCommandEncoderBeginComputePass)       \
  X(wgpuCommandEncoderCopyBufferToBuffer)     \
  X(wgpuCommandEncoderFinish)                 \
  X(wgpuCommandEncoderRelease)                \
  X(wgpuComputePassEncoderDispatchWorkgroups) \
  X(wgpuComputePassEncoderEnd)                \
  X(wgpuComputePassEncoderRelease)            \
  X(wgpuComputePassEncoderSetBindGroup)       \
  X(wgpuComputePassEncoderSetPipeline)        \
  X(wgpuComputePipelineGetBindGroupLayout)    \
  X(wgpuCreateInstance)                       \
  X(wgpuDeviceCreateBindGroup)                \
  X(wgpuDeviceCreateBuffer)                   \
  X(wgpuDeviceCreateCommandEncoder)           \
  X(wgpuDeviceCreateComputePipeline)          \
  X(wgpuDeviceCreateShaderModuleTrusted)      \
  X(wgpuDeviceDestroy)                        \
  X(wgpuDeviceGetQueue)                       \
  X(wgpuDevicePopErrorScope)                  \
  X(wgpuDevicePushErrorScope)                 \
  X(wgpuQueueSubmit)                          \
  X(wgpuQueueWriteBuffer)                     \
  X(wgpuComputePipelineRelease)               \
  X(wgpuShaderModuleRelease)                  \
  X(wgpuDevicePoll)                           \
  X(wgpuInstanceEnumerateAdapters)

extern struct epg_wgpu_library {
#define EPG_MEMBER(name) __typeof__(&name) name;
  EPG_WGPU_FUNCTIONS(EPG_MEMBER)
#undef EPG_MEMBER
  uint32_t version;
} epg_wgpu_library;

/* A function of the library. */
#define W(name) (epg_wgpu_library.wgpu##name)

/* Opens the library once; returns 0, or -1 with a reason. */
int epg_wgpu_library_open(const char *path, char *reason, size_t capacity);
#endif

#endif
