//go:build linux || darwin

package tuning_test

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/epigrad/epigrad/go/status"
	"github.com/epigrad/epigrad/go/tuning"
)

// TestAFullDisk: a choice that cannot be written is an error. The file is as it was then, and
// nothing else lies beside it; once there is room, the next choice is kept.
func (s *TuningSuite) TestAFullDisk() {
	folder := s.T().TempDir()
	path := filepath.Join(folder, "choices.json")
	s.NoError(tuning.Begin(path))
	defer tuning.End()
	s.NoError(tuning.Current().Store("first", []byte{1}))
	before, err := os.ReadFile(path)
	s.NoError(err)

	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	s.NoError(syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	full := limit
	full.Cur = uint64(len(before))
	s.NoError(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full))
	failure := tuning.Current().Store("second", make([]byte, 100))
	s.NoError(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))

	s.Equal(status.InvalidProblem, status.Of(failure).Code)
	s.ErrorContains(failure, "choices.json cannot be written")
	after, err := os.ReadFile(path)
	s.NoError(err)
	s.Equal(before, after)
	left, err := filepath.Glob(path + ".*")
	s.NoError(err)
	s.Equal([]string{path + ".lock"}, left)
	s.NoError(tuning.Current().Store("third", []byte{3}))
}
