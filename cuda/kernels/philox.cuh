// Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011), as in src/sample/philox.rs: random numbers as a function of
// a counter, so that no draw depends on earlier ones.
#pragma once

#include "device.cuh"

namespace philox {

struct Words {
    uint32_t x[4];
};

BN_DEVICE Words philox4x32(Words counter, uint32_t low_key, uint32_t high_key) {
    for (int round = 0; round < 10; round++) {
        uint64_t left = static_cast<uint64_t>(counter.x[0]) * 0xD2511F53u;
        uint64_t right = static_cast<uint64_t>(counter.x[2]) * 0xCD9E8D57u;
        counter = {{static_cast<uint32_t>(right >> 32) ^ counter.x[1] ^ low_key, static_cast<uint32_t>(right),
                    static_cast<uint32_t>(left >> 32) ^ counter.x[3] ^ high_key, static_cast<uint32_t>(left)}};
        low_key += 0x9E3779B9u;
        high_key += 0xBB67AE85u;
    }
    return counter;
}

// Returns number `n` of the token at `position` of a request with this seed, uniform in [0, 1) with 53 bits.
BN_DEVICE double uniform(uint64_t seed, uint64_t position, uint32_t n) {
    Words counter = {{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), n, 0}};
    Words words = philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    uint64_t bits = (static_cast<uint64_t>(words.x[0]) << 32 | words.x[1]) >> 11;
    return mul_rn(static_cast<double>(bits), 0x1p-53);
}

} // namespace philox
