//go:build cgo

package webgpu

import (
	"fmt"
	"strings"
)

// tiling is how groups of threads share out a product (kernels/webgpu/gemm.wgsl).
type tiling struct {
	parts int64 // of 64 rows and columns in a tile
	// unrolled: the steps of k within a tile are written out, which software adapters compile for
	// long.
	unrolled bool
}

// bytes of the group's memory that it takes.
func (t tiling) bytes() int64 {
	return 2 * tileDepth * (t.parts*tileSize + 4) * word
}

// tilingOf is what is fastest on an H200: tiles of 128 where there are enough of them for it. A
// second tile, filled while the first is multiplied, is no faster there
// (docs/results/2026-11-21-webgpu-nvidia-h200-variants.json, g3 and g1).
func (b *builder) tilingOf(t tile) tiling {
	if b.tiling != nil {
		return *b.tiling
	}
	wide := tiling{parts: 2, unrolled: b.writesOut}
	if t.tiles(ofRows, 2)*t.tiles(ofColumns, 2)*t.groups[ofBatch].count() < b.limits.wideTiles || wide.bytes() > b.limits.groupBytes {
		return tiling{parts: 1, unrolled: b.writesOut}
	}
	return wide
}

func (t *tile) tiles(group int, parts int64) int64 {
	return ceilDiv(t.groups[group].count(), parts*tileSize)
}

func (t tiling) define(definitions map[string]string) {
	halves, steps := []string{"0", "1"}, "all"
	if t.unrolled {
		list := make([]string, tileDepth)
		for i := range list {
			list[i] = fmt.Sprint(i)
		}
		steps = strings.Join(list, " ")
	}
	for name, value := range map[string]string{
		"HALVES": strings.Join(halves[:t.parts], " "), "PARTS": fmt.Sprintf("%du", t.parts), "TILE": fmt.Sprintf("%du", t.parts*tileSize),
		"WIDTH": fmt.Sprint(t.parts*tileSize/4 + 1), "STEPS": steps,
	} {
		definitions[name] = value
	}
}

// along says how threads share out an operand's part of a tile: four along k each where that can
// be, else neighbours along the dimension with the smaller step.
func along(depth, across loops, i int, deep []bool) string {
	switch {
	case deep[i]:
		return "deep"
	case depth.leastStep(i) < across.leastStep(i):
		return "along_k"
	default:
		return "across_k"
	}
}
