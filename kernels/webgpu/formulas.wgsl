// compute returns an element's results from its operands: FORMULA says which results, KIND is the
// activation. The order of operations is that of PyTorch's autograd, so that infinities meet zeros
// in the same places. compute forms all results; the compiler leaves out those that are not used.
#include gated
#include learnable

fn compute(x: array<Real, 4>) -> array<Real, 3> {
  var y: array<Real, 3>;
#if $FORMULA == identity
  // out; input. Of bits where both have one dtype: a NaN keeps its payload.
  y[0] = x[0];
#elif $FORMULA == one
  // out; nothing.
  y[0] = 1.0;
#elif $FORMULA == product
  // out; a, b.
  y[0] = x[0] * x[1];
#elif $FORMULA == activation
  // out = act(input).
  y[0] = value_$KIND(x[0]);
#elif $FORMULA == activation_backward
  // grad_input = grad_output act'(input), out = act(input); grad_output, input.
  y[0] = gradient_$KIND(x[0], x[1]);
  y[1] = value_$KIND(x[1]);
#elif $FORMULA == gradient_from_output
  // grad_preactivation = grad_output act'; grad_output, output.
  y[0] = gradient_from_output_$KIND(x[0], x[1]);
#elif $FORMULA == epilogue
  // out = act(pre), pre = sum + bias; sum, bias.
  y[1] = x[0] + x[1];
  y[0] = value_$KIND(y[1]);
#elif $FORMULA == gated
  // out = gated(value, gate); value, gate.
  y[0] = gated(x[0], x[1]);
#elif $FORMULA == gated_backward
  // grad_value, grad_gate; grad_output, value, gate.
  y[0] = gradient_of_value(x[0], x[1], x[2]);
  y[1] = gradient_of_gate(x[0], x[1], x[2]);
#elif $FORMULA == prelu
  // out; x, weight.
  y[0] = prelu(x[0], x[0], x[1]);
#elif $FORMULA == prelu_backward
  // grad_x, grad_weight; grad_output, x, weight.
  y[0] = prelu(x[0], x[1], x[2]);
  y[1] = select(x[0] * x[1], 0.0, is_positive(x[1]));
#elif $FORMULA == xielu
  // out; x, alpha_p, alpha_n.
  y[0] = xielu(x[0], x[1], x[2]);
#elif $FORMULA == xielu_backward
  // grad_x, grad_alpha_p, grad_alpha_n; grad_output, x, alpha_p, alpha_n.
  y[0] = x[0] * xielu_slope(x[1], x[2], x[3]);
  y[1] = select(0.0, x[0] * (x[1] * x[1]) * value_sigmoid(x[2]), is_positive(x[1]));
  y[2] = select(x[0] * expm1_rest(x[1]) * value_sigmoid(x[3]), 0.0, is_positive(x[1]));
#elif $FORMULA == lerp
  // out = start + weight (end - start), from the nearer end: exact at both; start, end, weight.
  let weight = lerp_weight(x[2]);
  let near_start = magnitude_bits(weight) < 0x3f000000u; // 0.5
  y[0] = fma(select(weight - 1.0, weight, near_start), x[1] - x[0], select(x[1], x[0], near_start));
#elif $FORMULA == lerp_backward
  // grad_start = (1 - weight) grad_output, grad_end = weight grad_output, grad_weight = grad_output
  // (end - start); grad_output, start, end, weight.
  let weight = lerp_weight(x[3]);
  y[0] = lerp_rest(x[3]) * x[0];
  y[1] = weight * x[0];
  y[2] = x[0] * (x[2] - x[1]);
#end
  return y;
}

// lerp_weight is the tensor's element, or the call's number where there is no tensor.
fn lerp_weight(element: f32) -> f32 {
#if $WEIGHT == tensor
  return element;
#else
  return params.parameters.x;
#end
}

// lerp_rest is 1 - weight.
fn lerp_rest(element: f32) -> f32 {
#if $WEIGHT == tensor
  return 1.0 - element;
#else
  return params.rest;
#end
}
