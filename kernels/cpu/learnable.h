// The kernels of activations whose parameters are tensors. elementwise.h includes it for each
// dtype.
//
//   prelu            out | x, weight
//   prelu_backward   grad_x, grad_weight | grad_output, x, weight
//   xielu            out | x, alpha_p, alpha_n
//   xielu_backward   grad_x, grad_alpha_p, grad_alpha_n | grad_output, x, alpha_p, alpha_n
//
//   prelu   x where x > 0, else weight x
//   xielu   a_p x^2 + beta x where x > 0, else a_n (e^x - 1 - x) + beta x
//           a_p = softplus(alpha_p),  a_n = beta + softplus(alpha_n)
//
// alpha_p and alpha_n have one value for all elements; beta is the parameter. Operands that only
// unwanted gradients need are absent.

#define EPG_FOR_EACH_LEARNABLE(of) of(prelu) of(xielu)

KERNEL(prelu) {
  FOR_EACH_GROUP {
    V(v) x = LOAD(0);
    STORE(0, V(select)(V(less)(V(set)(0), x), x, LOAD(1) * x));
  }
}

KERNEL(prelu_backward) {
  FOR_EACH_GROUP {
    V(v) g = LOAD(0), x = LOAD(1);
    const V(m) positive = V(less)(V(set)(0), x);
    if (in[2]) STORE_ANY(0, V(select)(positive, g, LOAD(2) * g));
    STORE_ANY(1, V(select)(positive, V(set)(0), g * x));
  }
}

// softplus(alpha), and its slope, of the value that an operand has everywhere; 0 if it is absent.
#define SOFTPLUS(alpha) (in[alpha] ? A(softplus_value)(FIRST(alpha), A(softplus_parts)(FIRST(alpha), softplus)) : V(set)(0))
#define LOGISTIC(alpha) (in[alpha] ? A(softplus_gradient)(V(set)(1), FIRST(alpha), A(softplus_parts)(FIRST(alpha), softplus)) : V(set)(0))
#define FIRST(operand) V(JOIN(load, DTYPE))(in[operand])
#define XIELU_NUMBERS                                                 \
  const numbers elu = {{1, 1, 1}}, softplus = {{1, __builtin_inf()}}; \
  const V(v) beta = V(set)(parameters[0])
// e^x - 1 and e^x - 1 - x for x <= 0, by the rest of the exponential's series where that cancels.
#define EXPM1(x) A(elu_value)(x, A(elu_parts)(x, elu))
#define EXPM1_REST(x, expm1) V(select)(V(less)(V(abs)(x), V(set)(0.34f)), x * x * A(exp_rest)(x), expm1 - x)

KERNEL(xielu) {
  if (n == 0) return;
  XIELU_NUMBERS;
  const V(v) positive = SOFTPLUS(1), negative = beta + SOFTPLUS(2);
  FOR_EACH_GROUP {
    V(v) x = LOAD(0), expm1 = EXPM1(x);
    const V(v) left = V(fma)(negative, EXPM1_REST(x, expm1), beta * x), right = x * V(fma)(positive, x, beta);
    STORE(0, V(select)(V(less)(V(set)(0), x), right, left));
  }
}

KERNEL(xielu_backward) {
  if (n == 0) return;
  XIELU_NUMBERS;
  const V(v) twice = V(set)(2) * SOFTPLUS(2), negative = beta + SOFTPLUS(3), slope_p = LOGISTIC(2), slope_n = LOGISTIC(3), zero = V(set)(0);
  FOR_EACH_GROUP {
    V(v) g = LOAD(0), x = LOAD(1), expm1 = EXPM1(x);
    const V(m) right = V(less)(zero, x);
    STORE_ANY(0, g * V(select)(right, V(fma)(twice, x, beta), V(fma)(negative, expm1, beta)));
    STORE_ANY(1, V(select)(right, g * (x * x) * slope_p, zero));
    STORE_ANY(2, V(select)(right, zero, g * EXPM1_REST(x, expm1) * slope_n));
  }
}
