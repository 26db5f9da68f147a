// Package activation is the table of activations and of the gated kinds built from them.
//
// A row holds every fact that backends, tests and documents need. The formulas themselves live with
// the kernels, one file for each language (kernels/*/activation.*). Several rows may share a
// kernel, to which their parameters are numbers (kernel.go). A gated kind is a row beside the
// activation of its gate.
package activation

import (
	"encoding/json"
	"math"
	"slices"
)

// Info is one row of the activation table.
type Info struct {
	// Name is the word that users write: "gelu_tanh".
	Name string `json:"name"`
	// Aliases are other words for the same function: names of PyTorch, transformers and timm.
	Aliases []string `json:"aliases,omitempty"`
	// DefaultIs is the activation that this one is with its default parameters, where that has a
	// name of its own.
	DefaultIs string `json:"default_is,omitempty"`
	// Parameters are the numbers that the formula takes beside x.
	Parameters []Parameter `json:"parameters,omitempty"`
	// FromOutput: the derivative is a function of the output, so that the output can be saved in
	// place of the preactivation.
	FromOutput bool `json:"from_output"`
	// Cheap: a few instructions, so that kernels wait for memory and not for arithmetic.
	// CheapInHalf: where a GPU's approximate exponential serves, which is in the half types.
	Cheap       bool `json:"cheap"`
	CheapInHalf bool `json:"cheap_in_half"`
	// Frequent: models use it so often that CUDA has small kernels for it alone. The others share
	// one kernel, which chooses by a number: their place in OtherKernels.
	Frequent bool `json:"-"`
	// Kinks are the points at which a derivative jumps, of any order: numbers, names of
	// parameters, or quotients of two names. Tests compare them with their oracles' own.
	Kinks []string `json:"kinks,omitempty"`
	// Formula is the value as a formula in x and the parameters, and Slope the derivative, at the
	// kinks too: docstrings and pages show them. s is the logistic function.
	Formula string `json:"formula"`
	Slope   string `json:"slope"`
	// Source is where the formula comes from.
	Source string `json:"source"`

	kernel kernel
}

// GatedInfo is one row of the table of gated kinds.
type GatedInfo struct {
	// Name is the word that users write: "swiglu".
	Name string `json:"name"`
	// Parameters are the numbers that the formula takes beside value and gate.
	Parameters []Parameter `json:"parameters,omitempty"`
	// Activation is the activation that the gate goes through; "" where it is part of the formula.
	Activation string `json:"activation"`
	// Formula is the value as a formula in value, gate and the parameters, without limits and
	// offset.
	Formula string `json:"formula"`
	// Source is where the kind comes from.
	Source string `json:"source"`

	kernel kernel
}

// Preset is a gated kind with parameters of its own, under another name.
type Preset struct {
	Name       string             `json:"name"`
	Kind       string             `json:"kind"`
	Parameters map[string]float64 `json:"parameters"`
	Source     string             `json:"source"`
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
	eluSource    = "Clevert et al. 2015, https://arxiv.org/abs/1511.07289"
	hardSource   = "Howard et al. 2019, https://arxiv.org/abs/1905.02244"
	swishSource  = "Ramachandran et al. 2017, https://arxiv.org/abs/1710.05941"
	gptOSS       = "gpt-oss, https://github.com/openai/gpt-oss"
)

// selu's constants: Klambauer et al. 2017.
const (
	seluScale = 1.0507009873554804934193349852946
	seluAlpha = 1.6732632423543772848170429916717
)

var activations = []Info{
	{
		Name: "none", Frequent: true, Aliases: []string{"identity", "linear"},
		Cheap:   true,
		Formula: "x",
		Slope:   "1",
		Source:  "identity",
	},
	{
		Name: "relu", Frequent: true, FromOutput: true,
		Cheap: true, Kinks: []string{"0"},
		Formula: "max(x, 0)",
		Slope:   "1 if x > 0 else 0",
		Source:  reluSource,
	},
	{
		Name: "gelu", Frequent: true, Aliases: []string{"gelu_python"},
		Formula: "x erfc(-x/sqrt(2)) / 2",
		Slope:   "erfc(-x/sqrt(2)) / 2 + x exp(-x^2/2) / sqrt(2 pi)",
		Source:  geluSource + "; " + dlmfErfc,
	},
	{
		Name: "gelu_tanh", Frequent: true, Aliases: []string{"gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh", "gelu_pytorch_tanh"},
		Formula: "x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2",
		Slope:   "s(v) (1 + x v' s(-v)), v = 2 sqrt(2/pi) (x + 0.044715 x^3)",
		Source:  geluSource,
	},
	{
		Name: "silu", Frequent: true,
		CheapInHalf: true,
		Formula:     "x / (1 + exp(-x))",
		Slope:       "s(x) (1 + x s(-x))",
		Source:      siluSource,
	},
	{
		Name: "sigmoid", Frequent: true, FromOutput: true,
		CheapInHalf: true,
		Formula:     "1 / (1 + exp(-x))",
		Slope:       "s(x) s(-x)",
		Source:      dlmfLogistic,
	},
	{
		Name: "tanh", Frequent: true, FromOutput: true,
		Formula: "tanh(x)",
		Slope:   "1 - tanh(x)^2",
		Source:  dlmfTanh,
	},
	{
		Name: "leaky_relu", Frequent: true, Parameters: []Parameter{{Name: "slope", Default: 0.01, Range: Finite}},
		Cheap: true, Kinks: []string{"0"},
		Formula: "x if x > 0 else slope x",
		Slope:   "1 if x > 0 else slope",
		Source:  leakySource,
	},
	{
		Name: "relu2", Frequent: true, Aliases: []string{"relu_squared", "sqrelu"},
		Cheap: true, Kinks: []string{"0"},
		Formula: "max(x, 0)^2",
		Slope:   "2 max(x, 0)",
		Source:  primerSource,
	},
	{
		Name:        "quick_gelu",
		CheapInHalf: true,
		Formula:     "x / (1 + exp(-1.702 x))",
		Slope:       "s(1.702 x) (1 + 1.702 x s(-1.702 x))",
		Source:      geluSource,
		kernel:      kernel{"swish", []number{constant(quickGeluBeta)}},
	},
	{
		Name: "swish", DefaultIs: "silu", Parameters: []Parameter{{Name: "beta", Default: 1, Range: Finite}},
		CheapInHalf: true,
		Formula:     "x / (1 + exp(-beta x))",
		Slope:       "s(beta x) (1 + beta x s(-beta x))",
		Source:      swishSource,
	},
	{
		Name: "elu", Parameters: []Parameter{{Name: "alpha", Default: 1, Range: Finite}},
		Kinks:   []string{"0"},
		Formula: "x if x > 0 else alpha (exp(x) - 1)",
		Slope:   "1 if x > 0 else alpha exp(x)",
		Source:  eluSource,
		kernel:  kernel{"elu", []number{constant(1), parameter(0), constant(1)}},
	},
	{
		Name:    "selu",
		Kinks:   []string{"0"},
		Formula: "lambda (x if x > 0 else alpha (exp(x) - 1)), lambda = 1.0507009873554805, alpha = 1.6732632423543772",
		Slope:   "lambda if x > 0 else lambda alpha exp(x)",
		Source:  "Klambauer et al. 2017, https://arxiv.org/abs/1706.02515",
		kernel:  kernel{"elu", []number{constant(seluScale), constant(seluScale * seluAlpha), constant(1)}},
	},
	{
		Name: "celu", Parameters: []Parameter{{Name: "alpha", Default: 1, Range: NonZero}},
		Kinks:   []string{"0"},
		Formula: "x if x > 0 else alpha (exp(x / alpha) - 1)",
		Slope:   "1 if x > 0 else exp(x / alpha)",
		Source:  "Barron 2017, https://arxiv.org/abs/1704.07483",
		kernel:  kernel{"elu", []number{constant(1), parameter(0), parameter(0)}},
	},
	{
		Name: "softplus", Parameters: []Parameter{{Name: "beta", Default: 1, Range: Positive}, {Name: "threshold", Default: 20, Range: Finite}}, Kinks: []string{"threshold/beta"},
		Formula: "x if beta x > threshold else log(1 + exp(beta x)) / beta",
		Slope:   "1 if beta x > threshold else s(beta x)",
		Source:  "Dugas et al. 2001, https://papers.nips.cc/paper/1920-incorporating-second-order-functional-knowledge-for-better-option-pricing",
	},
	{
		Name:    "mish",
		Formula: "x tanh(log(1 + exp(x)))",
		Slope:   "t + x s(x) (1 - t^2), t = tanh(log(1 + exp(x)))",
		Source:  "Misra 2019, https://arxiv.org/abs/1908.08681",
	},
	{
		Name: "hardswish", Aliases: []string{"hard_swish"},
		Cheap: true, Kinks: []string{"-3", "3"},
		Formula: "x min(max(x + 3, 0), 6) / 6",
		Slope:   "0 if x <= -3, 1 if x >= 3, else (2 x + 3) / 6",
		Source:  hardSource,
	},
	{
		Name: "hardsigmoid", Aliases: []string{"hard_sigmoid"},
		Cheap: true, Kinks: []string{"-3", "3"},
		Formula: "min(max(x + 3, 0), 6) / 6",
		Slope:   "1/6 if -3 < x < 3 else 0",
		Source:  hardSource,
	},
	{
		Name:  "relu6",
		Cheap: true, Kinks: []string{"0", "6"},
		Formula: "min(max(x, 0), 6)",
		Slope:   "1 if 0 < x < 6 else 0",
		Source:  "Krizhevsky 2010, https://www.cs.toronto.edu/~kriz/conv-cifar10-aug2010.pdf",
		kernel:  kernel{"hardtanh", []number{constant(0), constant(6)}},
	},
	{
		Name: "hardtanh", Parameters: []Parameter{{Name: "low", Default: -1, Range: Finite}, {Name: "high", Default: 1, Range: AtLeastLow}},
		Cheap: true, Kinks: []string{"low", "high"},
		Formula: "min(max(x, low), high)",
		Slope:   "1 if low < x < high else 0",
		Source:  "Collobert 2004, https://ronan.collobert.com/pub/2004_phdthesis_lip6.pdf",
	},
	{
		Name: "softcap", Parameters: []Parameter{{Name: "cap", Default: 30, Range: Positive}},
		Formula: "cap tanh(x / cap)",
		Slope:   "1 - tanh(x / cap)^2",
		Source:  "Bello et al. 2016, https://arxiv.org/abs/1611.09940; Gemma 2",
	},
}

// quickGeluBeta is the factor for which x s(beta x) comes near to gelu.
const quickGeluBeta = 1.702

// What a gated kind's value and gate go through beside its activation: limit, phi, limit_after,
// offset, in this order.
var (
	limits = []Parameter{
		{Name: "limit", Default: Number(math.Inf(1)), Range: Limit},
		{Name: "limit_after", Default: Number(math.Inf(1)), Range: Limit},
		{Name: "offset", Default: 0, Range: Finite},
	}
	limitsAndAlpha = append(limits[:len(limits):len(limits)], Parameter{Name: "alpha", Default: 1, Range: Finite})
)

var gatedKinds = []GatedInfo{
	{Name: "glu", Parameters: limits, Activation: "sigmoid", Formula: "value sigmoid(gate)", Source: gluSource},
	{Name: "reglu", Parameters: limits, Activation: "relu", Formula: "value relu(gate)", Source: shazeer},
	{
		Name: "swiglu", Parameters: limitsAndAlpha, Activation: "silu", Formula: "value gate sigmoid(alpha gate)", Source: shazeer + "; " + gptOSS,
		kernel: kernel{"swish", []number{parameter(len(limits))}},
	},
	{Name: "geglu", Parameters: limits, Activation: "gelu", Formula: "value gelu(gate)", Source: shazeer},
	{Name: "geglu_tanh", Parameters: limits, Activation: "gelu_tanh", Formula: "value gelu_tanh(gate)", Source: shazeer},
	{Name: "bilinear", Parameters: limits, Activation: "none", Formula: "value gate", Source: shazeer},
	{Name: "sreglu", Parameters: limits, Activation: "relu2", Formula: "value relu2(gate)", Source: primerSource + ", gated"},
	{
		Name: "quick_geglu", Parameters: limits, Activation: "quick_gelu", Formula: "value gate sigmoid(1.702 gate)", Source: geluSource + ", gated",
		kernel: kernel{"swish", []number{constant(quickGeluBeta)}},
	},
	{
		Name: "situ_glu", Parameters: []Parameter{{Name: "gate_cap", Default: 4, Range: Positive}, {Name: "value_cap", Default: 25, Range: Positive}},
		Formula: "value_cap tanh(value / value_cap) gate_cap tanh(gate / gate_cap) sigmoid(gate)",
		Source:  "Kimi K3; Transformer Engine, https://github.com/NVIDIA/TransformerEngine/pull/3402",
		kernel:  kernel{name: "situ"},
	},
}

var presets = []Preset{
	{Name: "swiglu_oai", Kind: "swiglu", Parameters: map[string]float64{"alpha": 1.702, "limit": 7, "offset": 1}, Source: gptOSS},
}

// All returns the activations in the table's order.
func All() []Info { return append([]Info(nil), activations...) }

// AllGated returns the gated kinds in the table's order.
func AllGated() []GatedInfo { return append([]GatedInfo(nil), gatedKinds...) }

// Presets returns the gated kinds that are others with parameters.
func Presets() []Preset { return append([]Preset(nil), presets...) }

// Lookup returns the row of a name or of an alias, and whether there is one.
func Lookup(name string) (Info, bool) {
	for _, a := range activations {
		if a.Name == name || slices.Contains(a.Aliases, name) {
			return a, true
		}
	}
	return Info{}, false
}

// LookupGated returns the row of a gated kind and whether there is one. A preset is none.
func LookupGated(name string) (GatedInfo, bool) {
	for _, g := range gatedKinds {
		if g.Name == name {
			return g, true
		}
	}
	return GatedInfo{}, false
}

// LookupPreset returns the preset of a name and whether there is one.
func LookupPreset(name string) (Preset, bool) {
	for _, p := range presets {
		if p.Name == name {
			return p, true
		}
	}
	return Preset{}, false
}

// Values returns the values of all of its kind's parameters; nil for no preset.
func (p Preset) Values() []float64 {
	row, _ := LookupGated(p.Kind)
	var values []float64
	for _, parameter := range row.Parameters {
		value, given := p.Parameters[parameter.Name]
		if !given {
			value = float64(parameter.Default)
		}
		values = append(values, value)
	}
	return values
}

// Names lists the activations' names in the table's order.
func Names() []string {
	names := make([]string, len(activations))
	for i, a := range activations {
		names[i] = a.Name
	}
	return names
}

// Aliases lists the other names of activations.
func Aliases() []string {
	var names []string
	for _, a := range activations {
		names = append(names, a.Aliases...)
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

// GatedNames lists the gated kinds' names in the table's order, then the presets'.
func GatedNames() []string {
	names := make([]string, 0, len(gatedKinds)+len(presets))
	for _, g := range gatedKinds {
		names = append(names, g.Name)
	}
	for _, p := range presets {
		names = append(names, p.Name)
	}
	return names
}

// Tables gives the tables as JSON.
func Tables() (string, error) {
	text, err := json.Marshal(map[string]any{"activations": activations, "gated_kinds": gatedKinds, "presets": presets})
	return string(text), err
}
