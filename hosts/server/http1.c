#include "http1.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

enum { BAD = 400, URI_TOO_LONG = 414, EXPECTATION_FAILED = 417, FIELDS_TOO_LARGE = 431, NOT_IMPLEMENTED = 501, VERSION = 505 };

// -- characters -------------------------------------------------------------------------------------

static bool is_alphanumeric(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_token(unsigned char c) {
    return is_alphanumeric(c) || (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

// RFC 3986: unreserved characters, sub-delims, and the `%` of codes.
static bool is_name(unsigned char c) {
    return is_alphanumeric(c) || (c != 0 && strchr("-._~!$&'()*+,;=%", c) != NULL);
}

static bool is_target(unsigned char c) {
    return is_name(c) || c == '/' || c == '?' || c == ':' || c == '@';
}

// Characters of a field's value: no controls except the tab.
static bool is_text(unsigned char c) {
    return c == '\t' || (c >= ' ' && c != 0x7f);
}

static bool is_space(char c) {
    return c == ' ' || c == '\t';
}

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool all(const char *text, bool (*is)(unsigned char)) {
    while (*text != 0 && is((unsigned char)*text)) text++;
    return *text == 0;
}

// Characters of one kind; each `%` must begin a code.
static bool is_coded(const char *text, size_t length, bool (*is)(unsigned char)) {
    for (size_t i = 0; i < length; i++) {
        if (!is((unsigned char)text[i])) return false;
        if (text[i] != '%') continue;
        if (length - i < 3 || hex(text[i + 1]) < 0 || hex(text[i + 2]) < 0) return false;
    }
    return true;
}

// -- authorities ------------------------------------------------------------------------------------

// `v1.x`, for future address formats.
static bool is_future(const char *text, size_t length) {
    size_t digits = 0;
    if (length == 0 || (*text != 'v' && *text != 'V')) return false;
    while (1 + digits < length && hex(text[1 + digits]) >= 0) digits++;
    size_t from = digits + 2;
    if (digits == 0 || from >= length || text[from - 1] != '.') return false;
    for (size_t i = from; i < length; i++)
        if (text[i] == '%' || (text[i] != ':' && !is_name((unsigned char)text[i]))) return false;
    return true;
}

static bool is_address(const char *text, size_t length) {
    char copy[INET6_ADDRSTRLEN];
    struct in6_addr address;
    if (is_future(text, length)) return true;
    if (length >= sizeof copy) return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    return inet_pton(AF_INET6, copy, &address) == 1;
}

// A host and optionally a port. The host must not be empty (RFC 9110, 4.2.1).
static bool is_authority(const char *text) {
    bool literal = *text == '[';
    size_t length = strcspn(text, literal ? "]" : ":");
    bool known = literal ? text[length] != 0 && is_address(text + 1, length - 1) : is_coded(text, length, is_name);
    if (!known || length == 0) return false;
    const char *port = text + length + literal;
    return *port == 0 || (*port == ':' && port[1 + strspn(port + 1, "0123456789")] == 0);
}

// -- the end of a head ------------------------------------------------------------------------------

// A line ends with CR LF: either of them alone is refused at once, as are other control characters.
unsigned http1_find(struct http1 *h, const char *data, size_t length, size_t most, size_t *head) {
    *head = 0;
    size_t end = length < most ? length : most;
    for (size_t i = h->seen; i < end; h->seen = ++i) {
        char c = data[i];
        bool after_cr = i > 0 && data[i - 1] == '\r';
        if ((c == '\n') != after_cr || (c != '\n' && c != '\r' && !is_text((unsigned char)c))) return BAD;
        if (c != '\r' && c != '\n') h->started = true;
        if (c != '\n') continue;
        bool empty = i == 1 || (i > 2 && data[i - 2] == '\n');
        if (!h->started && i > 1) return BAD; // one empty line before a request is allowed
        if (h->started && empty) {
            *head = i + 1;
            return 0;
        }
        h->line |= h->started;
    }
    return length < most ? 0 : h->line ? FIELDS_TOO_LARGE : URI_TOO_LONG;
}

// -- the request line -------------------------------------------------------------------------------

// Cuts off the part of `*text` before `end`, which becomes NUL. Returns NULL if `end` is missing.
static char *part(char **text, char end) {
    char *from = *text, *to = strchr(from, end);
    if (to == NULL) return NULL;
    *to = 0;
    *text = to + 1;
    return from;
}

// Decodes in place, if all codes are valid. A NUL is refused.
static bool decode(char *path) {
    char *to = path;
    for (const char *from = path; *from != 0; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        int code = hex(from[1]) * 16 + hex(from[2]);
        if (code == 0) return false;
        *to++ = (char)code;
        from += 2;
    }
    *to = 0;
    return true;
}

// `/path?query`, `http://authority/path?query`, or `*` for OPTIONS.
static bool read_target(struct http1 *h, char *target) {
    static const char http[] = "http://";
    if (strcmp(target, "*") == 0) return h->path = target, strcmp(h->method, "OPTIONS") == 0;
    if (strncasecmp(target, http, sizeof http - 1) == 0) {
        char *from = target + sizeof http - 1;
        size_t length = strcspn(from, "/?");
        h->authority = target; // moved, to make room for a NUL after it
        bool root = from[length] != '/';
        memmove(target, from, length);
        target[length] = 0;
        if (!is_authority(target)) return false;
        target = from + length;
        if (root) *--target = '/'; // `http://host?query`, or without a path at all
    }
    if (*target != '/' || !is_coded(target, strlen(target), is_target)) return false;
    target[strcspn(target, "?")] = 0;
    h->path = target;
    return decode(target);
}

static unsigned read_version(struct http1 *h, const char *text) {
    bool form = strlen(text) == 8 && strncmp(text, "HTTP/", 5) == 0 && text[5] >= '0' && text[5] <= '9' && text[6] == '.' &&
                text[7] >= '0' && text[7] <= '9';
    if (!form) return BAD;
    h->one_one = text[7] != '0'; // later ones of the same major number are compatible
    h->closes = !h->one_one;
    return text[5] == '1' ? 0 : VERSION;
}

static unsigned read_line(struct http1 *h, char *line) {
    char *method = part(&line, ' '), *target = method != NULL ? part(&line, ' ') : NULL;
    if (target == NULL || *method == 0 || !all(method, is_token)) return BAD;
    h->method = method;
    unsigned wrong = read_version(h, line);
    if (wrong != 0) return wrong;
    return read_target(h, target) ? 0 : BAD;
}

// -- fields -----------------------------------------------------------------------------------------

// An empty value is valid: the client knows no authority.
static unsigned on_host(struct http1 *h, const char *value) {
    if (h->has_host || (*value != 0 && !is_authority(value))) return BAD;
    h->has_host = true;
    if (h->authority == NULL) h->authority = value; // an absolute target takes precedence
    return 0;
}

static unsigned on_length(struct http1 *h, const char *value) {
    size_t digits = strspn(value, "0123456789");
    if (h->has_length || digits == 0 || digits > 18 || value[digits] != 0) return BAD;
    h->has_length = true;
    for (; *value != 0; value++) h->length = h->length * 10 + (uint64_t)(*value - '0');
    return 0;
}

// The next element of a list, without white space around it. Returns false at the end.
static bool element(const char **list, const char **from, size_t *length) {
    const char *text = *list + strspn(*list, " \t,");
    size_t n = strcspn(text, ",");
    *list = text + n;
    *from = text;
    while (n > 0 && is_space(text[n - 1])) n--;
    *length = n;
    return n > 0;
}

static bool is_word(const char *from, size_t length, const char *word) {
    return length == strlen(word) && strncasecmp(from, word, length) == 0;
}

// Only chunked is supported. Other codings inside it would be valid, but are not supported.
static unsigned on_coding(struct http1 *h, const char *value) {
    const char *from;
    size_t length;
    unsigned codings = 0;
    if (h->chunked) return BAD;
    while (element(&value, &from, &length)) {
        if (h->chunked) return BAD; // nothing may follow chunked
        h->chunked = is_word(from, length, "chunked");
        codings++;
    }
    return !h->chunked ? BAD : codings > 1 ? NOT_IMPLEMENTED : 0;
}

static unsigned on_connection(struct http1 *h, const char *value) {
    const char *from;
    size_t length;
    while (element(&value, &from, &length)) h->closes |= is_word(from, length, "close");
    return 0;
}

static unsigned on_expect(struct http1 *h, const char *value) {
    h->expects = strcasecmp(value, "100-continue") == 0;
    return h->expects ? 0 : EXPECTATION_FAILED;
}

static const struct {
    const char *name;
    unsigned (*read)(struct http1 *h, const char *value);
} known[] = {
    {"host", on_host},
    {"content-length", on_length},
    {"transfer-encoding", on_coding},
    {"connection", on_connection},
    {"expect", on_expect},
};

static unsigned read_field(struct http1 *h, const char *name, const char *value) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(name, known[i].name) == 0) return known[i].read(h, value);
    return 0;
}

// `line` ends with a NUL. Moves its name and value to `*to`. A line that begins with white space has no name.
static unsigned take_field(struct http1 *h, char *line, char **to) {
    char *colon = strchr(line, ':');
    if (colon == NULL || colon == line) return BAD;
    *colon = 0;
    if (!all(line, is_token)) return BAD;
    char *value = colon + 1, *end = value + strlen(value);
    while (is_space(*value)) value++;
    while (end > value && is_space(end[-1])) *--end = 0;
    size_t name_size = strlen(line) + 1, value_size = (size_t)(end - value) + 1;
    char *name = memmove(*to, line, name_size);
    value = memmove(*to + name_size, value, value_size);
    *to += name_size + value_size;
    return read_field(h, name, value);
}

// Checks for fields that contradict each other. A body with two length fields is the basis of request smuggling.
static unsigned check(const struct http1 *h) {
    if (h->one_one && !h->has_host) return BAD;
    if (h->chunked && (h->has_length || !h->one_one)) return BAD;
    return 0;
}

static char *line_of(char **next) {
    char *line = *next, *end = strchr(line, '\r');
    *end = 0;
    *next = end + 2;
    return line;
}

unsigned http1_read(struct http1 *h, char *head, size_t length) {
    char *next = head, *end = head + length - 2;
    *end = 0; // ends the empty line
    while (*next == '\r') next += 2;
    unsigned wrong = read_line(h, line_of(&next));
    char *to = next;
    h->fields = to;
    for (unsigned count = 0; next < end && wrong == 0; count++)
        wrong = count == HTTP1_FIELDS ? FIELDS_TOO_LARGE : take_field(h, line_of(&next), &to);
    *to = 0;
    h->done = !h->chunked && h->length == 0;
    return wrong != 0 ? wrong : check(h);
}

const char *http1_field(const struct http1 *h, const char *name) {
    for (const char *at = h->fields; at != NULL && *at != 0;) {
        const char *value = at + strlen(at) + 1;
        if (strcasecmp(at, name) == 0) return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

// -- bodies -----------------------------------------------------------------------------------------

// State within a chunked body. CR and LF are states of their own, so that nothing else passes for a line end.
enum {
    SIZE, MORE_SIZE,
    SPACE, // before an extension's `;`, which must follow
    EXT, EXT_NAME, EXT_SPACE, EXT_EQUAL, EXT_TOKEN, EXT_QUOTED, EXT_ESCAPE, EXT_END,
    SIZE_LF, DATA, DATA_CR, DATA_LF,
    TRAILER, NAME, VALUE, VALUE_LF, LAST_LF,
    BROKEN
};

// After a size or an extension.
static int after_size(char c) {
    return c == '\r' ? SIZE_LF : c == ';' ? EXT : is_space(c) ? SPACE : BROKEN;
}

// `;name`, `;name=token` or `;name="text"`, with white space around the `;` and the `=`.
static int extension(int state, char c) {
    bool token = is_token((unsigned char)c);
    switch (state) {
    case EXT: return is_space(c) ? EXT : token ? EXT_NAME : BROKEN;
    case EXT_NAME: return token ? EXT_NAME : c == '=' ? EXT_EQUAL : is_space(c) ? EXT_SPACE : after_size(c);
    case EXT_SPACE: return is_space(c) ? EXT_SPACE : c == '=' ? EXT_EQUAL : c == ';' ? EXT : BROKEN;
    case EXT_EQUAL: return is_space(c) ? EXT_EQUAL : c == '"' ? EXT_QUOTED : token ? EXT_TOKEN : BROKEN;
    case EXT_TOKEN: return token ? EXT_TOKEN : after_size(c);
    case EXT_QUOTED: return c == '"' ? EXT_END : c == '\\' ? EXT_ESCAPE : is_text((unsigned char)c) ? EXT_QUOTED : BROKEN;
    case EXT_ESCAPE: return is_text((unsigned char)c) ? EXT_QUOTED : BROKEN;
    default: return after_size(c); // EXT_END
    }
}

static int size_digit(struct http1 *h, char c) {
    int digit = hex(c);
    if (digit < 0) return h->state == SIZE ? BROKEN : after_size(c);
    h->seen = h->state == SIZE ? 1 : h->seen + 1; // leading zeros count
    if (h->seen > 15) return BROKEN;
    h->length = h->length << 4 | (uint64_t)digit;
    return MORE_SIZE;
}

// The state after a byte that is not content.
static int step(struct http1 *h, char c) {
    if (h->state >= EXT && h->state <= EXT_END) return extension(h->state, c);
    switch (h->state) {
    case SIZE:
    case MORE_SIZE: return size_digit(h, c);
    case SPACE: return is_space(c) ? SPACE : c == ';' ? EXT : BROKEN;
    case SIZE_LF: return c != '\n' ? BROKEN : h->length > 0 ? DATA : TRAILER;
    case DATA_CR: return c == '\r' ? DATA_LF : BROKEN;
    case DATA_LF: return c == '\n' ? SIZE : BROKEN;
    case TRAILER: return c == '\r' ? LAST_LF : is_token((unsigned char)c) ? NAME : BROKEN;
    case NAME: return c == ':' ? VALUE : is_token((unsigned char)c) ? NAME : BROKEN;
    case VALUE: return c == '\r' ? VALUE_LF : is_text((unsigned char)c) ? VALUE : BROKEN;
    case VALUE_LF: return c == '\n' ? TRAILER : BROKEN;
    case LAST_LF:
        h->done = c == '\n';
        return h->done ? LAST_LF : BROKEN;
    default: return BROKEN;
    }
}

static bool is_overhead(int state) {
    return (state >= SPACE && state <= EXT_END) || (state >= NAME && state <= VALUE_LF);
}

// Takes the next bytes of content.
static void take(struct http1 *h, size_t left, size_t *used, size_t *piece) {
    *piece = h->length < left ? (size_t)h->length : left;
    *used += *piece;
    h->length -= *piece;
}

unsigned http1_body(struct http1 *h, const char *data, size_t length, size_t *used, size_t *piece) {
    *used = *piece = 0;
    if (!h->chunked) {
        take(h, length, used, piece);
        h->done = h->length == 0;
        return 0;
    }
    while (*used < length && !h->done) {
        if (h->state == DATA) {
            take(h, length - *used, used, piece);
            if (h->length == 0) h->state = DATA_CR;
            return 0;
        }
        h->state = step(h, data[(*used)++]);
        if (h->state == BROKEN) return BAD;
        if (is_overhead(h->state) && ++h->overhead > HTTP1_OVERHEAD) return FIELDS_TOO_LARGE;
    }
    return 0;
}
