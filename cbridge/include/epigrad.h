/* epigrad's C interface: differentiable fused epilogues, forward and backward.
 *
 * A call names an operation and gives its tensors as DLTensors, in the order below; NULL is an
 * absent one. Absent outputs are not computed. All memory is the caller's: outputs and workspace
 * come in, nothing is kept after the call returns. Functions return EPG_OK or another status, with
 * a message in epg_last_error; nothing has been written then. A null pointer where a result goes is
 * EPG_INVALID_PROBLEM, unless it is said to be optional. They may be called from any thread.
 *
 *   op                              inputs -> outputs
 *   matmul_bias_activation          a b bias? -> out preactivation
 *   matmul_bias_activation_backward grad_output a b bias? preactivation? output? -> grad_a grad_b grad_bias
 *   linear                          input weight bias? adapter.a? adapter.b? -> out preactivation
 *   linear_backward                 grad_output input weight bias? preactivation? output? adapter.a? adapter.b? ->
 *                                     grad_input grad_weight grad_bias grad_adapter.a grad_adapter.b
 *   activation                      input -> out
 *   activation_backward             grad_output input -> grad_input out grad_bias
 *   activation_backward_backward    grad_grad_input grad_output input? output? -> grad_grad_output grad_input
 *   gated_activation                input -> out
 *   gated_activation_backward       grad_output input -> grad_input grad_bias
 *   gated_activation_backward_backward grad_grad_input grad_output input -> grad_grad_output grad_input
 *   gated_product                   value gate -> out
 *   gated_product_backward          grad_output value gate -> grad_value grad_gate grad_bias_value grad_bias_gate
 *   gated_product_backward_backward grad_grad_value grad_grad_gate grad_output value gate -> grad_grad_output
 *                                     grad_value grad_gate
 *   lerp                            start end weight? -> out
 *   lerp_backward                   grad_output start? end? weight? -> grad_start grad_end grad_weight
 *   prelu                           input weight -> out
 *   prelu_backward                  grad_output input weight -> grad_input grad_weight
 *   xielu                           input alpha_p alpha_n -> out
 *   xielu_backward                  grad_output input alpha_p alpha_n -> grad_input grad_alpha_p grad_alpha_n
 *   gated_linear                    input weight_value weight_gate bias_value? bias_gate? adapter_value.a?
 *                                     adapter_value.b? adapter_gate.a? adapter_gate.b? -> out preactivation
 *   gated_linear_backward           grad_output input weight_value weight_gate bias_value? bias_gate? preactivation?
 *                                     adapter_value.a? adapter_value.b? adapter_gate.a? adapter_gate.b? -> grad_input
 *                                     grad_weight_value grad_weight_gate grad_bias_value grad_bias_gate
 *                                     grad_adapter_value.a grad_adapter_value.b grad_adapter_gate.a grad_adapter_gate.b
 *   mlp                             input weight1 bias1? weight2 bias2? adapter1.a? adapter1.b? adapter2.a? adapter2.b?
 *                                     -> out preactivation
 *   mlp_backward                    grad_output input weight1 bias1? weight2 bias2? preactivation? adapter1.a?
 *                                     adapter1.b? adapter2.a? adapter2.b? -> grad_input grad_weight1 grad_bias1
 *                                     grad_weight2 grad_bias2 grad_adapter1.a grad_adapter1.b grad_adapter2.a
 *                                     grad_adapter2.b
 *   gated_mlp                       input weight_in bias_in? weight_out bias_out? adapter_in.a? adapter_in.b?
 *                                     adapter_out.a? adapter_out.b? -> out preactivation
 *   gated_mlp_backward              grad_output input weight_in bias_in? weight_out bias_out? preactivation?
 *                                     adapter_in.a? adapter_in.b? adapter_out.a? adapter_out.b? -> grad_input
 *                                     grad_weight_in grad_bias_in grad_weight_out grad_bias_out grad_adapter_in.a
 *                                     grad_adapter_in.b grad_adapter_out.a grad_adapter_out.b
 *   grouped_linear                  input weight bias? offsets adapter.a? adapter.b? -> out preactivation
 *   grouped_linear_backward         grad_output input weight bias? offsets preactivation? adapter.a? adapter.b? ->
 *                                     grad_input grad_weight grad_bias grad_adapter.a grad_adapter.b
 *   experts                         input index scale weight_in bias_in? weight_out bias_out? adapter_in.a?
 *                                     adapter_in.b? adapter_out.a? adapter_out.b? -> out preactivation
 *   experts_backward                grad_output input index scale weight_in bias_in? weight_out bias_out?
 *                                     preactivation? adapter_in.a? adapter_in.b? adapter_out.a? adapter_out.b? ->
 *                                     grad_input grad_scale grad_weight_in grad_bias_in grad_weight_out grad_bias_out
 *                                     grad_adapter_in.a grad_adapter_in.b grad_adapter_out.a grad_adapter_out.b
 *
 * kind is an activation, of which NULL is "none", for gated_* a gated kind, and for experts either
 * one; epg_kinds lists both. Shapes follow PyTorch: matmul's for matmul_*, [..., k] and [n, k] for
 * linear, broadcasting for lerp. grad_bias of gated_activation_backward is grad_input summed over
 * all dimensions but dim, before it is rounded; those of activation_backward and
 * gated_product_backward over all but the last. activation_backward's out is act(input), and its
 * grad_input may be grad_output. prelu's weight has one element, or one for each index of the
 * input's second dimension. xielu's alphas have one element. gated_linear is gated_product of two
 * linear layers; its preactivation has value and gate side by side. mlp is two linear layers,
 * gated_mlp has gated_activation between them. dtypes: float32, float64, bfloat16, float16, one per
 * call.
 *
 * grouped_linear is a linear layer with a weight for each group of rows: input [T, K], weight
 * [E, N, K], bias [E, N], and offsets [E], int32 or int64, where each group's rows end. Rows after
 * the last group are not read, and their results are 0. Offsets that fall, are negative or exceed T
 * are an error on a CPU, and are clamped elsewhere. experts is a mlp or gated_mlp of each expert:
 * out[t] = sum over j of scale[t, j] block[index[t, j]](input[t]), with input [T, K], index [T, k],
 * int64, scale [T, k], weight_in [E, 2H, K] (for an activation [E, H, K]), weight_out [E, K, H],
 * biases of their rows. An index outside of 0 to E - 1 adds 0. scale may be float32 beside half
 * types. The preactivation is [T k, 2H], its rows sorted by expert, token and j. Those of an index
 * that is no expert's come last; what they hold is undefined. It may have fewer rows: an index that
 * would have a later one then adds 0.
 *
 * adapter.a [r, K] and adapter.b [N, r], of groups and experts [E, r, K] and [E, N, r], are a
 * low-rank update (LoRA) of the weight with the same ending: adapter1 is weight1's. The layer has
 * the weight W + b a, which is never formed. Give both or neither, in the call's dtype; r may be 0.
 * A scale is the caller's to multiply with a, and with a's gradient.
 *
 * Beside half types the gradients of weights, biases and adapters may be float32: what was summed
 * is then stored, or added, without being rounded.
 *
 * A process that has called epigrad cannot use it in a child made by fork() without exec: every
 * function then returns EPG_BACKEND_UNAVAILABLE.
 */
#ifndef EPIGRAD_H
#define EPIGRAD_H

#include <stddef.h>
#include <stdint.h>

#include "dlpack.h"

#define EPG_VERSION "0.3.0"

/* Changes when a struct or the meaning of a function does. */
#define EPG_ABI_VERSION 4

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. */
enum {
  EPG_OK = 0,
  EPG_INVALID_PROBLEM = 1,     /* shapes, dims, kinds, strides or aliasing that make no sense */
  EPG_DTYPE = 2,               /* a dtype outside the four, or a mix */
  EPG_UNSUPPORTED = 3,         /* meaningful, but this backend has no kernel for it */
  EPG_DEVICE_MISMATCH = 4,     /* tensors on different devices */
  EPG_MISALIGNED_OPERAND = 5,  /* a buffer not aligned to its element */
  EPG_WORKSPACE_TOO_SMALL = 6, /* see epg_last_error_bytes */
  /* nbytes is less than shape and strides reach; see epg_last_error_bytes */
  EPG_BUFFER_TOO_SMALL = 7,
  EPG_BACKEND_UNAVAILABLE = 8, /* the tensors' backend cannot run here */
  EPG_DEVICE_ERROR = 9,        /* the driver reported a failure */
  EPG_INTERNAL = 10            /* a defect in epigrad */
};

/* epg_call.flags. A bit that is none of these is EPG_INVALID_PROBLEM. So is a flag, a kind, a
 * parameter, a dim or a gate that the operation does not have. */
enum {
  /* *_backward of matmul, linear, gated_linear, mlp, gated_mlp, grouped_linear and experts: add
   * into the gradients of weights, biases and adapters */
  EPG_ACCUMULATE = 1,
  /* the same operations, and forward: CUDA may compute float32 products in TF32 */
  EPG_ALLOW_TF32 = 2,
  /* epg_validate, epg_plan_validate: take a sufficient workspace for granted; running ignores it */
  EPG_ASSUME_WORKSPACE = 4,
  /* operations with a product: bits of a row of the output, and of the gradients to the input and
   * to the preactivation, depend neither on other rows nor on how many there are */
  EPG_BATCH_INVARIANT = 8
};

/* epg_call.gate: where the gates are, along dim of gated_activation's input, or among the rows of
 * the weight_in of gated_mlp and experts: the second half, the first, or every other one, from
 * place 1 or 0 on. */
enum { EPG_GATE_SECOND = 0, EPG_GATE_FIRST = 1, EPG_GATE_ODD = 2, EPG_GATE_EVEN = 3 };

/* The most dimensions of a tensor, and the most tensors of a call. */
#define EPG_MAX_RANK 64
#define EPG_MAX_INPUTS 13
#define EPG_MAX_OUTPUTS 10

typedef struct epg_call {
  uint32_t struct_size; /* sizeof(epg_call) */
  uint32_t flags;
  const char *op;
  const char *kind;
  /* num_parameters of them: the kind's, all, in the order of epg_kinds; or lerp's weight, where it
   * is a number; or xielu's beta */
  const double *parameters;
  /* The numbers from here to num_outputs are neighbours: caches of calls take them as they lie. */
  int32_t num_parameters; /* 0: the defaults; for lerp, the weight is a tensor */
  /* gated_activation: the dimension that is split; may count from the end */
  int32_t dim;
  int32_t gate; /* gated_activation, gated_mlp, experts: one of EPG_GATE_SECOND to EPG_GATE_EVEN */
  /* CPU: the most threads to use; 0 lets epigrad choose. A negative number is
   * EPG_INVALID_PROBLEM. */
  int32_t num_threads;
  int32_t num_inputs;
  int32_t num_outputs;
  const DLTensor *const *inputs;
  DLTensor *const *outputs;
  /* Bytes of each tensor's buffer from data + byte_offset on, inputs first, then outputs; 0 is
   * unknown, and so is NULL for all. */
  const uint64_t *nbytes;
  /* aligned to 256 bytes (the CPU backend accepts 64); epg_infer says how much is needed */
  void *workspace;
  uint64_t workspace_nbytes;
  /* the device stream's handle; NULL on CPU and WebGPU, where another is EPG_INVALID_PROBLEM */
  void *stream;
  /* which backend runs tensors in the host's memory: "cpu", which NULL is too, or "webgpu" */
  const char *backend;
} epg_call;

/* EPG_ABI_VERSION of the library, to compare with the header's. */
int32_t epg_abi_version(void);

/* EPG_VERSION of the library. */
const char *epg_version(void);

/* Computes the outputs that the call gives. */
int32_t epg_run(const epg_call *call);

/* Returns the status that epg_run would, and touches nothing. */
int32_t epg_validate(const epg_call *call);

/* Tells what a call needs, from its tensors' geometry alone (no data is read). The workspace is for
 * the call's outputs with their strides, and for contiguous ones in the place of wanted outputs
 * that the call leaves out. workspace_nbytes may be NULL.
 *
 * wanted has a flag for each output of the op, NULL for all. The caller makes room for the most
 * outputs that an operation has and the most dimensions, whatever this op's are:
 *
 *   ranks[EPG_MAX_OUTPUTS]
 *   shapes[EPG_MAX_OUTPUTS * EPG_MAX_RANK]
 *
 * The room is not checked. Libraries with this header's EPG_ABI_VERSION have the same numbers.
 *
 * ranks[i] is output i's number of dimensions, or -1 where it is not wanted or cannot exist. Its
 * sizes start at shapes[i * EPG_MAX_RANK]. All EPG_MAX_OUTPUTS ranks are written. */
int32_t epg_infer(const epg_call *call, const uint8_t *wanted, int64_t *shapes, int32_t *ranks, uint64_t *workspace_nbytes);

/* A plan: a problem, validated once, with its kernel chosen. The call describes the problem: data
 * pointers are not read, and outputs that it leaves out are taken as contiguous. exact_strides has
 * a flag for each tensor of the call, inputs first, then outputs: whether the tensors of
 * epg_plan_run must have just those strides; NULL for none. */
typedef int64_t epg_plan;
int32_t epg_plan_create(const epg_call *call, const uint8_t *exact_strides, epg_plan *plan);
int32_t epg_plan_workspace(epg_plan plan, uint64_t *workspace_nbytes);

/* What a plan runs, and what holds of its results. The texts belong to the plan and end with it. */
typedef struct epg_plan_facts {
  uint32_t struct_size; /* sizeof(epg_plan_facts) */
  int32_t vector_width;
  int32_t deterministic; /* this and the next two are 0 or 1 */
  int32_t bit_stable_on_same_hardware;
  int32_t batch_invariant;
  const char *op;
  const char *kind; /* with the parameters that are not defaults */
  const char *dtype;
  const char *accumulator;
  const char *math_precision; /* the dtype of the formulas, or "tf32" */
  const char *backend;
  const char *arch;
  const char *kernel; /* the symbol that is launched; several are joined by "+" */
  const char *layout;
} epg_plan_facts;
int32_t epg_plan_query(epg_plan plan, epg_plan_facts *facts);

/* Runs, or validates, with the call's tensors, workspace, stream, num_threads and EPG_ACCUMULATE;
 * the rest of the call is the plan's. */
int32_t epg_plan_run(epg_plan plan, const epg_call *call);
int32_t epg_plan_validate(epg_plan plan, const epg_call *call);
int32_t epg_plan_destroy(epg_plan plan);

/* Writes the backends as JSON, NUL-terminated. needed is the size with the NUL, also where capacity
 * was too small (EPG_BUFFER_TOO_SMALL; so is NULL for text), and may be NULL. */
int32_t epg_backends(char *text, uint64_t capacity, uint64_t *needed);

/* Writes the activations and the gated kinds as JSON, as epg_backends does: {"activations": [...],
 * "gated_kinds": [...], "presets": [...]}. A row has its name, its parameters (name, default
 * and range, in the order of epg_call.parameters; a default that is null is none, given as
 * infinity) and its formula. A preset is a name for a kind with parameters. */
int32_t epg_kinds(char *text, uint64_t capacity, uint64_t *needed);

/* WebGPU. Tensors in the host's memory run there if a call's backend says so: they are copied to
 * the adapter and back. Arrays stay on the adapter: DLTensors on kDLWebGPU whose data is what
 * epg_webgpu_alloc gave, an address that only epigrad can use; calls on them return before they are
 * done, and reading waits for that. epg_webgpu_configure says by what the device is opened, before
 * anything else is asked of WebGPU: the file of wgpu-native, the number of an adapter or a part of
 * its name, and the most memory to take; NULL and 0 leave each to the environment
 * (EPIGRAD_WGPU_NATIVE, EPIGRAD_WEBGPU_ADAPTER, EPIGRAD_WEBGPU_MEMORY). */
int32_t epg_webgpu_configure(const char *library, const char *adapter, uint64_t memory_nbytes);
int32_t epg_webgpu_alloc(uint64_t nbytes, void **data);
int32_t epg_webgpu_free(void *data);
int32_t epg_webgpu_write(void *data, const void *from, uint64_t nbytes);
int32_t epg_webgpu_read(const void *data, void *to, uint64_t nbytes);

/* Operators of PyTorch. Defines torch.ops.epigrad.* with kernels for the CPU and CUDA, for the
 * PyTorch (2.10 or newer) of this process: a program in C++ then runs packages of AOTInductor and
 * programs of TorchScript that call them. The library does so by itself if PyTorch is there when it
 * is loaded. Operators that the Python package has defined stay as they are. Without PyTorch it is
 * EPG_BACKEND_UNAVAILABLE. */
int32_t epg_torch_register(void);

/* The calling thread's last failure: its message (valid until the thread's next failure) and, for
 * EPG_WORKSPACE_TOO_SMALL and EPG_BUFFER_TOO_SMALL, the bytes needed and given. */
const char *epg_last_error(void);
void epg_last_error_bytes(int64_t *needed, int64_t *got);

/* The name of the Python exception that stands for a status; "" for EPG_OK. */
const char *epg_status_class(int32_t status);

/* Whether this process is a fork()ed child of one that had loaded epigrad, where it cannot run. */
int epg_forked(void);

#ifdef __cplusplus
}
#endif
#endif
