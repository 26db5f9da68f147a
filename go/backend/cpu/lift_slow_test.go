package cpu

// What is lifted on some processors only is tested on all.
func init() { slowWithDenormals = true }
