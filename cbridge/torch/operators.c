/* The operators' kernels. All run one function, on rows that are read out of the schemas. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "../launch.h"
#include "shim.h"
#include "torch.h"

/* The release of PyTorch whose rules for values these kernels follow: a newer one keeps them. */
#define WRITTEN_FOR ((UINT64_C(2) << 56) | (UINT64_C(15) << 48))

/* What an argument of an operator is to its call. */
typedef enum { OPERAND, KIND, PARAMETERS, NUMBER, DIM, GATE, SAVE, NEEDS, BACKEND, BATCH_INVARIANT } role;

enum { MOST_ARGUMENTS = 24 };

/* An operator: an operation of go/op, without adapters or with them. */
typedef struct {
  const char *name, *overload, *schema; /* the overload is "" or ".adapted" */
  epg_kept keeps;
  torch_kernel kernel;
  int arguments, results; /* how many; 0 arguments: the schema has not been read */
  role roles[MOST_ARGUMENTS];
  uint8_t optional[MOST_ARGUMENTS];
} row;

static const char file[] = "cbridge/torch/operators.c"; /* for PyTorch's messages */

static int (*allows_tf32)(void); /* NULL: PyTorch does not tell, so they are not */

/* --- schemas ---------------------------------------------------------------------------------- */

/* What an argument with a type and a name is; -1 for none that is known. */
static int role_of(const char *type, const char *name, size_t length) {
  static const struct {
    const char *name;
    role role;
  } known[] = {{"activation", KIND},
               {"kind", KIND},
               {"parameters", PARAMETERS},
               {"factor", NUMBER},
               {"beta", NUMBER},
               {"dim", DIM},
               {"gate", GATE},
               {"save", SAVE},
               {"needs", NEEDS},
               {"backend", BACKEND},
               {"batch_invariant", BATCH_INVARIANT}};
  if (!strncmp(type, "Tensor", strlen("Tensor"))) return OPERAND;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strlen(known[i].name) == length && !strncmp(name, known[i].name, length)) return known[i].role;
  return -1;
}

/* The end of an argument: a comma, or the bracket that closes the list. Lists are defaults too. */
static const char *end_of(const char *text) {
  for (int depth = 0; *text; text++) {
    if (!depth && (*text == ',' || *text == ')')) return text;
    depth += (*text == '[') - (*text == ']');
  }
  return text;
}

/* Reads a row's arguments and counts its results; returns 0, or -1 for a schema of another form. */
static int read_schema(row *r) {
  const char *at = r->schema + 1, *end;
  for (; (end = end_of(at)), *at != ')' && *end; at = *end == ',' ? end + 2 : end) {
    if (*at == '*') continue;
    const char *name = strchr(at, ' ');
    if (!name || name > end || r->arguments == MOST_ARGUMENTS) return -1;
    const int role = role_of(at, name + 1, strcspn(name + 1, "=,)"));
    if (role < 0) return -1;
    r->roles[r->arguments] = role;
    r->optional[r->arguments++] = name[-1] == '?';
  }
  const char *results = strstr(at, "-> ");
  if (!results || !r->arguments) return -1;
  r->results = 1;
  for (; *results; results++) r->results += *results == ',';
  return r->results <= MAX_OUTPUTS ? 0 : -1;
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* PyTorch's numbers for what a DLTensor has. */
static struct {
  int32_t cpu, cuda;
  struct {
    int32_t number;
    DLDataType dtype;
  } dtypes[6];
} numbers;

static void read_numbers(void) {
  static const DLDataType dtypes[] = {{kDLFloat, 32, 1}, {kDLFloat, 64, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}, {kDLInt, 64, 1}, {kDLInt, 32, 1}};
  int32_t (*const numbers_of[])(void) = {epg_torch.aoti_torch_dtype_float32, epg_torch.aoti_torch_dtype_float64, epg_torch.aoti_torch_dtype_bfloat16,
                                         epg_torch.aoti_torch_dtype_float16, epg_torch.aoti_torch_dtype_int64,   epg_torch.aoti_torch_dtype_int32};
  numbers.cpu = epg_torch.aoti_torch_device_type_cpu();
  numbers.cuda = epg_torch.aoti_torch_device_type_cuda();
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    numbers.dtypes[i].number = numbers_of[i]();
    numbers.dtypes[i].dtype = dtypes[i];
  }
}

/* Describes a tensor; returns 0, or -1 for one without strided memory. */
static int describe(torch_tensor *tensor, DLTensor *t) {
  int32_t dtype = 0, type = 0, index = 0;
  int64_t rank = 0;
  if (epg_torch.aoti_torch_get_dtype(tensor, &dtype) || epg_torch.aoti_torch_get_device_type(tensor, &type) ||
      epg_torch.aoti_torch_get_device_index(tensor, &index) || epg_torch.aoti_torch_get_dim(tensor, &rank))
    return -1;
  *t = (DLTensor){.ndim = (int32_t)rank, .dtype = {255, 0, 1}}; /* none: Go refuses it */
  for (size_t i = 0; i < sizeof numbers.dtypes / sizeof *numbers.dtypes; i++)
    if (numbers.dtypes[i].number == dtype) t->dtype = numbers.dtypes[i].dtype;
  if (type == numbers.cpu) t->device = (DLDevice){kDLCPU, 0};
  if (type == numbers.cuda) t->device = (DLDevice){kDLCUDA, index};
  return epg_torch.aoti_torch_get_data_ptr(tensor, &t->data) || epg_torch.aoti_torch_get_sizes(tensor, &t->shape) ||
         epg_torch.aoti_torch_get_strides(tensor, &t->strides);
}

/* `self` is the operands. */
static void *make_tensor(void *self, int like_input, const int64_t *sizes, const int64_t *strides, int32_t rank, DLTensor *t) {
  torch_tensor *tensor, *like = ((torch_tensor *const *)self)[like_input];
  int32_t dtype = 0, type = 0, index = 0;
  if (epg_torch.aoti_torch_get_dtype(like, &dtype) || epg_torch.aoti_torch_get_device_type(like, &type) ||
      epg_torch.aoti_torch_get_device_index(like, &index) || epg_torch.aoti_torch_empty_strided(rank, sizes, strides, dtype, type, index, &tensor))
    return NULL;
  if (!describe(tensor, t)) return tensor;
  epg_torch.aoti_torch_delete_tensor_object(tensor);
  return NULL;
}

static int copy_tensor(void *self, int i, void *tensor) { return epg_torch.aoti_torch_copy_(tensor, ((torch_tensor *const *)self)[i], 0) ? -1 : 0; }

static void drop_tensor(void *self, void *tensor) {
  (void)self;
  epg_torch.aoti_torch_delete_tensor_object(tensor);
}

/* --- arguments -------------------------------------------------------------------------------- */

/* A value that is not None, or NULL. */
static const torch_value *present(const row *r, const torch_value *stack, int i) {
  return r->optional[i] ? (const torch_value *)(uintptr_t)stack[i] : &stack[i];
}

static void *pointer(torch_value value) { return (void *)(uintptr_t)value; }

/* The text of a string, which lives as long as the argument. */
static const char *text_of(const torch_value *value) {
  const char *text = NULL;
  if (value) epg_torch.torch_string_c_str(pointer(*value), &text);
  return text;
}

/* Fails for an argument that is wrong; returns the status. */
static int32_t refuse(int32_t status, const char *op, const char *argument, const char *text) {
  char message[512];
  const int length = snprintf(message, sizeof message, "%s: %s: %s", op, argument, text);
  epg_set_last_error(message, length < (int)sizeof message ? (size_t)length : sizeof message - 1, 0, 0);
  return status;
}

static int32_t invalid(const char *op, const char *argument, const char *got, const char *want) {
  char text[256];
  snprintf(text, sizeof text, "got '%s', want %s", got ? got : "", want);
  return refuse(EPG_INVALID_PROBLEM, op, argument, text);
}

/* Whether an operator keeps its preactivation: that of a hidden layer, which is formed from it, or
 * one that its slope depends on. */
static int keeps_preactivation(const row *r, const char *kind, const char *save) {
  if (!strcmp(save, "recompute")) return 0;
  if (r->keeps == EPG_KEEPS_HIDDEN) return 1;
  const epg_slope slope = kind ? epg_slope_of(kind) : EPG_SLOPE_OF_NOTHING;
  if (r->keeps == EPG_KEEPS_OUTPUT && slope == EPG_SLOPE_OF_OUTPUT) return strcmp(save, "auto") != 0;
  return slope != EPG_SLOPE_OF_NOTHING;
}

static int32_t read_operand(call_arguments *a, const torch_value *value) {
  const int i = a->call.num_inputs++;
  a->inputs[i] = value ? &a->tensors[i] : NULL;
  if (!value || !describe(pointer(*value), &a->tensors[i])) return EPG_OK;
  return refuse(EPG_UNSUPPORTED, a->call.op, "tensor", "got a tensor without strided memory of its own, want a plain strided one");
}

static int32_t read_parameters(call_arguments *a, const torch_value *value) {
  size_t count = 0;
  if (epg_torch.torch_list_size(pointer(*value), &count)) return EPG_FRAMEWORK_FAILED;
  if (count > EPG_MOST_PARAMETERS) return refuse(EPG_INVALID_PROBLEM, a->call.op, "parameters", "got more than any kind has, want those of the kind");
  for (size_t i = 0; i < count; i++) {
    torch_value bits = 0;
    if (epg_torch.torch_list_get_item(pointer(*value), i, &bits)) return EPG_FRAMEWORK_FAILED;
    memcpy(&a->parameters[i], &bits, sizeof bits);
  }
  a->call.parameters = a->parameters;
  a->call.num_parameters = (int32_t)count;
  return EPG_OK;
}

static int32_t read_gate(call_arguments *a, const char *gate) {
  static const char *const places[] = {[EPG_GATE_SECOND] = "second", [EPG_GATE_FIRST] = "first", [EPG_GATE_ODD] = "odd", [EPG_GATE_EVEN] = "even"};
  for (size_t i = 0; gate && i < sizeof places / sizeof *places; i++) {
    a->call.gate = (int32_t)i;
    if (!strcmp(gate, places[i])) return EPG_OK;
  }
  return invalid(a->call.op, "gate", gate, "'second', 'first', 'odd' or 'even'");
}

/* Reads an operator's arguments: a call of its operation, and a flag for each output. */
static int32_t read_arguments(const row *r, const torch_value *stack, call_arguments *a, uint8_t *wanted) {
  int32_t status = EPG_OK;
  const char *save = NULL;
  memset(&a->call, 0, sizeof a->call);
  a->call = (epg_call){.struct_size = sizeof a->call, .op = r->name, .inputs = a->inputs};
  memset(wanted, 0, MAX_OUTPUTS);
  wanted[0] = 1;
  for (int i = 0; i < r->arguments && !status; i++) {
    const torch_value *value = present(r, stack, i);
    switch (r->roles[i]) {
      case OPERAND:
        status = read_operand(a, value);
        break;
      case KIND:
        a->call.kind = text_of(value);
        break;
      case PARAMETERS:
        status = read_parameters(a, value);
        break;
      case NUMBER:
        a->call.parameters = a->parameters;
        if ((a->call.num_parameters = value != NULL)) memcpy(a->parameters, value, sizeof *value);
        break;
      case DIM:
        a->call.dim = (int32_t)(int64_t)*value;
        if (a->call.dim != (int64_t)*value) status = refuse(EPG_INVALID_PROBLEM, r->name, "dim", "got a number beyond 32 bits, want a dimension of the input");
        break;
      case GATE:
        status = read_gate(a, text_of(value));
        break;
      case SAVE:
        save = text_of(value);
        if (!save || (strcmp(save, "auto") && strcmp(save, "preactivation") && strcmp(save, "recompute")))
          status = invalid(r->name, "save", save, "'auto', 'preactivation' or 'recompute'");
        break;
      case NEEDS:
        for (int place = 0; place < r->results; place++) {
          torch_value need = 0;
          if (epg_torch.torch_list_get_item(pointer(*value), (size_t)place, &need)) status = EPG_FRAMEWORK_FAILED;
          wanted[place] = (uint8_t)(need & 0xff); /* a bool is a byte */
        }
        break;
      case BACKEND:
        a->call.backend = text_of(value);
        break;
      case BATCH_INVARIANT:
        if (*value & 0xff) a->call.flags |= EPG_BATCH_INVARIANT; /* a bool is a byte */
        break;
    }
  }
  if (save && !status) wanted[1] = (uint8_t)keeps_preactivation(r, a->call.kind, save);
  return status;
}

/* Adds what is the calling thread's: PyTorch's threads, stream and precision. Returns a status. */
static int32_t read_surroundings(call_arguments *a) {
  uint32_t threads = 0;
  epg_torch.torch_get_num_threads(&threads);
  a->call.num_threads = (int32_t)threads;
  const DLTensor *first = a->inputs[0];
  if (allows_tf32 && epg_launch_may_use_tf32(a) && allows_tf32()) a->call.flags |= EPG_ALLOW_TF32;
  if (first->device.device_type != kDLCUDA || !epg_torch.aoti_torch_get_current_cuda_stream) return EPG_OK;
  return epg_torch.aoti_torch_get_current_cuda_stream(first->device.device_id, &a->call.stream) ? EPG_FRAMEWORK_FAILED : EPG_OK;
}

static void delete_value(torch_value *value) {
  if (epg_torch.torch_delete_stable_ivalue)
    epg_torch.torch_delete_stable_ivalue(value);
  else
    epg_torch.operator_delete(value);
}

/* Gives an operator's arguments back: they are the kernel's. */
static void release_arguments(const row *r, torch_value *stack) {
  for (int i = 0; i < r->arguments; i++) {
    const torch_value *value = present(r, stack, i);
    if (!value) continue;
    switch (r->roles[i]) {
      case OPERAND:
        epg_torch.aoti_torch_delete_tensor_object(pointer(*value));
        break;
      case KIND:
      case GATE:
      case SAVE:
      case BACKEND:
        epg_torch.torch_delete_string(pointer(*value));
        break;
      case PARAMETERS:
      case NEEDS:
        epg_torch.torch_delete_list(pointer(*value));
        break;
      case NUMBER:
      case DIM:
      case BATCH_INVARIANT:
        break;
    }
    if (r->optional[i]) delete_value(pointer(stack[i]));
  }
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* What stands for a result that is not wanted: a preactivation has no elements, and a gradient is
 * undefined, which Python sees as None. */
static void *absent(const call_arguments *a, int output, void *operands) {
  static const int64_t size = 0, stride = 1;
  torch_tensor *tensor = NULL;
  DLTensor t;
  if (epg_operation_of(a->call.op)->gradient_of[output] < 0) return make_tensor(operands, 0, &size, &stride, 1, &t);
  return epg_torch.aoti_torch_new_uninitialized_tensor(&tensor) ? NULL : tensor;
}

/* Runs an operator: its arguments go, its results come in their place. Returns a status. */
static int32_t run(const row *r, torch_value *stack) {
  call_arguments a;
  uint8_t wanted[MAX_OUTPUTS];
  void *tensors[MAX_OUTPUTS] = {NULL};
  int32_t status = read_arguments(r, stack, &a, wanted);
  if (!status) {
    torch_tensor *operands[MAX_INPUTS];
    for (int i = 0, n = 0; i < r->arguments; i++) {
      const torch_value *value = present(r, stack, i);
      if (r->roles[i] == OPERAND) operands[n++] = value ? pointer(*value) : NULL;
    }
    const epg_framework torch = {.self = operands, .make = make_tensor, .drop = drop_tensor, .copy = copy_tensor};
    status = read_surroundings(&a);
    if (!status) status = epg_launch(&a, wanted, r->results, &torch, tensors);
    for (int i = 0; !status && i < r->results; i++)
      if (!tensors[i] && !(tensors[i] = absent(&a, i, operands))) status = EPG_FRAMEWORK_FAILED;
  }
  release_arguments(r, stack);
  for (int i = 0; i < r->results; i++) {
    if (status && tensors[i]) epg_torch.aoti_torch_delete_tensor_object(tensors[i]);
    stack[i] = (torch_value)(uintptr_t)tensors[i];
  }
  return status;
}

/* Throws C++'s exception, through C: with what PyTorch says of memory that it could not give, or
 * with the core's text after the name of the exception that stands for it in Python. */
static void fail(int32_t status, const char *name) {
  char message[4200];
  const char *text = "epigrad: PyTorch cannot allocate memory";
  if (status == EPG_FRAMEWORK_FAILED && epg_torch.torch_exception_get_what_without_backtrace) text = epg_torch.torch_exception_get_what_without_backtrace();
  if (status == EPG_FRAMEWORK_FAILED)
    snprintf(message, sizeof message, "%s", text);
  else
    snprintf(message, sizeof message, "%s: %s", epg_status_class(status), epg_last_error());
  epg_torch.aoti_torch_check(0, name, file, __LINE__, message);
}

/* A kernel has no room for data of its own, so each operator has a function: that of its row. */
#define KERNELS(K, tens) K(tens##0) K(tens##1) K(tens##2) K(tens##3) K(tens##4) K(tens##5) K(tens##6) K(tens##7) K(tens##8) K(tens##9)
#define ALL_KERNELS(K) KERNELS(K, ) KERNELS(K, 1) KERNELS(K, 2) KERNELS(K, 3) KERNELS(K, 4) KERNELS(K, 5)
enum { MOST_OPERATORS = 60 };

static row rows[MOST_OPERATORS];
static int operators; /* how many rows there are */

#define KERNEL(place)                                                                 \
  static void run_##place(torch_value *stack, uint64_t arguments, uint64_t results) { \
    (void)arguments, (void)results;                                                   \
    const int32_t status = run(&rows[place], stack);                                  \
    if (status) fail(status, rows[place].name);                                       \
  }
ALL_KERNELS(KERNEL)
#undef KERNEL
#define KERNEL(place) run_##place,
static const torch_kernel kernels[MOST_OPERATORS] = {ALL_KERNELS(KERNEL)};
#undef KERNEL

/* --- registration ----------------------------------------------------------------------------- */

/* Fails for want of something of PyTorch's. */
static int32_t lacks(const char *what) {
  char text[160];
  const int length = snprintf(text, sizeof text, "torch: %s: not found in this process, want PyTorch 2.10 or newer, loaded before epigrad's operators", what);
  epg_set_last_error(text, (size_t)length, 0, 0);
  return EPG_BACKEND_UNAVAILABLE;
}

/* Gets ready to register: finds PyTorch and reads the schemas. */
static int32_t get_ready(void) {
  const char *missing = epg_torch_find();
  if (missing) return lacks(missing);
  read_numbers();
  int32_t count;
  const epg_operation *all = epg_operations(&count);
  if (!all) return epg_refuse_forked();
  if (2 * count > MOST_OPERATORS) return lacks("a function for each operator");
  if (operators) return EPG_OK;
  for (int i = 0; i < 2 * count; i++) {
    const epg_operation *o = &all[i / 2];
    const int adapted = i % 2;
    if (adapted && !*o->adapted) continue;
    row *r = &rows[operators];
    *r = (row){.name = o->name, .overload = adapted ? ".adapted" : "", .schema = adapted ? o->adapted : o->schema, .keeps = (epg_kept)o->keeps};
    r->kernel = kernels[operators++];
    if (read_schema(r)) return lacks(r->name);
  }
  return EPG_OK;
}

/* Gives the operators their kernels, under their names with a prefix. */
static int32_t give_kernels(const char *prefix) {
  static const char *const keys[] = {"CPU", "CUDA"};
  const uint64_t here = epg_torch.aoti_torch_abi_version();
  for (int k = 0; k < 2; k++) {
    torch_library *library; /* kernels live as long as it: for ever */
    if (epg_torch.aoti_torch_library_init_impl("epigrad", keys[k], file, __LINE__, &library)) return lacks(keys[k]);
    for (int i = 0; i < operators; i++) {
      char name[64];
      snprintf(name, sizeof name, "%s%s%s", prefix, rows[i].name, rows[i].overload);
      if (epg_torch.torch_library_impl(library, name, rows[i].kernel, here < WRITTEN_FOR ? here : WRITTEN_FOR)) return lacks(name);
    }
  }
  return EPG_OK;
}

int32_t epg_torch_give_kernels(int (*tf32)(void)) {
  const int32_t status = get_ready();
  allows_tf32 = tf32;
  return status ? status : give_kernels("_");
}

/* Defines an operator, for torch.compile with the tags that python/epigrad/ops gives it. */
static int32_t define(torch_library *library, const char *prefix, const row *r) {
  char schema[1200];
  snprintf(schema, sizeof schema, "%s%s%s%s", prefix, r->name, r->overload, r->schema);
  if (!epg_torch.torch_library_def_with_tags) return epg_torch.aoti_torch_library_def(library, schema);
  const int32_t tags[] = {epg_torch.torch_tag_pt2_compliant_tag(), epg_torch.torch_tag_flexible_layout()};
  return epg_torch.torch_library_def_with_tags(library, schema, tags, sizeof tags / sizeof *tags);
}

/* Defines all operators, and gives them their kernels. If the first one
 * is already defined, another library has defined all of them. */
static int32_t define_all(void) {
  static torch_library *library;
  if (epg_torch.aoti_torch_library_init_fragment("epigrad", file, __LINE__, &library)) return lacks("a library of operators");
  for (int i = 0; i < operators; i++) {
    const int known = define(library, "", &rows[i]) != 0;
    if (known && !i) return EPG_OK;
    if (known || define(library, "_", &rows[i])) return lacks(rows[i].name);
  }
  const int32_t status = give_kernels("");
  return status ? status : give_kernels("_");
}

int32_t epg_torch_register(void) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static int tried;
  static int32_t result; /* of the one time that operators can be defined */
  pthread_mutex_lock(&lock);
  int32_t status = get_ready();
  if (!status && !tried) {
    tried = 1;
    result = define_all();
  }
  if (!status && (status = result)) lacks("operator registration");
  pthread_mutex_unlock(&lock);
  return status;
}
