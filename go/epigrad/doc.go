// Package epigrad computes fused epilogues and their gradients for Go programs: linear layers and
// products with an activation, feed-forward blocks, mixtures of experts, activations, gated
// activations, PReLU, xIELU and linear interpolation, forward and backward. A weight may have an
// adapter (LowRank). There is no graph, no context and no Python: tensors go in, results are
// written where the caller asks.
//
// A problem is a struct with the inputs, and has the methods Forward and Backward:
//
//	layer := epigrad.Linear[float32]{Input: x, Weight: w, Bias: b, Activation: "gelu"}
//	err := layer.Forward(out, pre)
//	err = layer.Backward(gradOutput, epigrad.Saved[float32]{Preactivation: pre}, epigrad.LinearGradients[float32]{Weight: gradWeight})
//
// # Tensors
//
// Tensor[T] is a slice with a shape and strides, on memory that stays the caller's. T is float32,
// float64, BFloat16 or Float16; int32 or int64 for offsets; and int64 for the indices of a mixture
// of experts. Of, New and Matrix make one. FromBlas32, FromBlas64 and FromMat share the memory of
// gonum's matrices (row-major, with a stride), so that what is written into such a tensor stands in
// the matrix. Any strides are accepted, also 0 and negative ones, and empty dimensions.
//
// A nil tensor is absent: an absent bias is none, an absent output is not computed.
//
// # Names
//
// Activations and gated kinds are the strings that Activations and GatedKinds list; "" is the
// activation "none". Their parameters stand beside them, in the order of ParametersOf; nil is the
// defaults.
//
// # Errors
//
// Every function returns an error and none panics. An error names the operation, the argument, what
// was given and what is accepted; nothing has been written then. errors.Is compares with the Err
// values of this package, errors.As gives an *Error, which knows the bytes needed and given where a
// workspace was too small or a slice too short.
//
// # Threads and determinism
//
// All functions may be called from several goroutines. Results are bitwise the same whatever the
// number of threads, run after run.
package epigrad
