// Files that are not models, or damaged ones: an error that names the file or field, and nothing else.
#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[96];

static const char *in_folder(const char *name) {
    static char path[160];
    if (folder[0] == 0) {
        CHECK(make_temporary(folder, sizeof folder));
    } else {
        make_directory(folder); // it may still exist
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *write_file(const char *name, const void *bytes, size_t length) {
    const char *path = in_folder(name);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, length, file), length);
    CHECK_EQ(fclose(file), 0);
    return path;
}

// Creation from `path` fails, and the message names `name`.
static bn_status refused_naming(const char *path, const char *name) {
    bn_engine_config config = slow_config(path);
    bn_engine *engine = NULL;
    bn_error error = {0};
    int fds = count_fds(), threads = count_threads();
    bn_status status = bn_engine_create(&config, &engine, &error);
    CHECK(status != BN_OK);
    CHECK(engine == NULL);
    CHECK_CONTAINS(error.message, name);
    CHECK_EQ(count_fds(), fds);
    CHECK_EQ(count_threads(), threads);
    return status;
}

static bn_status refused(const char *path) {
    return refused_naming(path, path);
}

static bn_status refused_and_removed(const char *path) {
    bn_status status = refused(path);
    unlink(path);
    rmdir(folder);
    return status;
}

TEST(a_missing_file) {
    CHECK_STATUS(refused("/nonexistent/model.gguf"), BN_ERR_IO);
}

TEST(a_folder) {
    bn_status status = refused("/tmp");
    CHECK(status == BN_ERR_IO || status == BN_ERR_BAD_MODEL);
}

TEST(an_unknown_builtin) {
    bn_status status = refused("builtin:nothing");
    CHECK(status == BN_ERR_INVALID_ARGUMENT || status == BN_ERR_UNSUPPORTED);
    CHECK_STATUS(refused_naming("builtin:echo?us_per_token=many", "us_per_token=many"), BN_ERR_INVALID_ARGUMENT);
}

TEST(an_empty_file) {
    CHECK_STATUS(refused_and_removed(write_file("empty.gguf", "", 0)), BN_ERR_BAD_MODEL);
}

TEST(a_foreign_file) {
    const char text[] = "#!/bin/sh\necho this is no model, and long enough to be looked at twice\n";
    CHECK_STATUS(refused_and_removed(write_file("foreign.gguf", text, sizeof text)), BN_ERR_BAD_MODEL);
}

TEST(a_file_of_zeros) {
    static const char zeros[100000];
    CHECK_STATUS(refused_and_removed(write_file("zeros.gguf", zeros, sizeof zeros)), BN_ERR_BAD_MODEL);
}

TEST(counts_beyond_the_file) {
    // Magic, version 3, then 2^60 tensors and 2^60 keys: refused, not allocated.
    unsigned char head[64] = {'G', 'G', 'U', 'F', 3};
    head[15] = 0x10;
    head[23] = 0x10;
    CHECK_STATUS(refused_and_removed(write_file("counts.gguf", head, sizeof head)), BN_ERR_BAD_MODEL);
}

TEST(an_unknown_version) {
    unsigned char head[64] = {'G', 'G', 'U', 'F', 99};
    bn_status status = refused_and_removed(write_file("version.gguf", head, sizeof head));
    CHECK(status == BN_ERR_UNSUPPORTED || status == BN_ERR_BAD_MODEL);
}

#ifdef BN_DEMO_MODEL
static unsigned char *demo_file(size_t *length) {
    FILE *file = fopen(BN_DEMO_MODEL, "rb");
    CHECK(file != NULL);
    struct stat info;
    CHECK_EQ(fstat(fileno(file), &info), 0);
    *length = (size_t)info.st_size;
    unsigned char *bytes = malloc(*length);
    CHECK(bytes != NULL && fread(bytes, 1, *length, file) == *length);
    fclose(file);
    return bytes;
}

TEST(a_truncated_model_at_any_length) {
    size_t length;
    unsigned char *bytes = demo_file(&length);
    for (size_t cut = 1; cut < length; cut = cut * 2 + 3)
        CHECK_STATUS(refused_and_removed(write_file("cut.gguf", bytes, cut)), BN_ERR_BAD_MODEL);
    CHECK_STATUS(refused_and_removed(write_file("cut.gguf", bytes, length - 1)), BN_ERR_BAD_MODEL);
    free(bytes);
}

// Overwrites the first `from` with `to`, of the same length.
static void replace(unsigned char *bytes, size_t length, const char *from, const char *to) {
    size_t n = strlen(from);
    for (size_t i = 0; i + n <= length; i++) {
        if (memcmp(bytes + i, from, n) == 0) {
            memcpy(bytes + i, to, n);
            return;
        }
    }
    test_fail(__FILE__, __LINE__, "the model has no \"%s\"", from);
}

TEST(an_unknown_architecture) {
    size_t length;
    unsigned char *bytes = demo_file(&length);
    replace(bytes, length, "bitnet-b1.58", "bitnet-x9.99");
    bn_status status = refused_and_removed(write_file("architecture.gguf", bytes, length));
    CHECK(status == BN_ERR_UNSUPPORTED || status == BN_ERR_BAD_MODEL);
    free(bytes);
}

TEST(a_missing_tensor) {
    size_t length;
    unsigned char *bytes = demo_file(&length);
    replace(bytes, length, "blk.0.ffn_down", "blk.0.ffn_dawn");
    CHECK_STATUS(refused_and_removed(write_file("tensor.gguf", bytes, length)), BN_ERR_BAD_MODEL);
    free(bytes);
}

// The start of a tensor's dimensions; its type follows them.
static unsigned char *dimensions(unsigned char *bytes, size_t length, const char *name, uint32_t *count) {
    size_t n = strlen(name);
    for (size_t i = 8; i + n + 64 <= length; i++) {
        if (bytes[i - 8] == n && memcmp(bytes + i, name, n) == 0) {
            memcpy(count, bytes + i + n, sizeof *count);
            CHECK(*count >= 1 && *count <= 4);
            return bytes + i + n + sizeof *count;
        }
    }
    test_fail(__FILE__, __LINE__, "the model has no tensor %s", name);
}

TEST(a_wrong_type_and_a_wrong_shape) {
    size_t length;
    unsigned char *bytes = demo_file(&length);
    const char *const names[] = {"blk.0.ffn_down.weight", "blk.0.attn_q.weight", "token_embd.weight", "output_norm.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint32_t count = 0, type, other[] = {99, 24, 0xffffffff};
        unsigned char *at = dimensions(bytes, length, names[i], &count), *behind = at + 8 * (size_t)count;
        memcpy(&type, behind, sizeof type);
        for (size_t k = 0; k < sizeof other / sizeof *other; k++) {
            memcpy(behind, &other[k], sizeof type);
            bn_status status = refused_and_removed(write_file("type.gguf", bytes, length));
            CHECK(status == BN_ERR_UNSUPPORTED || status == BN_ERR_BAD_MODEL);
        }
        memcpy(behind, &type, sizeof type);
        uint64_t size, wrong[] = {0, 1, 128, UINT64_C(1) << 40, UINT64_MAX};
        memcpy(&size, at, sizeof size);
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            if (wrong[k] == size) continue;
            memcpy(at, &wrong[k], sizeof size);
            CHECK_STATUS(refused_and_removed(write_file("shape.gguf", bytes, length)), BN_ERR_BAD_MODEL);
        }
        memcpy(at, &size, sizeof size);
    }
    free(bytes);
}

TEST(flipped_bytes_never_crash) {
    size_t length;
    unsigned char *bytes = demo_file(&length);
    uint64_t random = 42;
    for (int round = 0; round < 150; round++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        size_t at = (size_t)(random >> 33) % 20000; // the header: names, types, shapes, the vocabulary
        unsigned char old = bytes[at];
        bytes[at] ^= (unsigned char)(1u << (random >> 61));
        bn_engine_config config = slow_config(write_file("flipped.gguf", bytes, length));
        config.threads = 1;
        bn_engine *engine = NULL;
        if (bn_engine_create(&config, &engine, NULL) == BN_OK) {
            bn_request_params params = ask("1+1=");
            params.max_new_tokens = 4;
            bn_event completion = {0};
            bn_generate(engine, &params, &completion, sizeof completion, NULL);
            bn_events_free(&completion, sizeof completion, 1);
            stop(engine);
        }
        bytes[at] = old;
    }
    unlink(in_folder("flipped.gguf"));
    rmdir(folder);
    free(bytes);
}
#endif
