//go:build cgo

// Package torch has the kernels of torch.ops.epigrad, for callers that have no Python: C++ programs
// and the code of torch.compile. All of it is C; PyTorch is found at run time.
package torch

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -fexceptions -I${SRCDIR}/../include -I${SRCDIR}/../../go/backend
#cgo LDFLAGS: -ldl
*/
import "C"

import (
	_ "github.com/epigrad/epigrad/cbridge"         // what the kernels call
	_ "github.com/epigrad/epigrad/cbridge/include" // rebuild when a header changes
)
