// Package cuda is the CUDA backend: kernels compiled ahead of time, products by cuBLASLt, both through libraries found at run time.
package cuda

// device is one GPU in its primary context.
type device struct {
	processors int // streaming multiprocessors
}

// compiler turns a program into the steps that C executes.
type compiler struct{}
