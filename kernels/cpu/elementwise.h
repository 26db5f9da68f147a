// The elementwise kernels of one dtype: a template with the parameter DTYPE, its short name, which
// engine.h includes. An arithmetic's registers are those that products are accumulated in.
//
// Operands, by their places:
//
//   activation            out = act(in)
//   epilogue              out = act(in), in being what a product is accumulated in: float for the
//                         half types
//   add                   sums += in, sums being the output and what a product is accumulated in
//   activation_backward   grad_input, out = act(input) | grad_output, input
//   curvature             grad_grad_output = v act'(input),
//                         grad_input = (v grad_output) act''(input) | v, grad_output, input
//   from_output           grad_input | grad_output, output
//   curvature_from_output grad_grad_output, grad of output | v, grad_output, output
//   gated                 out = value act(gate) | value, gate
//   gated_backward        grad_value = grad_output act(gate),
//                         grad_gate = (grad_output value) act'(gate) | grad_output, value, gate
//   gated_curvature       grad_grad_output = u act(gate) + (v value) act'(gate),
//                         grad_value = (v grad_output) act'(gate),
//                         grad_gate = (u grad_output) act'(gate) + (v grad_output value) act''(gate)
//                         | u, v, the gradients to grad_value and grad_gate, grad_output, value, gate
//   prelu, xielu          learnable.h
//   lerp                  lerp.h
//
// The order of operations is that of PyTorch's autograd, so that infinities meet zeros in the same
// places.
//
// The numbers of a gated kind are limit, limit_after, offset, and that of act. With L = limit and
// A = limit_after, out is
//
//   (clip(value, -least, least) + offset) min(act(min(gate, L)), A),  least = min(L, A)
//
// and where one of them is clamped, at the bound too, its gradient is 0. A limit that is NaN is
// none.
//
// Situ's numbers are gate_cap and value_cap; value goes through softcap.

#define f32_arithmetic single
#define f32_lerp_arithmetic wide
#define f64_arithmetic exact
#define f64_lerp_arithmetic exact
#define bf16_arithmetic half
#define bf16_lerp_arithmetic half
#define f16_arithmetic half
#define f16_lerp_arithmetic half
#define ARITHMETIC JOIN(DTYPE, arithmetic)

#define KERNEL(name) TARGET static void JOIN(name, DTYPE)(int64_t n, char *const *out, char *const *wide, const char *const *in, const double *parameters)
#define FOR_EACH_GROUP for (int64_t i = 0; i < n; i += V(lanes))
#define LOAD(operand) V(JOIN(load, DTYPE))(in[operand] + i * JOIN(DTYPE, bytes))
#define STORE(output, value) V(JOIN(store, DTYPE))(out[output] + i * JOIN(DTYPE, bytes), value)
// Writes an output in the forms that are asked for.
#define STORE_ANY(output, value)                              \
  do {                                                        \
    V(v) result = value;                                      \
    if (out[output]) STORE(output, result);                   \
    if (wide[output]) A(store_wide)(wide[output], i, result); \
  } while (0)

#define ACTIVATION_KERNELS(act)                                          \
  KERNEL(activation_##act) {                                             \
    const numbers own = numbers_at(parameters);                          \
    FOR_EACH_GROUP {                                                     \
      V(v) x = LOAD(0);                                                  \
      STORE(0, A(act##_value)(x, A(act##_parts)(x, own)));               \
    }                                                                    \
  }                                                                      \
  KERNEL(epilogue_##act) {                                               \
    const numbers own = numbers_at(parameters);                          \
    FOR_EACH_GROUP {                                                     \
      V(v) x = V(load_real)(in[0] + i * V(bytes));                       \
      STORE(0, A(act##_value)(x, A(act##_parts)(x, own)));               \
    }                                                                    \
  }                                                                      \
  KERNEL(activation_backward_##act) {                                    \
    const numbers own = numbers_at(parameters);                          \
    int gradient = out[0] || wide[0];                                    \
    FOR_EACH_GROUP {                                                     \
      V(v) x = LOAD(1);                                                  \
      __typeof__(A(act##_parts)(x, own)) parts = A(act##_parts)(x, own); \
      V(v) g = LOAD(0);                                                  \
      if (out[1]) STORE(1, A(act##_value)(x, parts));                    \
      if (gradient) STORE_ANY(0, A(act##_gradient)(g, x, parts));        \
    }                                                                    \
  }                                                                      \
  KERNEL(curvature_##act) {                                              \
    const numbers own = numbers_at(parameters);                          \
    FOR_EACH_GROUP {                                                     \
      V(v) v = LOAD(0), x = LOAD(2);                                     \
      __typeof__(A(act##_parts)(x, own)) parts = A(act##_parts)(x, own); \
      V(v) h = v * LOAD(1);                                              \
      STORE_ANY(0, A(act##_gradient)(v, x, parts));                      \
      STORE_ANY(1, A(act##_curvature)(h, x, parts));                     \
    }                                                                    \
  }
EPG_FOR_EACH_ACTIVATION(ACTIVATION_KERNELS)

// The smaller of two registers is the second one where the first is NaN: so limits come first.
#define CLIP(x, bound) (-V(min)(bound, -V(min)(bound, x)))
#define LIMITS                                                                                                                   \
  const V(v) limit = V(set)(parameters[0]), limit_after = V(set)(parameters[1]);                                                 \
  const V(v) least = V(set)(parameters[1] < parameters[0] || !(parameters[0] == parameters[0]) ? parameters[1] : parameters[0]); \
  const V(v) offset = V(set)(parameters[2])
#define HAS_LIMITS (parameters[0] == parameters[0] || parameters[1] == parameters[1] || parameters[2] != 0)

#define GATED_KERNELS(act)                                                                                                                         \
  KERNEL(gated_##act) {                                                                                                                            \
    const numbers own = {{parameters[3]}};                                                                                                         \
    if (!HAS_LIMITS) {                                                                                                                             \
      FOR_EACH_GROUP {                                                                                                                             \
        V(v) value = LOAD(0), gate = LOAD(1);                                                                                                      \
        STORE(0, value * A(act##_value)(gate, A(act##_parts)(gate, own)));                                                                         \
      }                                                                                                                                            \
      return;                                                                                                                                      \
    }                                                                                                                                              \
    LIMITS;                                                                                                                                        \
    FOR_EACH_GROUP {                                                                                                                               \
      V(v) value = LOAD(0), gate = V(min)(limit, LOAD(1));                                                                                         \
      STORE(0, (CLIP(value, least) + offset) * V(min)(limit_after, A(act##_value)(gate, A(act##_parts)(gate, own))));                              \
    }                                                                                                                                              \
  }                                                                                                                                                \
  KERNEL(gated_backward_##act) {                                                                                                                   \
    const numbers own = {{parameters[3]}};                                                                                                         \
    if (!HAS_LIMITS) {                                                                                                                             \
      FOR_EACH_GROUP {                                                                                                                             \
        V(v) g = LOAD(0), value = LOAD(1), gate = LOAD(2);                                                                                         \
        __typeof__(A(act##_parts)(gate, own)) parts = A(act##_parts)(gate, own);                                                                   \
        STORE_ANY(0, g * A(act##_value)(gate, parts));                                                                                             \
        STORE_ANY(1, A(act##_gradient)(g * value, gate, parts));                                                                                   \
      }                                                                                                                                            \
      return;                                                                                                                                      \
    }                                                                                                                                              \
    LIMITS;                                                                                                                                        \
    FOR_EACH_GROUP {                                                                                                                               \
      V(v) g = LOAD(0), value = LOAD(1), gate = LOAD(2), limited = V(min)(limit, gate), zero = V(set)(0);                                          \
      __typeof__(A(act##_parts)(gate, own)) parts = A(act##_parts)(limited, own);                                                                  \
      V(v) act_gate = A(act##_value)(limited, parts);                                                                                              \
      V(m) value_clamped = V(at_most)(least, V(abs)(value)), gate_clamped = V(either)(V(at_most)(limit, gate), V(at_most)(limit_after, act_gate)); \
      STORE_ANY(0, V(select)(value_clamped, zero, g * V(min)(limit_after, act_gate)));                                                             \
      STORE_ANY(1, V(select)(gate_clamped, zero, A(act##_gradient)(g * (CLIP(value, least) + offset), limited, parts)));                           \
    }                                                                                                                                              \
  }
EPG_FOR_EACH_LIMITED_GATE(GATED_KERNELS)

#define GATED_CURVATURE_KERNEL(act)                                                                                                                \
  KERNEL(gated_curvature_##act) {                                                                                                                  \
    const numbers own = {{parameters[3]}};                                                                                                         \
    LIMITS;                                                                                                                                        \
    FOR_EACH_GROUP {                                                                                                                               \
      V(v) u = LOAD(0), v = LOAD(1), g = LOAD(2), value = LOAD(3), gate = LOAD(4), zero = V(set)(0);                                               \
      V(v) limited = V(min)(limit, gate), clipped = CLIP(value, least) + offset;                                                                   \
      __typeof__(A(act##_parts)(limited, own)) parts = A(act##_parts)(limited, own);                                                               \
      V(v) act_gate = A(act##_value)(limited, parts), h = v * g;                                                                                   \
      V(m) value_clamped = V(at_most)(least, V(abs)(value)), gate_clamped = V(either)(V(at_most)(limit, gate), V(at_most)(limit_after, act_gate)); \
      V(v) by_value = A(act##_gradient)(v * clipped, limited, parts), by_gate = A(act##_curvature)(h * clipped, limited, parts);                   \
      V(v) crossed = A(act##_gradient)(V(select)(value_clamped, zero, u * g), limited, parts);                                                     \
      STORE_ANY(0, V(select)(value_clamped, zero, u * V(min)(limit_after, act_gate)) + V(select)(gate_clamped, zero, by_value));                   \
      STORE_ANY(1, V(select)(V(either)(value_clamped, gate_clamped), zero, A(act##_gradient)(h, limited, parts)));                                 \
      STORE_ANY(2, V(select)(gate_clamped, zero, crossed + by_gate));                                                                              \
    }                                                                                                                                              \
  }
EPG_FOR_EACH_LIMITED_GATE(GATED_CURVATURE_KERNEL)

KERNEL(gated_situ) {
  const numbers gate_cap = {{parameters[0]}}, value_cap = {{parameters[1]}};
  FOR_EACH_GROUP {
    V(v) value = LOAD(0), gate = LOAD(1);
    STORE(0, A(softcap_value)(value, A(softcap_parts)(value, value_cap)) * A(situ_gate_value)(gate, A(situ_gate_parts)(gate, gate_cap)));
  }
}

KERNEL(gated_backward_situ) {
  const numbers gate_cap = {{parameters[0]}}, value_cap = {{parameters[1]}};
  FOR_EACH_GROUP {
    V(v) g = LOAD(0), value = LOAD(1), gate = LOAD(2);
    A(softcap_t) value_parts = A(softcap_parts)(value, value_cap);
    A(situ_gate_t) gate_parts = A(situ_gate_parts)(gate, gate_cap);
    STORE_ANY(0, A(softcap_gradient)(g * A(situ_gate_value)(gate, gate_parts), value, value_parts));
    STORE_ANY(1, A(situ_gate_gradient)(g * A(softcap_value)(value, value_parts), gate, gate_parts));
  }
}

KERNEL(gated_curvature_situ) {
  const numbers gate_cap = {{parameters[0]}}, value_cap = {{parameters[1]}};
  FOR_EACH_GROUP {
    V(v) u = LOAD(0), v = LOAD(1), g = LOAD(2), value = LOAD(3), gate = LOAD(4);
    A(softcap_t) value_parts = A(softcap_parts)(value, value_cap);
    A(situ_gate_t) gate_parts = A(situ_gate_parts)(gate, gate_cap);
    V(v) psi = A(softcap_value)(value, value_parts), phi = A(situ_gate_value)(gate, gate_parts);
    V(v) of_gate = A(situ_gate_gradient)(v * psi, gate, gate_parts), slope = A(situ_gate_gradient)(V(set)(1), gate, gate_parts);
    STORE_ANY(0, A(softcap_gradient)(u * phi, value, value_parts) + of_gate);
    STORE_ANY(1, A(softcap_curvature)(u * g * phi, value, value_parts) + A(softcap_gradient)(v * g * slope, value, value_parts));
    STORE_ANY(2, A(softcap_gradient)(u * g * slope, value, value_parts) + A(situ_gate_curvature)(v * g * psi, gate, gate_parts));
  }
}

#define FROM_OUTPUT_KERNEL(act)                                                                               \
  KERNEL(from_output_##act) { FOR_EACH_GROUP STORE_ANY(0, A(act##_gradient_from_output)(LOAD(0), LOAD(1))); } \
  KERNEL(curvature_from_output_##act) {                                                                       \
    FOR_EACH_GROUP {                                                                                          \
      V(v) v = LOAD(0), y = LOAD(2), h = v * LOAD(1);                                                         \
      STORE_ANY(0, A(act##_gradient_from_output)(v, y));                                                      \
      STORE_ANY(1, A(act##_curvature_from_output)(h, y));                                                     \
    }                                                                                                         \
  }
EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(FROM_OUTPUT_KERNEL)

KERNEL(add) {
  FOR_EACH_GROUP {
    V(real) *const sums = (V(real) *)out[0] + i;
    V(store_real)(sums, V(load_real)(sums) + LOAD(0));
  }
}

#include "learnable.h"

// Terms of lerp may cancel, so float32 computes it in double.
#undef ARITHMETIC
#define ARITHMETIC JOIN(DTYPE, lerp_arithmetic)
#include "lerp.h"

static const epg_entry JOIN(entries, DTYPE)[] = {
#define QUOTE_NAME(name) #name
#define QUOTE(name) QUOTE_NAME(name)
#define ENTRY(name) {QUOTE(JOIN(name, DTYPE)), JOIN(name, DTYPE)},
#define ACTIVATION_ENTRIES(act) ENTRY(activation_##act) ENTRY(epilogue_##act) ENTRY(activation_backward_##act) ENTRY(curvature_##act)
#define GATED_ENTRIES(act) ENTRY(gated_##act) ENTRY(gated_backward_##act) ENTRY(gated_curvature_##act)
#define WITH_BACKWARD(name) ENTRY(name) ENTRY(name##_backward)
#define FROM_OUTPUT_ENTRY(act) ENTRY(from_output_##act) ENTRY(curvature_from_output_##act)
    EPG_FOR_EACH_ACTIVATION(ACTIVATION_ENTRIES) EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(FROM_OUTPUT_ENTRY) EPG_FOR_EACH_LIMITED_GATE(GATED_ENTRIES)
        GATED_ENTRIES(situ) EPG_FOR_EACH_LEARNABLE(WITH_BACKWARD) WITH_BACKWARD(lerp) ENTRY(add)};

#undef ARITHMETIC
#undef DTYPE
