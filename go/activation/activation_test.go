package activation_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/status"
)

type TableSuite struct{ suite.Suite }

func TestTable(t *testing.T) { suite.Run(t, new(TableSuite)) }

var (
	inf  = math.Inf(1)
	nan  = math.NaN()
	none = math.Copysign(0, -1) // an offset that is none
)

func (s *TableSuite) TestActivations() {
	// what the public interface promises
	s.Subset(activation.Names(), []string{
		"none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2", "quick_gelu", "swish", "leaky_relu", "elu", "selu", "celu", "softplus", "mish",
		"hardswish", "hardsigmoid", "relu6", "hardtanh", "softcap",
	})
	for i, row := range activation.All() {
		s.Equal(activation.Names()[i], row.Name)
		s.NotEmpty(row.Formula, row.Name)
		s.NotEmpty(row.Slope, row.Name)
		s.NotEmpty(row.Source, row.Name)
		for _, name := range append(row.Aliases, row.Name) {
			found, ok := activation.Lookup(name)
			s.True(ok)
			s.Equal(row, found)
		}
	}
	s.Equal([]string{"relu", "sigmoid", "tanh"}, activation.NamesFromOutput())
	for _, name := range []string{"", "swiglu", "Gelu", "erf"} {
		_, ok := activation.Lookup(name)
		s.False(ok, name)
	}
}

func (s *TableSuite) TestGatedKinds() {
	s.Equal([]string{
		"glu", "reglu", "swiglu", "geglu", "geglu_tanh", "bilinear", "sreglu", "quick_geglu", "situ_glu", "swiglu_oai",
	}, activation.GatedNames())
	for i, row := range activation.AllGated() {
		s.Equal(activation.GatedNames()[i], row.Name)
		s.NotEmpty(row.Formula, row.Name)
		s.NotEmpty(row.Source, row.Name)
		if row.Activation != "" {
			_, ok := activation.Lookup(row.Activation)
			s.True(ok, "%s is gated by %q, which is no activation", row.Name, row.Activation)
		}
		found, ok := activation.LookupGated(row.Name)
		s.True(ok)
		s.Equal(row, found)
	}
	_, ok := activation.LookupGated("relu")
	s.False(ok)
}

// TestNamesAreUnique: no alias or preset hides a kind.
func (s *TableSuite) TestNamesAreUnique() {
	seen := map[string]bool{}
	for _, row := range activation.All() {
		for _, name := range append([]string{row.Name}, row.Aliases...) {
			s.False(seen[name], name)
			seen[name] = true
		}
	}
	for _, name := range activation.GatedNames() {
		s.False(seen[name], name)
		seen[name] = true
	}
}

func (s *TableSuite) TestAliases() {
	for alias, name := range map[string]string{
		"gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
		"gelu_python": "gelu", "relu_squared": "relu2", "sqrelu": "relu2", "hard_swish": "hardswish", "hard_sigmoid": "hardsigmoid",
		"identity": "none", "linear": "none",
	} {
		row, ok := activation.Lookup(alias)
		s.True(ok, alias)
		s.Equal(name, row.Name, alias)
	}
}

// TestDefaultIs: a kind with the name of another one's computes by its formula.
func (s *TableSuite) TestDefaultIs() {
	for _, row := range activation.All() {
		if row.DefaultIs == "" {
			continue
		}
		s.Equal("swish", row.Name)
		other, ok := activation.Lookup(row.DefaultIs)
		s.True(ok)
		s.Empty(other.Parameters)
	}
}

func (s *TableSuite) TestPresets() {
	preset, ok := activation.LookupPreset("swiglu_oai")
	s.True(ok)
	s.Equal("swiglu", preset.Kind)
	s.Equal([]float64{7, inf, 1, 1.702}, preset.Values())
	_, ok = activation.LookupPreset("swiglu")
	s.False(ok)
	s.Nil(activation.Preset{}.Values())
	for _, preset := range activation.Presets() {
		row, ok := activation.LookupGated(preset.Kind)
		s.True(ok, preset.Name)
		values, err := activation.Complete(row.Parameters, preset.Values())
		s.NoError(err)
		s.Equal(preset.Values(), values)
		names := map[string]bool{}
		for _, p := range row.Parameters {
			names[p.Name] = true
		}
		for name := range preset.Parameters {
			s.True(names[name], "%s has no %s", preset.Kind, name)
		}
	}
}

func (s *TableSuite) TestRanges() {
	const tiny = math.SmallestNonzeroFloat64
	for _, c := range []struct {
		name    string
		accepts []float64
		refuses []float64
	}{
		{"leaky_relu", []float64{0, -3, 1e300}, []float64{inf, -inf, nan}},
		{"celu", []float64{tiny, -1}, []float64{0, none, inf, nan}},
		{"softcap", []float64{tiny, 30}, []float64{0, -1, inf, nan}},
	} {
		row, _ := activation.Lookup(c.name)
		for _, value := range c.accepts {
			_, err := activation.Complete(row.Parameters, []float64{value})
			s.NoError(err, "%s %v", c.name, value)
		}
		for _, value := range c.refuses {
			_, err := activation.Complete(row.Parameters, []float64{value})
			s.ErrorIs(err, &status.Error{Code: status.InvalidProblem}, "%s %v", c.name, value)
		}
	}
	for _, limit := range []float64{7, tiny, inf} {
		s.True(activation.Limit.Accepts(limit, 0), limit)
	}
	for _, limit := range []float64{0, none, -7, -inf, nan} {
		s.False(activation.Limit.Accepts(limit, 0), limit)
	}
	row, _ := activation.Lookup("hardtanh")
	values, err := activation.Complete(row.Parameters, []float64{2, 2})
	s.NoError(err)
	s.Equal([]float64{2, 2}, values)
	_, err = activation.Complete(row.Parameters, []float64{2, 1})
	s.EqualError(err, "high: got 1, want a finite number >= low")
	row, _ = activation.Lookup("softplus")
	_, err = activation.Complete(row.Parameters, []float64{1})
	s.EqualError(err, "parameters: got 1, want 2 (beta, threshold), or none for the defaults")
	defaults, err := activation.Complete(row.Parameters, nil)
	s.NoError(err)
	s.Equal([]float64{1, 20}, defaults)
}

// TestDefaultsAreInRange: what a kind has by default, it would accept.
func (s *TableSuite) TestDefaultsAreInRange() {
	check := func(name string, parameters []activation.Parameter) {
		s.LessOrEqual(len(parameters), activation.MostParameters, name)
		defaults, err := activation.Complete(parameters, nil)
		s.NoError(err, name)
		_, err = activation.Complete(parameters, defaults)
		s.NoError(err, name)
		s.True(activation.AreDefaults(parameters, defaults), name)
	}
	for _, row := range activation.All() {
		check(row.Name, row.Parameters)
	}
	for _, row := range activation.AllGated() {
		check(row.Name, row.Parameters)
	}
}

// TestKernels: the numbers of a kind's formula.
func (s *TableSuite) TestKernels() {
	for _, c := range []struct {
		name    string
		given   []float64
		formula string
		numbers []float64
	}{
		{"relu", nil, "relu", nil},
		{"leaky_relu", []float64{0.2}, "leaky_relu", []float64{0.2}},
		{"quick_gelu", nil, "swish", []float64{1.702}},
		{"swish", []float64{3}, "swish", []float64{3}},
		{"elu", []float64{0.5}, "elu", []float64{1, 0.5, 1}},
		{"selu", nil, "elu", []float64{1.0507009873554804934, 1.7580993408473768602, 1}},
		{"celu", []float64{0.5}, "elu", []float64{1, 0.5, 0.5}},
		{"softplus", []float64{2, 15}, "softplus", []float64{2, 15}},
		{"relu6", nil, "hardtanh", []float64{0, 6}},
		{"hardtanh", []float64{-2, 3}, "hardtanh", []float64{-2, 3}},
		{"softcap", nil, "softcap", []float64{30}},

		{"glu", nil, "sigmoid", []float64{nan, nan, none}},
		{"bilinear", []float64{7, 5, 1}, "none", []float64{7, 5, 1}},
		{"sreglu", []float64{inf, 5, 0}, "relu2", []float64{nan, 5, none}},
		{"swiglu", nil, "silu", []float64{nan, nan, none, 1}},
		{"swiglu", []float64{7, inf, 0, 1}, "silu", []float64{7, nan, none, 1}},
		{"swiglu", []float64{7, inf, 1, 1.702}, "swish", []float64{7, nan, 1, 1.702}},
		{"quick_geglu", nil, "swish", []float64{nan, nan, none, 1.702}},
		{"situ_glu", nil, "situ", []float64{4, 25}},
		{"situ_glu", []float64{2, 3}, "situ", []float64{2, 3}},
	} {
		formula, numbers := s.kernel(c.name, c.given)
		s.Equal(c.formula, formula, c.name)
		s.LessOrEqual(len(numbers), activation.MostParameters, c.name)
		s.Len(numbers, len(c.numbers), c.name)
		for i, want := range c.numbers {
			s.Equal(math.Float64bits(want), math.Float64bits(numbers[i]), "%s: number %d: got %v, want %v", c.name, i, numbers[i], want)
		}
	}
	for _, row := range activation.All() {
		formula, _ := s.kernel(row.Name, nil)
		s.Contains(activation.Kernels(), formula)
	}
	for _, row := range activation.AllGated() {
		formula, _ := s.kernel(row.Name, nil)
		s.Contains(activation.GatedKernels(), formula)
	}
}

// kernel is the formula of a kind of either table, and its numbers.
func (s *TableSuite) kernel(name string, given []float64) (formula string, numbers []float64) {
	if row, ok := activation.Lookup(name); ok {
		values, err := activation.Complete(row.Parameters, given)
		s.NoError(err)
		return row.Kernel(values)
	}
	row, ok := activation.LookupGated(name)
	s.True(ok, name)
	values, err := activation.Complete(row.Parameters, given)
	s.NoError(err)
	return row.Kernel(values)
}

// TestKernelsChangeNothing: the values that a kind got stay.
func (s *TableSuite) TestKernelsChangeNothing() {
	row, _ := activation.LookupGated("swiglu")
	values := []float64{inf, 5, 0, 1}
	row.Kernel(values)
	s.Equal([]float64{inf, 5, 0, 1}, values)
}

func (s *TableSuite) TestDescribe() {
	row, _ := activation.Lookup("hardtanh")
	s.Equal("hardtanh", activation.Describe("hardtanh", row.Parameters, []float64{-1, 1}))
	s.Equal("hardtanh(high=2.5)", activation.Describe("hardtanh", row.Parameters, []float64{-1, 2.5}))
	gated, _ := activation.LookupGated("swiglu")
	s.Equal("hardtanh(low=-1e-05, high=1000000)", activation.Describe("hardtanh", row.Parameters, []float64{-1e-5, 1e6}), "as Python shows numbers")
	s.Equal("swiglu", activation.Describe("swiglu", gated.Parameters, []float64{inf, inf, 0, 1}))
	s.Equal("swiglu(limit=7, offset=1, alpha=1.702)", activation.Describe("swiglu", gated.Parameters, []float64{7, inf, 1, 1.702}))
}

// TestTablesAsJSON: JSON has no infinity.
func (s *TableSuite) TestTablesAsJSON() {
	text, err := activation.Tables()
	s.NoError(err)
	var tables struct {
		Activations []struct{ Name string }
		GatedKinds  []struct {
			Name       string
			Parameters []struct {
				Name    string
				Default *float64
			}
		} `json:"gated_kinds"`
		Presets []struct{ Name, Kind string }
	}
	s.NoError(json.Unmarshal([]byte(text), &tables))
	s.Len(tables.Activations, len(activation.All()))
	s.Len(tables.GatedKinds, len(activation.AllGated()))
	s.Len(tables.Presets, len(activation.Presets()))
	s.Equal("limit", tables.GatedKinds[0].Parameters[0].Name)
	s.Nil(tables.GatedKinds[0].Parameters[0].Default)
	s.Equal(0.0, *tables.GatedKinds[0].Parameters[2].Default)
}

// TestTablesAreCopies: a caller who changes what it got changes nothing here.
func (s *TableSuite) TestTablesAreCopies() {
	activation.All()[0].Name, activation.AllGated()[0].Name, activation.Presets()[0].Name = "changed", "changed", "changed"
	s.Equal("none", activation.All()[0].Name)
	s.Equal("glu", activation.AllGated()[0].Name)
	s.Equal("swiglu_oai", activation.Presets()[0].Name)
}
