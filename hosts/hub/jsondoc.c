#include "jsondoc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 64 };

typedef struct {
    const char *at, *end;
    int depth;
} reader;

static void skip_space(reader *r) {
    while (r->at < r->end && strchr(" \t\r\n", *r->at) != NULL && *r->at != 0) r->at++;
}

static bool takes(reader *r, char wanted) {
    skip_space(r);
    if (r->at == r->end || *r->at != wanted) return false;
    r->at++;
    return true;
}

static bool read_hex(reader *r, uint32_t *out) {
    *out = 0;
    if (r->end - r->at < 4) return false;
    for (int i = 0; i < 4; i++) {
        char c = *r->at++;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return false;
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

// Reads what follows \u, with a second half where there is one.
static bool read_code(reader *r, uint32_t *code) {
    uint32_t low;
    if (!read_hex(r, code)) return false;
    if (*code < 0xd800 || *code > 0xdfff) return true;
    if (*code > 0xdbff || r->end - r->at < 6 || r->at[0] != '\\' || r->at[1] != 'u') return false;
    r->at += 2;
    if (!read_hex(r, &low) || low < 0xdc00 || low > 0xdfff) return false;
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

static size_t put_utf8(char *to, uint32_t code) {
    if (code < 0x80) return to[0] = (char)code, 1;
    size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    to[0] = (char)(lead[more] | code >> 6 * more);
    for (size_t i = 1; i <= more; i++) to[i] = (char)(0x80 | (code >> 6 * (more - i) & 0x3f));
    return more + 1;
}

static bool read_escape(reader *r, char *to, size_t *size) {
    static const char names[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    uint32_t code;
    if (r->at == r->end) return false;
    char c = *r->at++;
    const char *known = c != 0 ? strchr(names, c) : NULL;
    if (known != NULL) return to[(*size)++] = means[known - names], true;
    if (c != 'u' || !read_code(r, &code)) return false;
    *size += put_utf8(to + *size, code);
    return true;
}

// Reads a string behind its opening quote. No escape is shorter than what it means.
static char *read_string(reader *r, size_t *size) {
    const char *close = r->at;
    while (close < r->end && *close != '"') close += *close == '\\' ? 2 : 1;
    if (close >= r->end) return NULL;
    char *text = malloc((size_t)(close - r->at) + 1);
    size_t length = 0;
    if (text == NULL) return NULL;
    while (r->at < close) {
        char c = *r->at++;
        bool good = c == '\\' ? read_escape(r, text, &length) : (unsigned char)c >= 0x20;
        if (!good || r->at > close) return free(text), NULL;
        if (c != '\\') text[length++] = c;
    }
    r->at++;
    text[length] = 0;
    if (size != NULL) *size = length;
    return text;
}

static jsondoc *read_value(reader *r);

// Reads members or items behind the opening bracket.
static bool read_children(reader *r, jsondoc *parent) {
    char close = parent->kind == JSON_OBJECT ? '}' : ']';
    jsondoc **last = &parent->child;
    if (takes(r, close)) return true;
    do {
        char *key = NULL;
        if (parent->kind == JSON_OBJECT) {
            if (!takes(r, '"') || (key = read_string(r, NULL)) == NULL) return false;
            if (!takes(r, ':')) return free(key), false;
        }
        jsondoc *value = read_value(r);
        if (value == NULL) return free(key), false;
        value->key = key;
        *last = value;
        last = &value->next;
    } while (takes(r, ','));
    return takes(r, close);
}

static bool read_word(reader *r, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0) return false;
    r->at += length;
    return true;
}

static bool read_number(reader *r, jsondoc *value) {
    const char *from = r->at;
    while (r->at < r->end && *r->at != 0 && strchr("+-.0123456789eE", *r->at) != NULL) r->at++;
    value->kind = JSON_NUMBER;
    value->size = (size_t)(r->at - from);
    value->text = value->size > 0 ? calloc(value->size + 1, 1) : NULL;
    if (value->text != NULL) memcpy(value->text, from, value->size);
    return value->text != NULL;
}

static bool read_into(reader *r, jsondoc *value) {
    static const char *const words[] = {[JSON_NULL] = "null", [JSON_FALSE] = "false", [JSON_TRUE] = "true"};
    if (takes(r, '"')) {
        value->kind = JSON_STRING;
        return (value->text = read_string(r, &value->size)) != NULL;
    }
    bool object = takes(r, '{');
    if (object || takes(r, '[')) {
        value->kind = object ? JSON_OBJECT : JSON_ARRAY;
        return r->depth < DEEPEST && (r->depth++, read_children(r, value)) && (r->depth--, true);
    }
    for (int kind = JSON_NULL; kind <= JSON_TRUE; kind++)
        if (read_word(r, words[kind])) return value->kind = (jsondoc_kind)kind, true;
    return read_number(r, value);
}

static jsondoc *read_value(reader *r) {
    jsondoc *value = calloc(1, sizeof *value);
    if (value == NULL || read_into(r, value)) return value;
    jsondoc_free(value);
    return NULL;
}

jsondoc *jsondoc_parse(const char *text, size_t length) {
    reader r = {text, text + length, 0};
    jsondoc *value = read_value(&r);
    skip_space(&r);
    if (value != NULL && r.at == r.end) return value;
    jsondoc_free(value);
    return NULL;
}

void jsondoc_free(jsondoc *value) {
    while (value != NULL) {
        jsondoc *next = value->next;
        jsondoc_free(value->child);
        free(value->key);
        free(value->text);
        free(value);
        value = next;
    }
}

const jsondoc *jsondoc_member(const jsondoc *object, const char *key) {
    if (object == NULL || object->kind != JSON_OBJECT) return NULL;
    for (const jsondoc *member = object->child; member != NULL; member = member->next)
        if (strcmp(member->key, key) == 0) return member;
    return NULL;
}

const char *jsondoc_string(const jsondoc *object, const char *key) {
    const jsondoc *member = jsondoc_member(object, key);
    return member != NULL && member->kind == JSON_STRING ? member->text : NULL;
}
