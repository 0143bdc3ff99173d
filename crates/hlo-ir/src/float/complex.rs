//! Complex numbers of `f32` or `f64` parts, with the functions that HLO has on `c64` and `c128`.
//!
//! Arithmetic works on both widths; the transcendental functions are on `Complex<f64>`, and a `c64` value is widened,
//! computed and rounded once.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// A complex number `re + im·i`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[repr(C)]
pub struct Complex<T> {
    /// Real part.
    pub re: T,
    /// Imaginary part.
    pub im: T,
}

impl<T> Complex<T> {
    /// `re + im·i`.
    pub const fn new(re: T, im: T) -> Self {
        Complex { re, im }
    }
}

impl From<Complex<f32>> for Complex<f64> {
    fn from(value: Complex<f32>) -> Self {
        Complex::new(value.re.into(), value.im.into())
    }
}

impl<T: Add<Output = T>> Add for Complex<T> {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Complex::new(self.re + other.re, self.im + other.im)
    }
}

impl<T: Sub<Output = T>> Sub for Complex<T> {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Complex::new(self.re - other.re, self.im - other.im)
    }
}

impl<T: Neg<Output = T>> Neg for Complex<T> {
    type Output = Self;
    fn neg(self) -> Self {
        Complex::new(-self.re, -self.im)
    }
}

impl<T: Copy + Add<Output = T> + Sub<Output = T> + Mul<Output = T>> Mul for Complex<T> {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Complex::new(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)
    }
}

impl Div for Complex<f64> {
    type Output = Self;

    /// Smith's method: dividing by the larger part first keeps the squares from overflowing.
    fn div(self, other: Self) -> Self {
        let (a, b, c, d) = (self.re, self.im, other.re, other.im);
        if c == 0.0 && d == 0.0 {
            let zero = 0f64.copysign(c);
            return Complex::new(a / zero, b / zero);
        }
        if (c.is_infinite() || d.is_infinite()) && a.is_finite() && b.is_finite() {
            let unit = |x: f64| if x.is_infinite() { 1f64.copysign(x) } else { 0f64.copysign(x) };
            let (c, d) = (unit(c), unit(d));
            return Complex::new(0.0 * (a * c + b * d), 0.0 * (b * c - a * d));
        }
        if c.abs() >= d.abs() {
            let ratio = d / c;
            let scale = c + d * ratio;
            Complex::new((a + b * ratio) / scale, (b - a * ratio) / scale)
        } else {
            let ratio = c / d;
            let scale = c * ratio + d;
            Complex::new((a * ratio + b) / scale, (b * ratio - a) / scale)
        }
    }
}

impl Complex<f64> {
    /// Rounded to single precision.
    pub fn to_f32(self) -> Complex<f32> {
        Complex::new(self.re as f32, self.im as f32)
    }

    /// The absolute value, without overflow on the way.
    ///
    /// NaN if either part is one. C99 has infinity where the other part is infinite; XLA, whose results we give, does not.
    pub fn abs(self) -> f64 {
        if self.is_nan() { f64::NAN } else { self.re.hypot(self.im) }
    }

    /// Whether either part is a NaN.
    fn is_nan(self) -> bool {
        self.re.is_nan() || self.im.is_nan()
    }

    /// The angle to the positive real axis, in `(-π, π]`.
    pub fn arg(self) -> f64 {
        self.im.atan2(self.re)
    }

    /// `r·e^(iθ)`; a zero angle gives a real number even for an infinite `r`.
    pub fn from_polar(r: f64, theta: f64) -> Self {
        if theta == 0.0 { Complex::new(r, theta) } else { Complex::new(r * theta.cos(), r * theta.sin()) }
    }

    /// `e^z`.
    pub fn exp(self) -> Self {
        Complex::from_polar(self.re.exp(), self.im)
    }

    /// `e^z - 1`, accurate near 0: the real part is `expm1(x)·cos y - 2 sin²(y/2)`.
    pub fn exp_m1(self) -> Self {
        let half_sine = (self.im / 2.0).sin();
        let re = self.re.exp_m1() * self.im.cos() - 2.0 * half_sine * half_sine;
        Complex::new(re, self.exp().im)
    }

    /// The principal logarithm.
    pub fn ln(self) -> Self {
        Complex::new(self.abs().ln(), self.arg())
    }

    /// `ln(1 + z)`, accurate near 0: the real part is half of `ln1p(x(2 + x) + y²)`.
    pub fn ln_1p(self) -> Self {
        let shifted = Complex::new(1.0 + self.re, self.im);
        if self.abs() >= 0.5 {
            return shifted.ln();
        }
        let re = (self.re * (2.0 + self.re) + self.im * self.im).ln_1p() / 2.0;
        Complex::new(re, shifted.arg())
    }

    /// The square root: for `z = x + iy`, `√((|z| + x) / 2) ± i √((|z| - x) / 2)`, with minus for `y` below 0.
    ///
    /// An imaginary -0 is not below 0, so `√(-1 - 0i)` is `i`, and a NaN in either part makes both parts NaN. C99 has the sign of `y`
    /// and infinities in these places. XLA, whose results we give, expands the root by this formula:
    /// <https://github.com/openxla/stablehlo/blob/main/stablehlo/transforms/StablehloComplexMathExpanderPatterns.td>.
    pub fn sqrt(self) -> Self {
        if self.is_nan() {
            return Complex::new(f64::NAN, f64::NAN);
        }
        let Complex { re, im } = self.principal_sqrt();
        Complex::new(re, if self.im < 0.0 { im } else { im.abs() })
    }

    /// The principal square root with the special values of C99: its imaginary part has the sign of `z`'s.
    fn principal_sqrt(self) -> Self {
        if self.re == 0.0 && self.im == 0.0 {
            return Complex::new(0.0, self.im);
        }
        if self.im.is_infinite() {
            return Complex::new(f64::INFINITY, self.im);
        }
        if self.re.is_infinite() {
            let other = if self.im.is_nan() { f64::NAN } else { 0.0 };
            return match self.re > 0.0 {
                true => Complex::new(self.re, other.copysign(self.im)),
                false => Complex::new(other, f64::INFINITY.copysign(self.im)),
            };
        }
        // Scaled so that |re| + |z| cannot overflow; the factor is a power of four.
        let (scale, unscale) = if self.re.abs().max(self.im.abs()) > 1e300 { (0.25, 2.0) } else { (1.0, 1.0) };
        let (re, im) = (self.re * scale, self.im * scale);
        let root = ((re.abs() + re.hypot(im)) / 2.0).sqrt();
        let (re, im) = match self.re >= 0.0 {
            true => (root, im / (2.0 * root)),
            false => (im.abs() / (2.0 * root), root.copysign(im)),
        };
        Complex::new(re * unscale, im * unscale)
    }

    /// `1 / √z`, of the root with the sign of `z`'s imaginary part: XLA expands this function without its square root.
    pub fn rsqrt(self) -> Self {
        Complex::new(1.0, 0.0) / self.principal_sqrt()
    }

    /// `z^w = e^(w ln z)`; `0^0` is 1, and 0 to a power of positive real part is 0.
    pub fn pow(self, power: Self) -> Self {
        if power.re == 0.0 && power.im == 0.0 {
            return Complex::new(1.0, 0.0);
        }
        if self.re == 0.0 && self.im == 0.0 && power.re > 0.0 {
            return Complex::new(0.0, 0.0);
        }
        (power * self.ln()).exp()
    }

    /// `sin x cosh y + i cos x sinh y`.
    pub fn sin(self) -> Self {
        Complex::new(self.re.sin() * self.im.cosh(), self.re.cos() * self.im.sinh())
    }

    /// `cos x cosh y - i sin x sinh y`.
    pub fn cos(self) -> Self {
        Complex::new(self.re.cos() * self.im.cosh(), -self.re.sin() * self.im.sinh())
    }

    /// `tan z = -i tanh(iz)`.
    pub fn tan(self) -> Self {
        let rotated = Complex::new(-self.im, self.re).tanh();
        Complex::new(rotated.im, -rotated.re)
    }

    /// The hyperbolic tangent, `(sinh 2x + i sin 2y) / (cosh 2x + cos 2y)`; ±1 where `cosh 2x` would overflow.
    pub fn tanh(self) -> Self {
        if self.re.is_infinite() || self.re.abs() > 300.0 && self.im.is_finite() {
            let im = if self.im.is_finite() { 0f64.copysign((2.0 * self.im).sin()) } else { 0.0 };
            return Complex::new(1f64.copysign(self.re), im);
        }
        // cosh 2x + cos 2y = 2 (sinh² x + cos² y), which does not cancel.
        let (sinh, cos) = (self.re.sinh(), self.im.cos());
        let scale = sinh * sinh + cos * cos;
        Complex::new(sinh * self.re.cosh() / scale, self.im.sin() * cos / scale)
    }

    /// `1 / (1 + e^-z)`.
    pub fn logistic(self) -> Self {
        Complex::new(1.0, 0.0) / (Complex::new(1.0, 0.0) + (-self).exp())
    }

    /// `z / |z|`; a zero stays as it is.
    pub fn sign(self) -> Self {
        let abs = self.abs();
        if abs == 0.0 { self } else { Complex::new(self.re / abs, self.im / abs) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type C = Complex<f64>;

    fn points() -> impl Iterator<Item = C> {
        let parts = [-3.0, -0.7, -1e-3, 0.2, 1.0, 2.5];
        parts.into_iter().flat_map(move |re| parts.into_iter().map(move |im| Complex::new(re, im)))
    }

    fn assert_close(got: C, want: C, what: &str) {
        assert!((got - want).abs() <= 1e-13 * (1.0 + want.abs()), "{what}: {got:?}, expected {want:?}");
    }

    #[test]
    fn functions_agree_with_their_power_series_and_inverses() {
        let one = Complex::new(1.0, 0.0);
        for z in points() {
            let (mut term, mut series) = (one, one);
            for n in 1..60 {
                term = term * z / Complex::new(f64::from(n), 0.0);
                series = series + term;
            }
            assert_close(z.exp(), series, "exp");
            assert_close(z.exp_m1(), series - one, "expm1");
            assert_close(z.ln().exp(), z, "ln");
            assert_close(z.ln_1p().exp(), z + one, "log1p");
            assert_close(z.sqrt() * z.sqrt(), z, "sqrt");
            assert!(z.sqrt().re >= 0.0 && z.sqrt().im.is_sign_negative() == z.im.is_sign_negative());
            assert_close(z.rsqrt() * z.sqrt(), one, "rsqrt");
            assert_close(z.pow(Complex::new(3.0, 0.0)), z * z * z, "pow");
            assert_close(z / Complex::new(0.3, -2.0) * Complex::new(0.3, -2.0), z, "divide");
            let i = Complex::new(0.0, 1.0);
            let (plus, minus) = ((i * z).exp(), (-i * z).exp());
            assert_close(z.sin(), (plus - minus) / Complex::new(0.0, 2.0), "sin");
            assert_close(z.cos(), (plus + minus) / Complex::new(2.0, 0.0), "cos");
            assert_close(z.tan(), z.sin() / z.cos(), "tan");
            assert_close(z.tanh(), (z.exp() - (-z).exp()) / (z.exp() + (-z).exp()), "tanh");
            assert_close(z.logistic(), z.exp() / (one + z.exp()), "logistic");
            assert!((z.sign().abs() - 1.0).abs() < 1e-15);
        }
    }

    /// Results of XLA on the CPU.
    #[test]
    fn special_values_are_those_of_xla() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let z = Complex::new;
        let bits = |z: C| [z.re, z.im].map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() });
        for (x, root) in [
            (z(-0.25, -0.0), z(0.0, 0.5)),
            (z(-0.25, 0.0), z(0.0, 0.5)),
            (z(0.25, -0.0), z(0.5, 0.0)),
            (z(0.0, -0.0), z(0.0, 0.0)),
            (z(-0.0, -0.0), z(0.0, 0.0)),
            (z(0.0, -2.0), z(1.0, -1.0)),
            (z(inf, -0.0), z(inf, 0.0)),
            (z(inf, -1.0), z(inf, -0.0)),
            (z(-inf, -0.0), z(0.0, inf)),
            (z(-inf, -1.0), z(0.0, -inf)),
            (z(-inf, -inf), z(inf, -inf)),
            (z(1.0, inf), z(inf, inf)),
            (z(-inf, nan), z(nan, nan)),
            (z(nan, -inf), z(nan, nan)),
            (z(nan, 0.0), z(nan, nan)),
        ] {
            assert_eq!(bits(x.sqrt()), bits(root), "√({x:?}): {:?}", x.sqrt());
        }
        assert!([z(-inf, nan), z(nan, inf), z(1.0, nan)].iter().all(|z| z.abs().is_nan() && z.ln().re.is_nan()));
        assert_eq!(z(-inf, 1.0).abs(), inf);
        assert_eq!(bits(z(1e30, inf).tanh()), bits(z(nan, nan)));
        assert_eq!(bits(z(inf, nan).tanh()), bits(z(1.0, 0.0)));
        assert_eq!(bits(z(-0.0, -0.0).sign()), bits(z(-0.0, -0.0)));
    }

    #[test]
    fn extreme_values_do_not_overflow_on_the_way() {
        let large = Complex::new(3e300, 4e300);
        assert_eq!(large.abs(), 5e300);
        assert_eq!(large / large, Complex::new(1.0, 0.0));
        assert!((large.sqrt() * large.sqrt() - large).abs() / 5e300 < 1e-14);
        assert_eq!(Complex::new(f64::INFINITY, 0.0).exp(), Complex::new(f64::INFINITY, 0.0));
        assert_eq!(Complex::new(1000.0, 1.0).tanh(), Complex::new(1.0, 0.0));
        assert_eq!(Complex::new(0.0, 0.0).sign(), Complex::new(0.0, 0.0));
        assert_eq!(Complex::new(0.0, 0.0).pow(Complex::new(0.0, 0.0)), Complex::new(1.0, 0.0));
        assert!((Complex::new(1e-20, 0.0).ln_1p().re - 1e-20).abs() < 1e-35);
        assert!((Complex::new(1e-20, 0.0).exp_m1().re - 1e-20).abs() < 1e-35);
    }
}
