// Operations that have code of their own.
HLO_FLOAT_UNARY(abs, ::fabsf(x), ::fabs(x))
template <class T> HLO_TEMPLATE_FN T abs(T x) { return x < (T)0 ? negate(x) : x; }
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

// Functions of bf16 whose results are rounded to bf16 afterwards, so that an error of some last places of f32 is no matter.
#ifdef __CUDA_ARCH__
HLO_FN float exponential_bf16(float x) { return __expf(x); }
HLO_FN float logistic_bf16(float x) {
    float out;
    asm("rcp.approx.f32 %0, %1;" : "=f"(out) : "f"(1.0f + __expf(-x)));
    return out;
}
// A quotient of two numbers of 8 bits never lies in the middle between two such, and differs from the middle by more than the
// error here. That does not hold for subnormal results, so numbers that are far from 1 are divided exactly.
HLO_FN float divide_bf16(float a, float b) {
    const float low = 8.6736174e-19f, high = 1.1529215e18f; // 2 to the power of -60 and 60
    const float x = fabsf(a), y = fabsf(b);
    if (!(y >= low && y <= high && x <= high && (x >= low || x == 0.0f))) return a / b;
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
    return a * reciprocal;
}
#else
HLO_FN float exponential_bf16(float x) { return exponential(x); }
HLO_FN float logistic_bf16(float x) { return logistic(x); }
HLO_FN float divide_bf16(float a, float b) { return divide(a, b); }
#endif

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
// Elements `low` to below `high` alone: the others belong to another row.
template <class T, int N, class I> HLO_TEMPLATE_FN void load_part(Pack<T, N>& pack, const T* from, I low, I high) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
        if (k >= low && k < high) pack.elems[k] = from[k];
    }
}
template <class T, int N, class I> HLO_TEMPLATE_FN void store_part(T* to, const Pack<T, N>& pack, I low, I high) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
        if (k >= low && k < high) to[k] = pack.elems[k];
    }
}

// sums[M, N] += the sum over k of a[k, M] * b[k, N]. Of `a` a thread has chunks of A elements, `a_apart` from each other, of `b` chunks of B;
// rows of `a` and `b` are as aligned as packs of A and B are.
template <int M, int N, int A, int B, int K, class T>
HLO_TEMPLATE_FN void add_products(T* sums, const T* a, int a_stride, int a_apart, const T* b, int b_stride, int b_apart) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        Pack<T, A> x[M / A];
        Pack<T, B> y[N / B];
#pragma unroll
        for (int i = 0; i < M / A; ++i) x[i] = *(const Pack<T, A>*)(a + k * a_stride + i * a_apart);
#pragma unroll
        for (int j = 0; j < N / B; ++j) y[j] = *(const Pack<T, B>*)(b + k * b_stride + j * b_apart);
#pragma unroll
        for (int i = 0; i < M; ++i) {
#pragma unroll
            for (int j = 0; j < N; ++j)
                sums[i * N + j] = add(sums[i * N + j], multiply(x[i / A].elems[i % A], y[j / B].elems[j % B]));
        }
    }
}

// c += a * b of 16 x 8, 16 x 16 and 16 x 8 elements, which a warp holds as PTX says: "Matrix Fragments for mma.m16n8k16".
#ifdef __CUDA_ARCH__
#define HLO_ADD_FRAGMENTS(type, word)                                                                                  \
    HLO_FN void add_fragments(float* c, const u32* a, const u32* b, type) {                                            \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." word "." word ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "         \
            "{%8, %9}, {%0, %1, %2, %3};"                                                                              \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                       \
    }
HLO_ADD_FRAGMENTS(bf16, "bf16")
HLO_ADD_FRAGMENTS(f16, "f16")
#undef HLO_ADD_FRAGMENTS
// The same of 16 x 8 and 8 x 8 elements in TF32: "Matrix Fragments for mma.m16n8k8".
HLO_FN void add_fragments(float* c, const u32* a, const u32* b, float) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
HLO_FN float round_tf32(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}
#else
HLO_FN float round_tf32(float x) {
    const u32 bits = __float_as_uint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((bits + 0x1000u) & ~0x1fffu);
}
HLO_FN void add_fragments(float* c, const u32* a, const u32* b, float) {
    hlo_host::give_fragments(a, b);
    const int lane = threadIdx.x % 32;
    for (int r = 0; r < 4; ++r) {
        const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
        for (int k = 0; k < 8; ++k) {
            // The bits that TF32 lacks are dropped.
            const float x = __uint_as_float(hlo_host::fragments_of(row % 8 * 4 + k % 4)[row / 8 + k / 4 * 2] & ~0x1fffu);
            const float y = __uint_as_float(hlo_host::fragments_of(column * 4 + k % 4)[4 + k / 4] & ~0x1fffu);
            c[r] += x * y;
        }
    }
}
HLO_FN float half_of_word(u32 word, int k, bf16 x) { x.bits = (u16)(word >> (k % 2 * 16)); return from_bf16(x); }
HLO_FN float half_of_word(u32 word, int k, f16 x) { x.bits = (u16)(word >> (k % 2 * 16)); return from_f16(x); }
template <class T> HLO_TEMPLATE_FN void add_fragments(float* c, const u32* a, const u32* b, T type) {
    hlo_host::give_fragments(a, b);
    const int lane = threadIdx.x % 32;
    for (int r = 0; r < 4; ++r) {
        const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
        for (int k = 0; k < 16; ++k) {
            const u32 x = hlo_host::fragments_of(row % 8 * 4 + k % 8 / 2)[row / 8 + k / 8 * 2];
            const u32 y = hlo_host::fragments_of(column * 4 + k % 8 / 2)[4 + k / 8];
            c[r] += half_of_word(x, k, type) * half_of_word(y, k, type);
        }
    }
}
#endif

// sums[M, N] += the sum over k of a[M, k] * b[N, k] of a warp, whose lanes hold the sums as fragments of 16 x 8. Rows of `a` and `b` begin
// A and B elements after each other, which are even numbers.
template <int M, int N, int K, int A, int B, class T>
HLO_TEMPLATE_FN void add_products_of_warp(float* sums, const T* a, const T* b) {
    // Elements of a word, and of a fragment along k.
    constexpr int each = 4 / sizeof(T), along = 8 * each;
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * each;
    a += row * A + column;
    b += row * B + column;
#pragma unroll
    for (int k = 0; k < K; k += along) {
        u32 x[M / 16][4], y[N / 8][2];
#pragma unroll
        for (int i = 0; i < M / 16; ++i) {
#pragma unroll
            for (int r = 0; r < 4; ++r) x[i][r] = *(const u32*)(a + (i * 16 + r % 2 * 8) * A + k + r / 2 * (along / 2));
        }
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
#pragma unroll
            for (int r = 0; r < 2; ++r) y[j][r] = *(const u32*)(b + j * 8 * B + k + r * (along / 2));
        }
#pragma unroll
        for (int i = 0; i < M / 16; ++i) {
#pragma unroll
            for (int j = 0; j < N / 8; ++j) add_fragments(sums + (i * (N / 8) + j) * 4, x[i], y[j], T());
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
template <class T> HLO_TEMPLATE_FN Complex<T> shuffle_down(Complex<T> x, int distance) {
    return complex(shuffle_down(x.re, distance), shuffle_down(x.im, distance));
}
// The value of one lane.
HLO_FN float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
HLO_FN double shuffle(double x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
HLO_FN s64 shuffle(s64 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
HLO_FN u64 shuffle(u64 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
template <class T> HLO_TEMPLATE_FN T shuffle(T x, int lane) { return (T)__shfl_sync(0xffffffffu, (int)x, lane); }
template <class T> HLO_TEMPLATE_FN Complex<T> shuffle(Complex<T> x, int lane) {
    return complex(shuffle(x.re, lane), shuffle(x.im, lane));
}

// Appends to a list in shared memory what threads have found, in the order of warps, of slots, and of lanes. All threads of
// a block of N_WARPS warps call it with the same `first`, `counts` and length, and get the new length; the list is complete
// after the next barrier. Slot `s` of lane `l` of warp `w` stands for item `first + (w * N_SLOTS + s) * 32 + l`.
// `counts` holds N_WARPS numbers, others in the next call.
template <int N_SLOTS, int N_WARPS, class I>
HLO_TEMPLATE_FN int append_in_order(const bool (&is_found)[N_SLOTS], const I (&rows)[N_SLOTS], I first, I* list,
                                    I* list_rows, int* counts, int length) {
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    u32 found[N_SLOTS];
    int n = 0;
#pragma unroll
    for (int s = 0; s < N_SLOTS; ++s) {
        found[s] = __ballot_sync(0xffffffffu, is_found[s]);
        n += __popc(found[s]);
    }
    if (lane == 0) counts[warp] = n;
    __syncthreads();
    int at = length, end = length;
#pragma unroll
    for (int w = 0; w < N_WARPS; ++w) {
        if (w < warp) at += counts[w];
        end += counts[w];
    }
#pragma unroll
    for (int s = 0; s < N_SLOTS; ++s) {
        if (is_found[s]) {
            const int own = at + __popc(found[s] & ((1u << lane) - 1u));
            list[own] = first + (warp * N_SLOTS + s) * 32 + lane;
            list_rows[own] = rows[s];
        }
        at += __popc(found[s]);
    }
    return end;
}

// Whether a row is in a list.
template <class I>
HLO_TEMPLATE_FN bool has_hit(const I* list_rows, int length, I row) {
    for (int k = 0; k < length; ++k) {
        if (list_rows[k] == row) return true;
    }
    return false;
}
// The same by all lanes of a warp, which look for the same row.
template <class I>
HLO_TEMPLATE_FN bool has_hit_of_warp(const I* list_rows, int length, I row) {
    const int lane = (int)(threadIdx.x % 32);
    for (int first = 0; first < length; first += 32) {
        const int at = first + lane;
        if (__ballot_sync(0xffffffffu, at < length && list_rows[at] == row) != 0) return true;
    }
    return false;
}

// The next items of a row in a list, N at most: how many. The search goes on from `next`.
template <int N, class I>
HLO_TEMPLATE_FN int find_hits(const I* list, const I* list_rows, int length, I row, int& next, u32&, I (&hits)[N]) {
    int n = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        while (next < length && list_rows[next] != row) ++next;
        hits[k] = next < length ? list[next] : (I)0;
        n += next < length ? 1 : 0;
        next += next < length ? 1 : 0;
    }
    return n;
}
// The same by all lanes of a warp, which look for the same row. `mask` has those of the 32 places before `next` that are hits
// and were not yet given.
template <int N, class I>
HLO_TEMPLATE_FN int find_hits_of_warp(const I* list, const I* list_rows, int length, I row, int& next, u32& mask,
                                      I (&hits)[N]) {
    const int lane = (int)(threadIdx.x % 32);
    int n = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        while (mask == 0 && next < length) {
            const int at = next + lane;
            mask = __ballot_sync(0xffffffffu, at < length && list_rows[at] == row);
            next += 32;
        }
        hits[k] = mask != 0 ? list[next - 32 + __ffs((int)mask) - 1] : (I)0;
        n += mask != 0 ? 1 : 0;
        mask &= mask - 1u;
    }
    return n;
}

} // namespace hlo
