//! The kinds of numbers on which terms are evaluated.

use crate::op::Unary;

/// Arithmetic on one kind of number.
pub(crate) trait Numbers {
    /// The number.
    type N: Clone + PartialEq + std::fmt::Debug;
    /// What paddings hold.
    fn zero(&self) -> Self::N;
    /// `a + b`.
    fn add(&self, a: &Self::N, b: &Self::N) -> Self::N;
    /// `a * b`.
    fn multiply(&self, a: &Self::N, b: &Self::N) -> Self::N;
    /// The sum of a list, in its order.
    fn sum(&self, all: &mut dyn Iterator<Item = &Self::N>) -> Self::N;
    /// The sum of products `a[i] * b[j]` over pairs of places, in their order.
    fn sum_of_products(
        &self,
        a: &[Self::N],
        b: &[Self::N],
        places: &mut dyn Iterator<Item = (usize, usize)>,
    ) -> Self::N;
    /// A function of one number.
    fn unary(&self, unary: Unary, a: &Self::N) -> Self::N;
    /// The larger of two.
    fn max(&self, a: &Self::N, b: &Self::N) -> Self::N;
    /// The mask of the larger of two.
    fn above(&self, a: &Self::N, b: &Self::N) -> Self::N;
}

/// The primes of fingerprints, of 61 bits.
pub const PRIMES: [u64; 2] = [(1 << 61) - 1, (1 << 61) - 31];

/// Residues modulo both primes. Functions of which nothing is known are values of a hash; the larger of two is one as
/// well, alike for both orders.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Residues;

/// A number modulo each of [`PRIMES`].
pub(crate) type Residue = [u64; 2];

/// `x` below 2^128 modulo `2^61 - c`, for small `c`.
fn reduce(x: u128, prime: u64) -> u64 {
    const LOW: u128 = (1 << 61) - 1;
    let c = u128::from((1u64 << 61) - prime);
    let x = (x & LOW) + (x >> 61) * c;
    let x = (x & LOW) + (x >> 61) * c;
    let x = ((x & LOW) + (x >> 61) * c) as u64;
    if x >= prime { x - prime } else { x }
}

/// A well mixed function of 64 bits (splitmix64's finalizer).
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The residue that stands for place `place` of input `input` under a seed.
pub(crate) fn drawn(seed: u64, input: u8, place: usize) -> Residue {
    let bits = mix(mix(seed ^ (u64::from(input) << 56)).wrapping_add(place as u64));
    [0, 1].map(|i| reduce(u128::from(mix(bits ^ i as u64)), PRIMES[i]))
}

impl Numbers for Residues {
    type N = Residue;

    fn zero(&self) -> Residue {
        [0, 0]
    }

    fn add(&self, a: &Residue, b: &Residue) -> Residue {
        [0, 1].map(|i| {
            let sum = a[i] + b[i];
            if sum >= PRIMES[i] { sum - PRIMES[i] } else { sum }
        })
    }

    fn multiply(&self, a: &Residue, b: &Residue) -> Residue {
        [0, 1].map(|i| reduce(u128::from(a[i]) * u128::from(b[i]), PRIMES[i]))
    }

    fn sum(&self, all: &mut dyn Iterator<Item = &Residue>) -> Residue {
        all.fold([0, 0], |sum, a| self.add(&sum, a))
    }

    fn sum_of_products(
        &self,
        a: &[Residue],
        b: &[Residue],
        places: &mut dyn Iterator<Item = (usize, usize)>,
    ) -> Residue {
        let mut sums = [0u128; 2];
        for (n, (i, j)) in places.enumerate() {
            if n % 32 == 31 {
                sums = [0, 1].map(|p| u128::from(reduce(sums[p], PRIMES[p])));
            }
            for p in 0..2 {
                sums[p] += u128::from(a[i][p]) * u128::from(b[j][p]);
            }
        }
        [0, 1].map(|p| reduce(sums[p], PRIMES[p]))
    }

    fn unary(&self, unary: Unary, a: &Residue) -> Residue {
        let tag = match unary {
            Unary::Relu => 0x52,
            Unary::Step => 0x53,
            Unary::Exp => 0x45,
        };
        if *a == [0, 0] {
            let at_zero = unary.at_zero() as u64;
            return [at_zero, at_zero];
        }
        hashed(tag, a, &[0, 0])
    }

    fn max(&self, a: &Residue, b: &Residue) -> Residue {
        let (low, high) = if a <= b { (a, b) } else { (b, a) };
        if *high == [0, 0] { [0, 0] } else { hashed(0x4d, low, high) }
    }

    fn above(&self, a: &Residue, b: &Residue) -> Residue {
        if [a, b] == [&[0, 0]; 2] { [0, 0] } else { hashed(0x41, a, b) }
    }
}

/// Points that are evaluated together.
pub(crate) const N_LANES: usize = 16;

/// Residues at several points at once: what an op moves where is found once for all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResidueLanes;

impl Numbers for ResidueLanes {
    type N = [Residue; N_LANES];

    fn zero(&self) -> Self::N {
        [[0, 0]; N_LANES]
    }

    fn add(&self, a: &Self::N, b: &Self::N) -> Self::N {
        std::array::from_fn(|i| Residues.add(&a[i], &b[i]))
    }

    fn multiply(&self, a: &Self::N, b: &Self::N) -> Self::N {
        std::array::from_fn(|i| Residues.multiply(&a[i], &b[i]))
    }

    fn sum(&self, all: &mut dyn Iterator<Item = &Self::N>) -> Self::N {
        all.fold(self.zero(), |sum, a| self.add(&sum, a))
    }

    fn sum_of_products(
        &self,
        a: &[Self::N],
        b: &[Self::N],
        places: &mut dyn Iterator<Item = (usize, usize)>,
    ) -> Self::N {
        let mut sums = [[0u128; 2]; N_LANES];
        for (n, (i, j)) in places.enumerate() {
            for (lane, sums) in sums.iter_mut().enumerate() {
                for p in 0..2 {
                    if n % 32 == 31 {
                        sums[p] = u128::from(reduce(sums[p], PRIMES[p]));
                    }
                    sums[p] += u128::from(a[i][lane][p]) * u128::from(b[j][lane][p]);
                }
            }
        }
        sums.map(|sums| [0, 1].map(|p| reduce(sums[p], PRIMES[p])))
    }

    fn unary(&self, unary: Unary, a: &Self::N) -> Self::N {
        std::array::from_fn(|i| Residues.unary(unary, &a[i]))
    }

    fn max(&self, a: &Self::N, b: &Self::N) -> Self::N {
        std::array::from_fn(|i| Residues.max(&a[i], &b[i]))
    }

    fn above(&self, a: &Self::N, b: &Self::N) -> Self::N {
        std::array::from_fn(|i| Residues.above(&a[i], &b[i]))
    }
}

fn hashed(tag: u64, a: &Residue, b: &Residue) -> Residue {
    let bits = [a[0], a[1], b[0], b[1]].iter().fold(mix(tag), |bits, &x| mix(bits ^ x));
    [0, 1].map(|i| reduce(u128::from(mix(bits ^ (0x100 + i as u64))), PRIMES[i]))
}

/// Small whole numbers, on which relu, step, max and its mask are what they are. `exp` is a hash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Integers;

impl Numbers for Integers {
    type N = i64;

    fn zero(&self) -> i64 {
        0
    }

    fn add(&self, a: &i64, b: &i64) -> i64 {
        a.wrapping_add(*b)
    }

    fn multiply(&self, a: &i64, b: &i64) -> i64 {
        a.wrapping_mul(*b)
    }

    fn sum(&self, all: &mut dyn Iterator<Item = &i64>) -> i64 {
        all.fold(0, |sum, a| sum.wrapping_add(*a))
    }

    fn sum_of_products(&self, a: &[i64], b: &[i64], places: &mut dyn Iterator<Item = (usize, usize)>) -> i64 {
        places.fold(0i64, |sum, (i, j)| sum.wrapping_add(a[i].wrapping_mul(b[j])))
    }

    fn unary(&self, unary: Unary, a: &i64) -> i64 {
        match unary {
            Unary::Relu => (*a).max(0),
            Unary::Step => i64::from(*a > 0),
            Unary::Exp if *a == 0 => 1,
            Unary::Exp => (mix(*a as u64) >> 40) as i64,
        }
    }

    fn max(&self, a: &i64, b: &i64) -> i64 {
        *a.max(b)
    }

    fn above(&self, a: &i64, b: &i64) -> i64 {
        i64::from(a > b)
    }
}

/// For each number a hash of how floating-point arithmetic gets it: equal hashes mean the same sums in the same order.
/// The operands of one addition, product or maximum may change sides, as IEEE 754 has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Histories;

fn pair(tag: u64, a: u64, b: u64) -> u64 {
    mix(mix(mix(tag) ^ a).wrapping_add(b))
}

fn sorted_pair(tag: u64, a: u64, b: u64) -> u64 {
    pair(tag, a.min(b), a.max(b))
}

impl Numbers for Histories {
    type N = u64;

    fn zero(&self) -> u64 {
        mix(0x30)
    }

    fn add(&self, a: &u64, b: &u64) -> u64 {
        sorted_pair(1, *a, *b)
    }

    fn multiply(&self, a: &u64, b: &u64) -> u64 {
        sorted_pair(2, *a, *b)
    }

    fn sum(&self, all: &mut dyn Iterator<Item = &u64>) -> u64 {
        all.fold(mix(3), |sum, a| pair(3, sum, *a))
    }

    fn sum_of_products(&self, a: &[u64], b: &[u64], places: &mut dyn Iterator<Item = (usize, usize)>) -> u64 {
        places.fold(mix(4), |sum, (i, j)| pair(4, sum, self.multiply(&a[i], &b[j])))
    }

    fn unary(&self, unary: Unary, a: &u64) -> u64 {
        pair(5 + unary as u64, *a, 0)
    }

    fn max(&self, a: &u64, b: &u64) -> u64 {
        sorted_pair(10, *a, *b)
    }

    fn above(&self, a: &u64, b: &u64) -> u64 {
        pair(11, *a, *b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power(prime: u64, base: u64, mut exponent: u64) -> u64 {
        let (mut result, mut base) = (1u64, base);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = (u128::from(result) * u128::from(base) % u128::from(prime)) as u64;
            }
            base = (u128::from(base) * u128::from(base) % u128::from(prime)) as u64;
            exponent >>= 1;
        }
        result
    }

    /// Miller and Rabin's test with the bases that decide it below 2^64.
    #[test]
    fn both_moduli_are_prime() {
        for prime in PRIMES {
            let twos = (prime - 1).trailing_zeros();
            for base in [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37] {
                let mut x = power(prime, base, (prime - 1) >> twos);
                let mut passes = x == 1 || x == prime - 1;
                for _ in 1..twos {
                    x = (u128::from(x) * u128::from(x) % u128::from(prime)) as u64;
                    passes |= x == prime - 1;
                }
                assert!(passes, "{prime} by {base}");
            }
        }
    }

    #[test]
    fn products_are_reduced_as_division_reduces_them() {
        for seed in 0..200 {
            let (a, b) = (drawn(seed, 0, 0), drawn(seed, 1, 0));
            let product = Residues.multiply(&a, &b);
            for p in 0..2 {
                assert_eq!(u128::from(product[p]), u128::from(a[p]) * u128::from(b[p]) % u128::from(PRIMES[p]));
            }
            assert_eq!(reduce(u128::MAX, PRIMES[1]), (u128::MAX % u128::from(PRIMES[1])) as u64);
        }
    }
}
