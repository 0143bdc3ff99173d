// A double of libcuda: memory is the process's, a stream is a thread with a queue, and tasks start late now and then, so that
// a forgotten wait shows. Calls without a current context, unknown handles and frees of what was not allocated are errors.

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900 };

struct Ticket {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::chrono::steady_clock::time_point time;
    void finish() {
        std::lock_guard<std::mutex> lock(mutex);
        time = std::chrono::steady_clock::now();
        done = true;
        changed.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return done; });
    }
};

struct Graph { std::vector<std::function<void()>> tasks; };
struct Stream {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    size_t n_pending = 0;
    bool is_over = false;
    std::unique_ptr<Graph> recording; // of the one thread that issues
    std::thread thread{[this] { run(); }};

    void run() {
        unsigned state = (unsigned)(size_t)this;
        for (;;) {
            std::function<void()> task;
            {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait(lock, [&] { return is_over || !tasks.empty(); });
                if (tasks.empty()) return;
                task = std::move(tasks.front());
                tasks.pop_front();
            }
            state = state * 1664525u + 1013904223u;
            if (state >> 28 == 0) std::this_thread::sleep_for(std::chrono::microseconds(state >> 21 & 1023));
            task();
            std::lock_guard<std::mutex> lock(mutex);
            n_pending -= 1;
            changed.notify_all();
        }
    }
    void push(std::function<void()> task) {
        std::lock_guard<std::mutex> lock(mutex);
        tasks.push_back(std::move(task));
        n_pending += 1;
        changed.notify_all();
    }
    void drain() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return n_pending == 0; });
    }
};

struct Event { std::shared_ptr<Ticket> ticket; bool keeps_time; };
struct Function { void (*run)(void**, unsigned, unsigned); int n_arguments; };

std::mutex all_mutex;
std::set<Stream*> streams;
std::set<Event*> events;
std::map<unsigned long long, size_t> blocks;
size_t used_bytes = 0;
thread_local void* context = nullptr;

size_t number(const char* variable, size_t otherwise) {
    const char* text = getenv(variable);
    return text ? strtoull(text, nullptr, 10) : otherwise;
}
// The launch with this number breaks its device, as an access to foreign memory does.
std::atomic<size_t> n_launches{0};
std::atomic<bool> is_broken{false};
size_t total_bytes() { return number("DOUBLE_MEMORY_BYTES", (size_t)8 << 30); }

Stream* stream_of(void* handle) {
    std::lock_guard<std::mutex> lock(all_mutex);
    auto found = streams.find((Stream*)handle);
    return found == streams.end() ? nullptr : *found;
}
// Whether so many bytes from there lie in one block.
bool holds(unsigned long long address, size_t n_bytes) {
    std::lock_guard<std::mutex> lock(all_mutex);
    auto next = blocks.upper_bound(address);
    if (next == blocks.begin()) return false;
    auto block = std::prev(next);
    return address + n_bytes <= block->first + block->second;
}
int enqueue(void* handle, std::function<void()> task) {
    if (!context) return INVALID_CONTEXT;
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->recording) stream->recording->tasks.push_back(std::move(task));
    else stream->push(std::move(task));
    return OK;
}

bool is_recording(void* handle) {
    Stream* stream = stream_of(handle);
    return stream && stream->recording;
}

} // namespace

// For the other doubles.
extern "C" int double_enqueue(void* stream, std::function<void()>* task) { return enqueue(stream, *task); }
extern "C" int double_holds(unsigned long long address, size_t n_bytes) { return holds(address, n_bytes); }

extern "C" {
int cuInit(unsigned) { return OK; }
int cuGetErrorString(int code, const char** text) {
    *text = code == OUT_OF_MEMORY ? "out of memory" : "an error of the double";
    return OK;
}
int cuGetErrorName(int, const char** text) { *text = "DOUBLE_ERROR"; return OK; }
int cuDeviceGetCount(int* n) { *n = (int)number("DOUBLE_GPUS", 1); return OK; }
int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < (int)number("DOUBLE_GPUS", 1) ? OK : INVALID_VALUE;
}
int cuDeviceGetName(char* name, int length, int) { snprintf(name, length, "Double"); return OK; }
int cuDeviceGetAttribute(int* value, int attribute, int) { *value = attribute == 75 ? 9 : 0; return OK; }
int cuDevicePrimaryCtxRetain(void** out, int device) { *out = (void*)(size_t)(device + 1); return OK; }
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuCtxSetCurrent(void* wanted) { context = wanted; return OK; }
int cuMemGetInfo_v2(size_t* free_bytes, size_t* all) {
    *all = total_bytes();
    *free_bytes = *all - used_bytes;
    return context ? OK : INVALID_CONTEXT;
}
int cuMemAlloc_v2(unsigned long long* address, size_t n_bytes) {
    if (!context) return INVALID_CONTEXT;
    std::lock_guard<std::mutex> lock(all_mutex);
    if (used_bytes + n_bytes > total_bytes()) return OUT_OF_MEMORY;
    void* block = aligned_alloc(256, (n_bytes + 255) / 256 * 256);
    memset(block, 0xC5, n_bytes); // whoever reads before writing gets nonsense
    blocks[(unsigned long long)block] = n_bytes;
    used_bytes += n_bytes;
    *address = (unsigned long long)block;
    return OK;
}
int cuMemFree_v2(unsigned long long address) {
    if (!context) return INVALID_CONTEXT;
    std::vector<Stream*> all;
    {
        std::lock_guard<std::mutex> lock(all_mutex);
        all.assign(streams.begin(), streams.end());
    }
    // As the driver: all work of the context ends first. Streams are destroyed after the memory.
    for (Stream* stream : all) if (stream_of(stream)) stream->drain();
    std::lock_guard<std::mutex> lock(all_mutex);
    auto block = blocks.find(address);
    if (block == blocks.end()) return INVALID_VALUE;
    used_bytes -= block->second;
    blocks.erase(block);
    free((void*)address);
    return OK;
}
int cuStreamCreate(void** out, unsigned) {
    if (!context) return INVALID_CONTEXT;
    Stream* stream = new Stream;
    std::lock_guard<std::mutex> lock(all_mutex);
    streams.insert(stream);
    *out = stream;
    return OK;
}
int cuStreamDestroy_v2(void* handle) {
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    {
        std::lock_guard<std::mutex> lock(all_mutex);
        streams.erase(stream);
    }
    {
        std::lock_guard<std::mutex> lock(stream->mutex);
        stream->is_over = true;
        stream->changed.notify_all();
    }
    stream->thread.join(); // its memory stays: another thread may just look at it
    return OK;
}
int cuStreamQuery(void* handle) {
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (is_broken) return ILLEGAL_ADDRESS;
    if (stream->recording) return CAPTURE_UNSUPPORTED;
    std::lock_guard<std::mutex> lock(stream->mutex);
    return stream->n_pending ? NOT_READY : OK;
}
int cuStreamSynchronize(void* handle) {
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->recording) return CAPTURE_UNSUPPORTED;
    stream->drain();
    return OK;
}
int cuStreamBeginCapture_v2(void* handle, int) {
    Stream* stream = stream_of(handle);
    if (!stream || stream->recording) return INVALID_HANDLE;
    stream->recording = std::make_unique<Graph>();
    return OK;
}
int cuStreamEndCapture(void* handle, void** out) {
    Stream* stream = stream_of(handle);
    if (!stream || !stream->recording) return INVALID_HANDLE;
    *out = stream->recording.release();
    return OK;
}
int cuGraphInstantiateWithFlags(void** out, void* graph, unsigned long long) {
    *out = new Graph(*(Graph*)graph);
    return OK;
}
int cuGraphDestroy(void* graph) { delete (Graph*)graph; return OK; }
int cuGraphExecDestroy(void* graph) { delete (Graph*)graph; return OK; }
int cuGraphLaunch(void* graph, void* stream) {
    if (is_recording(stream)) return CAPTURE_UNSUPPORTED;
    for (auto task : ((Graph*)graph)->tasks)
        if (int code = enqueue(stream, task)) return code;
    return OK;
}
int cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    Event *a = (Event*)from, *b = (Event*)to;
    if (!a->keeps_time || !b->keeps_time) return INVALID_HANDLE;
    std::lock_guard<std::mutex> first(a->ticket->mutex);
    std::lock_guard<std::mutex> second(b->ticket->mutex);
    if (!a->ticket->done || !b->ticket->done) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(b->ticket->time - a->ticket->time).count();
    return OK;
}
int cuEventCreate(void** out, unsigned flags) {
    Event* event = new Event{nullptr, !(flags & 2)};
    std::lock_guard<std::mutex> lock(all_mutex);
    events.insert(event);
    *out = event;
    return context ? OK : INVALID_CONTEXT;
}
int cuEventRecord(void* handle, void* stream) {
    auto ticket = std::make_shared<Ticket>();
    {
        std::lock_guard<std::mutex> lock(all_mutex);
        if (!events.count((Event*)handle)) return INVALID_HANDLE;
        ((Event*)handle)->ticket = ticket;
    }
    return enqueue(stream, [ticket] { ticket->finish(); });
}
int cuStreamWaitEvent(void* stream, void* handle, unsigned) {
    std::shared_ptr<Ticket> ticket;
    {
        std::lock_guard<std::mutex> lock(all_mutex);
        if (!events.count((Event*)handle)) return INVALID_HANDLE;
        ticket = ((Event*)handle)->ticket;
    }
    return enqueue(stream, [ticket] { if (ticket) ticket->wait(); });
}
int cuEventDestroy_v2(void* handle) {
    std::lock_guard<std::mutex> lock(all_mutex);
    if (!events.erase((Event*)handle)) return INVALID_HANDLE;
    delete (Event*)handle;
    return OK;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t n_bytes, void* stream) {
    if (!holds(to, n_bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] { memcpy((void*)to, from, n_bytes); });
}
int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t n_bytes) {
    if (!context) return INVALID_CONTEXT;
    if (!holds(from, n_bytes)) return INVALID_VALUE;
    memcpy(to, (void*)from, n_bytes);
    return OK;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t n_bytes, void* stream) {
    if (!holds(to, n_bytes) || !holds(from, n_bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] { memcpy((void*)to, (void*)from, n_bytes); });
}
int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t n_bytes, void* stream) {
    if (!holds(to, n_bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] { memset((void*)to, byte, n_bytes); });
}
// The double of NVRTC makes shared objects; the code is their path.
int cuModuleLoadData(void** module, const void* code) {
    if (!context) return INVALID_CONTEXT;
    *module = dlopen((const char*)code, RTLD_NOW | RTLD_LOCAL);
    return *module ? OK : INVALID_VALUE;
}
int cuModuleUnload(void*) { return OK; }
int cuModuleGetFunction(void** out, void* module, const char* name) {
    void* run = dlsym(module, (std::string(name) + "_run").c_str());
    int* n_arguments = (int*)dlsym(module, (std::string(name) + "_n_arguments").c_str());
    if (!run || !n_arguments) return NOT_FOUND;
    *out = new Function{(void (*)(void**, unsigned, unsigned))run, *n_arguments};
    return OK;
}
int cuFuncSetAttribute(void*, int, int) { return OK; }
int cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned,
                   void* stream, void** arguments, void** extra) {
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || extra || gx == 0 || bx == 0 || bx > 1024) return INVALID_VALUE;
    Function* function = (Function*)handle;
    std::vector<void*> pointers;
    for (int i = 0; i < function->n_arguments; ++i) {
        unsigned long long address = *(unsigned long long*)arguments[i];
        if (!holds(address, 0)) return INVALID_VALUE;
        pointers.push_back((void*)address);
    }
    bool breaks = ++n_launches == number("DOUBLE_BREAKING_LAUNCH", 0);
    return enqueue(stream, [=]() mutable {
        if (breaks) is_broken = true;
        function->run(pointers.data(), gx, bx);
    });
}
}
