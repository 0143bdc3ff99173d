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

HLO_FN bf16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    bf16 out;
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        out.bits = (u16)((bits >> 16) | 0x40u);
    } else {
        out.bits = (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
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

HLO_FN float round_bf16(float x) { return from_bf16(to_bf16(x)); }
HLO_FN float round_f16(float x) { return from_f16(to_f16(x)); }

// Unsigned type in which integers of a type are added and multiplied, so that they wrap.
template <class T> struct Wide { typedef u32 type; };
template <> struct Wide<s64> { typedef u64 type; };
template <> struct Wide<u64> { typedef u64 type; };

template <class T> HLO_TEMPLATE_FN bool is_signed_type() { return (T)-1 < (T)0; }
template <class T> HLO_TEMPLATE_FN int bits_of_type() { return (int)sizeof(T) * 8; }
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

HLO_FLOAT_UNARY(abs, ::fabsf(x), ::fabs(x))
HLO_FLOAT_UNARY(acos, ::acosf(x), ::acos(x))
HLO_FLOAT_UNARY(acosh, ::acoshf(x), ::acosh(x))
HLO_FLOAT_UNARY(asin, ::asinf(x), ::asin(x))
HLO_FLOAT_UNARY(asinh, ::asinhf(x), ::asinh(x))
HLO_FLOAT_UNARY(atanh, ::atanhf(x), ::atanh(x))
HLO_FLOAT_UNARY(cbrt, ::cbrtf(x), ::cbrt(x))
HLO_FLOAT_UNARY(ceil, ::ceilf(x), ::ceil(x))
HLO_FLOAT_UNARY(cosine, ::cosf(x), ::cos(x))
HLO_FLOAT_UNARY(cosh, ::coshf(x), ::cosh(x))
HLO_FLOAT_UNARY(erf, ::erff(x), ::erf(x))
HLO_FLOAT_UNARY(exponential, ::expf(x), ::exp(x))
HLO_FLOAT_UNARY(exponential_minus_one, ::expm1f(x), ::expm1(x))
HLO_FLOAT_UNARY(floor, ::floorf(x), ::floor(x))
HLO_FLOAT_UNARY(log, ::logf(x), ::log(x))
HLO_FLOAT_UNARY(log_plus_one, ::log1pf(x), ::log1p(x))
HLO_FLOAT_UNARY(logistic, 1.0f / (1.0f + ::expf(-x)), 1.0 / (1.0 + ::exp(-x)))
HLO_FLOAT_UNARY(negate, -x, -x)
HLO_FLOAT_UNARY(round_nearest_afz, ::roundf(x), ::round(x))
HLO_FLOAT_UNARY(round_nearest_even, ::rintf(x), ::rint(x))
HLO_FLOAT_UNARY(rsqrt, ::rsqrtf(x), ::rsqrt(x))
HLO_FLOAT_UNARY(sine, ::sinf(x), ::sin(x))
HLO_FLOAT_UNARY(sinh, ::sinhf(x), ::sinh(x))
HLO_FLOAT_UNARY(sqrt, ::sqrtf(x), ::sqrt(x))
HLO_FLOAT_UNARY(tan, ::tanf(x), ::tan(x))
HLO_FLOAT_UNARY(tanh, ::tanhf(x), ::tanh(x))
HLO_FLOAT_UNARY(sign, x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x), x > 0.0 ? 1.0 : (x < 0.0 ? -1.0 : x))

HLO_FLOAT_BINARY(add, a + b, a + b)
HLO_FLOAT_BINARY(atan2, ::atan2f(a, b), ::atan2(a, b))
HLO_FLOAT_BINARY(divide, a / b, a / b)
HLO_FLOAT_BINARY(multiply, a * b, a * b)
HLO_FLOAT_BINARY(power, ::powf(a, b), ::pow(a, b))
HLO_FLOAT_BINARY(remainder, ::fmodf(a, b), ::fmod(a, b))
HLO_FLOAT_BINARY(subtract, a - b, a - b)

// NaN if either is NaN; 0 is above -0.
HLO_FN float maximum(float a, float b) {
    return a > b ? a : (b > a ? b : (a == b ? f32_bits(__float_as_uint(a) & __float_as_uint(b)) : a + b));
}
HLO_FN float minimum(float a, float b) {
    return a < b ? a : (b < a ? b : (a == b ? f32_bits(__float_as_uint(a) | __float_as_uint(b)) : a + b));
}
HLO_FN double maximum(double a, double b) {
    return a > b ? a : (b > a ? b : (a == b ? f64_bits(__double_as_longlong(a) & __double_as_longlong(b)) : a + b));
}
HLO_FN double minimum(double a, double b) {
    return a < b ? a : (b < a ? b : (a == b ? f64_bits(__double_as_longlong(a) | __double_as_longlong(b)) : a + b));
}

HLO_FN bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
HLO_FN bool is_finite(double x) {
    return ((u64)__double_as_longlong(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

// Integers that stand in the order -NaN < -inf < ... < -0 < 0 < ... < inf < NaN.
HLO_FN s64 total_order(float x) {
    s32 bits = (s32)__float_as_uint(x);
    return bits < 0 ? (s64)(bits ^ 0x7fffffff) : (s64)bits;
}
HLO_FN s64 total_order(double x) {
    s64 bits = __double_as_longlong(x);
    return bits < 0 ? bits ^ 0x7fffffffffffffffll : bits;
}

HLO_FN bool add(bool a, bool b) { return a | b; }
HLO_FN bool multiply(bool a, bool b) { return a & b; }
HLO_FN bool maximum(bool a, bool b) { return a | b; }
HLO_FN bool minimum(bool a, bool b) { return a & b; }
HLO_FN bool bit_not(bool x) { return !x; }

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
template <class T> HLO_TEMPLATE_FN T negate(T x) { return subtract((T)0, x); }
template <class T> HLO_TEMPLATE_FN T abs(T x) { return x < (T)0 ? negate(x) : x; }
template <class T> HLO_TEMPLATE_FN T sign(T x) { return x > (T)0 ? (T)1 : (x < (T)0 ? (T)-1 : (T)0); }
template <class T> HLO_TEMPLATE_FN T maximum(T a, T b) { return a > b ? a : b; }
template <class T> HLO_TEMPLATE_FN T minimum(T a, T b) { return a < b ? a : b; }
template <class T> HLO_TEMPLATE_FN T bit_and(T a, T b) { return (T)(a & b); }
template <class T> HLO_TEMPLATE_FN T bit_or(T a, T b) { return (T)(a | b); }
template <class T> HLO_TEMPLATE_FN T bit_xor(T a, T b) { return (T)(a ^ b); }
template <class T> HLO_TEMPLATE_FN T bit_not(T x) { return (T)~x; }
// x / 0 has all bits set; the lowest value by -1 is itself.
template <class T> HLO_TEMPLATE_FN T divide(T a, T b) {
    if (b == (T)0) return (T)-1;
    if (is_signed_type<T>() && b == (T)-1) return negate(a);
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

template <class T> HLO_TEMPLATE_FN T select(bool condition, T a, T b) { return condition ? a : b; }
template <class T> HLO_TEMPLATE_FN T clamp(T low, T x, T high) { return minimum(maximum(low, x), high); }

// Float to integer: truncates and saturates, NaN gives 0.
template <class T, class F> HLO_TEMPLATE_FN T saturate(F x) {
    if (x != x) return (T)0;
    if (x <= (F)lowest<T>()) return lowest<T>();
    if (x >= (F)highest<T>()) return highest<T>();
    return (T)x;
}

// Rounds to nearest even to `mantissa` bits; beyond what `exponent` bits span become infinities and zeros.
HLO_FN u64 reduce_precision_bits(u64 bits, int own_exponent, int own_mantissa, int exponent, int mantissa) {
    u64 sign = bits & ((u64)1 << (own_exponent + own_mantissa)), magnitude = bits ^ sign;
    u64 infinity = (((u64)1 << own_exponent) - 1) << own_mantissa;
    if (magnitude > infinity) return bits;
    if (mantissa < own_mantissa) {
        int dropped = own_mantissa - mantissa;
        magnitude += ((u64)1 << (dropped - 1)) - 1 + ((magnitude >> dropped) & 1);
        magnitude &= ~(((u64)1 << dropped) - 1);
    }
    if (exponent < own_exponent) {
        u64 own_bias = ((u64)1 << (own_exponent - 1)) - 1, bias = exponent > 0 ? ((u64)1 << (exponent - 1)) - 1 : 0;
        u64 found = magnitude >> own_mantissa;
        if (found > own_bias + bias) {
            magnitude = infinity;
        } else if (found <= own_bias - bias) {
            magnitude = 0;
        }
    }
    return sign | magnitude;
}
HLO_FN float reduce_precision(float x, int exponent, int mantissa) {
    return f32_bits((u32)reduce_precision_bits(__float_as_uint(x), 8, 23, exponent, mantissa));
}
HLO_FN double reduce_precision(double x, int exponent, int mantissa) {
    return f64_bits(reduce_precision_bits((u64)__double_as_longlong(x), 11, 52, exponent, mantissa));
}
HLO_FN float reduce_precision_f16(float x, int exponent, int mantissa) {
    f16 out;
    out.bits = (u16)reduce_precision_bits(to_f16(x).bits, 5, 10, exponent, mantissa);
    return from_f16(out);
}

// A start moved back so that its window lies inside; unsigned starts beyond s64 lie beyond every end.
HLO_FN s64 index_value(s64 x) { return x; }
HLO_FN s64 index_value(s32 x) { return x; }
HLO_FN s64 index_value(s16 x) { return x; }
HLO_FN s64 index_value(s8 x) { return x; }
HLO_FN s64 index_value(u32 x) { return x; }
HLO_FN s64 index_value(u16 x) { return x; }
HLO_FN s64 index_value(u8 x) { return x; }
HLO_FN s64 index_value(u64 x) { return x > 0x7fffffffffffffffull ? 0x7fffffffffffffffll : (s64)x; }
HLO_FN s64 clamp_start(s64 start, s64 last) { return start < 0 ? 0 : (start > last ? last : start); }

// Bits of one type as another of the same size.
HLO_FN u32 bits32(float x) { return __float_as_uint(x); }
HLO_FN u64 bits64(double x) { return (u64)__double_as_longlong(x); }

// N elements in one access, for addresses that are multiples of the pack's size; and one by one.
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T elems[N]; };
template <class T, int N> HLO_TEMPLATE_FN bool is_aligned(const T* at) {
    return ((size_t)at & (sizeof(T) * N - 1)) == 0;
}
template <class T, int N> HLO_TEMPLATE_FN void load_pack(Pack<T, N>& pack, const T* from) {
    pack = *(const Pack<T, N>*)from;
}
template <class T, int N> HLO_TEMPLATE_FN void load_elems(Pack<T, N>& pack, const T* from) {
#pragma unroll
    for (int k = 0; k < N; ++k) pack.elems[k] = from[k];
}
template <class T, int N> HLO_TEMPLATE_FN void store_pack(T* to, const Pack<T, N>& pack) { *(Pack<T, N>*)to = pack; }
template <class T, int N> HLO_TEMPLATE_FN void store_elems(T* to, const Pack<T, N>& pack) {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = pack.elems[k];
}

// sums[M, N] += the sum over k of a[k, M] * b[k, N]; rows of `a` and `b` are as aligned as packs of M and N are.
template <class T, int M, int N, int K>
HLO_TEMPLATE_FN void add_products(T* sums, const T* a, int a_stride, const T* b, int b_stride) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const Pack<T, M> x = *(const Pack<T, M>*)(a + k * a_stride);
        const Pack<T, N> y = *(const Pack<T, N>*)(b + k * b_stride);
#pragma unroll
        for (int i = 0; i < M; ++i) {
#pragma unroll
            for (int j = 0; j < N; ++j) sums[i * N + j] = add(sums[i * N + j], multiply(x.elems[i], y.elems[j]));
        }
    }
}

// The value of the lane `distance` above; all 32 lanes of a warp take part.
HLO_FN float shuffle_down(float x, int distance) { return __shfl_down_sync(0xffffffffu, x, distance); }
HLO_FN double shuffle_down(double x, int distance) { return __shfl_down_sync(0xffffffffu, x, distance); }
HLO_FN s64 shuffle_down(s64 x, int distance) { return __shfl_down_sync(0xffffffffu, x, distance); }
HLO_FN u64 shuffle_down(u64 x, int distance) { return __shfl_down_sync(0xffffffffu, x, distance); }
template <class T> HLO_TEMPLATE_FN T shuffle_down(T x, int distance) {
    return (T)__shfl_down_sync(0xffffffffu, (int)x, distance);
}
// The value of one lane.
HLO_FN float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
HLO_FN double shuffle(double x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
HLO_FN s64 shuffle(s64 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
HLO_FN u64 shuffle(u64 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
template <class T> HLO_TEMPLATE_FN T shuffle(T x, int lane) { return (T)__shfl_sync(0xffffffffu, (int)x, lane); }

} // namespace hlo
