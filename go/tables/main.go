// Command tables writes what Python has to know of the core before it loads it, as JSON: the
// activations, gated kinds, dtypes, status classes and operations. The build runs it; the argument
// is the file.
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
	text, err := json.MarshalIndent(tables(), "", " ")
	if err == nil {
		err = os.WriteFile(os.Args[1], append(text, '\n'), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func tables() row {
	var dtypes, statuses, ops []row
	for _, d := range dtype.All() {
		dtypes = append(dtypes, row{"name": d.String(), "short": d.Short(), "size": d.Size(), "accumulator": d.Accumulator().String()})
	}
	for _, c := range status.Codes() {
		statuses = append(statuses, row{"code": int(c), "class": c.Class()})
	}
	for _, s := range op.Signatures() {
		ops = append(ops, row{
			"name": s.Name, "inputs": names(s.Inputs), "outputs": names(s.Outputs), "multiplies": op.Multiplies(s.Name),
		})
	}
	return row{
		"version": include.Version(), "activations": activation.All(), "gated_kinds": activation.AllGated(), "presets": activation.Presets(),
		"dtypes": dtypes, "statuses": statuses, "ops": ops,
	}
}

func names(args []op.Argument) []string {
	list := make([]string, len(args))
	for i, a := range args {
		list[i] = a.Name
	}
	return list
}
