// Tests of the emulation itself.

#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

namespace {

// Whether `run`, in a child process, crashes after printing `message`.
template <class Run> bool dies(const char *message, Run run) {
    int said[2];
    if (pipe(said) != 0) {
        return false;
    }
    std::fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
        dup2(said[1], 2);
        close(said[0]);
        run();
        _exit(0);
    }
    close(said[1]);
    std::string text;
    char part[512];
    for (ssize_t n; (n = read(said[0], part, sizeof part)) > 0;) {
        text.append(part, static_cast<size_t>(n));
    }
    close(said[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0) && text.find(message) != std::string::npos;
}

// All kinds of shuffles: out [threads, 4].
BN_KERNEL(try_shuffles)(const int *x, int *out) {
    int i = static_cast<int>(threadIdx.x), value = x[i];
    out[4 * i] = shfl(value, (lane() + 5) % WARP);
    out[4 * i + 1] = shfl_xor(value, 13);
    out[4 * i + 2] = shfl_down(value, 3);
    out[4 * i + 3] = warp_sum(value);
}

BN_KERNEL(try_wide)(const double *x, double *sums, unsigned *votes, float *largest) {
    double sum = x[threadIdx.x];
    for (int mask = 16; mask > 0; mask /= 2) {
        sum = add_rn(sum, shfl_xor(sum, mask));
    }
    sums[threadIdx.x] = sum;
    votes[threadIdx.x] = warp_ballot(x[threadIdx.x] > 0);
    largest[threadIdx.x] = warp_max(static_cast<float>(x[threadIdx.x]));
}

// Reads the number that each thread's right neighbour has written.
BN_KERNEL(try_barrier)(int *out, int rounds) {
    BN_SHARED(shared);
    int *slots = reinterpret_cast<int *>(shared);
    int own = static_cast<int>(threadIdx.x), count = static_cast<int>(blockDim.x), sum = 0;
    for (int round = 0; round < rounds; round++) {
        slots[own] = own + round;
        sync_block();
        sum += slots[(own + 1) % count];
        sync_block();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// As one round of `try_barrier` without its barrier, so that some order of the threads gives wrong results.
BN_KERNEL(try_no_barrier)(int *out) {
    BN_SHARED(shared);
    int *slots = reinterpret_cast<int *>(shared);
    slots[threadIdx.x] = static_cast<int>(threadIdx.x);
    out[threadIdx.x] = slots[(threadIdx.x + 1) % blockDim.x];
}

// 0: half of a block's warps reach the barrier. 1: half of a warp. 2: two different barriers in one block. 3: some
// threads have ended. 4: lanes in different shuffles.
BN_KERNEL(try_divergence)(int how, int *out) {
    int i = static_cast<int>(threadIdx.x);
    if (how == 0 && warp() == 0) {
        sync_block();
    } else if (how == 1 && lane() < 16) {
        sync_warp();
    } else if (how == 2) {
        if (i % 2 == 0) {
            sync_block();
        } else {
            sync_block();
        }
    } else if (how == 3) {
        if (i == 40) {
            return;
        }
        sync_block();
    } else if (how == 4) {
        out[i] = i % 2 == 0 ? shfl(i, 0) : shfl_xor(i, 1);
    }
}

BN_KERNEL(try_shared)(float *out, int at, int writes) {
    BN_SHARED(shared);
    float *slots = reinterpret_cast<float *>(shared);
    out[blockIdx.x * blockDim.x + threadIdx.x] = slots[at];
    sync_block();
    if (writes != 0) {
        slots[at] = 1.0f;
    }
}

// Copies [threads, 4] floats to shared memory in two groups and waits for both, the first, or none. out [threads, 2].
BN_KERNEL(try_copies)(const float *x, float *out, int waits) {
    BN_SHARED(shared);
    float *first = reinterpret_cast<float *>(shared) + 4 * threadIdx.x, *second = first + 4 * blockDim.x;
    copy_async16(first, x + 4 * threadIdx.x);
    copy_async_commit();
    copy_async16(second, x + 4 * threadIdx.x);
    copy_async_commit();
    if (waits == 2) {
        copy_async_wait<0>();
    } else if (waits == 1) {
        copy_async_wait<1>();
    }
    out[2 * threadIdx.x] = first[1];
    out[2 * threadIdx.x + 1] = second[2];
    copy_async_wait<0>();
}

BN_KERNEL(try_odd_copy)(const float *x, int shift) {
    BN_SHARED(shared);
    copy_async16(shared + shift, x);
}

// Copies four matrices x [4, 8, 8] of halves to shared memory, 4 bytes at a time, with rows 48 bytes apart. Loads them
// from offset `shift`, as they are and transposed: out [2, 4, 32] words.
BN_KERNEL(try_matrices)(const uint16_t *x, uint32_t *out, int shift) {
    BN_SHARED(shared);
    for (int i = lane(); i < 128; i += WARP) {
        copy_async4(shared + i / 4 * 48 + i % 4 * 4, x + 2 * i);
    }
    copy_async_commit();
    copy_async_wait<0>();
    sync_warp();
    uint32_t plain[4], transposed[4];
    load_matrices(plain, shared + lane() * 48 + shift);
    load_transposed(transposed, shared + lane() * 48 + shift);
    for (int i = 0; i < 4; i++) {
        out[i * WARP + lane()] = plain[i];
        out[(4 + i) * WARP + lane()] = transposed[i];
    }
}

// d [16, 8] += a [16, k] b [8, k] for one fragment of each: bytes (k = 32), f16 or bf16 (k = 16). Each lane reads its
// elements one by one by the formulas of the PTX ISA. For bytes also with the first `columns` = 16 columns alone.
BN_KERNEL(try_mma_s8)(const int8_t *a, const int8_t *b, int *d, int columns) {
    int g = lane() >> 2, t = lane() % 4;
    uint32_t x[4] = {}, y[2] = {};
    for (int i = 0; i < 16; i++) {
        int row = i < 4 || (i >= 8 && i < 12) ? g : g + 8, col = i < 8 ? 4 * t + (i & 3) : 4 * t + (i & 3) + 16;
        x[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(a[row * 32 + col])) << (8 * (i % 4));
    }
    for (int i = 0; i < 8; i++) {
        int row = i < 4 ? 4 * t + (i & 3) : 4 * t + (i & 3) + 16;
        y[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(b[g * 32 + row])) << (8 * (i % 4));
    }
    int sums[4];
    for (int i = 0; i < 4; i++) {
        sums[i] = d[(i < 2 ? g : g + 8) * 8 + 2 * t + (i & 1)];
    }
    if (columns == 32) {
        mma_s8(sums, x, y);
    } else {
        mma_s8(sums, {x[0], x[1]}, y[0]);
    }
    for (int i = 0; i < 4; i++) {
        d[(i < 2 ? g : g + 8) * 8 + 2 * t + (i & 1)] = sums[i];
    }
}

BN_KERNEL(try_mma_16)(const uint16_t *a, const uint16_t *b, float *d, int bf16) {
    int g = lane() >> 2, t = lane() % 4;
    uint32_t x[4] = {}, y[2] = {};
    for (int i = 0; i < 8; i++) {
        int row = i < 2 || (i >= 4 && i < 6) ? g : g + 8, col = i < 4 ? 2 * t + (i & 1) : 2 * t + (i & 1) + 8;
        x[i / 2] |= static_cast<uint32_t>(a[row * 16 + col]) << (16 * (i % 2));
    }
    for (int i = 0; i < 4; i++) {
        int row = i < 2 ? 2 * t + (i & 1) : 2 * t + (i & 1) + 8;
        y[i / 2] |= static_cast<uint32_t>(b[g * 16 + row]) << (16 * (i % 2));
    }
    float sums[4];
    for (int i = 0; i < 4; i++) {
        sums[i] = d[(i < 2 ? g : g + 8) * 8 + 2 * t + (i & 1)];
    }
    bf16 != 0 ? mma_bf16(sums, x, y) : mma_f16(sums, x, y);
    for (int i = 0; i < 4; i++) {
        d[(i < 2 ? g : g + 8) * 8 + 2 * t + (i & 1)] = sums[i];
    }
}

} // namespace

TEST(emulation_shuffles) {
    Random random(3);
    for (unsigned threads : {32u, 96u, 1024u}) {
        std::vector<int> x(threads), out(4 * threads);
        for (int &v : x) {
            v = random.below(1000) - 500;
        }
        launch(bn_try_shuffles, 1, threads, 0, x.data(), out.data());
        for (unsigned i = 0; i < threads; i++) {
            unsigned first = i / 32 * 32, own = i % 32;
            int sum = 0;
            for (unsigned l = 0; l < 32; l++) {
                sum += x[first + l];
            }
            CHECK(out[4 * i] == x[first + (own + 5) % 32]);
            CHECK(out[4 * i + 1] == x[first + (own ^ 13)]);
            CHECK(out[4 * i + 2] == x[own + 3 < 32 ? i + 3 : i]);
            CHECK(out[4 * i + 3] == sum);
        }
    }
}

TEST(emulation_shuffles_of_other_types) {
    std::vector<double> x(64), sums(64);
    std::vector<unsigned> votes(64);
    std::vector<float> largest(64);
    for (int i = 0; i < 64; i++) {
        x[i] = i % 3 - 1 + i * 1e-12;
    }
    launch(bn_try_wide, 1, 64, 0, x.data(), sums.data(), votes.data(), largest.data());
    for (int i = 0; i < 64; i++) {
        double sum = 0;
        unsigned votes_wanted = 0;
        for (int l = 0; l < 32; l++) {
            sum += x[i / 32 * 32 + l];
            votes_wanted |= (x[i / 32 * 32 + l] > 0 ? 1u : 0u) << l;
        }
        CHECK_NEAR(sums[i], sum, 1e-13);
        CHECK(votes[i] == votes_wanted);
        CHECK(largest[i] == 1.0f);
    }
}

TEST(emulation_barriers) {
    for (unsigned threads : {32u, 256u, 1024u}) {
        std::vector<int> out(2 * threads);
        launch(bn_try_barrier, 2, threads, 4 * threads, out.data(), 5);
        for (unsigned i = 0; i < 2 * threads; i++) {
            CHECK(out[i] == static_cast<int>(5 * ((i + 1) % threads) + 10));
        }
    }
    // Detects a missing barrier.
    std::vector<int> out(64);
    launch(bn_try_no_barrier, 1, 64, 4 * 64, out.data());
    int wrong = 0;
    for (int i = 0; i < 64; i++) {
        wrong += out[i] != (i + 1) % 64;
    }
    CHECK(wrong > 0);
}

TEST(emulation_stops_at_divergence) {
    const char *messages[] = {"divergent barriers", "divergent barriers", "different barrier", "divergent barriers",
        "different barrier"};
    for (int how = 0; how < 5; how++) {
        std::vector<int> out(64);
        CHECK(dies(messages[how], [&] { launch(bn_try_divergence, 1, 64, 0, how, out.data()); }));
    }
    CHECK(!dies("", [] { launch(bn_try_divergence, 1, 64, 0, 5, nullptr); }));
    CHECK(dies("whole warps", [] { launch(bn_try_divergence, 1, 48, 0, 5, nullptr); }));
    CHECK(dies("65535", [] { launch(bn_try_divergence, dim3(1, 70000), 32, 0, 5, nullptr); }));
    CHECK(dies("shared memory", [] { launch(bn_try_divergence, 1, 32, 300000, 5, nullptr); }));
}

TEST(emulation_shared_memory) {
    // Poisoned anew for each block.
    std::vector<float> out(3 * 32);
    launch(bn_try_shared, 3, 32, 64, out.data(), 15, 1);
    int numbers = 0;
    for (float v : out) {
        CHECK(v != v || v > 1e38f);
        numbers += v == v;
    }
    CHECK(numbers == 32 || numbers == 64);
#if defined(__SANITIZE_ADDRESS__)
    CHECK(dies("heap-buffer-overflow", [&] { launch(bn_try_shared, 1, 32, 64, out.data(), 16, 0); }));
    // The first lane that runs may be so far past the end that another test's memory was there.
    CHECK(dies("AddressSanitizer: heap", [&] { launch(bn_try_shared, 4, 32, 64, out.data(), 0, 0); }));
#endif
}

TEST(emulation_copies) {
    std::vector<float> x = Random(5).normals(4 * 64), out(2 * 64);
    for (int waits = 0; waits < 3; waits++) {
        launch(bn_try_copies, 1, 64, 2 * 16 * 64, x.data(), out.data(), waits);
        for (int i = 0; i < 64; i++) {
            CHECK(waits >= 1 ? out[2 * i] == x[4 * i + 1] : out[2 * i] != x[4 * i + 1]);
            CHECK(waits == 2 ? out[2 * i + 1] == x[4 * i + 2] : out[2 * i + 1] != x[4 * i + 2]);
        }
    }
    CHECK(dies("not aligned", [&] { launch(bn_try_odd_copy, 1, 32, 64, x.data(), 8); }));
    CHECK(dies("not aligned", [&] { launch(bn_try_odd_copy, 1, 32, 64, x.data() + 1, 16); }));
    CHECK(dies("not shared", [&] { launch(bn_try_odd_copy, 1, 32, 64, x.data(), 64); }));
}

TEST(emulation_matrices) {
    std::vector<uint16_t> x(4 * 64);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = static_cast<uint16_t>(i);
    }
    std::vector<uint32_t> out(2 * 4 * 32);
    launch(bn_try_matrices, 1, 32, 32 * 48, x.data(), out.data(), 0);
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned l = 0; l < 32; l++) {
            // Row l / 4, columns 2 (l % 4) and the next one; transposed the other way around.
            unsigned plain = 64 * i + 8 * (l / 4) + 2 * (l % 4), across = 64 * i + 8 * (2 * (l % 4)) + l / 4;
            CHECK(out[i * 32 + l] == (plain | (plain + 1) << 16));
            CHECK(out[(4 + i) * 32 + l] == (across | (across + 8) << 16));
        }
    }
    CHECK(dies("not aligned", [&] { launch(bn_try_matrices, 1, 32, 32 * 48, x.data(), out.data(), 4); }));
    CHECK(dies("not shared", [&] { launch(bn_try_matrices, 1, 32, 32 * 48, x.data(), out.data(), 48); }));
}

TEST(emulation_mma_of_bytes) {
    Random random(7);
    for (int round = 0; round < 8; round++) {
        std::vector<int8_t> a(16 * 32), b(8 * 32);
        std::vector<int> d(16 * 8);
        auto draw = [&] { return static_cast<int8_t>(round == 0 ? -128 : random.below(256) - 128); };
        for (auto &v : a) {
            v = draw();
        }
        for (auto &v : b) {
            v = draw();
        }
        for (auto &v : d) {
            v = random.below(1 << 20);
        }
        std::vector<int> want = d;
        int columns = round % 2 == 0 ? 32 : 16;
        for (int m = 0; m < 16; m++) {
            for (int n = 0; n < 8; n++) {
                for (int k = 0; k < columns; k++) {
                    want[m * 8 + n] += a[m * 32 + k] * b[n * 32 + k];
                }
            }
        }
        launch(bn_try_mma_s8, 1, 32, 0, a.data(), b.data(), d.data(), columns);
        CHECK(d == want);
    }
}

TEST(emulation_mma_of_halves) {
    Random random(9);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        auto value = [&](uint16_t bits) { return bf16 != 0 ? bf16_to_float(bits) : half_to_float(bits); };
        std::vector<uint16_t> a(16 * 16), b(8 * 16);
        std::vector<float> d = random.normals(16 * 8), before = d;
        for (auto *side : {&a, &b}) {
            for (auto &v : *side) {
                float x = random.normal();
                v = bf16 != 0 ? static_cast<uint16_t>(__float_as_uint(x) >> 16) : float_to_half(x);
            }
        }
        for (bool cuts : {false, true}) {
            d = before;
            emulation::cuts_sums = cuts;
            launch(bn_try_mma_16, 1, 32, 0, a.data(), b.data(), d.data(), bf16);
            emulation::cuts_sums = false;
            for (int m = 0; m < 16; m++) {
                for (int n = 0; n < 8; n++) {
                    double want = static_cast<double>(before[m * 8 + n]), most = std::fabs(want);
                    for (int k = 0; k < 16; k++) {
                        want += static_cast<double>(value(a[m * 16 + k])) * static_cast<double>(value(b[n * 16 + k]));
                        most = std::max(most, std::fabs(want));
                    }
                    CHECK_NEAR(d[m * 8 + n], want, 4e-6 * (1 + most));
                }
            }
        }
    }
}

// Terms that are too small beside the largest are lost, and a product with 0 has no effect.
TEST(emulation_cut_sums) {
    float x[8] = {1.0f, 0x1p-26f, -0x1p-26f}, y[8] = {1.0f, 1.0f, 1.0f}, zeros[8] = {};
    CHECK(emulation::cut_sum(0.0f, x, y) == 1.0f);
    CHECK(emulation::cut_sum(-1.0f, x, y) == 0.0f);
    x[1] = x[2] = 0x1p-25f;
    CHECK(emulation::cut_sum(-1.0f, x, y) == 0x1p-24f);
    CHECK(emulation::cut_sum(0x1.fffffep0f, x, y) == 0x1.7ffffep1f);
    x[0] = 60000.0f;
    CHECK(emulation::cut_sum(0x1.fffffep-20f, x, zeros) == 0x1.fffffep-20f);
}

TEST(emulation_conversions) {
    CHECK(round_even(0.5f) == 0 && round_even(1.5f) == 2 && round_even(-2.5f) == -2 && round_even(NAN) == 0);
    CHECK(round_even(INFINITY) == INT32_MAX && round_even(-1e30f) == INT32_MIN);
    for (unsigned bits = 0; bits < 65536; bits++) {
        auto half = static_cast<uint16_t>(bits);
        float value = half_to_float(half);
        CHECK(value != value ? (bits & 0x7fff) > 0x7c00 && float_to_half(value) == 0x7fff : float_to_half(value) == half);
    }
    CHECK(half_to_float(0x3c00) == 1.0f && half_to_float(0xc000) == -2.0f && half_to_float(1) == 0x1p-24f);
    // Ties go to even, also to and between subnormals.
    CHECK(float_to_half(1 + 0x1p-11f) == 0x3c00 && float_to_half(1 + 3 * 0x1p-11f) == 0x3c02);
    CHECK(float_to_half(0x1p-25f) == 0 && float_to_half(3 * 0x1p-25f) == 2 && float_to_half(-0x1.8p-25f) == 0x8001);
    CHECK(float_to_half(65519.0f) == 0x7bff && float_to_half(65520.0f) == 0x7c00 && float_to_half(0x1.ffep-15f) == 0x0400);
    CHECK(pack_halves(1.0f, -2.0f) == 0xc0003c00);
    CHECK(dp4a(0x7f80ff01, 0x7f80fe02, 5) == 5 + 127 * 127 + 128 * 128 + 2 + 2);
    CHECK(__byte_perm(0x33221100, 0x77665544, 0x7531) == 0x77553311 && __byte_perm(0x80, 0, 0x8000) == 0xff808080);
}
