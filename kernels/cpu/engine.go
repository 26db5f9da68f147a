package cpu

import (
	"fmt"
	"strings"

	"golang.org/x/sys/cpu"
)

// Engine is the kernels of one instruction set.
type Engine struct {
	// Name is the word that users write: "avx512".
	Name string
	// VectorBytes is the width of a register.
	VectorBytes int
	table       table
	kernels     map[string]Kernel
}

// instructionSet is one that there are kernels for: what it needs of the processor, and what has to
// be asked of the system then.
type instructionSet struct {
	name        string
	vectorBytes int
	needs       []feature
	ask         func() error
}

// instructions are the instruction sets, best first.
var instructions = []instructionSet{
	{"amx", 64, append([]feature{{"AMX_BF16", cpu.X86.HasAMXBF16}, {"AMX_TILE", cpu.X86.HasAMXTile}}, avx512...), requestAMX},
	{"avx512bf16", 64, append([]feature{{"AVX512_BF16", cpu.X86.HasAVX512BF16}}, avx512...), nil},
	{"avx512", 64, avx512, nil},
	{"avx2", 32, avx2, nil},
	{"neon", 16, []feature{{"NEON", cpu.ARM64.HasASIMD}}, nil},
}

var (
	avx2   = []feature{{"AVX2", cpu.X86.HasAVX2}, {"FMA", cpu.X86.HasFMA}, {"F16C", cpu.X86.HasF16C}}
	avx512 = append([]feature{
		{"AVX512F", cpu.X86.HasAVX512F},
		{"AVX512BW", cpu.X86.HasAVX512BW},
		{"AVX512DQ", cpu.X86.HasAVX512DQ},
		{"AVX512VL", cpu.X86.HasAVX512VL},
	}, avx2...)
)

type feature struct {
	name string
	has  bool
}

// Names lists the engines, best first, whether or not this machine can run them.
func Names() []string {
	names := make([]string, len(instructions))
	for i, set := range instructions {
		names[i] = set.name
	}
	return names
}

// Open returns an engine, or an error that says what is missing here.
func Open(name string) (*Engine, error) {
	for _, set := range instructions {
		if set.name != name {
			continue
		}
		if !built {
			return nil, fmt.Errorf("the engine %s: this build of epigrad has the Go kernels only (%s)", name, whyNotBuilt)
		}
		var missing []string
		for _, f := range set.needs {
			if !f.has {
				missing = append(missing, f.name)
			}
		}
		if len(missing) > 0 {
			return nil, fmt.Errorf("the engine %s: this processor, or the system, lacks %s", name, strings.Join(missing, ", "))
		}
		if set.ask != nil {
			if err := set.ask(); err != nil {
				return nil, fmt.Errorf("the engine %s: the system does not let this process have its registers: %w", name, err)
			}
		}
		return newEngine(set.name, set.vectorBytes), nil
	}
	return nil, fmt.Errorf("there is no engine %q", name)
}

// Best returns the best engine that this machine can run, or nil.
func Best() *Engine {
	for _, name := range Names() {
		if e, err := Open(name); err == nil {
			return e
		}
	}
	return nil
}

// Kernel returns the kernel of a name, such as "gated_backward_silu_bf16", and whether there is
// one.
func (e *Engine) Kernel(name string) (Kernel, bool) {
	k, ok := e.kernels[name]
	return k, ok
}
