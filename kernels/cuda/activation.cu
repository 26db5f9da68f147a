// out = act(x), and copies: activation_<activation>_<dtype>.
//
// The activation none is a copy of bits, so that a NaN keeps its payload. out may be x.
#include "activation.cuh"
#include "loops.cuh"

namespace epigrad {

template <class Activation, class Storage>
struct Activate : Operands<Storage, 1, 1> {
  using Real = typename Storage::Real;
  static constexpr int vectors = Activation::cheap ? 1 : 2;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[1]) {
    y[0] = Activation::value(x[0], Activation::parts(x[0], p));
  }
};

template <class Storage>
struct Copy : Operands<Bits<Storage>, 1, 1> {
  using Real = typename Bits<Storage>::Real;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[1]) {
    y[0] = x[0];
  }
};

}  // namespace epigrad

#define ACTIVATE(activation, dtype) \
  EPG_ELEMENTWISE(activation_##activation##_##dtype, epigrad::Activate<epigrad::activations::activation<epigrad::dtype::Arithmetic>, epigrad::dtype>)
#define ACTIVATE_ALL(dtype, unused)                  \
  EPG_FOR_EACH_NONLINEAR_ACTIVATION(ACTIVATE, dtype) \
  EPG_ELEMENTWISE(activation_none_##dtype, epigrad::Copy<epigrad::dtype>)
EPG_FOR_EACH_DTYPE(ACTIVATE_ALL, )
