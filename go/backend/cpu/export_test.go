package cpu

// StreamFrom has a backend write results past the caches from so many bytes of a walk on.
func (b *Backend) StreamFrom(bytes int64) { b.streamed = bytes }

// BeSlowWithDenormals has a backend lift products' operands, or not, whatever the processor.
func (b *Backend) BeSlowWithDenormals(slow bool) { b.slowWithDenormals = slow }
