// Package tuning keeps what backends found by timing: the choice of each problem, in a file that outlives the process.
//
// Outside a block nothing is read and every choice is fixed, so that results are the same from process to process.
package tuning

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/epigrad/epigrad/go/status"
)

var (
	depth atomic.Int32
	// generation counts the blocks that were opened on another file: kernels chosen under one are not those of another.
	generation atomic.Int64
	table      = struct {
		sync.Mutex
		path    string
		choices map[string][]byte
	}{}
)

// Begin opens a block: backends time their candidates from now on and keep the choices in the file at path. Blocks nest; the innermost that was opened
// last gives the file.
func Begin(path string) error {
	table.Lock()
	defer table.Unlock()
	if table.choices == nil || path != table.path {
		choices, err := read(path)
		if err != nil {
			return err
		}
		table.path, table.choices = path, choices
		generation.Add(1)
	}
	depth.Add(1)
	return nil
}

// End closes a block.
func End() {
	if depth.Add(-1) < 0 {
		depth.Add(1)
	}
}

// Generation is 0 outside of blocks, and inside a number that stands for the file in use.
func Generation() int64 {
	if depth.Load() == 0 {
		return 0
	}
	return generation.Load()
}

// Active reports whether a block is open.
func Active() bool { return depth.Load() > 0 }

// Lookup returns the kept choice of a problem.
func Lookup(problem string) ([]byte, bool) {
	table.Lock()
	defer table.Unlock()
	choice, ok := table.choices[problem]
	return choice, ok
}

// Store keeps a choice, and with it those that other processes have stored meanwhile.
func Store(problem string, choice []byte) error {
	table.Lock()
	defer table.Unlock()
	if others, err := read(table.path); err == nil {
		for key, value := range others {
			if _, ours := table.choices[key]; !ours {
				table.choices[key] = value
			}
		}
	}
	table.choices[problem] = choice
	return write(table.path, table.choices)
}

func read(path string) (map[string][]byte, error) {
	choices := map[string][]byte{}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return choices, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &choices)
	}
	if err != nil {
		return nil, status.Errorf(status.InvalidProblem, "tuning: path: %s cannot be read as a cache of choices (%v): name another file or remove it", path, err)
	}
	return choices, nil
}

// write replaces the file in one step: a reader sees the old or the new.
func write(path string, choices map[string][]byte) error {
	text, err := json.MarshalIndent(choices, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return cannotWrite(path, err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return cannotWrite(path, err)
	}
	defer os.Remove(file.Name()) // after the rename there is none
	_, err = file.Write(text)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return cannotWrite(path, err)
	}
	return nil
}

func cannotWrite(path string, err error) error {
	return status.Errorf(status.InvalidProblem, "tuning: path: %s cannot be written (%v)", path, err)
}
