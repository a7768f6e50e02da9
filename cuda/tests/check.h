// Support for tests of kernels. A failing test reports where, and the others still run.
#pragma once

#include "../kernels/device.cuh"

#include <cstdio>
#include <string>
#include <vector>

using emulation::launch;

namespace check {

struct Test {
    const char *name;
    void (*run)();
};

inline std::vector<Test> &tests() {
    static std::vector<Test> all;
    return all;
}

struct Registered {
    Registered(const char *name, void (*run)()) {
        tests().push_back({name, run});
    }
};

// Failures of the current test.
inline int failures = 0;
constexpr int MOST_SAID = 10;

inline void fail(const char *file, int line, const std::string &what) {
    if (failures++ < MOST_SAID) {
        std::fprintf(stderr, "  %s:%d: %s\n", file, line, what.c_str());
    }
}

inline void near(const char *file, int line, const char *what, double got, double want, double tolerance) {
    // Written so that NaN fails and equal infinities pass.
    if (!(got == want || std::fabs(got - want) <= tolerance)) {
        char text[256];
        std::snprintf(text, sizeof text, "%s is %.9g for %.9g, tolerance %.3g", what, got, want, tolerance);
        fail(file, line, text);
    }
}

// Whether two floats have the same bits. All NaN count as equal.
inline bool same_bits(float a, float b) {
    return __float_as_uint(a) == __float_as_uint(b) || (a != a && b != b);
}

inline bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    if (a.size() != b.size()) {
        return false;
    }
    for (size_t i = 0; i < a.size(); i++) {
        if (!same_bits(a[i], b[i])) {
            std::fprintf(stderr, "  element %zu: %.9g and %.9g\n", i, static_cast<double>(a[i]),
                static_cast<double>(b[i]));
            return false;
        }
    }
    return true;
}

} // namespace check

using check::same_bits;

#define TEST(name)                                                                                                     \
    static void test_##name();                                                                                         \
    static const check::Registered registered_##name(#name, test_##name);                                              \
    static void test_##name()

#define CHECK(condition) ((condition) ? void() : check::fail(__FILE__, __LINE__, #condition))

#define CHECK_NEAR(got, want, tolerance) check::near(__FILE__, __LINE__, #got, got, want, tolerance)

// Pseudo-random numbers from a seed (splitmix64).
struct Random {
    uint64_t state;

    explicit Random(uint64_t seed = 1) : state(seed) {}

    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }

    // Returns an integer from 0 to n - 1.
    int below(int n) {
        return static_cast<int>(next() % static_cast<uint64_t>(n));
    }

    // Returns a number in [0, 1).
    float uniform() {
        return static_cast<float>(next() >> 40) * 0x1p-24f;
    }

    float normal() {
        double u = 1.0 - static_cast<double>(uniform()), v = static_cast<double>(uniform());
        return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
    }

    // Returns n numbers of `normal`, times `scale`.
    std::vector<float> normals(size_t n, float scale = 1.0f) {
        std::vector<float> x(n);
        for (float &v : x) {
            v = normal() * scale;
        }
        return x;
    }
};
