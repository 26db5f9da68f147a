//go:build cgo

package cuda

import (
	"github.com/epigrad/epigrad/go/backend"
	"github.com/epigrad/epigrad/go/dtype"
	"github.com/epigrad/epigrad/go/status"
)

const (
	// segmentTokens is how many tokens a thread counts, where there are not too many.
	segmentTokens = 4
	// mostPartBlocks bounds the blocks of a part: one block adds up the segments of all of them.
	mostPartBlocks = 16
	// mostRankLanes is the logarithm of how many ranks are side by side in a block.
	mostRankLanes = 5
)

// countRows adds the launches that count rows for processes and number them.
func (b *builder) countRows(p *backend.CountRows) {
	tokens, ranks := p.Places.Shape[0], p.Places.Shape[1]
	if ranks == 0 {
		return
	}
	if ranks > mostRouted {
		b.refused = status.Errorf(status.Unsupported, "%s: experts: got %d processes, want at most %d on the cuda backend", p.Op, ranks, mostRouted)
		return
	}
	parts, partTokens, lanes := p.PartCount(), p.PartTokens(), min(rowLanes(ranks), mostRankLanes)
	segments := int64(blockThreads >> lanes) // of a block
	most := max(min(mostPartBlocks, mostCounts/(parts*segments*ranks)), 1)
	partBlocks := max(min(ceilDiv(partTokens, segments*segmentTokens), most), 1)
	rows, slots := b.region(dtype.Int32, ranks, parts*partBlocks*segments), b.region(dtype.Int32, ranks, parts*partBlocks*segments)
	launch := func(function string, blocks int64) {
		q := &parameters{}
		q.strided(p.Index, 0, 1)
		q.address(p.Experts)
		q.address(p.Parts)
		q.address(p.Facts)
		q.address(p.Counts)
		q.address(p.Places)
		q.address(rows)
		q.address(slots)
		q.int64(tokens)
		q.int64(partTokens)
		q.int64(ceilDiv(partTokens, partBlocks*segments))
		q.sizes(p.Index.Shape[1], ranks, p.Parts.Shape[0]-1, p.Facts.Shape[0], parts, lanes, partBlocks, 0)
		b.general(q, function, blocks)
	}
	launch("grouped_count_rows", parts*partBlocks)
	launch("grouped_count_scan", ranks)
	if tokens > 0 {
		launch("grouped_count_place", parts*partBlocks)
	}
}

// scatterSlots adds the launch that writes slots beside the rows of processes.
func (b *builder) scatterSlots(p *backend.ScatterSlots) {
	slots := p.Index.Numel()
	if slots == 0 || p.RowsIndex.IsEmpty() {
		return
	}
	q := &parameters{}
	q.strided(p.Index, 0, 1)
	q.strided(p.Scale, 0, 1)
	q.address(p.Experts)
	q.address(p.Places)
	q.strided(p.RowsIndex, 0, 1)
	q.strided(p.RowsScale, 0, 1)
	q.sizes(slots, p.Index.Shape[1], p.Places.Shape[1], p.RowsIndex.Shape[0], scaleTypes[p.Scale.DType], 0)
	b.general(q, "grouped_scatter_slots", ceilDiv(slots, blockThreads))
}
