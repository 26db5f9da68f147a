package elements

import "math"

// Sums are running column sums with the error of each addition kept beside them (Neumaier 1974,
// https://doi.org/10.1002/zamm.19740540106), so that a sum over millions of rows is as good as one
// over two.
type Sums struct {
	total, carry []float64
}

// NewSums returns the sums of n columns.
func NewSums(n int) Sums {
	both := make([]float64, 2*n)
	return Sums{both[:n], both[n:]}
}

// Len is how many columns there are.
func (s *Sums) Len() int { return len(s.total) }

// Add adds x[i] to column i.
func (s *Sums) Add(x []float64) {
	for i, v := range x {
		s.AddOne(i, v)
	}
}

// AddOne adds a number to column i.
func (s *Sums) AddOne(i int, v float64) {
	total := s.total[i]
	sum := total + v
	if math.Abs(total) >= math.Abs(v) {
		s.carry[i] += (total - sum) + v
	} else {
		s.carry[i] += (v - sum) + total
	}
	s.total[i] = sum
}

// Merge adds another's columns.
func (s *Sums) Merge(other *Sums) {
	for i := range s.total {
		s.AddOne(i, other.total[i])
		s.carry[i] += other.carry[i]
	}
}

// Result writes the sums to dst. Where a sum is infinite or NaN the carry is inf - inf and means
// nothing: the sum itself is the answer.
func (s *Sums) Result(dst []float64) {
	for i := range dst {
		dst[i] = s.total[i]
		if carry := s.carry[i]; !math.IsNaN(carry) && !math.IsInf(carry, 0) {
			dst[i] += carry
		}
	}
}
