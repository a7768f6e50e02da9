// A driver for tests: the functions of cuda.h that src/device uses, on the heap and the CPU. Each allocation is a heap
// block of its own, so that ASan detects out-of-bounds accesses of kernels. Behavior that CUDA leaves undefined ends
// the test.

#include "queues.h"

#include <cstring>

namespace driver {

struct Counts {
    // Calls of the host. Work that a capture records is not counted.
    uint64_t launches, writes, reads, synchronizations, graph_launches;
};

static Counts counts;

// Aligned to 256 bytes, as the driver promises.
static void *allocate(Allocations &allocations, size_t bytes) {
    void *pointer = nullptr;
    if (posix_memalign(&pointer, 256, bytes) != 0) return nullptr;
    memset(pointer, 0xA5, bytes);
    allocations[reinterpret_cast<uintptr_t>(pointer)] = bytes;
    return pointer;
}

static int give(void *stream, uint64_t &count, Work work) {
    auto to = get(state.streams, stream, "a stream");
    count += to->capture == nullptr;
    return give(*to, std::move(work));
}

static std::function<void()> copying(uintptr_t to, uintptr_t from, size_t bytes) {
    return [=] { memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes); };
}

#define ENTER                                                                                                                  \
    std::lock_guard lock(state.mutex);                                                                                         \
    if (int code = failure(__func__)) return code

#define NEEDS_CONTEXT                                                                                                          \
    ENTER;                                                                                                                     \
    if (!has_context()) return INVALID_CONTEXT

// For calls that a thread must not make during a capture.
#define NEEDS_NO_CAPTURE                                                                                                       \
    NEEDS_CONTEXT;                                                                                                             \
    if (int code = forbidden()) return code

extern "C" {

// For tests.
void bn_emulated_devices(int count) {
    std::lock_guard lock(state.mutex);
    for (Device &device : state.devices) {
        if (device.retained > 0) die("devices come and go while one is open");
    }
    state.devices = std::deque<Device>(size_t(count));
}

// Sets the memory of device `number`, or of all devices for -1.
void bn_emulated_memory(int number, size_t bytes) {
    std::lock_guard lock(state.mutex);
    for (int at = 0; at < int(state.devices.size()); at++) {
        if (number == -1 || number == at) state.devices[size_t(at)].memory = bytes;
    }
}

// Sets the maximum shared memory per block of all devices, and the part of it that each kernel uses statically.
void bn_emulated_shared(int most, int own) {
    std::lock_guard lock(state.mutex);
    for (Device &device : state.devices) device.shared = most, device.own_shared = own;
}

// Makes the next call of `function` return `code` without any effect.
void bn_emulated_fail(const char *function, int code) {
    std::lock_guard lock(state.mutex);
    state.failures[function] = code;
}

void bn_emulated_counts(Counts *out) {
    std::lock_guard lock(state.mutex);
    *out = counts;
}

// Returns the number of contexts, allocations and other objects.
size_t bn_emulated_live() {
    std::lock_guard lock(state.mutex);
    size_t live = state.pinned.size() + state.streams.size() + state.events.size() + state.modules.size() +
                  state.graphs.size() + state.executables.size();
    for (Device &device : state.devices) live += device.retained + device.allocations.size();
    return live;
}

// Frees everything, as the end of a process would.
void bn_emulated_reset() {
    std::lock_guard lock(state.mutex);
    for (auto &[at, size] : state.pinned) free(reinterpret_cast<void *>(at));
    for (Device &device : state.devices) {
        for (auto &[at, size] : device.allocations) free(reinterpret_cast<void *>(at));
    }
    state.devices = std::deque<Device>(1);
    state.pinned.clear(), state.streams.clear(), state.events.clear(), state.modules.clear();
    state.graphs.clear(), state.executables.clear(), state.failures.clear();
}

int cuInit(unsigned) {
    ENTER;
    return SUCCESS;
}

int cuDriverGetVersion(int *version) {
    ENTER;
    *version = 13000;
    return SUCCESS;
}

int cuGetErrorName(int code, const char **name) {
    static const std::map<int, const char *> names = {
        {SUCCESS, "CUDA_SUCCESS"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {NOT_READY, "CUDA_ERROR_NOT_READY"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
        {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
        {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    };
    auto found = names.find(code);
    if (found == names.end()) return INVALID_VALUE;
    *name = found->second;
    return SUCCESS;
}

// -- devices and contexts

int cuDeviceGetCount(int *count) {
    ENTER;
    *count = int(state.devices.size());
    return SUCCESS;
}

int cuDeviceGet(int *device, int number) {
    ENTER;
    if (number < 0 || number >= int(state.devices.size())) return INVALID_DEVICE;
    *device = number;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int) {
    ENTER;
    snprintf(name, size_t(length), "Emulated");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER;
    switch (attribute) {
    case 16: *value = 4; return SUCCESS;
    case 75: *value = 9; return SUCCESS;
    case 76: *value = 0; return SUCCESS;
    case 97: *value = state.devices[size_t(device)].shared; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER;
    *bytes = state.devices.at(size_t(device)).memory;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER;
    *context = &state.devices.at(size_t(device));
    state.devices[size_t(device)].retained++;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER;
    if (state.devices.at(size_t(device)).retained == 0) return INVALID_CONTEXT;
    if (--state.devices[size_t(device)].retained == 0) run_device(device);
    return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) {
    ENTER;
    for (int at = 0; at < int(state.devices.size()); at++) {
        if (context != &state.devices[size_t(at)]) continue;
        if (state.devices[size_t(at)].retained == 0) return INVALID_CONTEXT;
        pushed.push_back(current);
        current = at;
        return SUCCESS;
    }
    return INVALID_CONTEXT;
}

int cuCtxPopCurrent_v2(void **context) {
    ENTER;
    if (pushed.empty()) return INVALID_CONTEXT;
    *context = current < 0 ? nullptr : &state.devices[size_t(current)];
    current = pushed.back();
    pushed.pop_back();
    return SUCCESS;
}

// -- memory

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    NEEDS_CONTEXT;
    Device &device = state.devices[size_t(current)];
    *total = device.memory;
    *free = device.memory - device.taken();
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    NEEDS_NO_CAPTURE;
    Device &device = state.devices[size_t(current)];
    if (bytes == 0) return INVALID_VALUE;
    if (device.taken() > device.memory || bytes > device.memory - device.taken()) return OUT_OF_MEMORY;
    void *made = allocate(device.allocations, bytes);
    *address = reinterpret_cast<uint64_t>(made);
    return made == nullptr ? OUT_OF_MEMORY : SUCCESS;
}

// Waits for the device, as the driver does.
int cuMemFree_v2(uint64_t address) {
    NEEDS_NO_CAPTURE;
    for (int at = 0; at < int(state.devices.size()); at++) {
        Allocations &allocations = state.devices[size_t(at)].allocations;
        if (allocations.count(address) == 0) continue;
        run_device(at);
        allocations.erase(address);
        free(reinterpret_cast<void *>(address));
        return SUCCESS;
    }
    return INVALID_VALUE;
}

int cuMemHostAlloc(void **pointer, size_t bytes, unsigned) {
    NEEDS_NO_CAPTURE;
    if (bytes == 0) return INVALID_VALUE;
    *pointer = allocate(state.pinned, bytes);
    return *pointer == nullptr ? OUT_OF_MEMORY : SUCCESS;
}

// Waits like `cuMemFree_v2`.
int cuMemFreeHost(void *pointer) {
    NEEDS_NO_CAPTURE;
    if (state.pinned.count(reinterpret_cast<uintptr_t>(pointer)) == 0) return INVALID_VALUE;
    run_device(-1);
    state.pinned.erase(reinterpret_cast<uintptr_t>(pointer));
    free(pointer);
    return SUCCESS;
}

// Pinned memory is read when the copy's turn comes, pageable memory during the call. In a capture, pageable memory
// would be read at each launch, which nobody wants.
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    NEEDS_CONTEXT;
    auto host = reinterpret_cast<uintptr_t>(from);
    if (holds(state.pinned, {host, bytes})) {
        return give(stream, counts.writes, {copying(to, host, bytes), {{to, bytes}, {host, bytes}}});
    }
    if (int code = forbidden()) return code;
    auto data = static_cast<const unsigned char *>(from);
    return give(stream, counts.writes,
        {[to, copy = std::vector<unsigned char>(data, data + bytes)] {
             memcpy(reinterpret_cast<void *>(to), copy.data(), copy.size());
         },
            {{to, bytes}}});
}

// Pinned memory is written when the copy's turn comes, pageable memory during the call, after all earlier work.
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    NEEDS_CONTEXT;
    auto host = reinterpret_cast<uintptr_t>(to);
    if (holds(state.pinned, {host, bytes})) {
        return give(stream, counts.reads, {copying(host, from, bytes), {{host, bytes}, {from, bytes}}});
    }
    if (int code = forbidden()) return code;
    int code = give(stream, counts.reads, {copying(host, from, bytes), {{from, bytes}}});
    if (code == SUCCESS) run_all(*get(state.streams, stream, "a stream"));
    return code;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    NEEDS_CONTEXT;
    auto work = Work{copying(to, from, bytes), {{to, bytes}, {from, bytes}}};
    return give(*get(state.streams, stream, "a stream"), std::move(work));
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
    NEEDS_CONTEXT;
    auto work = Work{[=] { memset(reinterpret_cast<void *>(to), value, bytes); }, {{to, bytes}}};
    return give(*get(state.streams, stream, "a stream"), std::move(work));
}

// -- streams and events

int cuStreamCreate(void **stream, unsigned) {
    NEEDS_CONTEXT;
    Stream made;
    made.device = current;
    *stream = add(state.streams, std::move(made));
    return SUCCESS;
}

int cuStreamDestroy_v2(void *stream) {
    NEEDS_CONTEXT;
    auto old = get(state.streams, stream, "a stream");
    if (old->capture != nullptr) die("a stream that captures is destroyed");
    run_all(*old);
    state.streams.erase(stream);
    return SUCCESS;
}

int cuStreamSynchronize(void *stream) {
    NEEDS_CONTEXT;
    auto waited = get(state.streams, stream, "a stream");
    if (waited->capture != nullptr) return spoil(*waited->capture, CAPTURE_UNSUPPORTED);
    if (int code = forbidden()) return code;
    counts.synchronizations++;
    run_all(*waited);
    return SUCCESS;
}

int cuEventCreate(void **event, unsigned) {
    NEEDS_CONTEXT;
    *event = add(state.events, Event{current, nullptr});
    return SUCCESS;
}

int cuEventDestroy_v2(void *event) {
    NEEDS_CONTEXT;
    get(state.events, event, "an event");
    state.events.erase(event);
    return SUCCESS;
}

int cuEventRecord(void *event, void *stream) {
    NEEDS_CONTEXT;
    auto recorded = get(state.events, event, "an event");
    auto in = get(state.streams, stream, "a stream");
    if (recorded->device != in->device) return INVALID_HANDLE;
    if (in->capture != nullptr && in->capture->spoiled) return CAPTURE_INVALIDATED;
    *recorded = {in->device, in, in->given, in->capture != nullptr ? in->capture->number : 0};
    return SUCCESS;
}

// Here a capture has one stream, so waiting for an event of the same capture changes nothing.
int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    NEEDS_CONTEXT;
    auto waits = get(state.streams, stream, "a stream");
    auto wanted = get(state.events, event, "an event");
    if (waits->capture != nullptr) {
        if (waits->capture->spoiled) return CAPTURE_INVALIDATED;
        if (wanted->capture == waits->capture->number) return SUCCESS;
        return spoil(*waits->capture, CAPTURE_ISOLATION);
    }
    if (wanted->capture != 0) die("captures of several streams are not emulated");
    if (wanted->stream == nullptr) return SUCCESS;
    return give(*waits, {[from = wanted->stream, position = wanted->position] { run_until(*from, position); }, {}});
}

// If nobody has waited for the work, the first query returns "not ready" and then does the work.
int cuEventQuery(void *event) {
    NEEDS_NO_CAPTURE;
    auto asked = get(state.events, event, "an event");
    if (asked->capture != 0) return CAPTURED_EVENT;
    if (asked->stream == nullptr || asked->stream->done >= asked->position) return SUCCESS;
    run_until(*asked->stream, asked->position);
    return NOT_READY;
}

int cuEventSynchronize(void *event) {
    NEEDS_NO_CAPTURE;
    auto waited = get(state.events, event, "an event");
    if (waited->capture != 0) return CAPTURED_EVENT;
    counts.synchronizations++;
    if (waited->stream != nullptr) run_until(*waited->stream, waited->position);
    return SUCCESS;
}

// -- graphs

int cuStreamBeginCapture_v2(void *stream, int mode) {
    NEEDS_CONTEXT;
    auto begins = get(state.streams, stream, "a stream");
    if (mode != 1) die("captures are emulated in the mode of their thread alone");
    if (begins->capture != nullptr) return ILLEGAL_STATE;
    begins->capture = std::make_unique<Capture>(Capture{++state.captures, std::this_thread::get_id(), false, {}});
    return SUCCESS;
}

int cuStreamEndCapture(void *stream, void **graph) {
    NEEDS_CONTEXT;
    auto ends = get(state.streams, stream, "a stream");
    *graph = nullptr;
    if (ends->capture == nullptr) return ILLEGAL_STATE;
    if (ends->capture->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
    auto capture = std::move(ends->capture);
    if (capture->spoiled) return CAPTURE_INVALIDATED;
    *graph = add(state.graphs, Graph{std::move(capture->works)});
    return SUCCESS;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
    NEEDS_CONTEXT;
    *executable = add(state.executables, Graph(*get(state.graphs, graph, "a graph")));
    return SUCCESS;
}

// Destroying a graph does not affect earlier launches, which hold a reference to it.
int cuGraphLaunch(void *executable, void *stream) {
    NEEDS_CONTEXT;
    auto graph = get(state.executables, executable, "an executable graph");
    Work all;
    for (const Work &work : graph->works) all.uses.insert(all.uses.end(), work.uses.begin(), work.uses.end());
    all.run = [graph] {
        for (const Work &work : graph->works) work.run();
    };
    return give(stream, counts.graph_launches, std::move(all));
}

int cuGraphUpload(void *executable, void *stream) {
    NEEDS_CONTEXT;
    get(state.executables, executable, "an executable graph");
    get(state.streams, stream, "a stream");
    return SUCCESS;
}

int cuGraphExecDestroy(void *executable) {
    NEEDS_CONTEXT;
    get(state.executables, executable, "an executable graph");
    state.executables.erase(executable);
    return SUCCESS;
}

int cuGraphDestroy(void *graph) {
    NEEDS_CONTEXT;
    get(state.graphs, graph, "a graph");
    state.graphs.erase(graph);
    return SUCCESS;
}

// -- kernels

int cuModuleLoadData(void **module, const void *) {
    NEEDS_NO_CAPTURE;
    *module = add(state.modules, Module{current, {}});
    return SUCCESS;
}

int cuModuleUnload(void *module) {
    NEEDS_NO_CAPTURE;
    run_device(get(state.modules, module, "a module")->device);
    state.modules.erase(module);
    return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    NEEDS_CONTEXT;
    auto in = get(state.modules, module, "a module");
    for (const Kernel &kernel : kernels) {
        if (strcmp(kernel.name, name) != 0) continue;
        *function = &in->functions.emplace_back(Function{&kernel, in->device});
        return SUCCESS;
    }
    return NOT_FOUND;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    NEEDS_CONTEXT;
    auto &changed = *static_cast<Function *>(function);
    const Device &device = state.devices[size_t(changed.device)];
    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
    if (attribute != 8 || value < 0 || value > device.shared - device.own_shared) return INVALID_VALUE;
    changed.shared = unsigned(value);
    return SUCCESS;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
    NEEDS_CONTEXT;
    // CU_FUNC_ATTRIBUTE_PTX_VERSION.
    if (attribute == 5) {
        *value = 90;
        return SUCCESS;
    }
    // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES.
    if (attribute != 1) return INVALID_VALUE;
    *value = state.devices[size_t(static_cast<Function *>(function)->device)].own_shared;
    return SUCCESS;
}

// Whether a launch has CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
static bool overlaps(const LaunchConfig &config) {
    for (unsigned i = 0; i < config.count; i++) {
        if (config.attributes[i].id == 6 && config.attributes[i].value[0] != 0) return true;
    }
    return false;
}

int cuLaunchKernelEx(const LaunchConfig *config, void *function, void **arguments, void **) {
    NEEDS_CONTEXT;
    auto &launched = *static_cast<Function *>(function);
    dim3 grid = config->grid, block = config->block;
    if (launched.device != get(state.streams, config->stream, "a stream")->device) return INVALID_HANDLE;
    if (config->shared > launched.shared) return INVALID_VALUE;
    if (block.x > launched.kernel->threads) return LAUNCH_OUT_OF_RESOURCES;
    Bound bound = launched.kernel->bind(grid, block, config->shared, arguments);
    Work work{std::move(bound.run), {}};
    if (overlaps(*config)) {
        uint64_t threads = uint64_t(grid.x) * grid.y * grid.z * block.x;
        work.run = [run = std::move(work.run), threads, name = launched.kernel->name] {
            run();
            if (emulation::awaited == threads) return;
            fprintf(stderr, "emulation: %s may begin early, and not all of its threads call await_inputs\n", name);
            abort();
        };
    }
    for (uintptr_t pointer : bound.pointers) work.uses.push_back({pointer, 0});
    return give(config->stream, counts.launches, std::move(work));
}

} // extern "C"

} // namespace driver
