package status_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/status"
)

type StatusSuite struct{ suite.Suite }

func TestStatus(t *testing.T) { suite.Run(t, new(StatusSuite)) }

func (s *StatusSuite) TestEveryCodeHasAClassOfItsOwn() {
	seen := map[string]status.Code{}
	for i, code := range status.Codes() {
		s.Equal(status.Code(i+1), code, "codes follow each other: they are the ABI's")
		s.Regexp("^[A-Z][A-Za-z]*Error$", code.Class())
		s.NotContains(seen, code.Class())
		seen[code.Class()] = code
	}
	s.Empty(status.OK.Class())
	for _, unknown := range []status.Code{-1, 11, 1 << 30} {
		s.Equal(status.Internal.Class(), unknown.Class())
	}
}

func (s *StatusSuite) TestErrors() {
	err := status.Errorf(status.DTypeMismatch, "lerp: end: dtype %v", "int8")
	s.Equal("lerp: end: dtype int8", err.Error())
	wrapped := fmt.Errorf("while running: %w", err)
	s.Same(err, status.Of(wrapped))
	s.ErrorIs(wrapped, &status.Error{Code: status.DTypeMismatch})
	s.NotErrorIs(wrapped, &status.Error{Code: status.Unsupported})
	s.NotErrorIs(err, errors.ErrUnsupported)
	foreign := status.Of(errors.ErrUnsupported)
	s.Equal(status.Internal, foreign.Code)
	s.Equal(errors.ErrUnsupported.Error(), foreign.Message)
}
