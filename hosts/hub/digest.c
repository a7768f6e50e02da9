// SHA-1 and SHA-256 (FIPS 180-4): checksums against damage.
#include "parts.h"

#include <stdio.h>
#include <string.h>

static uint32_t left(uint32_t x, int n) {
    return x << n | x >> (32 - n);
}

static uint32_t right(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void block_1(uint32_t state[5], const uint32_t words[16]) {
    static const uint32_t constants[] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    memcpy(w, words, 16 * sizeof *w);
    for (int i = 16; i < 80; i++) w[i] = left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? (b & c) | (~b & d) : i >= 40 && i < 60 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
        uint32_t next = left(a, 5) + f + e + constants[i / 20] + w[i];
        e = d, d = c, c = left(b, 30), b = a, a = next;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

static void block_256(uint32_t state[8], const uint32_t words[16]) {
    static const uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };
    uint32_t w[64], s[8];
    memcpy(w, words, 16 * sizeof *w);
    memcpy(s, state, sizeof s);
    for (int i = 16; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (right(x, 7) ^ right(x, 18) ^ x >> 3) + w[i - 7] + (right(y, 17) ^ right(y, 19) ^ y >> 10);
    }
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (right(s[4], 6) ^ right(s[4], 11) ^ right(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) +
                       constants[i] + w[i];
        uint32_t two = (right(s[0], 2) ^ right(s[0], 13) ^ right(s[0], 22)) +
                       ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

static void take_block(digest *d, const unsigned char *block) {
    uint32_t words[16];
    for (int i = 0; i < 16; i++) {
        const unsigned char *b = block + 4 * i;
        words[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    (d->is_256 ? block_256 : block_1)(d->state, words);
}

void digest_start(digest *d, bool is_256) {
    static const uint32_t one[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    static const uint32_t two[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    *d = (digest){.is_256 = is_256};
    memcpy(d->state, is_256 ? two : one, sizeof one);
}

void digest_add(digest *d, const void *data, size_t size) {
    const unsigned char *from = data;
    while (size > 0) {
        size_t used = d->length % sizeof d->block, part = sizeof d->block - used;
        if (part > size) part = size;
        if (part == sizeof d->block) {
            take_block(d, from);
        } else {
            memcpy(d->block + used, from, part);
            if (used + part == sizeof d->block) take_block(d, d->block);
        }
        d->length += part;
        from += part;
        size -= part;
    }
}

void digest_end(digest *d, char hex[65]) {
    static const unsigned char padding[64] = {0x80};
    unsigned char bits[8];
    for (int i = 0; i < 8; i++) bits[i] = (unsigned char)(d->length * 8 >> (56 - 8 * i));
    size_t used = d->length % sizeof d->block;
    digest_add(d, padding, used < 56 ? 56 - used : 120 - used);
    digest_add(d, bits, sizeof bits);
    for (int i = 0; i < (d->is_256 ? 8 : 5); i++) sprintf(hex + 8 * i, "%08x", (unsigned)d->state[i]);
}
