package grouped

import (
	"unsafe"

	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/backend/cpu/elements"
	"github.com/epigrad/epigrad/go/tensor"
)

// countRows marks and counts the rows of each part, and then numbers those of each chunk.
func countRows(p *backend.CountRows, r *backend.Run) error {
	tokens, each, ranks := p.Index.Shape[0], p.Index.Shape[1], p.Places.Shape[1]
	parts, size, width := p.PartCount(), p.PartTokens(), p.Counts.Shape[1]
	experts, bounds := vector[int64](p.Experts, r), vector[int64](p.Parts, r)
	counts, places := vector[int64](p.Counts, r), vector[int32](p.Places, r)
	clear(counts)
	for rank := range ranks {
		row := counts[rank*width:][:width]
		row[2*parts] = tokens
		copy(row[2*parts+1:], vector[int64](p.Facts, r))
	}
	slots := make([]int64, ranks)
	for t := range tokens {
		clear(slots)
		for j := range each {
			expert := integer(p.Index, r, t, j)
			for rank := range ranks {
				if experts[rank] <= expert && expert < experts[rank+1] {
					slots[rank]++
				}
			}
		}
		for rank, count := range slots {
			places[t*ranks+int64(rank)] = -1
			if count > 0 {
				places[t*ranks+int64(rank)] = 0
				counts[int64(rank)*width+t/size]++
				counts[int64(rank)*width+parts+t/size] += count
			}
		}
	}
	next := make([]int32, ranks)
	for c := range p.Parts.Shape[0] - 1 {
		first, end := max(bounds[c], 0), min(bounds[c+1], parts)
		row := int32(0)
		for rank := range ranks {
			next[rank] = row
			for part := first; part < end; part++ {
				row += int32(counts[rank*width+part])
			}
		}
		for t := first * size; t < min(end*size, tokens); t++ {
			for rank := range ranks {
				if place := &places[t*ranks+rank]; *place >= 0 {
					*place = next[rank]
					next[rank]++
				}
			}
		}
	}
	return nil
}

func scatterSlots(p *backend.ScatterSlots, r *backend.Run) error {
	tokens, each, ranks, rows := p.Index.Shape[0], p.Index.Shape[1], p.Places.Shape[1], p.RowsIndex.Shape[0]
	experts := vector[int64](p.Experts, r)
	return eachRow(r, tokens, each*ranks, func(first, end int64) {
		scales := make([]float64, each)
		for t := first; t < end; t++ {
			if each > 0 {
				loadRow(scales, p.Scale, r, t)
			}
			for rank := range ranks {
				place := integer(p.Places, r, t, rank)
				if place < 0 || place >= rows {
					continue
				}
				for j := range each {
					expert := integer(p.Index, r, t, j)
					if expert < experts[rank] || expert >= experts[rank+1] {
						expert = experts[rank] - 1
					}
					*(*int64)(address(p.RowsIndex, r, place, j)) = expert - experts[rank]
					elements.Store(address(p.RowsScale, r, place, j), p.RowsScale.DType.Size(), scales[j:j+1], p.RowsScale.DType)
				}
			}
		}
	})
}

// vector is the elements of a contiguous tensor.
func vector[T int32 | int64](v *tensor.View, r *backend.Run) []T {
	return unsafe.Slice((*T)(r.At(v)), v.Numel())
}
