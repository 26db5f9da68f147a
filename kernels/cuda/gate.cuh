// The gated kinds, one element at a time: one struct for each formula of a gate, with these
// functions:
//
//   parts(value, gate, parameters)   what the output and its gradients share
//   output(parts)                    value act(gate)
//   grad_value(g, parts)             g act(gate)
//   grad_gate(g, parts)              (g value) act'(gate)
//   curvatures(u, v, g, parts)       the gradients to g, value and gate of these two gradients, to
//                                    which u and v are gradients
//   is_plain(parameters)             whether Plain gives the same, with less to compute
//
// in the order of operations that PyTorch's autograd has, so that infinities meet zeros in the same
// places.
#pragma once

#include "activation.cuh"

#define EPG_FOR_EACH_GATE(macro, ...) EPG_FOR_EACH_LIMITED_GATE(macro, __VA_ARGS__) macro(situ, __VA_ARGS__)

namespace epigrad::gates {

template <class Real>
struct Curvatures {
  Real grad_output, value, gate;
};

#define EPG_FORMULA static __device__ __forceinline__

// Unlimited is a Limited without limits and offset.
template <class Activation>
struct Unlimited {
  using Real = typename Activation::Real;
  struct Parts {
    Real value, gate;
    typename Activation::Parts of_gate;
  };
  EPG_FORMULA Parts parts(Real value, Real gate, const Parameters<Real> &p) { return {value, gate, Activation::parts(gate, p.after(3))}; }
  EPG_FORMULA Real grad_value(Real g, const Parts &p) { return g * Activation::value(p.gate, p.of_gate); }
  EPG_FORMULA Real grad_gate(Real g, const Parts &p) { return Activation::gradient(g * p.value, p.gate, p.of_gate); }
};

// Limited is all kinds but situ. Its parameters are the limit of value and gate, that of value and
// act(gate), the offset of value, and those of the activation. No limit is NaN, and no offset -0.
//
//   gate' = min(gate, limit),  act' = min(act(gate'), limit_after)
//   value' = value within both limits of 0, + offset
//
// What is clamped has the gradient 0, at its limit too.
template <class Activation>
struct Limited {
  using Real = typename Activation::Real;
  using Plain = Unlimited<Activation>;
  static constexpr bool cheap = Activation::cheap;
  struct Parts {
    Real value, gate, active;
    typename Activation::Parts of_gate;
    bool value_is_clamped, gate_is_clamped;
  };
  EPG_FORMULA Parts parts(Real value, Real gate, const Parameters<Real> &p) {
    const Real limit = p[0], limit_after = p[1], limit_of_value = lesser(limit, limit_after);
    Parts all;
    all.value_is_clamped = magnitude(value) >= limit_of_value;
    all.value = (all.value_is_clamped ? with_sign(limit_of_value, value) : value) + p[2];
    all.gate_is_clamped = gate >= limit;
    all.gate = all.gate_is_clamped ? limit : gate;
    all.of_gate = Activation::parts(all.gate, p.after(3));
    all.active = Activation::value(all.gate, all.of_gate);
    if (all.active >= limit_after) {
      all.active = limit_after;
      all.gate_is_clamped = true;
    }
    return all;
  }
  EPG_FORMULA bool is_plain(const Parameters<Real> &p) { return !(p[0] == p[0] || p[1] == p[1]) && p[2] == 0; }
  EPG_FORMULA Real output(const Parts &p) { return p.value * p.active; }
  EPG_FORMULA Real grad_value(Real g, const Parts &p) { return p.value_is_clamped ? Real(0) : g * p.active; }
  EPG_FORMULA Real grad_gate(Real g, const Parts &p) { return p.gate_is_clamped ? Real(0) : Activation::gradient(g * p.value, p.gate, p.of_gate); }
  EPG_FORMULA Curvatures<Real> curvatures(Real u, Real v, Real g, const Parts &p) {
    const Real h = v * g, crossed = p.value_is_clamped ? Real(0) : u * g;
    const Real of_value = p.value_is_clamped ? Real(0) : u * p.active, of_gate = grad_gate(v, p);
    const bool clamped = p.value_is_clamped || p.gate_is_clamped;
    const Real bent = Activation::gradient(crossed, p.gate, p.of_gate) + Activation::curvature(h * p.value, p.gate, p.of_gate);
    return {of_value + of_gate, clamped ? Real(0) : Activation::gradient(h, p.gate, p.of_gate), p.gate_is_clamped ? Real(0) : bent};
  }
};

#define EPG_LIMITED_GATE(activation, unused) \
  template <class A>                         \
  using activation = Limited<activations::activation<A>>;
EPG_FOR_EACH_LIMITED_GATE(EPG_LIMITED_GATE, )
#undef EPG_LIMITED_GATE

// situ is softcap(value) softcap(gate) sigmoid(gate). Its parameters are the caps of gate and
// value.
template <class A>
struct situ {
  using Real = typename A::Real;
  using Plain = situ;
  using Cap = activations::softcap<A>;
  static constexpr bool cheap = false;
  struct Parts {
    typename Cap::Parts of_value, of_gate;
    typename A::Decay decay;  // e^-|gate|
    Real value, gate;         // softcap of them
    bool left;
  };
  EPG_FORMULA Parts parts(Real value, Real gate, const Parameters<Real> &p) {
    Parts all = {Cap::parts(value, p.after(1)), Cap::parts(gate, p), A::decay(magnitude(gate)), 0, 0, negative(gate)};
    all.value = Cap::value(value, all.of_value);
    all.gate = Cap::value(gate, all.of_gate);
    return all;
  }
  EPG_FORMULA bool is_plain(const Parameters<Real> &) { return false; }
  EPG_FORMULA Real output(const Parts &p) { return p.value * active(p); }
  EPG_FORMULA Real grad_value(Real g, const Parts &p) { return g * active(p) * Cap::slope(p.of_value); }
  EPG_FORMULA Real grad_gate(Real g, const Parts &p) { return g * p.value * gate_slope(p); }
  EPG_FORMULA Curvatures<Real> curvatures(Real u, Real v, Real g, const Parts &p) {
    const Real h = v * g, slope = Cap::slope(p.of_value), phi = active(p), phi_slope = gate_slope(p);
    return {
        u * phi * slope + v * p.value * phi_slope,
        Cap::curvature(u * g * phi, p.value, p.of_value) + h * phi_slope * slope,
        u * g * phi_slope * slope + h * p.value * gate_bend(p),
    };
  }

 private:
  EPG_FORMULA Real active(const Parts &p) { return activations::sigmoid_product<A>(p.gate, p.left, p.decay); }
  EPG_FORMULA Real gate_slope(const Parts &p) {
    // sigmoid is r on the right, and e r on the left; its slope is e r^2.
    const Real r = A::reciprocal(Real(1) + p.decay.e), slope = Cap::slope(p.of_gate);
    const Real left = p.decay.scale(p.decay.m * r * fused(p.gate, r, slope));
    const Real right = r * (slope + p.decay.scale(p.gate * p.decay.m * r));
    return p.left ? left : right;
  }
  // s (y'' + s(-x) (2y' - y tanh(x/2))), with y = softcap(x) and s = sigmoid(x).
  EPG_FORMULA Real gate_bend(const Parts &p) {
    const Real r = A::reciprocal(Real(1) + p.decay.e), bend = Cap::curvature(Real(1), p.gate, p.of_gate);
    const Real falling = fused(-magnitude(p.gate), (Real(1) - p.decay.e) * r, 2 * Cap::slope(p.of_gate));
    const Real left = p.decay.scale(p.decay.m * r * fused(falling, r, bend));
    const Real right = r * (bend + p.decay.scale(falling * p.decay.m * r));
    return p.left ? left : right;
  }
};

#undef EPG_FORMULA

}  // namespace epigrad::gates
