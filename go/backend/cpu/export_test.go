package cpu

// BeSlowWithDenormals has an engine lift products' operands, or not, whatever the processor.
func (b *Backend) BeSlowWithDenormals(slow bool) {
	if b.engine != nil {
		b.engine.SlowWithDenormals = slow
	}
}
