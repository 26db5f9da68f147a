// The operations as programs: what go/backend/webgpu adds for each problem. Each takes a program, its tensors by name and its case, and returns its results by name.

import { expanded, transposed } from "./program.js";

const like = (p, t, shape = t.shape) => p.tensor(t.dtype, shape);

function linear(p, { input, weight, bias }, { formula: kind }) {
  const out = like(p, input, [input.shape[0], weight.shape[0]]);
  p.gemm({ a: input, b: transposed(weight), bias, out, kind });
  return { out };
}

// From the inputs, or from a saved preactivation or output.
function linearBackward(p, { grad_output, input, weight, bias, preactivation, output }, { formula: kind }) {
  const formula = { name: output ? "gradient_from_output" : "activation_backward", kind };
  let saved = kind === "none" ? null : output ?? preactivation;
  if (saved === undefined) {
    saved = like(p, grad_output);
    p.gemm({ a: input, b: transposed(weight), bias, pre: saved });
  }
  const [grad_input, grad_weight, grad_bias] = [input, weight, bias].map((t) => like(p, t));
  p.sum({ ...formula, accumulates: true }, 0, grad_bias, [grad_output, saved]);
  let gradient = grad_output;
  if (kind !== "none") {
    gradient = like(p, grad_output);
    p.elementwise(formula, [gradient], [grad_output, saved]);
  }
  p.gemm({ a: gradient, b: weight, out: grad_input });
  p.gemm({ a: transposed(input), b: gradient, out: transposed(grad_weight), accumulates: true });
  return { grad_input, grad_weight, grad_bias };
}

function gated(p, { value, gate }, { formula: kind }) {
  const out = like(p, value);
  p.elementwise({ name: "gated", kind }, [out], [value, gate]);
  return { out };
}

function gatedBackward(p, { grad_output, value, gate }, { formula: kind }) {
  const [grad_value, grad_gate] = [like(p, value), like(p, gate)];
  p.elementwise({ name: "gated_backward", kind }, [grad_value, grad_gate], [grad_output, value, gate]);
  return { grad_value, grad_gate };
}

function lerp(p, { start, end, weight }, { shape }) {
  const out = like(p, start, shape);
  p.elementwise({ name: "lerp", tensorWeight: Boolean(weight) }, [out], [start, end, weight].map((t) => t && expanded(t, shape)));
  return { out };
}

// Gradients of the output's shape come from one pass, each that is summed from one of its own. Only the weight's needs start and end.
function lerpBackward(p, { grad_output, start, end, weight }, { shape }) {
  const formula = { name: "lerp_backward", tensorWeight: Boolean(weight) };
  const inputs = [grad_output, weight && start, weight && end, weight].map((t) => t && expanded(t, shape));
  const gradients = [start, end, weight].map((t) => t && like(p, t));
  const whole = gradients.map((t) => (t && String(t.shape) === String(shape) ? t : null));
  gradients.forEach((t, place) => {
    if (t && !whole[place]) p.sum(formula, place, t, inputs);
  });
  if (whole.some(Boolean)) p.elementwise(formula, whole, inputs);
  const [grad_start, grad_end, grad_weight] = gradients;
  return { grad_start, grad_end, ...(grad_weight && { grad_weight }) };
}

export const operations = {
  linear, linear_backward: linearBackward, gated_product: gated, gated_product_backward: gatedBackward, lerp, lerp_backward: lerpBackward,
};
