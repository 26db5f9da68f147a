package activation

import (
	"encoding/json"
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
	Name    string `json:"name"`
	Default Number `json:"default"`
	Range   Range  `json:"range"`
}

// Number is a float64 whose infinity is null in JSON, which has none.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(n), 1) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// Range names the values that a parameter accepts.
type Range string

// The ranges.
const (
	// Finite is every number but infinities and NaN.
	Finite     Range = "a finite number"
	Positive   Range = "a finite number > 0"
	NonZero    Range = "a finite number that is not 0"
	AtLeastLow Range = "a finite number >= low"
	// Limit is none where it is infinite.
	Limit Range = "a number > 0, or none"
)

// Accepts reports whether a value lies in the range; before is the kind's parameter before it, 0
// for none. It panics for a range that is none of the list.
func (r Range) Accepts(value, before float64) bool {
	finite := !math.IsInf(value, 0) && !math.IsNaN(value)
	switch r {
	case Finite:
		return finite
	case Positive:
		return finite && value > 0
	case NonZero:
		return finite && value != 0
	case AtLeastLow:
		return finite && value >= before
	case Limit:
		return value > 0
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
			defaults[i] = float64(p.Default)
		}
		return defaults, nil
	}
	if len(given) != len(parameters) {
		return nil, status.Errorf(status.InvalidProblem, "parameters: got %d, want %s", len(given), wanted(parameters))
	}
	before := 0.0
	for i, p := range parameters {
		if !p.Range.Accepts(given[i], before) {
			return nil, status.Errorf(status.InvalidProblem, "%s: got %v, want %s", p.Name, given[i], p.Range)
		}
		before = given[i]
	}
	return given, nil
}

// AreDefaults reports whether all parameters have their default values.
func AreDefaults(parameters []Parameter, values []float64) bool {
	for i, p := range parameters {
		if values[i] != float64(p.Default) {
			return false
		}
	}
	return true
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
		if i < len(values) && values[i] != float64(p.Default) {
			shown = append(shown, p.Name+"="+formatted(values[i]))
		}
	}
	if len(shown) == 0 {
		return name
	}
	return name + "(" + strings.Join(shown, ", ") + ")"
}

// formatted is a number as Python shows it, without a .0 at its end.
func formatted(x float64) string {
	format := byte('e')
	if size := math.Abs(x); size == 0 || 1e-4 <= size && size < 1e16 {
		format = 'f'
	}
	return strconv.FormatFloat(x, format, -1, 64)
}
