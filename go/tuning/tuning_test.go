package tuning_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/epigrad/epigrad/go/tuning"
)

type TuningSuite struct{ suite.Suite }

func TestTuning(t *testing.T) { suite.Run(t, new(TuningSuite)) }

func (s *TuningSuite) TestBlocksNest() {
	path := filepath.Join(s.T().TempDir(), "choices.json")
	s.Nil(tuning.Current())
	s.Zero(tuning.Current().Generation())
	s.NoError(tuning.Begin(path))
	s.NoError(tuning.Begin(path))
	inside := tuning.Current().Generation()
	s.NotZero(inside)
	tuning.End()
	s.NotNil(tuning.Current())
	s.Equal(inside, tuning.Current().Generation())
	tuning.End()
	s.Nil(tuning.Current())
	tuning.End() // one too many is harmless
	s.NoError(tuning.Begin(path))
	s.Equal(inside, tuning.Current().Generation(), "the same file gives the same choices")
	tuning.End()
	s.NoFileExists(path, "nothing was chosen")
}

func (s *TuningSuite) TestTheOuterBlocksFileIsUsedAgain() {
	outer, inner := filepath.Join(s.T().TempDir(), "a.json"), filepath.Join(s.T().TempDir(), "b.json")
	s.NoError(tuning.Begin(outer))
	before := tuning.Current().Generation()
	s.NoError(tuning.Begin(inner))
	s.NotEqual(before, tuning.Current().Generation())
	tuning.End()
	s.Equal(before, tuning.Current().Generation())
	s.NoError(tuning.Current().Store("problem", []byte{1}))
	tuning.End()
	s.FileExists(outer)
	s.NoFileExists(inner)
}

func (s *TuningSuite) TestChoicesOutliveTheProcessesMemory() {
	first, second := filepath.Join(s.T().TempDir(), "deep", "a.json"), filepath.Join(s.T().TempDir(), "b.json")
	s.NoError(tuning.Begin(first))
	s.NoError(tuning.Current().Store("problem", []byte{1, 2, 255}))
	tuning.End()
	s.NoError(tuning.Begin(second))
	_, known := tuning.Current().Lookup("problem")
	s.False(known, "another file")
	tuning.End()
	s.NoError(tuning.Begin(first))
	choice, known := tuning.Current().Lookup("problem")
	s.True(known)
	s.Equal([]byte{1, 2, 255}, choice)
	tuning.End()
}

func (s *TuningSuite) TestWhatAnotherProcessStoredIsKept() {
	path := filepath.Join(s.T().TempDir(), "choices.json")
	s.NoError(tuning.Begin(path))
	defer tuning.End()
	s.NoError(os.WriteFile(path, []byte(`{"theirs": "AQ=="}`), 0o600))
	s.NoError(tuning.Current().Store("ours", []byte{2}))
	choice, known := tuning.Current().Lookup("theirs")
	s.True(known)
	s.Equal([]byte{1}, choice)
}

func (s *TuningSuite) TestAFileThatIsNoCacheIsRefused() {
	for _, given := range []string{"my notes", "null", "[]", `{"a": 1}`, ""} {
		path := filepath.Join(s.T().TempDir(), "notes.txt")
		s.NoError(os.WriteFile(path, []byte(given), 0o600))
		s.ErrorContains(tuning.Begin(path), "cannot be read", given)
		s.Nil(tuning.Current())
		text, err := os.ReadFile(path)
		s.NoError(err)
		s.Equal(given, string(text))
	}
}
