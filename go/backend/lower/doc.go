// Package lower says what a matrix product with an epilogue, and its backward, are made of: steps
// over views, in order. Every backend runs these steps in its own way, and may fuse neighbours.
//
// A backward has at most four steps. The first forms the preactivation, if nothing was saved. The
// second is one pass for grad_preactivation and the bias sums. Two products follow, for grad_a and
// for grad_b.
//
// The package is no part of the API and may change in any release.
package lower
