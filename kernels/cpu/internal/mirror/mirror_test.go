//go:build cgo && (amd64 || arm64)

package mirror

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Go's structs have the fields of C's, by name, size and offset.
func TestGoMirrorsC(t *testing.T) {
	for _, m := range Mirrors {
		sameLayout(t, m.Go.Name(), m.Go, m.C)
	}
}

// sameLayout compares two types down to their numbers.
func sameLayout(t *testing.T, place string, inGo, inC reflect.Type) {
	t.Helper()
	require.Equal(t, inC.Size(), inGo.Size(), "%s: size", place)
	switch inC.Kind() {
	case reflect.Struct:
		require.Equal(t, inC.NumField(), inGo.NumField(), "%s: fields", place)
		for i := range inC.NumField() {
			c, g := inC.Field(i), inGo.Field(i)
			at := place + "." + c.Name
			if g.Name != "_" { // what only C uses
				require.Equal(t, strings.ReplaceAll(c.Name, "_", ""), strings.ToLower(g.Name), "%s: name", at)
			}
			require.Equal(t, c.Offset, g.Offset, "%s: offset", at)
			sameLayout(t, at, g.Type, c.Type)
		}
	case reflect.Array:
		require.Equal(t, inC.Len(), inGo.Len(), "%s: length", place)
		sameLayout(t, place+"[]", inGo.Elem(), inC.Elem())
	case reflect.Pointer: // in Go an unsafe.Pointer, or a Kernel
	default:
		require.Equal(t, inC.Kind(), inGo.Kind(), "%s: type", place)
	}
}
