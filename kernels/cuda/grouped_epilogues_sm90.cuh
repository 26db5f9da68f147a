// Epilogues of the products of groups whose results have a group's rows (grouped_sm90.cuh).
#pragma once

#include <type_traits>

#include "grouped_tiles_sm90.cuh"

namespace epigrad::sm90::grouped {

// Epilogues of the rows kind have what product_sm90.cuh says of them, for two rows of a column, and
//
//   box_rows           rows of the boxes that come and leave
//   strip_rows         how many rows share their code: that of all boxes would not fit into the
//                      instruction cache
//   interleaved        whether columns alternate between the value's and the gate's
//   scaled             whether rows have scales, and numbers are added up along rows and columns
//   sums               how many are added up along columns
//   output_of(box)     which output a slot's box belongs to
//   column_of(box, c)  the box's first column, where the slot has columns from c on
struct Boxes {
  static constexpr bool interleaved = false, scaled = false;
  static constexpr int sums = 1;
  EPG_INLINE static constexpr int output_of(int box) { return box; }
  EPG_INLINE static constexpr int column_of(int, int column) { return column; }
};

// Linear is out = sum + bias.
template <class Storage, class Activation>
struct Linear : Boxes {
  static constexpr int rights = 1, inputs = 0, outputs = 1, box_rows = 32, strip_rows = 32;
  static constexpr bool biased = true;
  EPG_INLINE static void apply(const Parameters<float> &, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&)[inputs + 1]) {
    y[0] = pair_of<Storage>(sum[0].x, sum[0].y);
  }
};

template <class Storage, class Activation>
struct Forward : Boxes, sm90::Forward<Storage, Activation> {
  static constexpr int box_rows = 32, strip_rows = 32;
};

template <class Storage, class Gate>
struct Gated : Boxes, sm90::Gated<Storage, Gate> {
  static constexpr int box_rows = 32, strip_rows = 32;
};

// GatedInterleaved has one map of value and gate: a slot has 64 columns of the output, and 128 of
// those.
template <class Storage, class Gate>
struct GatedInterleaved {
  static constexpr int rights = 2, inputs = 0, outputs = 3, box_rows = 32, strip_rows = 32;
  static constexpr bool biased = true, interleaved = true, scaled = false;
  EPG_INLINE static constexpr int output_of(int box) { return box > 0; }
  EPG_INLINE static constexpr int column_of(int box, int column) { return box > 0 ? 2 * column + 64 * (box - 1) : column; }
  EPG_INLINE static uint32_t output(const Parameters<float> &p, uint32_t values, uint32_t gates) {
    const float2 value = numbers_of<Storage>(values), gate = numbers_of<Storage>(gates);
    return pair_of<Storage>(Gate::output(Gate::parts(value.x, gate.x, p)), Gate::output(Gate::parts(value.y, gate.y, p)));
  }
};

// Sloped is grad_pre = scale sum act'(pre), whose columns are added up before it is rounded, and
// out = scale act(pre). The sums along a row are those of sum act(pre).
template <class Storage, class Activation>
struct Sloped : Boxes {
  static constexpr int rights = 1, inputs = 1, outputs = 2, sums = 1, box_rows = 16, strip_rows = 48;
  static constexpr bool biased = false, scaled = true;
  using Formula = Activation;
  using Plain = Activation;
  EPG_INLINE static bool is_plain(const Parameters<float> &) { return true; }

  template <class>
  EPG_INLINE static void apply(const Parameters<float> &p, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&x)[inputs + 1], float2 scale,
                               float2 &row, float (&column)[sums]) {
    const float2 pre = numbers_of<Storage>(x[0]);
    const auto first = Activation::parts(pre.x, p), second = Activation::parts(pre.y, p);
    const float2 g = make_float2(scale.x * sum[0].x, scale.y * sum[0].y);
    const float2 gradient = make_float2(Activation::gradient(g.x, pre.x, first), Activation::gradient(g.y, pre.y, second));
    const float2 out = make_float2(Activation::value(pre.x, first), Activation::value(pre.y, second));
    y[0] = pair_of<Storage>(gradient.x, gradient.y);
    y[1] = pair_of<Storage>(scale.x * out.x, scale.y * out.y);
    row = make_float2(sum[0].x * out.x, sum[0].y * out.y);
    column[0] = gradient.x + gradient.y;
  }
};

// GatedSloped is the gradients of value act(gate) by both, and scale value act(gate), likewise.
template <class Storage, class Gate>
struct GatedSloped : Boxes {
  static constexpr int rights = 1, inputs = 2, outputs = 3, sums = 2, box_rows = 16, strip_rows = 48;
  static constexpr bool biased = false, scaled = true;
  using Formula = Gate;
  using Plain = typename Gate::Plain;
  EPG_INLINE static bool is_plain(const Parameters<float> &p) { return Gate::is_plain(p); }

  // Chosen is Gate or Plain.
  template <class Chosen>
  EPG_INLINE static void apply(const Parameters<float> &p, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&x)[inputs + 1], float2 scale,
                               float2 &row, float (&column)[sums]) {
    const float2 value = numbers_of<Storage>(x[0]), gate = numbers_of<Storage>(x[1]);
    const auto first = Chosen::parts(value.x, gate.x, p), second = Chosen::parts(value.y, gate.y, p);
    const float2 g = make_float2(scale.x * sum[0].x, scale.y * sum[0].y);
    const float2 grad_value = make_float2(Chosen::grad_value(g.x, first), Chosen::grad_value(g.y, second));
    const float2 grad_gate = make_float2(grad_gate_of<Chosen>(g.x, first), grad_gate_of<Chosen>(g.y, second));
    const float2 out = make_float2(output_of_parts<Chosen>(first), output_of_parts<Chosen>(second));
    y[0] = pair_of<Storage>(grad_value.x, grad_value.y);
    y[1] = pair_of<Storage>(grad_gate.x, grad_gate.y);
    y[2] = pair_of<Storage>(scale.x * out.x, scale.y * out.y);
    row = make_float2(sum[0].x * out.x, sum[0].y * out.y);
    column[0] = grad_value.x + grad_value.y;
    column[1] = grad_gate.x + grad_gate.y;
  }

 private:
  template <class Chosen>
  static constexpr bool unlimited = std::is_same_v<Chosen, Plain>;
  // Both sides of the choice are computed: a branch for each element costs more.
  template <class Chosen>
  EPG_INLINE static float grad_gate_of(float g, const typename Chosen::Parts &parts) {
    if constexpr (unlimited<Chosen>) {
      return Chosen::grad_gate(g, parts);
    } else {
      const float gradient = Plain::grad_gate(g, {parts.value, parts.gate, parts.of_gate});
      return parts.gate_is_clamped ? 0 : gradient;
    }
  }
  template <class Chosen>
  EPG_INLINE static float output_of_parts(const typename Chosen::Parts &parts) {
    if constexpr (unlimited<Chosen>) {
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

}  // namespace epigrad::sm90::grouped
