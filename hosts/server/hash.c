#include "hash.h"

static uint64_t turned(uint64_t x, unsigned bits) {
    return x << bits | x >> (64 - bits);
}

static void rounds(uint64_t v[4], int count) {
    for (; count > 0; count--) {
        v[0] += v[1], v[1] = turned(v[1], 13) ^ v[0], v[0] = turned(v[0], 32);
        v[2] += v[3], v[3] = turned(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = turned(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = turned(v[1], 17) ^ v[2], v[2] = turned(v[2], 32);
    }
}

static void add_word(struct hash *h) {
    h->v[3] ^= h->word;
    rounds(h->v, 2);
    h->v[0] ^= h->word;
    h->word = 0;
}

void hash_begin(struct hash *h, const uint64_t key[2]) {
    *h = (struct hash){.v = {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                             key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)}};
}

void hash_add(struct hash *h, const void *data, size_t length) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < length; i++) {
        h->word |= (uint64_t)bytes[i] << 8 * (h->length % 8);
        if (++h->length % 8 == 0) add_word(h);
    }
}

uint64_t hash_end(struct hash *h) {
    h->word |= (uint64_t)h->length << 56;
    add_word(h);
    h->v[2] ^= 0xff;
    rounds(h->v, 4);
    return h->v[0] ^ h->v[1] ^ h->v[2] ^ h->v[3];
}
