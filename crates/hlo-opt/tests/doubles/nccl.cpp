// A double of NCCL for ranks that are threads of one process. A collective is a task on each rank's stream that waits for the
// others, as the kernels of the library do; abort ends the waiting.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

enum { OK = 0, INVALID_ARGUMENT = 4 };
struct Id { char bytes[128]; };

// What the ranks of a communicator share.
struct Board {
    std::mutex mutex;
    std::condition_variable changed;
    int n_ranks = 0, n_joined = 0;
    bool is_aborted = false;
    std::map<uint64_t, std::vector<const void*>> arrived; // by number of the collective
    std::map<uint64_t, int> n_left;
    std::map<std::pair<int, int>, std::vector<std::vector<char>>> mail; // from, to
};
struct Comm { std::shared_ptr<Board> board; int rank; uint64_t n_issued = 0; };

static std::mutex boards_mutex;
static std::map<std::string, std::shared_ptr<Board>> boards;

// Operations of the group that the thread has begun.
struct Pending { Comm* comm; void* stream; int order; std::function<void()> task; };
static thread_local int depth = 0;
static thread_local std::vector<Pending> pending;

static int enqueue(void* stream, std::function<void()> task) {
    void* driver = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
    return ((int (*)(void*, std::function<void()>*))dlsym(driver, "double_enqueue"))(stream, &task) == 0 ? OK : INVALID_ARGUMENT;
}
// Sends go before receives, so that two ranks do not wait for each other.
static int issue(Comm* comm, void* stream, int order, std::function<void()> task) {
    if (depth == 0) return enqueue(stream, std::move(task));
    pending.push_back({comm, stream, order, std::move(task)});
    return OK;
}

// Waits until all ranks have brought their input to this collective, then lets `use` read them all.
static void meet(std::shared_ptr<Board> board, int rank, uint64_t number, const void* input,
                 std::function<void(const std::vector<const void*>&)> use) {
    std::unique_lock<std::mutex> lock(board->mutex);
    auto& inputs = board->arrived[number];
    inputs.resize(board->n_ranks);
    inputs[rank] = input;
    board->changed.notify_all();
    auto all_here = [&] {
        for (const void* one : inputs) if (!one) return false;
        return true;
    };
    board->changed.wait(lock, [&] { return board->is_aborted || all_here(); });
    if (board->is_aborted) return;
    std::vector<const void*> seen = inputs;
    lock.unlock();
    use(seen);
    // Nobody writes to its output before all have read: results are put there after a second meeting.
    lock.lock();
    board->n_left[number] += 1;
    board->changed.notify_all();
    board->changed.wait(lock, [&] { return board->is_aborted || board->n_left[number] == board->n_ranks; });
}

template <class T> static T join(T a, T b, int how) {
    switch (how) {
    case 0: return a + b;
    case 1: return a * b;
    case 2: return a > b ? a : b;
    default: return a < b ? a : b;
    }
}
template <class T> static void reduce(std::vector<char>& out, const std::vector<const void*>& in, size_t from, size_t n, int how) {
    out.resize(n * sizeof(T));
    for (size_t i = 0; i < n; ++i) {
        T sum = ((const T*)in[0])[from + i];
        for (size_t r = 1; r < in.size(); ++r) sum = join(sum, ((const T*)in[r])[from + i], how);
        ((T*)out.data())[i] = sum;
    }
}
static int collective(Comm* comm, void* stream, const void* input, void* output, std::function<bool(std::vector<char>&, const std::vector<const void*>&)> make) {
    auto board = comm->board;
    uint64_t number = comm->n_issued++;
    int rank = comm->rank;
    return issue(comm, stream, 2, [=] {
        std::vector<char> result;
        meet(board, rank, number, input, [&](const std::vector<const void*>& in) { make(result, in); });
        if (!board->is_aborted) memcpy(output, result.data(), result.size());
    });
}
static bool reduce_any(std::vector<char>& out, const std::vector<const void*>& in, size_t from, size_t n, int type, int how) {
    switch (type) {
    case 0: reduce<int8_t>(out, in, from, n, how); return true;
    case 1: reduce<uint8_t>(out, in, from, n, how); return true;
    case 2: reduce<int32_t>(out, in, from, n, how); return true;
    case 3: reduce<uint32_t>(out, in, from, n, how); return true;
    case 7: reduce<float>(out, in, from, n, how); return true;
    case 8: reduce<double>(out, in, from, n, how); return true;
    default: return false;
    }
}

extern "C" {
const char* ncclGetErrorString(int) { return "an error of the double"; }
int ncclGetUniqueId(Id* id) {
    static std::atomic<int> next{1};
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "communicator %d", next++);
    return OK;
}
int ncclCommInitRank(Comm** out, int n, Id id, int rank) {
    std::shared_ptr<Board> board;
    {
        std::lock_guard<std::mutex> lock(boards_mutex);
        auto& slot = boards[std::string(id.bytes)];
        if (!slot) slot = std::make_shared<Board>();
        board = slot;
    }
    std::unique_lock<std::mutex> lock(board->mutex);
    board->n_ranks = n;
    board->n_joined += 1;
    board->changed.notify_all();
    board->changed.wait(lock, [&] { return board->n_joined == n; });
    *out = new Comm{board, rank};
    return OK;
}
int ncclCommAbort(Comm* comm) {
    std::lock_guard<std::mutex> lock(comm->board->mutex);
    comm->board->is_aborted = true;
    comm->board->changed.notify_all();
    return OK;
}
int ncclCommDestroy(Comm*) { return OK; }
int ncclCommGetAsyncError(Comm*, int* state) { *state = OK; return OK; }
int ncclGroupStart() { depth += 1; return OK; }
int ncclGroupEnd() {
    if (--depth > 0) return OK;
    std::vector<Pending> all = std::move(pending);
    pending.clear();
    for (int order = 0; order < 3; ++order)
        for (auto& one : all)
            if (one.order == order)
                if (int code = enqueue(one.stream, one.task)) return code;
    return OK;
}
int ncclAllReduce(const void* in, void* out, size_t n, int type, int how, Comm* comm, void* stream) {
    return collective(comm, stream, in, out, [=](std::vector<char>& result, const std::vector<const void*>& all) {
        return reduce_any(result, all, 0, n, type, how);
    });
}
int ncclReduceScatter(const void* in, void* out, size_t n, int type, int how, Comm* comm, void* stream) {
    int rank = comm->rank;
    return collective(comm, stream, in, out, [=](std::vector<char>& result, const std::vector<const void*>& all) {
        return reduce_any(result, all, rank * n, n, type, how);
    });
}
int ncclAllGather(const void* in, void* out, size_t n, int type, Comm* comm, void* stream) {
    if (type != 1) return INVALID_ARGUMENT;
    return collective(comm, stream, in, out, [=](std::vector<char>& result, const std::vector<const void*>& all) {
        for (const void* one : all) result.insert(result.end(), (const char*)one, (const char*)one + n);
        return true;
    });
}
int ncclSend(const void* from, size_t n, int type, int peer, Comm* comm, void* stream) {
    if (type != 1) return INVALID_ARGUMENT;
    auto board = comm->board;
    int rank = comm->rank;
    return issue(comm, stream, 0, [=] {
        std::lock_guard<std::mutex> lock(board->mutex);
        board->mail[{rank, peer}].emplace_back((const char*)from, (const char*)from + n);
        board->changed.notify_all();
    });
}
int ncclRecv(void* to, size_t n, int type, int peer, Comm* comm, void* stream) {
    if (type != 1) return INVALID_ARGUMENT;
    auto board = comm->board;
    int rank = comm->rank;
    return issue(comm, stream, 1, [=] {
        std::unique_lock<std::mutex> lock(board->mutex);
        auto& box = board->mail[{peer, rank}];
        board->changed.wait(lock, [&] { return board->is_aborted || !box.empty(); });
        if (board->is_aborted) return;
        memcpy(to, box.front().data(), n);
        box.erase(box.begin());
    });
}
}
