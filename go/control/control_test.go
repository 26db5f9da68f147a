package control_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/backend"
	_ "github.com/epigrad/epigrad/go/backend/builtin"
	"github.com/epigrad/epigrad/go/control"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
)

type ControlSuite struct{ suite.Suite }

func TestControl(t *testing.T) { suite.Run(t, new(ControlSuite)) }

func (s *ControlSuite) decode(text string, into any) {
	s.Require().NoError(json.Unmarshal([]byte(text), into), text)
}

// problem describes a small problem of a class; fields come in addition to the usual ones or in
// place of them.
func problem(class string, fields string) string {
	usual := map[string]string{
		"GemmEpilogue":    `"m": 4, "n": 6, "k": 5, "activation": "gelu"`,
		"GatedActivation": `"input_shape": [4, 6], "split_dim": -1, "kind": "swiglu", "gate": "second"`,
		"Lerp":            `"shape": [4, 6]`,
	}[strings.TrimSuffix(class, "Backward")]
	if fields != "" {
		usual += ", " + fields // a key that is repeated has the last value
	}
	return `{"class": "` + class + `", "dtype": "float32", "device": "cpu", ` + usual + `}`
}

func (s *ControlSuite) TestEveryClass() {
	for class, c := range map[string]struct {
		op        string
		workspace int64
	}{
		"GemmEpilogue":            {"matmul_bias_activation", 0},
		"GemmEpilogueBackward":    {"matmul_bias_activation_backward", 4 * 6 * 4},
		"GatedActivation":         {"gated_activation", 0},
		"GatedActivationBackward": {"gated_activation_backward", 0},
		"Lerp":                    {"lerp", 0},
		"LerpBackward":            {"lerp_backward", 0},
	} {
		s.Run(class, func() {
			plan, err := control.SelectPlan(problem(class, ""))
			s.Require().NoError(err)
			var described struct {
				Sku       struct{ Op, Backend, DType string }
				Workspace int64 `json:"workspace_size"`
			}
			s.decode(plan.Describe(), &described)
			s.Equal(c.op, described.Sku.Op)
			s.Equal("cpu", described.Sku.Backend)
			s.Equal("float32", described.Sku.DType)
			s.Equal(c.workspace, described.Workspace)
			kept, err := op.Kept(plan.Handle())
			s.Require().NoError(err)
			s.Equal(c.op, kept.Sku().Op)
			handle := plan.Handle()
			s.True(plan.Close())
			s.False(plan.Close(), "closed already")
			s.Zero(plan.Handle())
			_, err = op.Kept(handle)
			s.Error(err)
		})
	}
}

func (s *ControlSuite) TestAccepts() {
	for _, c := range [][2]string{
		{"GemmEpilogueBackward", `"batch": [2, 3], "b_batched": true`},
		{"GemmEpilogueBackward", `"lda": 5, "ldb": 9, "ld_grad": 6`},
		{"GemmEpilogue", `"batch": [7], "lda": 8`},
		{"GemmEpilogue", `"m": 0`},
		{"GemmEpilogue", `"k": 0, "lda": 1`},
		{"GatedActivation", `"gate": "first", "split_dim": 0`},
		{"Lerp", `"parameters": ["0.5"]`},
		{"LerpBackward", `"parameters": null, "shape": []`},
		{"Lerp", `"dtype": "bfloat16"`},
	} {
		plan, err := control.SelectPlan(problem(c[0], c[1]))
		s.Require().NoError(err, c)
		s.True(plan.Close())
	}
}

func (s *ControlSuite) TestRefuses() {
	for _, c := range []struct{ class, fields, text string }{
		{"GemmEpilogue", `"m": -1`, "InvalidProblemError: GemmEpilogue: a: shape [-1, 5] has a negative size"},
		{"GemmEpilogue", `"activation": "swosh"`, `InvalidProblemError: matmul_bias_activation: activation: got "swosh", want one of none, relu`},
		{"GemmEpilogue", `"lda": 4`, "InvalidProblemError: GemmEpilogue: lda"},
		{"GemmEpilogueBackward", `"ld_grad": 5`, "InvalidProblemError: GemmEpilogueBackward: ld_grad"},
		{"GemmEpilogue", `"lda": 9223372036854775807`, "InvalidProblemError: GemmEpilogue: "},
		{"GemmEpilogue", `"batch": [4294967296, 4294967296], "lda": 5`, "InvalidProblemError: GemmEpilogue: "},
		{"GemmEpilogue", `"m": 9223372036854775807`, "InvalidProblemError: GemmEpilogue: a: shape"},
		{"GemmEpilogue", `"m": 1.5`, "InvalidProblemError: select: json: cannot unmarshal"},
		{"GemmEpilogue", `"mm": 1`, `InvalidProblemError: select: json: unknown field "mm"`},
		{"GemmEpilogue", `"dtype": "int8"`, `DTypeError: GemmEpilogue: dtype: got "int8", want one of float32, float64, bfloat16, float16`},
		{"GemmEpilogue", `"device": "tpu"`, `InvalidProblemError: GemmEpilogue: device: got "tpu"`},
		{"GemmEpilogue", `"device": "cuda:x"`, `InvalidProblemError: GemmEpilogue: device: got "cuda:x"`},
		{"GemmEpilogue", `"device": "cuda:-1"`, `InvalidProblemError: GemmEpilogue: device: got "cuda:-1"`},
		{"GatedActivation", `"input_shape": [3]`, "InvalidProblemError: gated_activation: input: shape [3] has the odd size 3"},
		{"GatedActivationBackward", `"split_dim": 2`, "InvalidProblemError: gated_activation: dim: got 2"},
		{"GatedActivationBackward", `"kind": "relu"`, "InvalidProblemError: gated_activation: kind"},
		{"GatedActivation", `"gate": "third"`, `InvalidProblemError: GatedActivation: gate: got "third", want one of second, first`},
		{"Lerp", `"parameters": ["x"]`, `InvalidProblemError: Lerp: parameters: got "x", want a number`},
		{"GemmEpilogue", `"parameters": ["1"]`, "InvalidProblemError: matmul_bias_activation: parameters: got 1, want none"},
		{"LerpBackward", `"shape": [-2]`, "InvalidProblemError: LerpBackward: "},
		{"NoSuchClass", `"m": 1`, `InvalidProblemError: `},
		{"", `"m": 1`, `InvalidProblemError: select: class`},
	} {
		s.Run(c.class+" "+c.fields, func() {
			text := problem(c.class, c.fields)
			plan, err := control.SelectPlan(strings.Replace(text, ", , ", ", ", 1))
			s.Nil(plan)
			s.Require().Error(err)
			s.Contains(err.Error(), c.text)
		})
	}
	for _, text := range []string{"", "{", "null", "[]", "7", `{"class": 7}`} {
		_, err := control.SelectPlan(text)
		s.Require().Error(err, text)
		s.Contains(err.Error(), "InvalidProblemError: select: ")
	}
}

func (s *ControlSuite) TestFacts() {
	var backends []struct {
		Name, Device, Detail, Reason string
		Available                    bool
	}
	text, err := control.Backends()
	s.Require().NoError(err)
	s.decode(text, &backends)
	s.Len(backends, 3)
	for _, b := range backends {
		s.NotEqual(b.Reason == "", b.Detail == "", "%s: what it is, or why it is not", b.Name)
		s.Equal(b.Available, b.Reason == "", b.Name)
	}
	s.Equal("cpu", backends[0].Name)
	s.True(backends[0].Available)

	var facts struct {
		GoVersion string                             `json:"go_version"`
		CPUs      int                                `json:"cpu_count"`
		ABI       int                                `json:"abi_version"`
		Cache     struct{ Size, Hits, Misses int64 } `json:"plan_cache"`
	}
	text, err = control.DoctorFacts()
	s.Require().NoError(err)
	s.decode(text, &facts)
	s.Contains(facts.GoVersion, "go1")
	s.Positive(facts.CPUs)
	s.Positive(facts.ABI)
}

func (s *ControlSuite) TestCacheControl() {
	plan, err := control.SelectPlan(problem("Lerp", ""))
	s.Require().NoError(err)
	s.Positive(control.PlanCacheSize())
	s.NoError(control.ClearPlanCache())
	s.Zero(control.PlanCacheSize())
	s.True(plan.Close())
}

// broken is a backend with a defect.
type broken struct{ backend.Backend }

func (broken) Info() backend.Info { panic("broken") }

func (s *ControlSuite) TestAPanicIsAnError() {
	cuda, err := backend.Named("cuda")
	s.Require().NoError(err)
	backend.Register(broken{cuda})
	defer backend.Register(cuda)
	_, err = control.Backends()
	s.ErrorContains(err, "EpigradError: epigrad: a defect: broken\n")
}

// FuzzSelectPlan: any text gives a plan or an error that names its class, and never a panic.
func FuzzSelectPlan(f *testing.F) {
	for _, class := range []string{"GemmEpilogue", "GemmEpilogueBackward", "GatedActivation", "GatedActivationBackward", "Lerp", "LerpBackward"} {
		f.Add(problem(class, ""))
		f.Add(problem(class, `"shape": [0, 9223372036854775807], "input_shape": [4611686018427387904, 2], "batch": [-1], "lda": 9223372036854775807`))
	}
	f.Add(problem("GemmEpilogue", `"batch": [4294967296, 4294967296], "b_batched": true, "ldb": 4294967296`))
	f.Add(problem("GemmEpilogueBackward", `"m": 3037000500, "n": 3037000500, "k": 0`))
	f.Add(problem("GatedActivationBackward", `"split_dim": -9223372036854775808`))
	f.Add(problem("LerpBackward", `"parameters": ["1e400"]`))
	f.Add(`{"class": "Lerp", "device": "cuda:99999999999999999999"}`)
	f.Add("nul")
	classes := map[string]bool{}
	for _, code := range status.Codes() {
		classes[code.Class()] = code != status.Internal
	}
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := control.SelectPlan(text)
		if err == nil {
			if !json.Valid([]byte(plan.Describe())) {
				t.Errorf("described as %q", plan.Describe())
			}
			plan.Close()
			return
		}
		if class, _, _ := strings.Cut(err.Error(), ": "); !classes[class] {
			t.Errorf("%q gives %q", text, err)
		}
	})
}
