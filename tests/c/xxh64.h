// XXH64 by its specification, for the hashes that the header names.
#ifndef XXH64_H
#define XXH64_H

#include <stddef.h>
#include <stdint.h>

static uint64_t rotated(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

static uint64_t little_endian(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static const uint64_t P1 = 0x9e3779b185ebca87, P2 = 0xc2b2ae3d27d4eb4f, P3 = 0x165667b19e3779f9, P4 = 0x85ebca77c2b2ae63,
                      P5 = 0x27d4eb2f165667c5;

static uint64_t xxh64_round(uint64_t lane, uint64_t input) {
    return rotated(lane + input * P2, 31) * P1;
}

static uint64_t xxh64(const uint8_t *at, size_t size, uint64_t seed) {
    uint64_t lanes[] = {seed + P1 + P2, seed + P2, seed, seed - P1}, sum = seed + P5;
    size_t left = size;
    for (; left >= 32; left -= 32)
        for (int i = 0; i < 4; i++, at += 8) lanes[i] = xxh64_round(lanes[i], little_endian(at, 8));
    if (size >= 32) {
        sum = rotated(lanes[0], 1) + rotated(lanes[1], 7) + rotated(lanes[2], 12) + rotated(lanes[3], 18);
        for (int i = 0; i < 4; i++) sum = (sum ^ xxh64_round(0, lanes[i])) * P1 + P4;
    }
    sum += size;
    for (; left >= 8; left -= 8, at += 8) sum = rotated(sum ^ xxh64_round(0, little_endian(at, 8)), 27) * P1 + P4;
    for (; left >= 4; left -= 4, at += 4) sum = rotated(sum ^ little_endian(at, 4) * P1, 23) * P2 + P3;
    for (; left > 0; left--, at++) sum = rotated(sum ^ *at * P5, 11) * P1;
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}

// Hash of a block of the KV cache: BN_HASH_XXH64. At most 64 tokens.
static uint64_t xxh64_of_tokens(const uint32_t *tokens, size_t count, uint64_t parent) {
    uint8_t bytes[4 * 64];
    for (size_t i = 0; i < 4 * count; i++) bytes[i] = (uint8_t)(tokens[i / 4] >> (8 * (i % 4)));
    return xxh64(bytes, 4 * count, parent);
}

#endif
