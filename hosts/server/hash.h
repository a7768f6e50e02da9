// SipHash-2-4: without the key, an attacker cannot construct colliding inputs.
#ifndef BN_SERVER_HASH_H
#define BN_SERVER_HASH_H

#include <stddef.h>
#include <stdint.h>

struct hash {
    uint64_t v[4], word; // `word` holds the bytes after the last whole 8
    size_t length;
};

void hash_begin(struct hash *h, const uint64_t key[2]);
void hash_add(struct hash *h, const void *data, size_t length);
uint64_t hash_end(struct hash *h);

#endif
