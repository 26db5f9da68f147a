// Command tables writes what Python has to know of the core before it loads it, as JSON: the
// activations, gated kinds, dtypes, status classes and operations. The build runs it; the argument
// is the file.
//
// `tables generate`, in the root of the repository, brings up to date what git keeps of them: the
// table of operations in epigrad.h, and lists of formulas for the CUDA kernels.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/epigrad/epigrad/cbridge/include"
	"github.com/epigrad/epigrad/go/activation"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/op"
	"github.com/epigrad/epigrad/go/status"
)

type row = map[string]any

func main() {
	write := func() error {
		text, err := json.MarshalIndent(tables(), "", " ")
		if err != nil {
			return err
		}
		return os.WriteFile(os.Args[1], append(text, '\n'), 0o644)
	}
	if os.Args[1] == "generate" {
		write = generate
	}
	if err := write(); err != nil {
		log.Fatal(err)
	}
}

func tables() row {
	var dtypes, statuses, ops []row
	for _, d := range dtype.All() {
		dtypes = append(dtypes, row{"name": d.String(), "short": d.Short(), "size": d.Size(), "accumulator": d.Accumulator().String(), "half": d.IsHalf()})
	}
	for _, c := range status.Codes() {
		statuses = append(statuses, row{"code": int(c), "class": c.Class()})
	}
	for _, r := range op.Rows() {
		var adapted row
		if r.Adapted != nil {
			adapted = row{"inputs": arguments(r.Adapted.Inputs), "outputs": arguments(r.Adapted.Outputs), "schema": r.AdaptedSchema}
		}
		ops = append(ops, row{
			"name": r.Name, "inputs": arguments(r.Inputs), "outputs": arguments(r.Outputs), "schema": r.Schema, "adapted": adapted, "keeps": r.Keeps.String(), "kinds": r.Kinds, "default_kind": r.DefaultKind,
			"parameters": r.Parameters, "multiplies": r.Multiplies, "halves": r.Halves, "splits": r.Splits,
		})
	}
	return row{
		"version": include.Version(), "activations": activation.All(), "gated_kinds": activation.AllGated(), "presets": activation.Presets(),
		"quotients": activation.Quotients,
		"dtypes":    dtypes, "statuses": statuses, "ops": ops,
	}
}

func arguments(args []op.Argument) []row {
	list := make([]row, len(args))
	for i, a := range args {
		list[i] = row{"name": a.Name, "shape": a.Shape, "example": a.Example, "channels": a.Channels, "optional": a.Optional, "types": a.Types.String(), "like": a.Like, "kept": a.Kept}
	}
	return list
}
