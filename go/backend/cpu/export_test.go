package cpu

// BeSlowWithDenormals has a backend lift products' operands, or not, whatever the processor.
func (b *Backend) BeSlowWithDenormals(slow bool) { b.slowWithDenormals = slow }
