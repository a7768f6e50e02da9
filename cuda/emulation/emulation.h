// Runs a kernel's blocks one after the other on one CPU thread. Each CUDA thread is a fibre, which runs until it
// reaches a barrier of its block or warp; the next fibre is chosen at random. Stops with a message where a GPU would
// hang or read garbage: barriers that not all threads reach, misaligned addresses, launches that no device accepts.
#pragma once

#include "fibre.h"
#include "types.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

// `bn_##name##_threads`: the maximum number of threads per block, which a driver checks.
#define BN_KERNEL_OF(threads, name)                                                                                    \
    [[maybe_unused]] constexpr unsigned bn_##name##_threads = threads;                                                 \
    extern "C" inline void bn_##name
#define BN_KERNEL_FOR(threads, blocks, name) BN_KERNEL_OF(threads, name)
#define BN_KERNEL(name) BN_KERNEL_OF(256, name)
#define BN_DEVICE static inline
#define BN_SHARED(name) unsigned char *name = emulation::machine.shared.data()

// The built-in variables of the current fibre.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace emulation {

constexpr int LANES = 32;
constexpr int MOST_WORDS = 8;

// The place in the source where a kernel calls a barrier.
struct Place {
    const char *file;
    int line;
};

// Threads that wait for each other.
struct Barrier {
    size_t size = 0;
    Place place{};
    const char *what = nullptr;
    std::vector<unsigned> waiting;
};

// A warp, and the words that its lanes exchange. Two sets, since a lane may be one exchange ahead of one that still
// reads.
struct Warp {
    Barrier barrier;
    uint32_t words[2][LANES][MOST_WORDS];
};

struct Copy {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    unsigned group;
};

struct Thread {
    Fibre fibre;
    bool ended = false, awaited = false;
    unsigned exchanges = 0;
    // Copies in flight, and the group to which the next one will belong.
    std::vector<Copy> copies;
    unsigned group = 0;
};

struct Machine {
    // Launches run one at a time, whatever thread calls them.
    std::mutex turn;
    Fibre main;
    // As many as the largest block so far had. Their stacks are kept, and they never move.
    std::deque<Thread> threads;
    std::vector<Warp> warps;
    Barrier block;
    std::deque<unsigned> ready;
    unsigned current = 0, count = 0, ended = 0;
    std::vector<unsigned char> shared;
    std::function<void()> body;
    uint64_t seed = 0, state = 0, launches = 0;
    // Whether a warp runs as far as it can before another one runs.
    bool ahead = false;
    // The content of unwritten shared memory.
    unsigned char poison = 0;
};

inline Machine machine;

// Number of threads that called `await_inputs` in this thread's last launch. Its fibres run on this thread.
inline thread_local uint64_t awaited = 0;

[[noreturn]] inline void die(const char *what, Place place = {"", 0}) {
    std::fprintf(stderr, "emulation: %s", what);
    if (place.line != 0) {
        std::fprintf(stderr, " (%s:%d, block %u %u %u, thread %u)", place.file, place.line, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x);
    }
    std::fprintf(stderr, "\n");
    std::abort();
}

// No fibre can continue: reports where all of them wait.
[[noreturn]] inline void stuck() {
    auto say = [](const Barrier &barrier, const char *whose) {
        if (!barrier.waiting.empty()) {
            std::fprintf(stderr, "  %zu of %zu threads of %s wait at %s, %s:%d; the first is thread %u\n",
                barrier.waiting.size(), barrier.size, whose, barrier.what, barrier.place.file, barrier.place.line,
                barrier.waiting[0]);
        }
    };
    std::fprintf(stderr, "emulation: divergent barriers in block %u %u %u; %u of %u threads have ended\n", blockIdx.x,
        blockIdx.y, blockIdx.z, machine.ended, machine.count);
    say(machine.block, "the block");
    for (const Warp &warp : machine.warps) {
        say(warp.barrier, "a warp");
    }
    std::abort();
}

// Picks a fibre that can continue: the first for seed 0, the one that became ready last with `ahead`, otherwise any.
inline unsigned take_ready() {
    Machine &m = machine;
    if (m.ahead) {
        unsigned thread = m.ready.back();
        m.ready.pop_back();
        return thread;
    }
    if (m.seed != 0) {
        m.state ^= m.state << 13, m.state ^= m.state >> 7, m.state ^= m.state << 17;
        std::swap(m.ready.front(), m.ready[m.state % m.ready.size()]);
    }
    unsigned thread = m.ready.front();
    m.ready.pop_front();
    return thread;
}

// Leaves the current fibre for another one, or for the launch once all have ended.
inline void go_on() {
    Machine &m = machine;
    Fibre &from = m.threads[m.current].fibre;
    if (m.ready.empty()) {
        if (m.ended != m.count) {
            stuck();
        }
        switch_fibre(from, m.main);
        return;
    }
    unsigned before = m.current;
    m.current = take_ready();
    threadIdx = {m.current, 0, 0};
    if (m.current != before) {
        switch_fibre(from, m.threads[m.current].fibre);
    }
}

inline void meet(Barrier &barrier, const char *what, Place place) {
    if (barrier.waiting.empty()) {
        barrier.what = what;
        barrier.place = place;
    } else if (barrier.place.line != place.line || std::strcmp(barrier.place.file, place.file) != 0 ||
               std::strcmp(barrier.what, what) != 0) {
        std::fprintf(stderr, "emulation: thread %u waits at %s, %s:%d\n", barrier.waiting[0], barrier.what,
            barrier.place.file, barrier.place.line);
        die("and another one meets a different barrier", place);
    }
    barrier.waiting.push_back(machine.current);
    if (barrier.waiting.size() == barrier.size) {
        machine.ready.insert(machine.ready.end(), barrier.waiting.begin(), barrier.waiting.end());
        barrier.waiting.clear();
    }
    go_on();
}

inline Warp &own_warp() {
    return machine.warps[machine.current / LANES];
}

using Words = const uint32_t (*)[MOST_WORDS];

// Shows some words to the lanes of the warp, and returns what each lane has shown.
inline Words exchange(const void *words, size_t bytes, const char *what, Place place) {
    Thread &self = machine.threads[machine.current];
    auto &all = own_warp().words[self.exchanges++ % 2];
    std::memcpy(all[machine.current % LANES], words, bytes);
    meet(own_warp().barrier, what, place);
    return all;
}

// The body of a fibre: it runs one CUDA thread after the other.
inline void fibre_entry() {
    arrive(nullptr);
    for (;;) {
        machine.body();
        Thread &self = machine.threads[machine.current];
        // A copy that is never waited for has no effect here.
        self.copies.clear();
        self.ended = true;
        machine.ended++;
        go_on();
    }
}

inline void run_block() {
    Machine &m = machine;
    // Alternates between NaN, which shows in sums, and large numbers, which show in maxima.
    m.poison = m.poison == 0xff ? 0x7f : 0xff;
    std::fill(m.shared.begin(), m.shared.end(), m.poison);
    m.ended = 0;
    for (unsigned i = 0; i < m.count; i++) {
        Thread &thread = m.threads[i];
        thread.ended = thread.awaited = false;
        thread.exchanges = 0;
        m.ready.push_back(i);
    }
    // Alternates between the last warp and the first one running ahead.
    if (m.ahead && m.launches % 2 == 0) std::reverse(m.ready.begin(), m.ready.end());
    m.current = take_ready();
    threadIdx = {m.current, 0, 0};
    switch_fibre(m.main, m.threads[m.current].fibre);
}

inline void check_launch(dim3 grid, dim3 block, size_t shared) {
    if (block.y != 1 || block.z != 1 || block.x == 0 || block.x > 1024 || block.x % LANES != 0) {
        die("a block is one row of 32 to 1024 threads, of whole warps");
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
        die("a grid of no blocks, or of more than 65535 in y or z");
    }
    if (shared > 227 * 1024) {
        die("more shared memory than a block can have");
    }
}

// Seeds the random order of fibres with BN_FIBRES, a number or "ahead", and the number of the launch.
inline void draw_order() {
    const char *seed = std::getenv("BN_FIBRES");
    machine.ahead = seed != nullptr && std::strcmp(seed, "ahead") == 0;
    machine.seed = seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
    machine.state = (machine.seed + 977 * machine.launches++) * 0x9e3779b97f4a7c15ull | 1;
}

// Runs `kernel` to its end, like a launch followed by a synchronization.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Args... args) {
    Machine &m = machine;
    std::lock_guard<std::mutex> lock(m.turn);
    check_launch(grid, block, shared);
    draw_order();
    awaited = 0;
    m.body = [=] { kernel(static_cast<Params>(args)...); };
    m.count = block.x;
    while (m.threads.size() < m.count) {
        m.threads.emplace_back();
        make_fibre(m.threads.back().fibre, fibre_entry);
    }
    m.warps.assign(m.count / LANES, Warp());
    for (Warp &warp : m.warps) {
        warp.barrier.size = LANES;
    }
    m.block.size = m.count;
    m.shared = std::vector<unsigned char>(shared);
    gridDim = grid;
    blockDim = block;
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++) {
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++) {
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
                run_block();
            }
        }
    }
}

} // namespace emulation

#include "warp.h"
