
// Complex numbers, as they lie in memory. What is more than a sum or a product is computed in double precision.
template <class T> struct alignas(2 * sizeof(T)) Complex { T re, im; };
typedef Complex<float> c64;
typedef Complex<double> c128;
HLO_FN c64 complex(float re, float im) { c64 z = {re, im}; return z; }
HLO_FN c128 complex(double re, double im) { c128 z = {re, im}; return z; }
HLO_FN c64 narrowed(c128 z) { return complex((float)z.re, (float)z.im); }
HLO_FN c128 widened(c64 z) { return complex((double)z.re, (double)z.im); }
template <class T> HLO_TEMPLATE_FN bool operator==(Complex<T> a, Complex<T> b) { return a.re == b.re && a.im == b.im; }
template <class T> HLO_TEMPLATE_FN bool operator!=(Complex<T> a, Complex<T> b) { return !(a == b); }

template <class T> HLO_TEMPLATE_FN Complex<T> add(Complex<T> a, Complex<T> b) { return complex(a.re + b.re, a.im + b.im); }
template <class T> HLO_TEMPLATE_FN Complex<T> subtract(Complex<T> a, Complex<T> b) {
    return complex(a.re - b.re, a.im - b.im);
}
template <class T> HLO_TEMPLATE_FN Complex<T> multiply(Complex<T> a, Complex<T> b) {
    return complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
}
template <class T> HLO_TEMPLATE_FN Complex<T> negate(Complex<T> z) { return complex(-z.re, -z.im); }

#define HLO_COMPLEX_UNARY(name) HLO_FN c64 name(c64 z) { return narrowed(name(widened(z))); }
#define HLO_COMPLEX_BINARY(name) HLO_FN c64 name(c64 a, c64 b) { return narrowed(name(widened(a), widened(b))); }

HLO_FN bool is_infinite(double x) { return x - x != x - x && x == x; }
HLO_FN bool is_nan(c128 z) { return z.re != z.re || z.im != z.im; }

// By the larger part first, so that squares do not overflow (Smith).
HLO_FN c128 divide(c128 z, c128 w) {
    double a = z.re, b = z.im, c = w.re, d = w.im;
    if (c == 0.0 && d == 0.0) {
        const double zero = ::copysign(0.0, c);
        return complex(a / zero, b / zero);
    }
    if ((is_infinite(c) || is_infinite(d)) && a - a == 0.0 && b - b == 0.0) {
        c = ::copysign(is_infinite(c) ? 1.0 : 0.0, c);
        d = ::copysign(is_infinite(d) ? 1.0 : 0.0, d);
        return complex(0.0 * (a * c + b * d), 0.0 * (b * c - a * d));
    }
    if (::fabs(c) >= ::fabs(d)) {
        const double ratio = d / c, scale = c + d * ratio;
        return complex((a + b * ratio) / scale, (b - a * ratio) / scale);
    }
    const double ratio = c / d, scale = c * ratio + d;
    return complex((a * ratio + b) / scale, (b * ratio - a) / scale);
}
HLO_FN double abs(c128 z) { return is_nan(z) ? f64_bits(0x7ff8000000000000ull) : ::hypot(z.re, z.im); }
HLO_FN float abs(c64 z) { return (float)abs(widened(z)); }
HLO_FN c128 exponential(c128 z) {
    const double r = ::exp(z.re);
    return z.im == 0.0 ? complex(r, z.im) : complex(r * ::cos(z.im), r * ::sin(z.im));
}
// The real part is expm1(x) cos y - 2 sin(y / 2)^2, which does not cancel near 0.
HLO_FN c128 exponential_minus_one(c128 z) {
    const double half_sine = ::sin(z.im / 2.0);
    return complex(::expm1(z.re) * ::cos(z.im) - 2.0 * half_sine * half_sine, exponential(z).im);
}
HLO_FN c128 log(c128 z) { return complex(::log(abs(z)), ::atan2(z.im, z.re)); }
HLO_FN c128 log_plus_one(c128 z) {
    const c128 shifted = complex(1.0 + z.re, z.im);
    if (abs(z) >= 0.5) return log(shifted);
    return complex(::log1p(z.re * (2.0 + z.re) + z.im * z.im) / 2.0, ::atan2(shifted.im, shifted.re));
}
// The root whose imaginary part has the sign of the number's.
HLO_FN c128 principal_sqrt(c128 z) {
    const double infinity = f64_bits(0x7ff0000000000000ull);
    if (z.re == 0.0 && z.im == 0.0) return complex(0.0, z.im);
    if (is_infinite(z.im)) return complex(infinity, z.im);
    if (is_infinite(z.re)) {
        const double other = z.im != z.im ? z.im : 0.0;
        return z.re > 0.0 ? complex(z.re, ::copysign(other, z.im)) : complex(other, ::copysign(infinity, z.im));
    }
    const bool is_large = ::fmax(::fabs(z.re), ::fabs(z.im)) > 1e300;
    const double scale = is_large ? 0.25 : 1.0, unscale = is_large ? 2.0 : 1.0, re = z.re * scale, im = z.im * scale;
    const double root = ::sqrt((::fabs(re) + ::hypot(re, im)) / 2.0);
    if (z.re >= 0.0) return complex(root * unscale, im / (2.0 * root) * unscale);
    return complex(::fabs(im) / (2.0 * root) * unscale, ::copysign(root, im) * unscale);
}
// An imaginary -0 is not below 0.
HLO_FN c128 sqrt(c128 z) {
    if (is_nan(z)) return complex(f64_bits(0x7ff8000000000000ull), f64_bits(0x7ff8000000000000ull));
    const c128 root = principal_sqrt(z);
    return complex(root.re, z.im < 0.0 ? root.im : ::fabs(root.im));
}
HLO_FN c128 rsqrt(c128 z) { return divide(complex(1.0, 0.0), principal_sqrt(z)); }
HLO_FN c128 power(c128 z, c128 w) {
    if (w.re == 0.0 && w.im == 0.0) return complex(1.0, 0.0);
    if (z.re == 0.0 && z.im == 0.0 && w.re > 0.0) return complex(0.0, 0.0);
    return exponential(multiply(w, log(z)));
}
HLO_FN c128 sine(c128 z) { return complex(::sin(z.re) * ::cosh(z.im), ::cos(z.re) * ::sinh(z.im)); }
HLO_FN c128 cosine(c128 z) { return complex(::cos(z.re) * ::cosh(z.im), -::sin(z.re) * ::sinh(z.im)); }
HLO_FN c128 cosh(c128 z) { return cosine(complex(-z.im, z.re)); }
HLO_FN c128 sinh(c128 z) {
    const c128 s = sine(complex(-z.im, z.re));
    return complex(s.im, -s.re);
}
// (sinh 2x + i sin 2y) / (cosh 2x + cos 2y), of which the denominator is 2 (sinh(x)^2 + cos(y)^2): that does not cancel.
HLO_FN c128 tanh(c128 z) {
    const bool has_im = z.im - z.im == 0.0;
    if (is_infinite(z.re) || (::fabs(z.re) > 300.0 && has_im)) {
        return complex(::copysign(1.0, z.re), has_im ? ::copysign(0.0, ::sin(2.0 * z.im)) : 0.0);
    }
    const double s = ::sinh(z.re), c = ::cos(z.im), scale = s * s + c * c;
    return complex(s * ::cosh(z.re) / scale, ::sin(z.im) * c / scale);
}
HLO_FN c128 tan(c128 z) {
    const c128 rotated = tanh(complex(-z.im, z.re));
    return complex(rotated.im, -rotated.re);
}
HLO_FN c128 logistic(c128 z) { return divide(complex(1.0, 0.0), add(complex(1.0, 0.0), exponential(negate(z)))); }
HLO_FN c128 sign(c128 z) {
    const double size = abs(z);
    return size == 0.0 ? z : complex(z.re / size, z.im / size);
}
HLO_COMPLEX_UNARY(exponential)
HLO_COMPLEX_UNARY(exponential_minus_one)
HLO_COMPLEX_UNARY(log)
HLO_COMPLEX_UNARY(log_plus_one)
HLO_COMPLEX_UNARY(sqrt)
HLO_COMPLEX_UNARY(rsqrt)
HLO_COMPLEX_UNARY(sine)
HLO_COMPLEX_UNARY(cosine)
HLO_COMPLEX_UNARY(sinh)
HLO_COMPLEX_UNARY(cosh)
HLO_COMPLEX_UNARY(tan)
HLO_COMPLEX_UNARY(tanh)
HLO_COMPLEX_UNARY(logistic)
HLO_COMPLEX_UNARY(sign)
HLO_COMPLEX_BINARY(divide)
HLO_COMPLEX_BINARY(power)
