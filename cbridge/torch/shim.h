/* PyTorch's stable C interface, found at run time: nothing is linked with PyTorch, and one build
 * runs with all its releases from 2.10 on. What the functions do is in PyTorch's headers
 * torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h. */
#ifndef EPG_TORCH_SHIM_H
#define EPG_TORCH_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef struct torch_tensor torch_tensor;
typedef struct torch_library torch_library;
typedef struct torch_string torch_string;
typedef struct torch_list torch_list;

/* One argument or result of an operator: a number, or a pointer that its receiver owns. An optional
 * one is a pointer to a value, or 0. */
typedef uint64_t torch_value;

typedef void (*torch_kernel)(torch_value *stack, uint64_t arguments, uint64_t results);

/* Functions that return int32_t give 0, or else have failed. */
extern struct epg_torch_shim {
  int32_t (*aoti_torch_library_init_fragment)(const char *name, const char *file, uint32_t line, torch_library **library);
  int32_t (*aoti_torch_library_init_impl)(const char *name, const char *key, const char *file, uint32_t line, torch_library **library);
  int32_t (*aoti_torch_library_def)(torch_library *library, const char *schema);
  int32_t (*torch_library_impl)(torch_library *library, const char *name, torch_kernel kernel, uint64_t version);
  void (*aoti_torch_check)(int ok, const char *function, const char *file, uint32_t line, const char *message);

  int32_t (*aoti_torch_get_data_ptr)(torch_tensor *tensor, void **data);
  int32_t (*aoti_torch_get_dim)(torch_tensor *tensor, int64_t *rank);
  int32_t (*aoti_torch_get_sizes)(torch_tensor *tensor, int64_t **sizes);
  int32_t (*aoti_torch_get_strides)(torch_tensor *tensor, int64_t **strides);
  int32_t (*aoti_torch_get_dtype)(torch_tensor *tensor, int32_t *dtype);
  int32_t (*aoti_torch_get_device_type)(torch_tensor *tensor, int32_t *type);
  int32_t (*aoti_torch_get_device_index)(torch_tensor *tensor, int32_t *index);
  int32_t (*aoti_torch_empty_strided)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type, int32_t device_index,
                                      torch_tensor **tensor);
  int32_t (*aoti_torch_new_uninitialized_tensor)(torch_tensor **tensor);
  int32_t (*aoti_torch_delete_tensor_object)(torch_tensor *tensor);

  int32_t (*torch_string_c_str)(torch_string *string, const char **text);
  int32_t (*torch_delete_string)(torch_string *string);
  int32_t (*torch_list_size)(torch_list *list, size_t *size);
  int32_t (*torch_list_get_item)(torch_list *list, size_t index, torch_value *value);
  int32_t (*torch_delete_list)(torch_list *list);

  int32_t (*aoti_torch_device_type_cpu)(void);
  int32_t (*aoti_torch_device_type_cuda)(void);
  int32_t (*aoti_torch_dtype_float32)(void);
  int32_t (*aoti_torch_dtype_float64)(void);
  int32_t (*aoti_torch_dtype_bfloat16)(void);
  int32_t (*aoti_torch_dtype_float16)(void);
  int32_t (*aoti_torch_dtype_int64)(void);
  int32_t (*aoti_torch_dtype_int32)(void);
  uint64_t (*aoti_torch_abi_version)(void);
  int32_t (*torch_get_num_threads)(uint32_t *threads);

  /* NULL where PyTorch has none: before 2.13 what it deletes came from `new`, after 2.12 its
   * operators have tags, and only PyTorch for CUDA has streams. */
  int32_t (*torch_delete_stable_ivalue)(torch_value *value);
  void (*operator_delete)(void *memory);
  const char *(*torch_exception_get_what_without_backtrace)(void);
  int32_t (*torch_library_def_with_tags)(torch_library *library, const char *schema, const int32_t *tags, int32_t count);
  int32_t (*torch_tag_pt2_compliant_tag)(void);
  int32_t (*torch_tag_flexible_layout)(void);
  int32_t (*aoti_torch_get_current_cuda_stream)(int32_t device_index, void **stream);
} epg_torch;

/* Finds the functions; returns NULL, or the name of the first that this process does not have. */
const char *epg_torch_find(void);

#endif
