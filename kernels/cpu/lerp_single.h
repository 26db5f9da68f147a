// The kernel of lerp (lerp.h) for float32, without doubles.
//
// A difference of floats is a float and an error that is one too. The error's share is added at
// last, since sums may cancel what is larger. So the result has two roundings, wherever it lies.

// Where the difference overflows, and of infinities and no numbers.
TARGET static __attribute__((noinline, cold)) f_v lerp_in_doubles(f_v start, f_v end, f_v nearer, d_v low, d_v high) {
  return f_rounded(d_fma(low, d_low(end) - d_low(start), d_low(nearer)), d_fma(high, d_high(end) - d_high(start), d_high(nearer)));
}

// The weight of the difference is weight + rest.
INLINE f_v lerp_in_floats(f_v start, f_v end, f_v nearer, f_v weight, f_v rest) {
  const f_v difference = end - start, back = difference - end;
  const f_v error = (end - (difference - back)) - (start + back);
  return f_fma(weight, difference, nearer) + f_fma(rest, difference, weight * error);
}

// A difference that is not finite has an error that is no number.
INLINE int all_numbers(f_v x) { return f_all(f_at_most(x, x)); }

KERNEL(lerp) {
  if (!in[2]) {
    const int near_start = parameters[0] > -0.5 && parameters[0] < 0.5;
    const double exact = near_start ? parameters[0] : parameters[0] - 1;
    const f_v weight = f_set((float)exact), rest = f_set((float)(exact - (float)exact));
    FOR_EACH_GROUP {
      const f_v start = LOAD(0), end = LOAD(1), nearer = near_start ? start : end;
      f_v x = lerp_in_floats(start, end, nearer, weight, rest);
      if (!all_numbers(x)) x = lerp_in_doubles(start, end, nearer, d_set(exact), d_set(exact));
      STORE(0, x);
    }
    return;
  }
  FOR_EACH_GROUP {
    const f_v start = LOAD(0), end = LOAD(1), weight = LOAD(2);
    const f_m near_start = f_less(f_abs(weight), f_set(0.5f));
    const f_v nearer = f_select(near_start, start, end), one = f_select(near_start, f_set(0), f_set(1)), less = weight - one;
    f_v x = lerp_in_floats(start, end, nearer, less, weight - (less + one));
    if (!all_numbers(x)) x = lerp_in_doubles(start, end, nearer, d_low(weight) - d_low(one), d_high(weight) - d_high(one));
    STORE(0, x);
  }
}
