//! Numbers to compute with: a prime field, where equal is equal, and floats.

use crate::random::Random;

/// What arrays are made of.
pub(crate) trait Number: Copy + PartialEq + std::fmt::Debug {
    fn draw(random: &mut Random) -> Self;
    fn zero() -> Self;
    fn one() -> Self;
    fn add(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
}

/// A residue modulo 2⁶¹ − 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Residue(u64);

const PRIME: u64 = (1 << 61) - 1;

impl Number for Residue {
    fn draw(random: &mut Random) -> Self {
        Self(1 + random.below(PRIME - 1))
    }

    fn zero() -> Self {
        Self(0)
    }

    fn one() -> Self {
        Self(1)
    }

    fn add(self, other: Self) -> Self {
        Self((self.0 + other.0) % PRIME)
    }

    fn neg(self) -> Self {
        Self((PRIME - self.0) % PRIME)
    }

    fn mul(self, other: Self) -> Self {
        Self((u128::from(self.0) * u128::from(other.0) % u128::from(PRIME)) as u64)
    }

    /// By Fermat: the inverse of x is x^(p − 2).
    fn div(self, other: Self) -> Self {
        let (mut inverse, mut power, mut exponent) = (Self(1), other, PRIME - 2);
        while exponent > 0 {
            if exponent & 1 == 1 {
                inverse = inverse.mul(power);
            }
            (power, exponent) = (power.mul(power), exponent >> 1);
        }
        self.mul(inverse)
    }

    fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

macro_rules! float {
    ($type:ty) => {
        impl Number for $type {
            fn draw(random: &mut Random) -> Self {
                // All bits of the mantissa, four exponents.
                let mantissa = 1.0 + random.below(1 << 23) as $type / (1 << 23) as $type;
                let magnitude = mantissa * (1 << random.below(4)) as $type;
                if random.below(2) == 0 { magnitude } else { -magnitude }
            }

            fn zero() -> Self {
                0.0
            }

            fn one() -> Self {
                1.0
            }

            fn add(self, other: Self) -> Self {
                self + other
            }

            fn neg(self) -> Self {
                -self
            }

            fn mul(self, other: Self) -> Self {
                self * other
            }

            fn div(self, other: Self) -> Self {
                self / other
            }

            fn max(self, other: Self) -> Self {
                <$type>::max(self, other)
            }
        }
    };
}

float!(f32);
float!(f64);
