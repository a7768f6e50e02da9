// A question about a picture, answered as it is written: picture MODEL PICTURE QUESTION [MMPROJ]
// MODEL is a folder with a part that sees, or a GGUF file with that part in another, MMPROJ.
#include "bn_engine.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, bn_status_name(status), error->message);
    exit(1);
}

static void *allocate(void *old, size_t size) {
    void *memory = realloc(old, size);
    if (memory != NULL) return memory;
    fprintf(stderr, "no memory for %zu bytes\n", size);
    exit(1);
}

static uint8_t *read_file(const char *path, size_t *size) {
    size_t room = 1 << 20;
    uint8_t *data = allocate(NULL, room);
    FILE *file = fopen(path, "rb");
    for (*size = 0; file != NULL && !ferror(file) && !feof(file);) {
        *size += fread(data + *size, 1, room - *size, file);
        if (*size == room) data = allocate(data, room *= 2);
    }
    if (file == NULL || ferror(file)) {
        perror(path);
        exit(1);
    }
    fclose(file);
    return data;
}

// A conversation of one message: the place of the picture, and the question behind it.
static char *conversation(const char *question) {
    static const char head[] = "{\"messages\": [{\"role\": \"user\", \"content\": "
                               "[{\"type\": \"image\"}, {\"type\": \"text\", \"text\": \"";
    char *json = allocate(NULL, sizeof head + 6 * strlen(question) + 8);
    size_t length = sizeof head - 1;
    memcpy(json, head, length);
    for (; *question != '\0'; question++) {
        unsigned char c = (unsigned char)*question;
        if (c < 0x20)
            length += (size_t)snprintf(json + length, 7, "\\u%04x", c);
        else {
            if (c == '"' || c == '\\') json[length++] = '\\';
            json[length++] = *question;
        }
    }
    memcpy(json + length, "\"}]}]}", 7);
    return json;
}

static bn_engine *open_engine(const char *path, const char *pictures_path) {
    bn_error error = {0};
    bn_model_config files;
    bn_model *model = NULL;
    bn_engine_config config;
    bn_engine *engine = NULL;
    check(bn_model_config_init(&files, sizeof files), "config", &error);
    files.path = BN_TEXT(path);
    if (pictures_path != NULL) files.pictures_path = BN_TEXT(pictures_path);
    check(bn_model_open(&files, &model, &error), "open", &error);
    check(bn_engine_config_init(&config, sizeof config), "config", &error);
    config.model = model;
    check(bn_engine_create(&config, &engine, &error), "create", &error);
    check(bn_model_free(model), "free", &error); // the engine keeps what it needs
    return engine;
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) return fprintf(stderr, "usage: picture MODEL PICTURE QUESTION [MMPROJ]\n"), 2;
    bn_error error = {0};
    bn_request_params params;
    bn_request request;
    bn_event event;
    size_t count;
    uint64_t positions;
    bn_picture picture = {0};
    uint8_t *data = read_file(argv[2], &picture.data_len);
    picture.data = data;
    char *json = conversation(argv[3]);
    bn_engine *engine = open_engine(argv[1], argv[4]);

    // Also says whether the model sees, and whether the file begins as a picture.
    check(bn_picture_positions(engine, &picture, &positions, &error), argv[2], &error);
    fprintf(stderr, "%s takes %llu tokens\n", argv[2], (unsigned long long)positions);

    check(bn_request_params_init(&params, sizeof params), "params", &error);
    params.chat.json = BN_TEXT(json);
    params.pictures = &picture;
    params.pictures_count = 1;
    params.max_new_tokens = 256;
    check(bn_submit(engine, &params, &request, &error), "submit", &error);
    free(data); // bn_submit has read it
    free(json);

    bn_status status = BN_OK;
    for (bool done = false; !done;) {
        check(bn_poll(engine, request, &event, sizeof event, 1, BN_NO_LIMIT, &count, &error), "poll", &error);
        if (count == 0) continue;
        fwrite(event.text.data, 1, event.text.length, stdout); // whole characters
        fflush(stdout);
        done = event.kind == BN_EVENT_COMPLETED;
        status = event.status;
        if (status != BN_OK) fprintf(stderr, "%.*s\n", (int)event.message.length, event.message.data);
        bn_events_free(&event, sizeof event, 1);
    }
    puts("");
    check(bn_request_free(engine, request, &error), "release", &error);
    check(bn_engine_free(engine), "destroy", &error);
    return status == BN_OK ? 0 : 1;
}
