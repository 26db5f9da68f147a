// Package activation is the table of activations and of the gated kinds built from them.
//
// A row holds every fact that backends, tests and documents need. The formulas themselves live with
// the kernels, one file for each language (kernels/*/activation.*), under the names of this table.
// A gated kind is value x activation(gate) and therefore only a row.
package activation

import "encoding/json"

// Info is one row of the activation table.
type Info struct {
	// Name is the word that users write: "gelu_tanh".
	Name string `json:"name"`
	// Parameters are the numbers that the formula takes beside x.
	Parameters []Parameter `json:"parameters,omitempty"`
	// FromOutput: the derivative is a function of the output, so that the output can be saved in
	// place of the preactivation.
	FromOutput bool `json:"from_output"`
	// Cheap: a few instructions, so that kernels wait for memory and not for arithmetic.
	// CheapInHalf: where a GPU's approximate exponential serves, which is in the half types.
	Cheap       bool `json:"cheap"`
	CheapInHalf bool `json:"cheap_in_half"`
	// Kinks are the points at which a derivative jumps, of any order: numbers, or names of
	// parameters. Tests compare them with their oracles' own.
	Kinks []string `json:"kinks,omitempty"`
	// Formula is the value as a formula in x and the parameters: docstrings and doctor show it.
	Formula string `json:"formula"`
	// Source is where the formula comes from.
	Source string `json:"source"`
}

// GatedInfo is one row of the table of gated kinds.
type GatedInfo struct {
	// Name is the word that users write: "swiglu".
	Name string `json:"name"`
	// Parameters are the numbers that the formula takes beside value and gate.
	Parameters []Parameter `json:"parameters,omitempty"`
	// Activation is the activation that the gate half goes through.
	Activation string `json:"activation"`
	// Source is where the kind comes from.
	Source string `json:"source"`
}

const (
	gluSource    = "Dauphin et al. 2016, https://arxiv.org/abs/1612.08083"
	shazeer      = "Shazeer 2020, https://arxiv.org/abs/2002.05202"
	geluSource   = "Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415"
	siluSource   = "Elfwing et al. 2017, https://arxiv.org/abs/1702.03118"
	reluSource   = "Nair and Hinton 2010, https://www.cs.toronto.edu/~hinton/absps/reluICML.pdf"
	leakySource  = "Maas et al. 2013, https://ai.stanford.edu/~amaas/papers/relu_hybrid_icml2013_final.pdf"
	primerSource = "So et al. 2021, https://arxiv.org/abs/2109.08668"
	dlmfErfc     = "https://dlmf.nist.gov/7.2"
	dlmfTanh     = "https://dlmf.nist.gov/4.28"
	dlmfLogistic = "https://dlmf.nist.gov/4.2 (exponential)"
)

var activations = []Info{
	{Name: "none", Cheap: true, Formula: "x", Source: "identity"},
	{Name: "relu", FromOutput: true, Cheap: true, Kinks: []string{"0"}, Formula: "max(x, 0)", Source: reluSource},
	{Name: "gelu", Formula: "x erfc(-x/sqrt(2)) / 2", Source: geluSource + "; " + dlmfErfc},
	{Name: "gelu_tanh", Formula: "x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2", Source: geluSource},
	{Name: "silu", CheapInHalf: true, Formula: "x / (1 + exp(-x))", Source: siluSource},
	{Name: "sigmoid", FromOutput: true, CheapInHalf: true, Formula: "1 / (1 + exp(-x))", Source: dlmfLogistic},
	{Name: "tanh", FromOutput: true, Formula: "tanh(x)", Source: dlmfTanh},
	{
		Name: "leaky_relu", Parameters: []Parameter{{Name: "slope", Default: 0.01, Range: Finite}}, Cheap: true, Kinks: []string{"0"},
		Formula: "x if x > 0 else slope x", Source: leakySource,
	},
	{Name: "relu2", Cheap: true, Kinks: []string{"0"}, Formula: "max(x, 0)^2", Source: primerSource},
}

var gatedKinds = []GatedInfo{
	{Name: "glu", Activation: "sigmoid", Source: gluSource},
	{Name: "reglu", Activation: "relu", Source: shazeer},
	{Name: "swiglu", Activation: "silu", Source: shazeer},
	{Name: "geglu", Activation: "gelu", Source: shazeer},
	{Name: "geglu_tanh", Activation: "gelu_tanh", Source: shazeer},
	{Name: "bilinear", Activation: "none", Source: shazeer},
}

// All returns the activations in the table's order.
func All() []Info { return append([]Info(nil), activations...) }

// AllGated returns the gated kinds in the table's order.
func AllGated() []GatedInfo { return append([]GatedInfo(nil), gatedKinds...) }

// Lookup returns the row of a name and whether there is one.
func Lookup(name string) (Info, bool) {
	for _, a := range activations {
		if a.Name == name {
			return a, true
		}
	}
	return Info{}, false
}

// LookupGated returns the row of a gated kind and whether there is one.
func LookupGated(name string) (GatedInfo, bool) {
	for _, g := range gatedKinds {
		if g.Name == name {
			return g, true
		}
	}
	return GatedInfo{}, false
}

// Names lists the activations' names in the table's order.
func Names() []string {
	names := make([]string, len(activations))
	for i, a := range activations {
		names[i] = a.Name
	}
	return names
}

// NamesFromOutput lists the activations whose derivative is a function of the output.
func NamesFromOutput() []string {
	var names []string
	for _, a := range activations {
		if a.FromOutput {
			names = append(names, a.Name)
		}
	}
	return names
}

// GatedNames lists the gated kinds' names in the table's order.
func GatedNames() []string {
	names := make([]string, len(gatedKinds))
	for i, g := range gatedKinds {
		names[i] = g.Name
	}
	return names
}

// Tables gives both tables as JSON.
func Tables() (string, error) {
	text, err := json.Marshal(map[string]any{"activations": activations, "gated_kinds": gatedKinds})
	return string(text), err
}
