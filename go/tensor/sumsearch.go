package tensor

import "math/bits"

// searchBudget bounds the work of one overlap test, to about a tenth of a second. Nested strides,
// as slices, transposes and broadcasts of a dense buffer have them, take a few steps, and views
// that come down to two strides are decided directly. Only many long strides that do not nest can
// reach the bound, and then the answer is the safe one: they overlap.
const searchBudget = 1_000_000

// multiple stands for step·x with 0 <= x <= count.
type multiple struct {
	step, count int64
	// reach and divisor are the largest sum and the common divisor of this multiple and all that
	// follow.
	reach, divisor int64
}

// sumSearch decides whether a sum Σ step·x can fall into an interval. All steps and counts are
// positive, and the largest sum fits 63 bits.
type sumSearch struct {
	terms  [2 * MaxRank]multiple
	n      int
	budget int
}

// add inserts a multiple; terms stay sorted by descending step.
func (s *sumSearch) add(step, count int64) {
	at := s.n
	for at > 0 && s.terms[at-1].step < step {
		s.terms[at] = s.terms[at-1]
		at--
	}
	s.terms[at] = multiple{step: step, count: count}
	s.n++
}

// hasEqualSums reports whether two different choices of the x give the same sum.
//
// Let d be the difference of two such choices and k the first index where it is not 0; exchanging
// the two makes d[k] > 0. Then Σ step·d = 0 over k and the later j. With
//
//	e[j] = d[j] + count[j],  0 <= e[j] <= 2·count[j]
//
// that is, for each k, one question about a bounded sum:
//
//	step[k]·(d[k] - 1) + Σ step[j]·e[j] = Σ step[j]·count[j] - step[k]
func (s *sumSearch) hasEqualSums() bool {
	s.summarize()
	budget := searchBudget
	for k := 0; k < s.n-1; k++ {
		first := &s.terms[k]
		target := s.terms[k+1].reach - first.step
		if target < 0 {
			continue // one step of k is further than all later ones together
		}
		var rest sumSearch
		if first.count > 1 {
			rest.add(first.step, first.count-1)
		}
		for _, later := range s.terms[k+1 : s.n] {
			rest.add(later.step, 2*later.count)
		}
		rest.merge()
		rest.summarize()
		rest.budget = budget
		if rest.search(0, target, target) {
			return true
		}
		budget = rest.budget
	}
	return false
}

// hasSum reports whether some sum falls into [low, high].
func (s *sumSearch) hasSum(low, high int64) bool {
	// Steps no longer than the interval leave no gaps: they only make it longer.
	for s.n > 0 && s.terms[s.n-1].step <= high-low+1 {
		low -= s.terms[s.n-1].step * s.terms[s.n-1].count
		s.n--
	}
	s.merge()
	s.summarize()
	s.budget = searchBudget
	return s.search(0, low, high)
}

// merge joins a multiple with a finer one where the two reach every multiple of the finer step up
// to their common end.
func (s *sumSearch) merge() {
	// What is kept grows from the end, finest first, over terms that have been read.
	start := s.n
	for i := s.n - 1; i >= 0; i-- {
		term, joined := s.terms[i], false
		for j := s.n - 1; j >= start; j-- {
			finer := &s.terms[j]
			ratio := term.step / finer.step
			if term.step%finer.step == 0 && ratio-1 <= finer.count {
				finer.count += ratio * term.count
				joined = true
				break
			}
		}
		if !joined {
			start--
			s.terms[start] = term
		}
	}
	copy(s.terms[:], s.terms[start:s.n])
	s.n -= start
}

// summarize fills reach and divisor.
func (s *sumSearch) summarize() {
	var reach, divisor int64
	for k := s.n - 1; k >= 0; k-- {
		term := &s.terms[k]
		reach += term.step * term.count
		divisor = gcd(term.step, divisor)
		term.reach, term.divisor = reach, divisor
	}
}

// search reports whether a sum of the terms from k on falls into [low, high].
func (s *sumSearch) search(k int, low, high int64) bool {
	if s.budget--; s.budget < 0 {
		return true
	}
	if k == s.n {
		return low <= 0 && high >= 0
	}
	term := &s.terms[k]
	low, high = max(low, 0), min(high, term.reach)
	if low > high || high-high%term.divisor < low {
		return false
	}
	if low == 0 || high == term.reach || k == s.n-1 {
		return true // all x 0, all x at their counts, or a multiple of the only step
	}
	rest := &s.terms[k+1]
	from := max(ceilDiv(low-rest.reach, term.step), 0)
	to := min(high/term.step, term.count)
	if k == s.n-2 {
		return pairHasSum(term.step, from, to, rest.step, rest.count, low, high)
	}
	for x := from; x <= to; x++ {
		if s.search(k+1, low-term.step*x, high-term.step*x) {
			return true
		}
	}
	return false
}

// pairHasSum reports whether stepX·x + stepY·y can fall into [low, high] with
//
//	from <= x <= to,  0 <= y <= countY
//
// where every such x leaves a real y in reach.
func pairHasSum(stepX, from, to, stepY, countY, low, high int64) bool {
	if from > to {
		return false
	}
	if high-stepX*from >= stepY*countY || low-stepX*to <= 0 {
		return true // y = countY with the first x, or y = 0 with the last
	}
	// Now the bounds of y hold for every x, and the question is one of residues. With x = from + t:
	//
	//   (left - stepX·t) mod stepY <= high - low?
	left := (high - stepX*from) % stepY
	if left <= high-low {
		return true
	}
	t, ok := firstResidue(uint64(stepX%stepY), uint64(stepY), uint64(left-(high-low)), uint64(left))
	return ok && t <= uint64(to-from)
}

// firstResidue returns the smallest t with
//
//	low <= factor·t mod modulus <= high
//
// where 0 < low <= high < modulus and factor < modulus < 2^63. It is Euclid's algorithm: the
// modulus at least halves from call to call.
func firstResidue(factor, modulus, low, high uint64) (uint64, bool) {
	if factor > modulus-factor {
		return firstResidue(modulus-factor, modulus, modulus-high, modulus-low)
	}
	if factor == 0 {
		return 0, false
	}
	quotient, remainder := low/factor, low%factor
	if remainder == 0 {
		return quotient, true
	}
	if factor-remainder <= high-low {
		return quotient + 1, true
	}
	// No multiple of factor lies in [low, high], so factor·t passes the modulus:
	//
	//   factor·t = modulus·wraps + something in [low, high]
	//
	// for the smallest number of wraps that makes room for a multiple of factor.
	wraps, ok := firstResidue((factor-modulus%factor)%factor, factor, remainder, high%factor)
	if !ok {
		return 0, false
	}
	upper, lower := bits.Mul64(modulus, wraps)
	lower, carry := bits.Add64(lower, low+factor-1, 0)
	t, _ := bits.Div64(upper+carry, lower, factor)
	return t, true
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ceilDiv rounds a/b up, for b > 0.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
