/* The table behind a tensor type's __dlpack_c_exchange_api__, a capsule named
 * "dlpack_exchange_api": DLPack's way to read Python tensors from C, version 1. The layout is
 * DLPack's (https://dmlc.github.io/dlpack/latest/c_api.html); functions that epigrad does not call
 * are kept as slots. */
#ifndef EPG_EXCHANGE_H
#define EPG_EXCHANGE_H

#include "dlpack.h"

#define EPG_EXCHANGE_MAJOR 1

typedef struct DLPackExchangeAPIHeader {
  struct {
    uint32_t major;
    uint32_t minor;
  } version;
  struct DLPackExchangeAPIHeader *prev_api; /* an older version's table, or NULL */
} DLPackExchangeAPIHeader;

typedef struct {
  DLPackExchangeAPIHeader header;
  void (*managed_tensor_allocator)(void);
  void (*managed_tensor_from_py_object_no_sync)(void);
  void (*managed_tensor_to_py_object_no_sync)(void);
  /* Fills a DLTensor that is valid while the object is; 0, or -1 with a Python exception. */
  int (*dltensor_from_py_object_no_sync)(void *py_object, DLTensor *out);
  /* The device's current stream for the calling thread. */
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void **out_stream);
} DLPackExchangeAPI;

#endif
