/* The part of DLPack that epigrad's interface uses: a description of a strided tensor in somebody's
 * memory. The layout is DLPack's own (major version 1,
 * https://dmlc.github.io/dlpack/latest/c_api.html), so a DLTensor made by any library is one here.
 * Programs that include DLPack's header include it first; this one then adds nothing. */
#ifndef EPG_DLPACK_H
#define EPG_DLPACK_H

#include <stdint.h>

#ifndef DLPACK_VERSION
#ifndef DLPACK_MAJOR_VERSION

/* DLDevice.device_type */
enum { kDLCPU = 1, kDLCUDA = 2, kDLWebGPU = 15 };

/* DLDataType.code */
enum { kDLInt = 0, kDLFloat = 2, kDLBfloat = 4 };

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes; /* 1: vector types do not exist here */
} DLDataType;

typedef struct {
  void *data; /* WebGPU: the buffer's handle */
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL: contiguous, row-major */
  uint64_t byte_offset;
} DLTensor;

#endif
#endif
#endif
