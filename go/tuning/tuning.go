// Package tuning keeps what backends found by timing: the choice of each problem, in a file that
// outlives the process.
//
// Outside a block nothing is read and every choice is fixed, so that results are the same from
// process to process.
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

// File is a cache of choices, as it was read and with what was stored since. A call that may choose
// asks once which file is in use and goes on with that, whatever blocks other threads open and
// close meanwhile.
type File struct {
	path       string
	generation int64
	mutex      sync.Mutex
	choices    map[string][]byte
}

var table struct {
	sync.Mutex
	open   []*File // of the blocks that are open, the innermost last
	latest *File   // the last that was in use: a block on it again need not read it
	files  int64
}

// current is the file in use, nil outside of blocks.
var current atomic.Pointer[File]

// watchers are called after every change of current.
var watchers []func()

// Watch has a function called whenever Current has changed. It is for packages' initialisation.
func Watch(changed func()) { watchers = append(watchers, changed) }

func use(f *File) {
	current.Store(f)
	for _, changed := range watchers {
		changed()
	}
}

// Begin opens a block: backends time their candidates from now on and keep the choices in the file
// at path. Blocks nest; the one that was opened last gives the file.
func Begin(path string) error {
	table.Lock()
	defer table.Unlock()
	f, err := opened(path)
	if err != nil {
		return err
	}
	table.open, table.latest = append(table.open, f), f
	use(f)
	return nil
}

// opened is the file at a path, which is read unless it is known.
func opened(path string) (*File, error) {
	for _, f := range append([]*File{table.latest}, table.open...) {
		if f != nil && f.path == path {
			return f, nil
		}
	}
	choices, err := read(path)
	if err != nil {
		return nil, err
	}
	table.files++
	return &File{path: path, generation: table.files, choices: choices}, nil
}

// End closes the block that was opened last; the file of the one around it is in use again.
func End() {
	table.Lock()
	defer table.Unlock()
	if len(table.open) == 0 {
		return
	}
	table.open = table.open[:len(table.open)-1]
	if len(table.open) == 0 {
		use(nil)
		return
	}
	table.latest = table.open[len(table.open)-1]
	use(table.latest)
}

// Current is the file in use; nil outside of blocks.
func Current() *File { return current.Load() }

// Generation is a number that no other file has, 0 for none: kernels chosen under one are not those
// of another.
func (f *File) Generation() int64 {
	if f == nil {
		return 0
	}
	return f.generation
}

// Lookup returns the kept choice of a problem.
func (f *File) Lookup(problem string) ([]byte, bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	choice, ok := f.choices[problem]
	return choice, ok
}

// Store keeps a choice, and with it those that other processes have stored meanwhile.
func (f *File) Store(problem string, choice []byte) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	unlock, err := lock(f.path)
	if err != nil {
		return err
	}
	defer unlock()
	if others, err := read(f.path); err == nil {
		for key, value := range others {
			if _, ours := f.choices[key]; !ours {
				f.choices[key] = value
			}
		}
	}
	f.choices[problem] = choice
	return write(f.path, f.choices)
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
	if err == nil && choices == nil {
		err = errors.New("it holds null") // which JSON decodes into a nil map, without an error
	}
	if err != nil {
		return nil, status.Errorf(status.InvalidProblem, "tuning: path: %s cannot be read as a cache of choices (%v): name another file or remove it", path, err)
	}
	return choices, nil
}

// lock keeps other processes from storing at the same time, between whose reading and writing a
// choice would be lost.
func lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, cannotWrite(path, err)
	}
	held, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, cannotWrite(path, err)
	}
	if err := lockFile(held); err != nil {
		_ = held.Close()
		return nil, cannotWrite(path, err)
	}
	return func() {
		unlockFile(held)
		_ = held.Close()
	}, nil
}

// write replaces the file in one step: a reader sees the old or the new.
func write(path string, choices map[string][]byte) error {
	text, err := json.MarshalIndent(choices, "", " ")
	if err != nil {
		return cannotWrite(path, err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return cannotWrite(path, err)
	}
	defer os.Remove(file.Name()) // after the rename there is none
	_, err = file.Write(text)
	if err == nil {
		err = file.Chmod(0o644)
	}
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
