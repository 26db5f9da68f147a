package epigrad

// LowRank is an adapter: a low-rank update of a weight (LoRA). The layer is that of weight + b a,
// which is never formed. Its zero value is none.
//
//	a [r, k],  b [n, r];  of groups and experts a [E, r, k],  b [E, n, r]
//
// A scale is the caller's to multiply A with, and the gradient of A.
type LowRank[T Element] struct{ A, B *Tensor[T] }

// LowRankGradients are the gradients of an update, of T, or of float32 beside half types; those
// that are nil are not computed. Backwards that accumulate add to them.
type LowRankGradients struct{ A, B Operand }
