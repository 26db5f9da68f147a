package op_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/op"
)

type InferSuite struct{ suite.Suite }

func TestInfer(t *testing.T) { suite.Run(t, new(InferSuite)) }

func (s *InferSuite) TestSignatures() {
	names := map[string]bool{}
	for _, signature := range op.Signatures() {
		s.False(names[signature.Name], "%s occurs twice", signature.Name)
		names[signature.Name] = true
		found, ok := op.SignatureOf(signature.Name)
		s.True(ok)
		s.Equal(signature, found)
		s.LessOrEqual(len(signature.Outputs), 10, "the C ABI has room for ten")
		s.LessOrEqual(len(signature.Inputs), 13)
	}
	for name := range names {
		s.NotContains(name, "?")
		_, hasForward := names[strings.TrimSuffix(name, "_backward")]
		s.True(hasForward, "%s has no forward", name)
	}
	_, ok := op.SignatureOf("")
	s.False(ok)
}
