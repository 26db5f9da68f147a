package activation_test

import (
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/activation"
)

type TableSuite struct{ suite.Suite }

func TestTable(t *testing.T) { suite.Run(t, new(TableSuite)) }

func (s *TableSuite) TestActivations() {
	// what the public interface promises
	s.Subset(activation.Names(), []string{"none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"})
	for i, row := range activation.All() {
		s.Equal(activation.Names()[i], row.Name)
		s.NotEmpty(row.Formula, row.Name)
		s.NotEmpty(row.Source, row.Name)
		found, ok := activation.Lookup(row.Name)
		s.True(ok)
		s.Equal(row, found)
	}
	s.Subset(activation.NamesFromOutput(), []string{"relu", "sigmoid", "tanh"})
	_, ok := activation.Lookup("swish")
	s.False(ok)
}

func (s *TableSuite) TestGatedKinds() {
	s.Subset(activation.GatedNames(), []string{"glu", "reglu", "swiglu", "geglu", "geglu_tanh", "bilinear"})
	for i, row := range activation.AllGated() {
		s.Equal(activation.GatedNames()[i], row.Name)
		s.NotEmpty(row.Source, row.Name)
		_, ok := activation.Lookup(row.Activation)
		s.True(ok, "%s is gated by %q, which is no activation", row.Name, row.Activation)
		found, ok := activation.LookupGated(row.Name)
		s.True(ok)
		s.Equal(row, found)
	}
	_, ok := activation.LookupGated("relu")
	s.False(ok)
}

// TestTablesAreCopies: a caller who changes what it got changes nothing here.
func (s *TableSuite) TestTablesAreCopies() {
	activation.All()[0].Name, activation.AllGated()[0].Name = "changed", "changed"
	s.Equal("none", activation.All()[0].Name)
	s.Equal("glu", activation.AllGated()[0].Name)
}
