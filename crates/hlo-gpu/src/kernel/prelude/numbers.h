// What every kernel may use. Compiled unchanged by NVRTC and, after a header that supplies CUDA's words, by a host compiler.

#define HLO_FN __device__ static __forceinline__
#define HLO_TEMPLATE_FN __device__ __forceinline__

namespace hlo {

typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char pred;
typedef float f32;
typedef double f64;

// Stored forms of the floats that are computed in f32.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

HLO_FN float f32_bits(u32 bits) { return __uint_as_float(bits); }
HLO_FN double f64_bits(u64 bits) { return __longlong_as_double((s64)bits); }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// The pair of `x` and 0 as bf16 is the rounded number's bits as f32. The instruction for pairs is faster than that for one;
// it keeps subnormal numbers, and a NaN becomes 0x7fff.
HLO_FN float round_bf16(float x) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0f));
    return __uint_as_float(bits);
}
HLO_FN bf16 to_bf16(float x) {
    bf16 out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
    return out;
}
#else
HLO_FN float round_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return __uint_as_float((bits & 0xffff0000u) | 0x400000u);
    return __uint_as_float((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}
HLO_FN bf16 to_bf16(float x) {
    bf16 out;
    out.bits = (u16)(__float_as_uint(round_bf16(x)) >> 16);
    return out;
}
#endif

// The bits of a number that is a bf16 already. The host looks whether it is.
HLO_FN bf16 exact_bf16(float x) {
#ifndef __CUDA_ARCH__
    if ((__float_as_uint(x) & 0xffffu) != 0) __builtin_trap();
#endif
    bf16 out;
    out.bits = (u16)(__float_as_uint(x) >> 16);
    return out;
}

HLO_FN float from_bf16(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

#ifdef __CUDA_ARCH__
HLO_FN f16 to_f16(float x) {
    f16 out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
    return out;
}

HLO_FN float from_f16(f16 x) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
    return out;
}
#else
HLO_FN f16 to_f16(float x) {
    u32 bits = __float_as_uint(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    f16 out;
    if (magnitude > 0x7f800000u) {
        out.bits = (u16)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    } else if (magnitude >= 0x477ff000u) {
        out.bits = (u16)(sign | 0x7c00u);
    } else if (magnitude >= 0x38800000u) {
        u32 rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        out.bits = (u16)(sign | ((rounded - 0x38000000u) >> 13));
    } else {
        // Subnormal: the sum with 0.5 has the result's last place as its last place, so the hardware rounds.
        float shifted = __uint_as_float(magnitude) + 0.5f;
        out.bits = (u16)(sign | (__float_as_uint(shifted) - 0x3f000000u));
    }
    return out;
}

HLO_FN float from_f16(f16 x) {
    u32 sign = (u32)(x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 0x1fu, mantissa = x.bits & 0x3ffu;
    if (exponent == 0x1fu) {
        return __uint_as_float(sign | 0x7f800000u | (mantissa << 13));
    }
    if (exponent == 0u) {
        float magnitude = (float)mantissa * 5.9604644775390625e-8f;
        return __uint_as_float(sign | __float_as_uint(magnitude));
    }
    return __uint_as_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}
#endif

HLO_FN float round_f16(float x) { return from_f16(to_f16(x)); }

// Unsigned type in which integers of a type are added and multiplied, so that they wrap.
template <class T> struct Wide { typedef u32 type; };
template <> struct Wide<s64> { typedef u64 type; };
template <> struct Wide<u64> { typedef u64 type; };

template <class T> HLO_TEMPLATE_FN bool is_signed_type() { return (T)-1 < (T)0; }
// How many bits a type's values have.
template <class T> struct Bits { static const int n = (int)sizeof(T) * 8; };
template <class T> HLO_TEMPLATE_FN int bits_of_type() { return Bits<T>::n; }
template <class T> HLO_TEMPLATE_FN T highest() {
    return is_signed_type<T>() ? (T)(((u64)1 << (bits_of_type<T>() - 1)) - 1) : (T)~(T)0;
}
template <class T> HLO_TEMPLATE_FN T lowest() {
    return is_signed_type<T>() ? (T)(-(s64)highest<T>() - 1) : (T)0;
}
// The type's bits, zero-extended.
template <class T> HLO_TEMPLATE_FN u64 zero_extended(T x) {
    return (u64)(s64)x & (~(u64)0 >> (64 - bits_of_type<T>()));
}

#define HLO_FLOAT_UNARY(name, single, twice)             \
    HLO_FN float name(float x) { return single; }        \
    HLO_FN double name(double x) { return twice; }
#define HLO_FLOAT_BINARY(name, single, twice)                     \
    HLO_FN float name(float a, float b) { return single; }        \
    HLO_FN double name(double a, double b) { return twice; }

// NaN if either is NaN; 0 is above -0.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
HLO_FN float maximum(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}
HLO_FN float minimum(float a, float b) {
    float out;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}
#else
HLO_FN float maximum(float a, float b) {
    return a > b ? a : (b > a ? b : (a == b ? f32_bits(__float_as_uint(a) & __float_as_uint(b)) : a + b));
}
HLO_FN float minimum(float a, float b) {
    return a < b ? a : (b < a ? b : (a == b ? f32_bits(__float_as_uint(a) | __float_as_uint(b)) : a + b));
}
#endif
HLO_FN double maximum(double a, double b) {
    return a > b ? a : (b > a ? b : (a == b ? f64_bits(__double_as_longlong(a) & __double_as_longlong(b)) : a + b));
}
HLO_FN double minimum(double a, double b) {
    return a < b ? a : (b < a ? b : (a == b ? f64_bits(__double_as_longlong(a) | __double_as_longlong(b)) : a + b));
}

template <class T> HLO_TEMPLATE_FN T add(T a, T b) {
    typedef typename Wide<T>::type U;
    return (T)((U)a + (U)b);
}
template <class T> HLO_TEMPLATE_FN T subtract(T a, T b) {
    typedef typename Wide<T>::type U;
    return (T)((U)a - (U)b);
}
template <class T> HLO_TEMPLATE_FN T multiply(T a, T b) {
    typedef typename Wide<T>::type U;
    return (T)((U)a * (U)b);
}
template <class T> HLO_TEMPLATE_FN T sign(T x) { return x > (T)0 ? (T)1 : (x < (T)0 ? (T)-1 : (T)0); }
template <class T> HLO_TEMPLATE_FN T maximum(T a, T b) { return a > b ? a : b; }
template <class T> HLO_TEMPLATE_FN T minimum(T a, T b) { return a < b ? a : b; }
// x / 0 has all bits set; the lowest value by -1 is itself.
template <class T> HLO_TEMPLATE_FN T divide(T a, T b) {
    if (b == (T)0) return (T)-1;
    if (is_signed_type<T>() && b == (T)-1) return subtract((T)0, a);
    return (T)(a / b);
}
template <class T> HLO_TEMPLATE_FN T remainder(T a, T b) {
    if (b == (T)0) return a;
    if (is_signed_type<T>() && b == (T)-1) return (T)0;
    return (T)(a % b);
}
template <class T> HLO_TEMPLATE_FN T power(T base, T exponent) {
    if (exponent < (T)0) {
        return base == (T)1 ? (T)1 : (base == (T)-1 ? ((exponent & 1) ? (T)-1 : (T)1) : (T)0);
    }
    T result = (T)1;
    for (u64 rest = (u64)exponent; rest != 0; rest >>= 1) {
        if (rest & 1) result = multiply(result, base);
        base = multiply(base, base);
    }
    return result;
}
// An amount that is negative or not below the width counts as out of range.
template <class T> HLO_TEMPLATE_FN T shift_left(T x, T amount) {
    return zero_extended(amount) < (u64)bits_of_type<T>() ? (T)(zero_extended(x) << (int)amount) : (T)0;
}
template <class T> HLO_TEMPLATE_FN T shift_right_logical(T x, T amount) {
    return zero_extended(amount) < (u64)bits_of_type<T>() ? (T)(zero_extended(x) >> (int)amount) : (T)0;
}
template <class T> HLO_TEMPLATE_FN T shift_right_arithmetic(T x, T amount) {
    const int unused = 64 - bits_of_type<T>();
    s64 extended = (s64)(zero_extended(x) << unused) >> unused;
    int in_range = zero_extended(amount) < (u64)bits_of_type<T>() ? (int)amount : bits_of_type<T>() - 1;
    return (T)(extended >> in_range);
}
template <class T> HLO_TEMPLATE_FN T count_leading_zeros(T x) {
    return (T)(__clzll((s64)zero_extended(x)) - (64 - bits_of_type<T>()));
}
template <class T> HLO_TEMPLATE_FN T population_count(T x) { return (T)__popcll(zero_extended(x)); }
template <class T> HLO_TEMPLATE_FN T multiply_high(T a, T b) {
    return is_signed_type<T>() ? (T)(((s64)a * (s64)b) >> bits_of_type<T>())
                               : (T)(((u64)a * (u64)b) >> (bits_of_type<T>() & 63));
}
template <> HLO_TEMPLATE_FN s64 multiply_high<s64>(s64 a, s64 b) { return __mul64hi(a, b); }
template <> HLO_TEMPLATE_FN u64 multiply_high<u64>(u64 a, u64 b) { return __umul64hi(a, b); }
