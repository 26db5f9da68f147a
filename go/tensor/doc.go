// Package tensor describes memory without touching it: a View is a typed, strided window on a
// buffer that a caller owns.
//
// Everything here is arithmetic on shapes, strides and addresses, in 64 bits and with overflow
// checks: which bytes a view reaches, how views are cut and broadcast, whether two of them share a
// byte, and how several are walked by one loop. Strides are in elements and may be 0 or negative;
// offsets and extents are in bytes.
package tensor
