// The kernels of lerp, for elementwise.h.
//
//   lerp            out = start + weight (end - start) | start, end, weight
//   lerp_backward   grad_start, grad_end, grad_weight | grad_output, start, end, weight

// The weight is the parameter, unless a tensor gives it. Less 1 it has digits that a float weight
// leaves out. The formula starts from the nearer end, so that it is exact at both.
KERNEL(lerp) {
  if (!in[2]) {
    const int near_start = parameters[0] > -0.5 && parameters[0] < 0.5, nearer = near_start ? 0 : 1;
    const V(v) weight = V(set)(near_start ? parameters[0] : parameters[0] - 1);
    FOR_EACH_GROUP STORE(0, V(fma)(weight, LOAD(1) - LOAD(0), LOAD(nearer)));
    return;
  }
  FOR_EACH_GROUP {
    V(v) start = LOAD(0), end = LOAD(1), weight = LOAD(2);
    V(m) near_start = V(less)(V(abs)(weight), V(set)(0.5f));
    STORE(0, V(fma)(V(select)(near_start, weight, weight - V(set)(1)), end - start, V(select)(near_start, start, end)));
  }
}

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
