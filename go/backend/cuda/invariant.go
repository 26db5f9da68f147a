//go:build cgo

package cuda

import "github.com/epigrad/epigrad/go/backend"

// Where bits of a row may not depend on other rows, nor on how many there are, no choice between
// kernels that add up in another order may depend on them. The kernels of product_sm90.cuh, and
// those of groups, add up an element's products in one order, whatever their tiles are: the former
// do all products that they can. (On Hopper the addresses of a run choose between its program and
// product_sm80.cuh.) The others take the algorithm that cuBLASLt chooses for invariantRows rows,
// and for invariantColumns columns or more. Algorithms for a matrix and a vector add up in an order
// that depends on the number of rows, and refuse one row. invariantColumns is odd: then the
// algorithm loads single elements, as fewer columns need it to.
const (
	invariantRows    = 2048
	invariantColumns = 9
)

// multiplies reports whether results are sums of products of matrices.
func multiplies(p backend.Problem) bool {
	switch p.(type) {
	case *backend.HiddenBackward, *backend.GatedHiddenBackward, *backend.GatedLinear, *backend.GemmEpilogue, *backend.GemmEpilogueBackward:
		return true
	}
	return false
}

// rowsStartAlike reports whether boxes can start at every row of contiguous operands, or at none
// but the first.
func (o *onePass) rowsStartAlike() bool { return o.depth%boxUnit == 0 && o.columns%boxUnit == 0 }
