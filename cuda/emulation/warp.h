// Primitives in which threads cooperate: barriers, exchanges within a warp, matrix products, delayed copies.
#pragma once

// The caller's place in the source, as a default argument.
#define BN_PLACE                                                                                                       \
    emulation::Place place = {                                                                                         \
        __builtin_FILE(), __builtin_LINE()                                                                             \
    }

static inline void sync_block(BN_PLACE) {
    emulation::meet(emulation::machine.block, "sync_block", place);
}

static inline void sync_warp(BN_PLACE) {
    emulation::meet(emulation::own_warp().barrier, "sync_warp", place);
}

namespace emulation {
template <class T> T from_lane(T value, int (*source)(int own, int argument), int argument, const char *what, Place place) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle is of 32 or 64 bits");
    Words all = exchange(&value, sizeof value, what, place);
    std::memcpy(&value, all[source(static_cast<int>(machine.current % LANES), argument)], sizeof value);
    return value;
}
} // namespace emulation

template <class T> static inline T shfl(T value, int lane, BN_PLACE) {
    return emulation::from_lane(value, [](int, int lane) { return lane & 31; }, lane, "shfl", place);
}

template <class T> static inline T shfl_xor(T value, int mask, BN_PLACE) {
    return emulation::from_lane(value, [](int own, int mask) { return (own ^ mask) & 31; }, mask, "shfl_xor", place);
}

template <class T> static inline T shfl_down(T value, unsigned delta, BN_PLACE) {
    auto source = [](int own, int delta) { return own + delta < 32 ? own + delta : own; };
    return emulation::from_lane(value, source, static_cast<int>(delta), "shfl_down", place);
}

static inline unsigned warp_ballot(bool yes, BN_PLACE) {
    uint32_t word = yes ? 1 : 0, result = 0;
    emulation::Words all = emulation::exchange(&word, sizeof word, "warp_ballot", place);
    for (int i = 0; i < 32; i++) {
        result |= all[i][0] << i;
    }
    return result;
}

static inline int warp_sum(int value, BN_PLACE) {
    emulation::Words all = emulation::exchange(&value, sizeof value, "warp_sum", place);
    uint32_t sum = 0;
    for (int i = 0; i < 32; i++) {
        sum += all[i][0];
    }
    return static_cast<int>(sum);
}

static inline unsigned warp_most(unsigned value, BN_PLACE) {
    emulation::Words all = emulation::exchange(&value, sizeof value, "warp_most", place);
    for (int i = 0; i < 32; i++) {
        value = all[i][0] > value ? all[i][0] : value;
    }
    return value;
}

static inline float warp_most(float value, BN_PLACE) {
    return __uint_as_float(warp_most(__float_as_uint(value), place));
}

namespace emulation {

// Computes one lane's four elements of d += a b, where each register holds `Operand::EACH` elements of a row of a or a
// column of b. PTX ISA, "Matrix Fragments for mma.m16n8k16" (f16) and "mma.m16n8k32" (s8): with g = lane / 4 and t =
// lane % 4, d has rows g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1. The registers of a have rows g, g + 8, g,
// g + 8, those of b column g. The first half of the registers holds elements from EACH * t on of the first half of k,
// the others of its second half.
template <class Operand, class Sum, class D>
void mma(D (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const char *what, Place place) {
    uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    Words all = exchange(words, sizeof words, what, place);
    int own = static_cast<int>(machine.current % LANES);
    for (int i = 0; i < 4; i++) {
        int row = own / 4 + 8 * (i / 2), column = 2 * (own % 4) + i % 2;
        Sum sum = static_cast<Sum>(d[i]);
        for (int half = 0; half < 2; half++) {
            for (int t = 0; t < 4; t++) {
                uint32_t x = all[row % 8 * 4 + t][2 * half + row / 8], y = all[column * 4 + t][4 + half];
                for (int e = 0; e < Operand::EACH; e++) {
                    sum += static_cast<Sum>(Operand::element(x, e)) * static_cast<Sum>(Operand::element(y, e));
                }
            }
        }
        // Integers wrap around, as on the device.
        d[i] = static_cast<D>(sum);
    }
}

struct Bytes {
    static constexpr int EACH = 4;
    static int element(uint32_t word, int i) {
        return static_cast<int8_t>(word >> (8 * i));
    }
};

struct Halves {
    static constexpr int EACH = 2;
    static float element(uint32_t word, int i) {
        return half_to_float(static_cast<uint16_t>(word >> (16 * i)));
    }
};

struct Bf16s {
    static constexpr int EACH = 2;
    static float element(uint32_t word, int i) {
        return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000u);
    }
};

} // namespace emulation

static inline void mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], BN_PLACE) {
    emulation::mma<emulation::Bytes, int64_t>(d, a, b, "mma_s8", place);
}

static inline void mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4], BN_PLACE) {
    for (int i = 0; i < 4; i++) {
        d[i] = c[i];
    }
    emulation::mma<emulation::Bytes, int64_t>(d, a, b, "mma_s8", place);
}

// mma.m16n8k16 uses the registers of the first half of k.
static inline void mma_s8(int (&d)[4], const uint32_t (&a)[2], uint32_t b, BN_PLACE) {
    emulation::mma<emulation::Bytes, int64_t>(d, {a[0], a[1], 0, 0}, {b, 0}, "mma_s8", place);
}

namespace emulation {

// Whether `mma_f16` truncates sums as tensor cores have been found to (arXiv:2512.07004), to test that results do not
// depend on it.
inline bool cuts_sums = false;

// Returns c plus 8 products, where nonzero terms are truncated to 26 bits of the largest, and their sum to a float.
inline float cut_sum(float c, const float (&x)[8], const float (&y)[8]) {
    double terms[9] = {static_cast<double>(c)}, most = std::fabs(terms[0]), sum = 0;
    for (int i = 0; i < 8; i++) {
        terms[i + 1] = static_cast<double>(x[i]) * static_cast<double>(y[i]);
        most = std::fabs(terms[i + 1]) > most ? std::fabs(terms[i + 1]) : most;
    }
    double unit = most > 0 && std::isfinite(most) ? std::ldexp(1.0, std::ilogb(most) - 25) : 1.0;
    for (double term : terms) {
        sum += std::isfinite(term) ? std::trunc(term / unit) * unit : term;
    }
    float near = static_cast<float>(sum);
    return std::fabs(static_cast<double>(near)) > std::fabs(sum) ? std::nextafter(near, 0.0f) : near;
}

// Fragments are as in `mma`.
inline void mma_cut(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const char *what, Place place) {
    uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    Words all = exchange(words, sizeof words, what, place);
    int own = static_cast<int>(machine.current % LANES);
    for (int i = 0; i < 8; i++) {
        int row = own / 4 + i / 2 % 2 * 8, column = 2 * (own % 4) + i % 2, half = i / 4;
        float x[8], y[8];
        for (int k = 0; k < 8; k++) {
            x[k] = Halves::element(all[row % 8 * 4 + k / 2][2 * half + row / 8], k % 2);
            y[k] = Halves::element(all[column * 4 + k / 2][4 + half], k % 2);
        }
        d[i % 4] = cut_sum(d[i % 4], x, y);
    }
}

} // namespace emulation

// The order in which a device sums is unknown. Here sums are in f64 and rounded once.
static inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], BN_PLACE) {
    if (emulation::cuts_sums) {
        return emulation::mma_cut(d, a, b, "mma_f16", place);
    }
    emulation::mma<emulation::Halves, double>(d, a, b, "mma_f16", place);
}

// Another possible order: in f32, by columns. Kernels that must agree to the bit share this order.
static inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], BN_PLACE) {
    emulation::mma<emulation::Bf16s, float>(d, a, b, "mma_bf16", place);
}

namespace emulation {

inline uintptr_t address_of(const void *p) {
    return reinterpret_cast<uintptr_t>(p);
}

[[noreturn]] inline void die_of(const char *what, const char *why, Place place) {
    char text[128];
    std::snprintf(text, sizeof text, "%s %s", what, why);
    die(text, place);
}

inline void check_shared(const void *at, size_t bytes, const char *what, Place place) {
    auto first = address_of(machine.shared.data());
    if (address_of(at) % bytes != 0) {
        die_of(what, "at an address that is not aligned to its size", place);
    }
    if (address_of(at) < first || address_of(at) + bytes > first + machine.shared.size()) {
        die_of(what, "of what is not shared memory", place);
    }
}

// Copies at the last moment allowed, at the wait. Until then the target is poisoned.
inline void copy_async(void *to, const void *from, size_t bytes, const char *what, Place place) {
    Thread &self = machine.threads[machine.current];
    check_shared(to, bytes, what, place);
    if (address_of(from) % bytes != 0) {
        die_of(what, "from an address that is not aligned to its size", place);
    }
    std::memset(to, machine.poison, bytes);
    self.copies.push_back({static_cast<unsigned char *>(to), static_cast<const unsigned char *>(from), bytes, self.group});
}

// PTX ISA, "ldmatrix": each lane shows the 16 bytes of its row. `element(row, column)` reads an element of matrix i.
template <class Get> void load_rows(uint32_t (&to)[4], const void *row, const char *what, Place place, Get get) {
    check_shared(row, 16, what, place);
    Words all = exchange(row, 16, what, place);
    for (unsigned i = 0; i < 4; i++) {
        to[i] = get([&](unsigned r, unsigned column) {
            return all[8 * i + r][column / 2] >> (16 * (column % 2)) & 0xffffu;
        });
    }
}

} // namespace emulation

// Kernels run one after the other here. A driver checks that kernels which may start early have waited.
static inline void let_next_begin() {}

static inline void await_inputs() {
    using namespace emulation;
    Thread &self = machine.threads[machine.current];
    awaited += self.awaited ? 0 : 1;
    self.awaited = true;
}

// Reads one byte of every 16, for AddressSanitizer to check.
static inline void prefetch_l2(const void *from, uint32_t bytes, BN_PLACE) {
    using namespace emulation;
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
        die("prefetch_l2 of what is not whole 16 bytes", place);
    }
    volatile unsigned char seen = 0;
    for (uint32_t i = 0; i < bytes; i += 16) {
        seen = seen ^ static_cast<const unsigned char *>(from)[i];
    }
}

static inline void load_matrices(uint32_t (&to)[4], const void *row, BN_PLACE) {
    unsigned l = emulation::machine.current % emulation::LANES;
    emulation::load_rows(to, row, "load_matrices", place, [&](auto element) {
        return element(l / 4, 2 * (l % 4)) | element(l / 4, 2 * (l % 4) + 1) << 16;
    });
}

static inline void load_transposed(uint32_t (&to)[4], const void *row, BN_PLACE) {
    unsigned l = emulation::machine.current % emulation::LANES;
    emulation::load_rows(to, row, "load_transposed", place, [&](auto element) {
        return element(2 * (l % 4), l / 4) | element(2 * (l % 4) + 1, l / 4) << 16;
    });
}

static inline void copy_async16(void *shared, const void *global, BN_PLACE) {
    emulation::copy_async(shared, global, 16, "copy_async16", place);
}

static inline void copy_async4(void *shared, const void *global, BN_PLACE) {
    emulation::copy_async(shared, global, 4, "copy_async4", place);
}

static inline void copy_async_commit() {
    using namespace emulation;
    machine.threads[machine.current].group++;
}

template <int N> static inline void copy_async_wait() {
    using namespace emulation;
    Thread &self = machine.threads[machine.current];
    auto &copies = self.copies;
    size_t left = 0;
    for (const Copy &copy : copies) {
        // Committed, and not among the last N groups.
        if (self.group - copy.group > static_cast<unsigned>(N)) {
            std::memcpy(copy.to, copy.from, copy.bytes);
        } else {
            copies[left++] = copy;
        }
    }
    copies.resize(left);
}

#undef BN_PLACE
