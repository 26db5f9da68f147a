package tensor

import (
	"strconv"
	"strings"

	"github.com/epigrad/epigrad/go/status"
)

func invalid(format string, args ...any) *status.Error {
	return status.Errorf(status.InvalidProblem, format, args...)
}

// list writes sizes as Python does: "[4, 8]".
func list(sizes []int64) string {
	var text strings.Builder
	text.WriteByte('[')
	for i, n := range sizes {
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(strconv.FormatInt(n, 10))
	}
	text.WriteByte(']')
	return text.String()
}
