// Package status is the one table of what can go wrong: a Go error, a C status code and a Python
// class stand for each other here.
package status

import (
	"errors"
	"fmt"
)

// Code is the status of a C call; OK is 0. The values are part of the ABI (EPG_* in epigrad.h).
type Code int32

// The codes, in the order of epigrad.h.
const (
	OK Code = iota
	InvalidProblem
	DTypeMismatch
	Unsupported
	DeviceMismatch
	MisalignedOperand
	WorkspaceTooSmall
	BufferTooSmall
	BackendUnavailable
	DeviceFailure
	Internal
)

// classes names the Python class of every code.
var classes = [...]string{
	OK:                 "",
	InvalidProblem:     "InvalidProblemError",
	DTypeMismatch:      "DTypeError",
	Unsupported:        "UnsupportedError",
	DeviceMismatch:     "DeviceMismatchError",
	MisalignedOperand:  "MisalignedOperandError",
	WorkspaceTooSmall:  "WorkspaceTooSmallError",
	BufferTooSmall:     "BufferTooSmallError",
	BackendUnavailable: "BackendUnavailableError",
	DeviceFailure:      "DeviceError",
	Internal:           "EpigradError",
}

// Class returns the name of the Python class that stands for the code.
func (c Code) Class() string {
	if c < 0 || int(c) >= len(classes) {
		return classes[Internal]
	}
	return classes[c]
}

// Codes lists every code but OK.
func Codes() []Code {
	codes := make([]Code, 0, len(classes)-1)
	for c := InvalidProblem; int(c) < len(classes); c++ {
		codes = append(codes, c)
	}
	return codes
}

// Error is the error that every layer below the C ABI returns.
type Error struct {
	Code Code
	// Message has the form "op: argument: got, want".
	Message string
	// Needed and Got are bytes, for WorkspaceTooSmall and BufferTooSmall.
	Needed, Got int64
}

// Error returns the message alone: the code names the class.
func (e *Error) Error() string { return e.Message }

// Is makes errors.Is(err, &Error{Code: c}) compare codes.
func (e *Error) Is(target error) bool {
	var other *Error
	return errors.As(target, &other) && other.Code == e.Code
}

// Errorf returns an error of a code with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Of returns err's *Error; an error that is none becomes Internal.
func Of(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: Internal, Message: err.Error()}
}
