package epigrad

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// BLAS is gonum's BLAS with epigrad's matrix products: blas32.Use(epigrad.BLAS{}) and
// blas64.Use(epigrad.BLAS{}) have gonum's matrices multiplied by the CPU's vector kernels.
// Everything else is gonum's own, and so are the panics for arguments that make no sense.
type BLAS struct{ gonum.Implementation }

// leastGemm is the multiplications from which on a product is worth a call.
const leastGemm = 1 << 12

// Sgemm is c = alpha op(a) op(b) + beta c, as gonum's.
func (l BLAS) Sgemm(transA, transB blas.Transpose, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	if !gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) {
		l.Implementation.Sgemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
	}
}

// Dgemm is c = alpha op(a) op(b) + beta c, as gonum's.
func (l BLAS) Dgemm(transA, transB blas.Transpose, m, n, k int, alpha float64, a []float64, lda int, b []float64, ldb int, beta float64, c []float64, ldc int) {
	if !gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) {
		l.Implementation.Dgemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
	}
}

// gemm computes a product, or returns false and has written nothing: one that is small, or that the
// core refuses.
func gemm[T float32 | float64](transA, transB blas.Transpose, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int) bool {
	if m <= 0 || n <= 0 || k <= 0 || alpha == 0 || int64(m)*int64(n)*int64(k) < leastGemm || ldc < n {
		return false
	}
	left, leftFits := gemmOperand(transA, m, k, a, lda)
	right, rightFits := gemmOperand(transB, k, n, b, ldb)
	if !leftFits || !rightFits {
		return false
	}
	if alpha == 1 && beta == 0 {
		return Matmul[T]{A: left, B: right}.Forward(Matrix(m, n, c, ldc), nil) == nil
	}
	if len(c) < (m-1)*ldc+n {
		return false
	}
	product := New[T](m, n)
	if (Matmul[T]{A: left, B: right}).Forward(product, nil) != nil {
		return false
	}
	for i := range m {
		row := c[i*ldc : i*ldc+n]
		for j, x := range product.Data[i*n : (i+1)*n] {
			if beta == 0 {
				row[j] = alpha * x // what is in c may be NaN
			} else {
				row[j] = alpha*x + beta*row[j]
			}
		}
	}
	return true
}

// gemmOperand is op(x), rows x columns.
func gemmOperand[T float32 | float64](transpose blas.Transpose, rows, columns int, x []T, ld int) (t *Tensor[T], fits bool) {
	switch transpose {
	case blas.NoTrans:
		return Matrix(rows, columns, x, ld), ld >= columns
	case blas.Trans, blas.ConjTrans:
		return Matrix(columns, rows, x, ld).Transposed(), ld >= rows
	default:
		return nil, false
	}
}
