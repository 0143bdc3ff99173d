
// Integers below 8 bits. In memory each has a byte, which holds its value; what does not fit wraps.
template <int BITS, class Byte> struct Narrow {
    Byte byte;
    Narrow() = default;
    template <class X> HLO_TEMPLATE_FN explicit Narrow(X x) : byte(wrapped((s64)x)) {}
    HLO_TEMPLATE_FN operator Byte() const { return byte; }
    static HLO_TEMPLATE_FN Byte wrapped(s64 x) {
        return (Byte)-1 < (Byte)0 ? (Byte)((s64)((u64)x << (64 - BITS)) >> (64 - BITS)) : (Byte)(x & ((1 << BITS) - 1));
    }
};
typedef Narrow<1, s8> s1;
typedef Narrow<2, s8> s2;
typedef Narrow<4, s8> s4;
typedef Narrow<1, u8> u1;
typedef Narrow<2, u8> u2;
typedef Narrow<4, u8> u4;
template <int BITS, class Byte> struct Bits<Narrow<BITS, Byte>> { static const int n = BITS; };

// Floats of at most 8 bits, each in a byte: what is done with the codes that IEEE 754 spends on infinities and NaNs.
enum Specials {
    IEEE,          // as IEEE 754 does; beyond the largest number is infinity
    NAN_ONLY,      // no infinity; all ones are NaN
    UNSIGNED_ZERO, // no infinity; the code of -0 is NaN
    FINITE,        // neither; beyond the largest number is the largest number
    EXPONENT       // a power of two without a sign; all ones are NaN
};
template <int EXPONENT_BITS, int MANTISSA_BITS, int BIAS, Specials SPECIALS> struct Small { u8 bits; };
typedef Small<2, 1, 1, FINITE> f4e2m1fn;
typedef Small<2, 3, 1, FINITE> f6e2m3fn;
typedef Small<3, 2, 3, FINITE> f6e3m2fn;
typedef Small<3, 4, 3, IEEE> f8e3m4;
typedef Small<4, 3, 7, IEEE> f8e4m3;
typedef Small<4, 3, 7, NAN_ONLY> f8e4m3fn;
typedef Small<4, 3, 11, UNSIGNED_ZERO> f8e4m3b11fnuz;
typedef Small<4, 3, 8, UNSIGNED_ZERO> f8e4m3fnuz;
typedef Small<5, 2, 15, IEEE> f8e5m2;
typedef Small<5, 2, 16, UNSIGNED_ZERO> f8e5m2fnuz;
typedef Small<8, 0, 127, EXPONENT> f8e8m0fnu;

template <int E, int M, int BIAS, Specials S> HLO_TEMPLATE_FN u32 largest_code() {
    const u32 ones = (1u << (E + M)) - 1u;
    return S == IEEE ? ones - (1u << M) : (S == NAN_ONLY || S == EXPONENT ? ones - 1u : ones);
}

template <int E, int M, int BIAS, Specials S> HLO_TEMPLATE_FN float from_small(Small<E, M, BIAS, S> x) {
    // A power of two: 2^-127 is a subnormal number of f32.
    if (S == EXPONENT) {
        return x.bits == 0xffu ? f32_bits(0x7fc00000u) : (x.bits == 0u ? f32_bits(0x400000u) : f32_bits((u32)x.bits << 23));
    }
    const u32 magnitude = x.bits & ((1u << (E + M)) - 1u), sign = ((u32)x.bits >> (E + M) & 1u) << 31;
    if (S == UNSIGNED_ZERO && sign != 0u && magnitude == 0u) return f32_bits(0xffc00000u);
    if (magnitude > largest_code<E, M, BIAS, S>()) {
        const u32 payload = S == IEEE ? (magnitude & ((1u << M) - 1u)) << (23 - M) : 0x400000u;
        return f32_bits(sign | 0x7f800000u | payload);
    }
    const u32 exponent = magnitude >> M, mantissa = magnitude & ((1u << M) - 1u);
    // The number without its exponent, by a power of two: exact.
    const float whole = (float)(exponent == 0u ? mantissa : mantissa | (1u << M));
    const float scale = f32_bits((u32)((exponent == 0u ? 1 : (int)exponent) - BIAS - M + 127) << 23);
    return f32_bits(__float_as_uint(whole * scale) | sign);
}

// The nearest number, to even between two. A double is rounded once.
template <class T> struct SmallCode;
template <int E, int M, int BIAS, Specials S> struct SmallCode<Small<E, M, BIAS, S>> {
    static HLO_TEMPLATE_FN Small<E, M, BIAS, S> of(double x) {
        const u64 bits = (u64)__double_as_longlong(x), magnitude = bits & 0x7fffffffffffffffull;
        const bool is_negative = bits >> 63 != 0;
        const u32 sign = S == EXPONENT || !is_negative ? 0u : 1u << (E + M), largest = largest_code<E, M, BIAS, S>();
        Small<E, M, BIAS, S> out;
        if (S == EXPONENT && (is_negative || magnitude == 0)) {
            out.bits = 0xffu;
        } else if (magnitude > 0x7ff0000000000000ull) {
            out.bits = (u8)nan(sign, magnitude);
        } else if (magnitude == 0) {
            out.bits = (u8)(S == UNSIGNED_ZERO ? 0u : sign);
        } else {
            const u64 code = magnitude == 0x7ff0000000000000ull ? ~(u64)0 : rounded(magnitude);
            if (code > largest) {
                out.bits = (u8)(S == IEEE ? sign | (((1u << E) - 1u) << M) : (S == FINITE ? sign | largest : nan(sign, 0)));
            } else {
                out.bits = (u8)(S == UNSIGNED_ZERO && code == 0 ? 0u : sign | (u32)code);
            }
        }
        return out;
    }
    static HLO_TEMPLATE_FN u32 nan(u32 sign, u64 magnitude) {
        if (S == IEEE) {
            const u32 kept = (u32)(magnitude >> (52 - M)) & ((1u << M) - 1u);
            return sign | (((1u << E) - 1u) << M) | (kept == 0u ? (1u << M) >> 1 : kept);
        }
        if (S == UNSIGNED_ZERO) return 1u << (E + M);
        // Where there is no NaN: the zero of the other sign, as XLA has it.
        if (S == FINITE) return sign ^ (1u << (E + M));
        return sign | ((1u << (E + M)) - 1u);
    }
    // The code of a positive number's magnitude, which may lie beyond the largest.
    static HLO_TEMPLATE_FN u64 rounded(u64 magnitude) {
        const int stored = (int)(magnitude >> 52), exponent = stored - 1023;
        if (stored == 0) return 0;
        // Powers of two begin with code 0, so their least exponent is one lower.
        const int least = S == EXPONENT ? -BIAS : 1 - BIAS, own = exponent > least ? exponent : least;
        const u64 significand = (magnitude & 0xfffffffffffffull) | (u64)1 << 52;
        const int dropped = 52 - M + own - exponent;
        u64 code = (u64)(own - least) << M;
        if (dropped <= 62) {
            const u64 half = (u64)1 << (dropped - 1), kept = significand >> dropped, rest = significand & (2 * half - 1);
            code += kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
        }
        return S == EXPONENT ? (code == 0 ? 0 : code - 1) : code;
    }
};
template <class T> HLO_TEMPLATE_FN T to_small(double x) { return SmallCode<T>::of(x); }
template <class T> HLO_TEMPLATE_FN float round_small(double x) { return from_small(to_small<T>(x)); }
