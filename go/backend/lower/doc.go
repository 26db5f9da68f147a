// Package lower says what problems are made of. Every backend does the parts in its own way, and
// may fuse neighbours.
//
// A matrix product with an epilogue, and its backward, are steps over views, in order. A backward
// has at most four steps. The first forms the preactivation, if nothing was saved. The second is
// one pass for grad_preactivation and the bias sums. Two products follow, for grad_a and for
// grad_b.
//
// Gated layers, hidden layers and layers of groups are other problems (Parts): products, passes,
// and problems on rows.
//
// The package is no part of the API and may change in any release.
package lower
