// A double of cuBLASLt: products of strided, column-major matrices, slow and obvious, on the double's streams. It suggests
// three algorithms, of which the first is slow, the second is quick, and the third is refused when it is to run. Which ran
// how often goes into the file that DOUBLE_ALGORITHMS names, when the process ends.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <thread>

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };

struct Layout { int type; uint64_t rows, cols; int64_t leading; int32_t batch = 1; int64_t stride = 0; int32_t by_pointers = 0; };
struct Operation { int compute, scale; int32_t transposes_a = 0, transposes_b = 0; };
struct Preference { uint64_t workspace_bytes = 0; uint32_t alignment[4] = {256, 256, 256, 256}; };
struct Heuristic { uint64_t algorithm[8]; size_t workspace_bytes; int state; float waves; int reserved[4]; };

static int enqueue(void* stream, std::function<void()> task) {
    void* driver = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
    auto push = (int (*)(void*, std::function<void()>*))dlsym(driver, "double_enqueue");
    return push(stream, &task) == 0 ? OK : INVALID_VALUE;
}
static bool holds(const void* address, uint64_t n_bytes) {
    void* driver = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
    return ((int (*)(unsigned long long, size_t))dlsym(driver, "double_holds"))((unsigned long long)address, n_bytes);
}
static size_t size_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }
static double get(const void* data, int type, int64_t i) {
    if (type == F64) return ((const double*)data)[i];
    if (type == F32) return ((const float*)data)[i];
    uint32_t bits = (uint32_t)((const uint16_t*)data)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static void put(void* data, int type, int64_t i, double value) {
    if (type == F64) { ((double*)data)[i] = value; return; }
    float single = (float)value;
    if (type == F32) { ((float*)data)[i] = single; return; }
    uint32_t bits;
    memcpy(&bits, &single, 4);
    ((uint16_t*)data)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// The matrix with this number. Addresses lie on the card, where they were copied to by the time the call is issued.
static const char* matrix(const Layout& m, const void* data, int64_t batch) {
    if (m.by_pointers) return ((const char* const*)data)[batch];
    return (const char*)data + batch * m.stride * size_of(m.type);
}
static bool is_inside(const Layout& m, const void* data) {
    if (m.leading < (int64_t)m.rows || (m.by_pointers && !holds(data, m.batch * 8))) return false;
    for (int64_t batch = 0; batch < m.batch; ++batch)
        if (!holds(matrix(m, data, batch), ((m.cols - 1) * m.leading + m.rows) * size_of(m.type))) return false;
    return true;
}

enum { N_ALGORITHMS = 3, SLOW = 0, QUICK = 1, REFUSED = 2 };
std::atomic<int> n_runs[N_ALGORITHMS];
struct Report {
    ~Report() {
        if (n_runs[SLOW] + n_runs[QUICK] == 0) return; // a process that only looks whether there is a library
        const char* path = getenv("DOUBLE_ALGORITHMS");
        FILE* file = path ? fopen(path, "a") : nullptr;
        if (!file) return;
        fprintf(file, "%d %d\n", n_runs[SLOW].load(), n_runs[QUICK].load());
        fclose(file);
    }
} report;

extern "C" {
int cublasLtCreate(void** handle) { *handle = (void*)1; return OK; }
int cublasLtDestroy(void*) { return OK; }
int cublasLtMatrixLayoutCreate(Layout** out, int type, uint64_t rows, uint64_t cols, int64_t leading) {
    *out = new Layout{type, rows, cols, leading};
    return OK;
}
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t size) {
    if (attribute == 5 && size == 4) memcpy(&layout->batch, value, 4);
    else if (attribute == 6 && size == 8) memcpy(&layout->stride, value, 8);
    else if (attribute == 8 && size == 4 && !getenv("DOUBLE_STRIDED_ONLY")) memcpy(&layout->by_pointers, value, 4);
    else return INVALID_VALUE;
    return OK;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) { delete layout; return OK; }
int cublasLtMatmulDescCreate(Operation** out, int compute, int scale) { *out = new Operation{compute, scale}; return OK; }
int cublasLtMatmulDescSetAttribute(Operation* operation, int attribute, const void* value, size_t size) {
    if (size != 4 || (attribute != 3 && attribute != 4)) return INVALID_VALUE;
    memcpy(attribute == 3 ? &operation->transposes_a : &operation->transposes_b, value, 4);
    return OK;
}
int cublasLtMatmulDescDestroy(Operation* operation) { delete operation; return OK; }
int cublasLtMatmulPreferenceCreate(Preference** out) { *out = new Preference; return OK; }
int cublasLtMatmulPreferenceSetAttribute(Preference* p, int attribute, const void* value, size_t size) {
    if (attribute == 1 && size == 8) memcpy(&p->workspace_bytes, value, 8);
    else if (attribute >= 5 && attribute <= 8 && size == 4) memcpy(&p->alignment[attribute - 5], value, 4);
    else return INVALID_VALUE;
    return OK;
}
int cublasLtMatmulPreferenceDestroy(Preference* p) { delete p; return OK; }
int cublasLtMatmulAlgoGetHeuristic(void*, Operation* o, Layout* a, Layout* b, Layout* c, Layout* d, Preference* p, int wanted,
                                   Heuristic* found, int* n) {
    bool fits = c == d && wanted >= 1 && a->type == b->type && (o->scale == F64) == (d->type == F64);
    if (!fits) { *n = 0; return NOT_SUPPORTED; }
    *n = wanted < N_ALGORITHMS ? wanted : N_ALGORITHMS;
    for (int k = 0; k < *n; ++k) {
        memset(&found[k], 0, sizeof found[k]);
        for (int i = 0; i < 4; ++i) found[k].algorithm[i] = p->alignment[i];
        found[k].algorithm[4] = k;
        found[k].workspace_bytes = p->workspace_bytes;
    }
    return OK;
}
int cublasLtMatmul(void*, Operation* o, const void* alpha, const void* a, Layout* la, const void* b, Layout* lb, const void* beta,
                   const void* c, Layout* lc, void* d, Layout* ld, const uint64_t* algorithm, void* workspace, size_t n_workspace,
                   void* stream) {
    bool is_double = o->scale == F64;
    double one = is_double ? *(const double*)alpha : *(const float*)alpha;
    double zero = is_double ? *(const double*)beta : *(const float*)beta;
    Operation operation = *o;
    Layout A = *la, B = *lb, D = *ld;
    uint64_t inner = operation.transposes_a ? A.rows : A.cols;
    bool fits = one == 1.0 && zero == 0.0 && c == d && lc == ld && D.rows == (operation.transposes_a ? A.cols : A.rows) &&
                D.cols == (operation.transposes_b ? B.rows : B.cols) && inner == (operation.transposes_b ? B.cols : B.rows) &&
                is_inside(A, a) && is_inside(B, b) && is_inside(D, d) && holds(workspace, n_workspace);
    const void* data[4] = {a, b, c, d};
    const Layout* layouts[4] = {&A, &B, &D, &D};
    for (int i = 0; i < 4; ++i)
        for (int64_t batch = 0; fits && batch < layouts[i]->batch; ++batch)
            fits = (uint64_t)matrix(*layouts[i], data[i], layouts[i]->by_pointers ? batch : 0) % algorithm[i] == 0;
    if (!fits) return INVALID_VALUE;
    uint64_t which = algorithm[4];
    if (which == REFUSED) return NOT_SUPPORTED;
    n_runs[which] += 1;
    return enqueue(stream, [=] {
        if (which == SLOW) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        for (int64_t batch = 0; batch < D.batch; ++batch)
            for (uint64_t row = 0; row < D.rows; ++row)
                for (uint64_t col = 0; col < D.cols; ++col) {
                    double sum = 0;
                    for (uint64_t k = 0; k < inner; ++k) {
                        int64_t at_a = (operation.transposes_a ? row * A.leading + k : k * A.leading + row);
                        int64_t at_b = (operation.transposes_b ? k * B.leading + col : col * B.leading + k);
                        sum += get(matrix(A, a, batch), A.type, at_a) * get(matrix(B, b, batch), B.type, at_b);
                    }
                    put((void*)matrix(D, d, batch), D.type, col * D.leading + row, sum);
                }
    });
}
}
