package epigrad

import "github.com/epigrad/epigrad/go/status"

// Error is the error that this package returns. Needed and Got are bytes, for ErrWorkspaceTooSmall
// and ErrBufferTooSmall.
type Error = status.Error

// What can go wrong, to compare with by errors.Is.
var (
	// ErrInvalidProblem: shapes, dimensions, kinds, strides or aliasing that make no sense.
	ErrInvalidProblem error = &Error{Code: status.InvalidProblem, Message: "epigrad: invalid problem"}
	// ErrDTypeMismatch: an Operand of elements that it may not have.
	ErrDTypeMismatch error = &Error{Code: status.DTypeMismatch, Message: "epigrad: dtype mismatch"}
	// ErrUnsupported: a meaningful problem that there is no kernel for.
	ErrUnsupported error = &Error{Code: status.Unsupported, Message: "epigrad: unsupported"}
	// ErrWorkspaceTooSmall: Options.Workspace has fewer bytes than the problem needs.
	ErrWorkspaceTooSmall error = &Error{Code: status.WorkspaceTooSmall, Message: "epigrad: workspace too small"}
	// ErrBufferTooSmall: a slice is shorter than the tensor's shape and strides reach.
	ErrBufferTooSmall error = &Error{Code: status.BufferTooSmall, Message: "epigrad: slice too short"}
	// ErrInternal: a defect in epigrad.
	ErrInternal error = &Error{Code: status.Internal, Message: "epigrad: internal error"}
)
