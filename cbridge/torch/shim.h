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

/* The functions, as F(result, name, parameters). Those that return int32_t give 0, or else have
 * failed. */
#define EPG_TORCH_NEEDED(F)                                                                                                                        \
  F(int32_t, aoti_torch_library_init_fragment, (const char *name, const char *file, uint32_t line, torch_library **library))                       \
  F(int32_t, aoti_torch_library_init_impl, (const char *name, const char *key, const char *file, uint32_t line, torch_library **library))          \
  F(int32_t, aoti_torch_library_def, (torch_library * library, const char *schema))                                                                \
  F(int32_t, torch_library_impl, (torch_library * library, const char *name, torch_kernel kernel, uint64_t version))                               \
  F(void, aoti_torch_check, (int ok, const char *function, const char *file, uint32_t line, const char *message))                                  \
  F(int32_t, aoti_torch_get_data_ptr, (torch_tensor * tensor, void **data))                                                                        \
  F(int32_t, aoti_torch_get_dim, (torch_tensor * tensor, int64_t *rank))                                                                           \
  F(int32_t, aoti_torch_get_sizes, (torch_tensor * tensor, int64_t **sizes))                                                                       \
  F(int32_t, aoti_torch_get_strides, (torch_tensor * tensor, int64_t **strides))                                                                   \
  F(int32_t, aoti_torch_get_dtype, (torch_tensor * tensor, int32_t *dtype))                                                                        \
  F(int32_t, aoti_torch_get_device_type, (torch_tensor * tensor, int32_t *type))                                                                   \
  F(int32_t, aoti_torch_get_device_index, (torch_tensor * tensor, int32_t *index))                                                                 \
  F(int32_t, aoti_torch_empty_strided,                                                                                                             \
    (int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type, int32_t device_index, torch_tensor **tensor)) \
  F(int32_t, aoti_torch_new_uninitialized_tensor, (torch_tensor * *tensor))                                                                        \
  F(int32_t, aoti_torch_delete_tensor_object, (torch_tensor * tensor))                                                                             \
  F(int32_t, aoti_torch_copy_, (torch_tensor * self, torch_tensor * from, int32_t non_blocking))                                                   \
  F(int32_t, torch_string_c_str, (torch_string * string, const char **text))                                                                       \
  F(int32_t, torch_delete_string, (torch_string * string))                                                                                         \
  F(int32_t, torch_list_size, (torch_list * list, size_t *size))                                                                                   \
  F(int32_t, torch_list_get_item, (torch_list * list, size_t index, torch_value *value))                                                           \
  F(int32_t, torch_delete_list, (torch_list * list))                                                                                               \
  F(int32_t, aoti_torch_device_type_cpu, (void))                                                                                                   \
  F(int32_t, aoti_torch_device_type_cuda, (void))                                                                                                  \
  F(int32_t, aoti_torch_dtype_float32, (void))                                                                                                     \
  F(int32_t, aoti_torch_dtype_float64, (void))                                                                                                     \
  F(int32_t, aoti_torch_dtype_bfloat16, (void))                                                                                                    \
  F(int32_t, aoti_torch_dtype_float16, (void))                                                                                                     \
  F(int32_t, aoti_torch_dtype_int64, (void))                                                                                                       \
  F(int32_t, aoti_torch_dtype_int32, (void))                                                                                                       \
  F(uint64_t, aoti_torch_abi_version, (void))                                                                                                      \
  F(int32_t, torch_get_num_threads, (uint32_t *threads))

/* NULL where PyTorch has none: before 2.13 what it deletes came from `new`, after 2.12 its
 * operators have tags, and only PyTorch for CUDA has streams. */
#define EPG_TORCH_OPTIONAL(F)                                                                                                \
  F(int32_t, torch_delete_stable_ivalue, (torch_value * value))                                                              \
  F(const char *, torch_exception_get_what_without_backtrace, (void))                                                        \
  F(int32_t, torch_library_def_with_tags, (torch_library * library, const char *schema, const int32_t *tags, int32_t count)) \
  F(int32_t, torch_tag_pt2_compliant_tag, (void))                                                                            \
  F(int32_t, torch_tag_flexible_layout, (void))                                                                              \
  F(int32_t, aoti_torch_get_current_cuda_stream, (int32_t device_index, void **stream))

#define EPG_SLOT(result, name, parameters) result(*name) parameters;
extern struct epg_torch_shim {
  EPG_TORCH_NEEDED(EPG_SLOT)
  EPG_TORCH_OPTIONAL(EPG_SLOT)
  void (*operator_delete)(void *memory); /* of C++, optional too */
} epg_torch;
#undef EPG_SLOT

/* Finds the functions; returns NULL, or the name of the first that this process does not have. */
const char *epg_torch_find(void);

#endif
