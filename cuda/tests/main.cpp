// Runs all tests, or those whose names contain the first argument.

#include "check.h"

#include <chrono>

int main(int count, char **arguments) {
    std::string part = count > 1 ? arguments[1] : "";
    int ran = 0, failed = 0;
    for (const check::Test &test : check::tests()) {
        if (std::string(test.name).find(part) == std::string::npos) {
            continue;
        }
        check::failures = 0;
        auto start = std::chrono::steady_clock::now();
        std::printf("%s ", test.name);
        std::fflush(stdout);
        test.run();
        std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        std::printf("%s (%.2f s)\n", check::failures == 0 ? "ok" : "FAILED", taken.count());
        ran++;
        failed += check::failures != 0;
    }
    std::printf("%d tests, %d failed\n", ran, failed);
    return failed != 0 || ran == 0;
}
