package optest

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// bitsFile is where the suite writes the hash of every call's inputs and results, a line for each:
// engines that ought to have the same bits are compared by it, also those of two processors. It is
// the file that EPIGRAD_TEST_BITS names, or nil.
func bitsFile(t *testing.T) io.Writer {
	path := os.Getenv("EPIGRAD_TEST_BITS")
	if path == "" {
		return nil
	}
	file, err := os.Create(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	return file
}

func (s *opSuite) recordBits(c *call) {
	if s.bits != nil {
		_, err := fmt.Fprintf(s.bits, "%s/%s %016x %016x\n", c.Op, c.Kind, hashOf(c.inputs), hashOf(c.outputs))
		s.Require().NoError(err)
	}
}

// hashOf hashes the elements of arrays; a NaN is a NaN, whatever its sign and payload.
func hashOf(arrays []*array) uint64 {
	hash := fnv.New64a()
	for _, a := range arrays {
		if a == nil {
			continue
		}
		for _, x := range a.values() {
			if math.IsNaN(x) {
				x = math.NaN()
			}
			_ = binary.Write(hash, binary.LittleEndian, x)
		}
	}
	return hash.Sum64()
}
