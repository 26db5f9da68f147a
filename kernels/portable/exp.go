package portable

import "math"

// The exponential behind every activation. The standard library's is not used for three reasons:
// its error differs between architectures (so results would), it rounds twice where the result is
// denormal, and it takes an argument already rounded, which costs |x| units in the last place where
// the exponent is itself a computed number (x^2/2 in gelu).
//
// Method: x = n ln2/128 + r with |r| <= ln2/256, n = 128 k + j; then e^x = 2^k 2^(j/128) e^r. The
// 128 powers are a table in double-double, e^r - 1 is its Taylor series to r^6 (the next term is
// below 2^-71 of the result).

const (
	expSteps    = 128
	expStepBits = 7
	// ln2/128 in two parts. The first has 33 bits, so that its product with any n in use (under
	// 2^19) is exact.
	expStepHigh = 0x1.62e42fefp-8
	expStepLow  = math.Ln2/expSteps - expStepHigh
	// Adding and subtracting it rounds to an integer, halves to even.
	roundToInteger = 0x1.8p52
	// expUnderflow is where e^-x times any factor met here (at most x) is zero after rounding.
	expUnderflow = 800
)

// pair is the unevaluated sum high + low, |low| <= ulp(high)/2.
type pair struct{ high, low float64 }

var exp2Table = makeExp2Table()

// makeExp2Table returns 2^(j/128) from seven square roots of 2 and their products, each correct to
// about 2^-100.
func makeExp2Table() [expSteps]pair {
	var roots [expStepBits]pair
	root := pair{high: 2}
	for i := range roots {
		root = root.sqrt()
		roots[i] = root
	}
	var table [expSteps]pair
	for j := range table {
		power := pair{high: 1}
		for i, root := range roots {
			if j>>(expStepBits-1-i)&1 == 1 {
				power = power.mul(root)
			}
		}
		table[j] = power
	}
	return table
}

func (p pair) mul(q pair) pair {
	high := p.high * q.high
	low := math.FMA(p.high, q.high, -high) + (p.high*q.low + p.low*q.high)
	return quickSum(high, low)
}

func (p pair) sqrt() pair {
	high := math.Sqrt(p.high)
	return quickSum(high, (math.FMA(-high, high, p.high)+p.low)/(2*high))
}

// quickSum is a + b without error, for |a| >= |b| (Dekker 1971,
// https://doi.org/10.1007/BF01397083).
//
// The conversions round: without them Go may fuse the product that an argument is with the sum, as
// it does on arm64. What the product lost in rounding would then count twice.
func quickSum(a, b float64) pair {
	a, b = float64(a), float64(b)
	high := a + b
	return pair{high, b - (high - a)}
}

// expPair returns p and k with e^(x+low) = (p.high + p.low) 2^k to about 2^-61 relative; p.high is
// in [1, 2). It is for |x| <= exponentReach and |low| <= ulp(x). NaN gives NaN.
//
// Where k = 0 and p.high = 1, p.low is e^(x+low) - 1 to full relative precision.
func expPair(x, low float64) (p pair, k int) {
	n := float64(x*(expSteps/math.Ln2)+roundToInteger) - roundToInteger
	head := x - float64(n*expStepHigh)
	tail := low - float64(n*expStepLow)
	r := head + tail
	tail -= r - head
	series := tail + r*r*(1.0/2+r*(1.0/6+r*(1.0/24+r*(1.0/120+r*(1.0/720)))))
	power := exp2Table[int(n)&(expSteps-1)]
	return pair{power.high, power.low + power.high*(r+series)}, int(n) >> expStepBits
}

// expParts is expPair with the two parts added: e^(x+low) = m 2^k, for results that are multiplied
// before they are scaled.
func expParts(x, low float64) (m float64, k int) {
	p, k := expPair(x, low)
	return p.high + p.low, k
}

// scale returns m 2^k for k in [-1200, 1000] with one rounding, also where the result is denormal;
// |m| is 0 or in [2^-150, 2^20].
func scale(m float64, k int) float64 {
	if k > -800 {
		return m * powerOfTwo(k)
	}
	return float64(m*powerOfTwo(k+200)) * 0x1p-200
}

// powerOfTwo returns 2^k for k in [-1022, 1023].
func powerOfTwo(k int) float64 { return math.Float64frombits(uint64(k+1023) << 52) }
