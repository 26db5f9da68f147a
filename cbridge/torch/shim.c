/* Finds PyTorch in this process. Python loads it where dlsym alone does not look, so the libraries
 * are asked for by name; a program may also have it in itself. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "shim.h"

#include <dlfcn.h>

struct epg_torch_shim epg_torch;

static void *find(const char *name) {
  static const char *const libraries[] = {"libtorch_cpu.so", "libtorch_cuda.so", "libtorch_cpu.dylib"};
  void *function = dlsym(RTLD_DEFAULT, name);
  for (size_t i = 0; !function && i < sizeof libraries / sizeof *libraries; i++) {
    void *library = dlopen(libraries[i], RTLD_NOLOAD | RTLD_LAZY);
    if (!library) continue;
    function = dlsym(library, name);
    dlclose(library); /* it stays: it was there before */
  }
  return function;
}

const char *epg_torch_find(void) {
#define SLOT(name)                               \
  {                                              \
    #name, offsetof(struct epg_torch_shim, name) \
  }
  static const struct {
    const char *name;
    size_t slot;
  } needed[] = {SLOT(aoti_torch_library_init_fragment),
                SLOT(aoti_torch_library_init_impl),
                SLOT(aoti_torch_library_def),
                SLOT(torch_library_impl),
                SLOT(aoti_torch_check),
                SLOT(aoti_torch_get_data_ptr),
                SLOT(aoti_torch_get_dim),
                SLOT(aoti_torch_get_sizes),
                SLOT(aoti_torch_get_strides),
                SLOT(aoti_torch_get_dtype),
                SLOT(aoti_torch_get_device_type),
                SLOT(aoti_torch_get_device_index),
                SLOT(aoti_torch_empty_strided),
                SLOT(aoti_torch_new_uninitialized_tensor),
                SLOT(aoti_torch_delete_tensor_object),
                SLOT(torch_string_c_str),
                SLOT(torch_delete_string),
                SLOT(torch_list_size),
                SLOT(torch_list_get_item),
                SLOT(torch_delete_list),
                SLOT(aoti_torch_device_type_cpu),
                SLOT(aoti_torch_device_type_cuda),
                SLOT(aoti_torch_dtype_float32),
                SLOT(aoti_torch_dtype_float64),
                SLOT(aoti_torch_dtype_bfloat16),
                SLOT(aoti_torch_dtype_float16),
                SLOT(aoti_torch_dtype_int64),
                SLOT(aoti_torch_dtype_int32),
                SLOT(aoti_torch_abi_version),
                SLOT(torch_get_num_threads)},
    optional[] = {SLOT(torch_delete_stable_ivalue),
                  {"_ZdlPv", offsetof(struct epg_torch_shim, operator_delete)},
                  SLOT(torch_exception_get_what_without_backtrace),
                  SLOT(torch_library_def_with_tags),
                  SLOT(torch_tag_pt2_compliant_tag),
                  SLOT(torch_tag_flexible_layout),
                  SLOT(aoti_torch_get_current_cuda_stream)};
#undef SLOT
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
    if (!(*(void **)((char *)&epg_torch + needed[i].slot) = find(needed[i].name))) return needed[i].name;
  for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) *(void **)((char *)&epg_torch + optional[i].slot) = find(optional[i].name);
  return epg_torch.torch_delete_stable_ivalue || epg_torch.operator_delete ? NULL : "torch_delete_stable_ivalue";
}
