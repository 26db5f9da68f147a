// The kernel of lerp's backward, for elementwise.h.
//
//   lerp_backward   grad_start, grad_end, grad_weight | grad_output, start, end, weight

KERNEL(lerp_backward) {
  V(v) weight = V(set)(parameters[0]), rest = V(set)(1 - parameters[0]);
  FOR_EACH_GROUP {
    V(v) g = LOAD(0);
    if (in[3]) {
      weight = LOAD(3);
      rest = V(set)(1) - weight;
    }
    STORE_ANY(0, rest * g);
    STORE_ANY(1, weight * g);
    if (out[2] || wide[2]) STORE_ANY(2, g * (LOAD(2) - LOAD(1)));
  }
}
