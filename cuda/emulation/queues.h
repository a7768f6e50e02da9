// The state of the emulated driver: devices with their memory, and streams with pending work. Work is done as late as
// possible, when somebody waits for it, which exposes hosts that read too early or reuse memory too late.
#pragma once

#include "kernels.h"

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace driver {

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};

// A range of memory. `bytes` is 0 for a kernel's argument, whose extent is unknown.
struct Range {
    uintptr_t at;
    size_t bytes;
};

struct Work {
    std::function<void()> run;
    std::vector<Range> uses;
};

using Works = std::vector<Work>;

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
    int id, padding, value[16];
};
struct LaunchConfig {
    dim3 grid, block;
    unsigned shared;
    void *stream;
    const LaunchAttribute *attributes;
    unsigned count;
};
using Allocations = std::map<uintptr_t, size_t>;

struct Device {
    // Maximum shared memory per block, and the part of it that each kernel uses statically.
    int shared = 227 << 10, own_shared = 0;
    size_t memory = size_t(1) << 30;
    size_t retained = 0;
    Allocations allocations;

    size_t taken() const {
        size_t bytes = 0;
        for (auto &[at, size] : allocations) bytes += size;
        return bytes;
    }
};

// A capture: the work that a stream records instead of queueing it.
struct Capture {
    uint64_t number;
    std::thread::id thread;
    bool spoiled = false;
    Works works;
};

struct Stream {
    int device;
    std::deque<Work> queue;
    uint64_t given = 0, done = 0;
    std::unique_ptr<Capture> capture;
};

struct Event {
    int device;
    // The point at which it was recorded: a position in the stream's work, and its capture (0 for none).
    std::shared_ptr<Stream> stream;
    uint64_t position = 0, capture = 0;
};

struct Function {
    const Kernel *kernel;
    int device;
    unsigned shared = 48 << 10;
};

struct Module {
    int device;
    std::deque<Function> functions;
};

struct Graph {
    Works works;
};

template <class Object> using Objects = std::map<void *, std::shared_ptr<Object>>;

struct State {
    // Held during each call, also while kernels run.
    std::recursive_mutex mutex;
    std::deque<Device> devices{1};
    Allocations pinned;
    Objects<Stream> streams;
    Objects<Event> events;
    Objects<Module> modules;
    Objects<Graph> graphs, executables;
    std::map<std::string, int> failures;
    uint64_t captures = 0;
};

inline State state;
// The device whose context is current in this thread, or -1.
inline thread_local int current = -1;
// The contexts below it on the thread's stack.
inline thread_local std::vector<int> pushed;

[[noreturn]] inline void die(const std::string &what) {
    std::fprintf(stderr, "emulated driver: %s\n", what.c_str());
    std::abort();
}

template <class Object> void *add(Objects<Object> &objects, Object object) {
    auto made = std::make_shared<Object>(std::move(object));
    objects[made.get()] = made;
    return made.get();
}

template <class Object> std::shared_ptr<Object> get(Objects<Object> &objects, void *handle, const char *what) {
    auto found = objects.find(handle);
    if (found == objects.end()) die(std::string(what) + " that is not there is used");
    return found->second;
}

// Whether an allocation contains the start of `range`. A range that extends past the allocation's end ends the test.
inline bool holds(const Allocations &allocations, Range range) {
    auto found = allocations.upper_bound(range.at);
    if (found == allocations.begin()) return false;
    auto &[at, size] = *--found;
    if (range.at > at + size || (range.bytes > 0 && range.at == at + size)) return false;
    if (range.bytes > at + size - range.at) die("a copy reaches over the end of an allocation");
    return true;
}

// Ends the test if work for `device` uses memory that the device cannot reach.
inline void check(const Work &work, int device) {
    for (Range range : work.uses) {
        if ((range.at == 0 && range.bytes == 0) || holds(state.pinned, range)) continue;
        bool found = false;
        for (int other = 0; other < int(state.devices.size()) && !found; other++) {
            found = holds(state.devices[size_t(other)].allocations, range);
            if (found && other != device) {
                die("memory of device " + std::to_string(other) + " is used by a stream of device " + std::to_string(device));
            }
        }
        if (!found) die("memory that is not allocated is used");
    }
}

// Does the work of `stream` up to `position`.
inline void run_until(Stream &stream, uint64_t position) {
    while (stream.done < position) {
        Work work = std::move(stream.queue.front());
        stream.queue.pop_front();
        work.run();
        stream.done++;
    }
}

inline void run_all(Stream &stream) {
    run_until(stream, stream.given);
}

// Does all pending work of `device`, or of all devices for -1.
inline void run_device(int device) {
    for (auto &[handle, stream] : state.streams) {
        if (device == -1 || stream->device == device) run_all(*stream);
    }
}

inline int give(Stream &stream, Work work) {
    check(work, stream.device);
    if (stream.capture == nullptr) {
        stream.queue.push_back(std::move(work));
        stream.given++;
    } else if (stream.capture->spoiled) {
        return CAPTURE_INVALIDATED;
    } else {
        stream.capture->works.push_back(std::move(work));
    }
    return SUCCESS;
}

inline int spoil(Capture &capture, int code) {
    capture.spoiled = true;
    return code;
}

// Invalidates the thread's captures, if any, and returns the error. CUDA may be less strict: it does not list these
// calls.
inline int forbidden() {
    int code = SUCCESS;
    for (auto &[handle, stream] : state.streams) {
        if (stream->capture != nullptr && stream->capture->thread == std::this_thread::get_id()) {
            code = spoil(*stream->capture, CAPTURE_UNSUPPORTED);
        }
    }
    return code;
}

// The code with which `function` must fail this once.
inline int failure(const char *function) {
    auto found = state.failures.find(function);
    if (found == state.failures.end()) return SUCCESS;
    int code = found->second;
    state.failures.erase(found);
    return code;
}

inline bool has_context() {
    return current >= 0 && current < int(state.devices.size()) && state.devices[size_t(current)].retained > 0;
}

} // namespace driver
