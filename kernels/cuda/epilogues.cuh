// Epilogues of products whose results have rows (product_sm90.cuh, product_sm80.cuh).
#pragma once

#include <type_traits>

#include "gate.cuh"
#include "storage.cuh"

#define EPG_INLINE __device__ __forceinline__

namespace epigrad::products {

// A pair is two neighbours as they lie in memory.
template <class Storage>
using Pair = std::conditional_t<std::is_same_v<Storage, f32>, float2, uint32_t>;

template <class Storage>
EPG_INLINE Pair<Storage> pair_of(float first, float second) {
  if constexpr (std::is_same_v<Storage, bf16>) {
    return pack_bf16(first, second);
  } else if constexpr (std::is_same_v<Storage, f16>) {
    return pack_f16(first, second);
  } else {
    return make_float2(first, second);
  }
}
template <class Storage>
EPG_INLINE float2 numbers_of(Pair<Storage> pair) {
  if constexpr (std::is_same_v<Storage, bf16>) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  } else if constexpr (std::is_same_v<Storage, f16>) {
    return make_float2(unpack_f16(static_cast<uint16_t>(pair)), unpack_f16(static_cast<uint16_t>(pair >> 16)));
  } else {
    return pair;
  }
}

// scaled is a hidden activation by a row's scale. It is rounded first, as it is where no product
// runs and grouped_scale_hidden scales it: a gradient that is wanted alone has the same bits.
template <class Storage>
EPG_INLINE Pair<Storage> scaled(float2 hidden, float2 scale) {
  const float2 stored = numbers_of<Storage>(pair_of<Storage>(hidden.x, hidden.y));
  return pair_of<Storage>(scale.x * stored.x, scale.y * stored.y);
}

// An epilogue is a struct with
//
//   rights             the weights, each of which gives a sum
//   inputs, outputs    the tensors of the result's shape that it reads, and the most that it writes:
//                      a run may want fewer
//   box_rows           rows of the boxes that come and leave
//   interleaved        whether columns alternate between the value's and the gate's
//   backward           whether it takes a row's scale, and gives numbers to be added up along rows
//                      and columns; the others add biases to the sums
//   sums               how many are added up along columns
//   output_of(box)     which output a slot's box belongs to
//   column_of(box, c)  the box's first column, where the slot has columns from c on
//   apply(p, ...)      from two neighbours of a row or a column: the pairs of outputs as they are
//                      stored, and the numbers to be added up
struct Boxes {
  static constexpr int box_rows = 32, sums = 1;
  static constexpr bool interleaved = false, backward = false;
  EPG_INLINE static constexpr int output_of(int box) { return box; }
  EPG_INLINE static constexpr int column_of(int, int column) { return column; }
};

// Linear is out = sum + bias.
template <class Storage, class Activation>
struct Linear : Boxes {
  static constexpr int rights = 1, inputs = 0, outputs = 1;
  EPG_INLINE static void apply(const Parameters<float> &, Pair<Storage> (&y)[outputs], const float2 (&sum)[rights], const Pair<Storage> (&)[inputs + 1]) {
    y[0] = pair_of<Storage>(sum[0].x, sum[0].y);
  }
};

// Forward is out = act(pre) and pre = sum + bias, which the activation reads as it is stored.
template <class Storage, class Activation>
struct Forward : Boxes {
  static constexpr int rights = 1, inputs = 0, outputs = 2;
  EPG_INLINE static void apply(const Parameters<float> &p, Pair<Storage> (&y)[outputs], const float2 (&sum)[rights], const Pair<Storage> (&)[inputs + 1]) {
    y[1] = pair_of<Storage>(sum[0].x, sum[0].y);
    const float2 x = numbers_of<Storage>(y[1]);
    y[0] = pair_of<Storage>(Activation::value(x.x, Activation::parts(x.x, p)), Activation::value(x.y, Activation::parts(x.y, p)));
  }
};

// Gated is out = value act(gate), and value and gate, which are sums and biases. They are read as
// they are stored.
template <class Storage, class Gate>
struct Gated : Boxes {
  static constexpr int rights = 2, inputs = 0, outputs = 3;
  EPG_INLINE static void apply(const Parameters<float> &p, Pair<Storage> (&y)[outputs], const float2 (&sum)[rights], const Pair<Storage> (&)[inputs + 1]) {
    y[1] = pair_of<Storage>(sum[0].x, sum[0].y);
    y[2] = pair_of<Storage>(sum[1].x, sum[1].y);
    y[0] = output(p, y[1], y[2]);
  }
  EPG_INLINE static Pair<Storage> output(const Parameters<float> &p, Pair<Storage> values, Pair<Storage> gates) {
    const float2 value = numbers_of<Storage>(values), gate = numbers_of<Storage>(gates);
    return pair_of<Storage>(Gate::output(Gate::parts(value.x, gate.x, p)), Gate::output(Gate::parts(value.y, gate.y, p)));
  }
};

// GatedInterleaved has one map of value and gate: a slot has 64 columns of the output, and 128 of
// those.
template <class Storage, class Gate>
struct GatedInterleaved : Gated<Storage, Gate> {
  static constexpr bool interleaved = true;
  EPG_INLINE static constexpr int output_of(int box) { return box > 0; }
  EPG_INLINE static constexpr int column_of(int box, int column) { return box > 0 ? 2 * column + 64 * (box - 1) : column; }
};

// Sloped is grad_pre = scale sum act'(pre), whose columns are added up before it is rounded, and
// out = scale act(pre). The sums along a row are those of sum act(pre).
template <class Storage, class Activation>
struct Sloped : Boxes {
  static constexpr int rights = 1, inputs = 1, outputs = 2, box_rows = 16;
  static constexpr bool backward = true;
  using Formula = Activation;
  using Plain = Activation;
  EPG_INLINE static bool is_plain(const Parameters<float> &) { return true; }

  template <class>
  EPG_INLINE static void apply(const Parameters<float> &p, Pair<Storage> (&y)[outputs], const float2 (&sum)[rights], const Pair<Storage> (&x)[inputs + 1],
                               float2 scale, float2 &row, float2 (&column)[sums]) {
    const float2 pre = numbers_of<Storage>(x[0]);
    const auto first = Activation::parts(pre.x, p), second = Activation::parts(pre.y, p);
    const float2 g = make_float2(scale.x * sum[0].x, scale.y * sum[0].y);
    const float2 gradient = make_float2(Activation::gradient(g.x, pre.x, first), Activation::gradient(g.y, pre.y, second));
    const float2 out = make_float2(Activation::value(pre.x, first), Activation::value(pre.y, second));
    y[0] = pair_of<Storage>(gradient.x, gradient.y);
    y[1] = scaled<Storage>(out, scale);
    row = make_float2(sum[0].x * out.x, sum[0].y * out.y);
    column[0] = gradient;
  }
};

// GatedSloped is the gradients of value act(gate) by both, and scale value act(gate), likewise.
template <class Storage, class Gate>
struct GatedSloped : Boxes {
  static constexpr int rights = 1, inputs = 2, outputs = 3, box_rows = 16, sums = 2;
  static constexpr bool backward = true;
  using Formula = Gate;
  using Plain = typename Gate::Plain;
  EPG_INLINE static bool is_plain(const Parameters<float> &p) { return Gate::is_plain(p); }

  // Chosen is Gate or Plain.
  template <class Chosen>
  EPG_INLINE static void apply(const Parameters<float> &p, Pair<Storage> (&y)[outputs], const float2 (&sum)[rights], const Pair<Storage> (&x)[inputs + 1],
                               float2 scale, float2 &row, float2 (&column)[sums]) {
    const float2 value = numbers_of<Storage>(x[0]), gate = numbers_of<Storage>(x[1]);
    const auto first = Chosen::parts(value.x, gate.x, p), second = Chosen::parts(value.y, gate.y, p);
    const float2 g = make_float2(scale.x * sum[0].x, scale.y * sum[0].y);
    const float2 grad_value = make_float2(Chosen::grad_value(g.x, first), Chosen::grad_value(g.y, second));
    const float2 grad_gate = make_float2(grad_gate_of<Chosen>(g.x, first), grad_gate_of<Chosen>(g.y, second));
    const float2 out = make_float2(output_of_parts<Chosen>(first), output_of_parts<Chosen>(second));
    y[0] = pair_of<Storage>(grad_value.x, grad_value.y);
    y[1] = pair_of<Storage>(grad_gate.x, grad_gate.y);
    y[2] = scaled<Storage>(out, scale);
    row = make_float2(sum[0].x * out.x, sum[0].y * out.y);
    column[0] = grad_value;
    column[1] = grad_gate;
  }

 private:
  template <class Chosen>
  static constexpr bool limited = !std::is_same_v<Chosen, Plain>;
  // Both sides of the choice are computed: a branch for each element costs more.
  template <class Chosen>
  EPG_INLINE static float grad_gate_of(float g, const typename Chosen::Parts &parts) {
    if constexpr (limited<Chosen>) {
      const float gradient = Plain::grad_gate(g, {parts.value, parts.gate, parts.of_gate});
      return parts.gate_is_clamped ? 0 : gradient;
    } else {
      return Chosen::grad_gate(g, parts);
    }
  }
  template <class Chosen>
  EPG_INLINE static float output_of_parts(const typename Chosen::Parts &parts) {
    if constexpr (!limited<Chosen> && limited<Gate>) {
      return Chosen::grad_value(parts.value, parts);
    } else {
      return Chosen::output(parts);
    }
  }
};

// GatedSlopedInterleaved has one map of both.
template <class Storage, class Gate>
struct GatedSlopedInterleaved : GatedSloped<Storage, Gate> {
  static constexpr bool interleaved = true;
  EPG_INLINE static constexpr int output_of(int box) { return box == 2 ? 2 : 0; }
  EPG_INLINE static constexpr int column_of(int box, int column) { return box == 2 ? column : 2 * column + 64 * box; }
};

}  // namespace epigrad::products
