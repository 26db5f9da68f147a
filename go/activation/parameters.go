package activation

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/epigrad/epigrad/go/status"
)

// MostParameters is the most parameters of a kind, for which every kernel has room.
const MostParameters = 4

// Parameter is a number that a kind takes. Its value is data to the kernels: none is compiled for
// one.
type Parameter struct {
	Name    string  `json:"name"`
	Default float64 `json:"default"`
	Range   Range   `json:"range"`
}

// Range names the values that a parameter accepts.
type Range string

// The ranges.
const (
	// Finite is every number but infinities and NaN.
	Finite Range = "a finite number"
)

// Accepts tells whether a value lies in the range. It panics for a range that is none of the list.
func (r Range) Accepts(value float64) bool {
	switch r {
	case Finite:
		return !math.IsInf(value, 0) && !math.IsNaN(value)
	default:
		panic("activation: unknown range " + strconv.Quote(string(r)))
	}
}

// Complete returns the values of a kind's parameters: those given, all of them, or the defaults for
// none.
func Complete(parameters []Parameter, given []float64) ([]float64, error) {
	if len(given) == 0 && len(parameters) > 0 {
		defaults := make([]float64, len(parameters))
		for i, p := range parameters {
			defaults[i] = p.Default
		}
		return defaults, nil
	}
	if len(given) != len(parameters) {
		return nil, status.Errorf(status.InvalidProblem, "parameters: got %d, want %s", len(given), wanted(parameters))
	}
	for i, p := range parameters {
		if !p.Range.Accepts(given[i]) {
			return nil, status.Errorf(status.InvalidProblem, "%s: got %v, want %s", p.Name, given[i], p.Range)
		}
	}
	return given, nil
}

func wanted(parameters []Parameter) string {
	if len(parameters) == 0 {
		return "none"
	}
	names := make([]string, len(parameters))
	for i, p := range parameters {
		names[i] = p.Name
	}
	return fmt.Sprintf("%d (%s), or none for the defaults", len(parameters), strings.Join(names, ", "))
}

// Describe is a kind's name with the parameters that are not defaults: "leaky_relu(slope=0.2)".
func Describe(name string, parameters []Parameter, values []float64) string {
	var shown []string
	for i, p := range parameters {
		if i < len(values) && values[i] != p.Default {
			shown = append(shown, p.Name+"="+strconv.FormatFloat(values[i], 'g', -1, 64))
		}
	}
	if len(shown) == 0 {
		return name
	}
	return name + "(" + strings.Join(shown, ", ") + ")"
}
