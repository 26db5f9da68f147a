package epigrad_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/blas/gonum"
	"gonum.org/v1/gonum/blas/testblas"
	"gonum.org/v1/gonum/mat"

	"github.com/epigrad/epigrad/go/epigrad"
)

var (
	_ blas.Float32 = epigrad.BLAS{}
	_ blas.Float64 = epigrad.BLAS{}
)

// gonum's own test of its products: values, leading dimensions, and panics.
func TestBLAS(t *testing.T) { testblas.TestDgemm(t, epigrad.BLAS{}) }

func TestBLASAgreesWithGonum(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 8))
	for _, transA := range []blas.Transpose{blas.NoTrans, blas.Trans} {
		for _, transB := range []blas.Transpose{blas.NoTrans, blas.Trans} {
			for _, scale := range [][2]float64{{1, 0}, {1, 1}, {-0.5, 0}, {2, 0.25}} {
				const m, n, k, gap = 19, 35, 40, 3
				left, right, c := make([]float64, 40*(40+gap)), make([]float64, 40*(40+gap)), make([]float64, m*(n+gap))
				for _, list := range [][]float64{left, right, c} {
					for i := range list {
						list[i] = random.NormFloat64()
					}
				}
				if scale[1] == 0 {
					c[1] = math.NaN() // is overwritten
				}
				want := append([]float64{}, c...)
				narrowC, narrowLeft, narrowRight := narrow(c), narrow(left), narrow(right)
				epigrad.BLAS{}.Dgemm(transA, transB, m, n, k, scale[0], left, 40+gap, right, 40+gap, scale[1], c, n+gap)
				gonum.Implementation{}.Dgemm(transA, transB, m, n, k, scale[0], left, 40+gap, right, 40+gap, scale[1], want, n+gap)
				require.InDeltaSlice(t, want, c, 1e-13, fmt.Sprint(transA, transB, scale))
				epigrad.BLAS{}.Sgemm(transA, transB, m, n, k, float32(scale[0]), narrowLeft, 40+gap, narrowRight, 40+gap, float32(scale[1]), narrowC, n+gap)
				for i := range want {
					require.InDelta(t, want[i], narrowC[i], 1e-4)
				}
			}
		}
	}
}

func narrow(list []float64) []float32 {
	narrowed := make([]float32, len(list))
	for i, x := range list {
		narrowed[i] = float32(x)
	}
	return narrowed
}

func TestGonumUsesIt(t *testing.T) {
	before := blas64.Implementation()
	defer blas64.Use(before)
	a, b := mat.NewDense(30, 30, nil), mat.NewDense(30, 30, nil)
	for i := range 30 {
		a.Set(i, i, 2)
		b.Set(i, 29-i, float64(i))
	}
	blas64.Use(epigrad.BLAS{})
	var product mat.Dense
	product.Mul(a, b)
	require.Equal(t, 14., product.At(7, 22))
}
