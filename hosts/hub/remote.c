// The hub over HTTP, by libcurl: lists of files as JSON, and downloads that go on where an earlier one ended. libcurl
// sends the token to the endpoint alone: a redirect to another host, scheme or port goes without it.
#include "parts.h"

#include "jsondoc.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST_LIST = 64 << 20, TRIES = 4 };

static int go_on(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)a, (void)b, (void)c, (void)d;
    return hub_stopped(context);
}

// A request that is about to be sent, or NULL after an error.
static CURL *begin(const hub *h, const char *url) {
    static bool started;
    if (!started) curl_global_init(CURL_GLOBAL_DEFAULT);
    started = true;
    CURL *request = curl_easy_init();
    if (request == NULL) return hub_fail(h, "libcurl cannot be used"), NULL;
    const char *redirects = strncmp(url, "https:", strlen("https:")) == 0 ? "https" : "http,https";
    curl_easy_setopt(request, CURLOPT_URL, url);
    curl_easy_setopt(request, CURLOPT_USERAGENT, "bn_engine");
    curl_easy_setopt(request, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(request, CURLOPT_MAXREDIRS, 10L);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(request, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(request, CURLOPT_REDIR_PROTOCOLS_STR, redirects);
#else
    long plain = strchr(redirects, ',') != NULL ? CURLPROTO_HTTP : 0;
    curl_easy_setopt(request, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl_easy_setopt(request, CURLOPT_REDIR_PROTOCOLS, plain | CURLPROTO_HTTPS);
#endif
    curl_easy_setopt(request, CURLOPT_CONNECTTIMEOUT, 15L);
    curl_easy_setopt(request, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(request, CURLOPT_LOW_SPEED_TIME, 60L);
    curl_easy_setopt(request, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(request, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(request, CURLOPT_XFERINFOFUNCTION, go_on);
    curl_easy_setopt(request, CURLOPT_XFERINFODATA, (void *)h);
    if (h->token != NULL) {
        curl_easy_setopt(request, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
        curl_easy_setopt(request, CURLOPT_XOAUTH2_BEARER, h->token);
    }
    return request;
}

static long status_of(CURL *request) {
    long status = 0;
    curl_easy_getinfo(request, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

// Says why the hub refuses. Returns false.
static bool refused(const hub *h, long status, const char *what) {
    if (status == 404) return hub_fail(h, "%s: there is none on %s", what, h->endpoint);
    bool denied = status == 401 || status == 403;
    if (denied && h->token != NULL)
        return hub_fail(h,
                        "%s: %s has none, or does not give it to the owner of this token (HF_TOKEN, or that of "
                        "huggingface_hub's login). If it is gated, accept its conditions at %s/%s.",
                        what, h->endpoint, h->endpoint, h->repo);
    if (denied)
        return hub_fail(h,
                        "%s: %s has none, or it is private or gated. For these, accept the conditions at %s/%s, make a "
                        "token at %s/settings/tokens, and set HF_TOKEN to it.",
                        what, h->endpoint, h->endpoint, h->repo, h->endpoint);
    return hub_fail(h, "%s: %s answers with HTTP status %ld", what, h->endpoint, status);
}

// -- lists ----------------------------------------------------------------------------------------------------------

typedef struct {
    char *data;
    size_t length;
} text;

static size_t take_text(char *data, size_t one, size_t count, void *context) {
    text *t = context;
    if (t->length + one * count > LONGEST_LIST) return 0;
    t->data = hub_must(realloc(t->data, t->length + one * count + 1));
    memcpy(t->data + t->length, data, one * count);
    t->length += one * count;
    return one * count;
}

static void take_file(hub_list *list, const jsondoc *file) {
    const jsondoc *lfs = jsondoc_member(file, "lfs");
    const char *name = jsondoc_string(file, "rfilename"), *etag = jsondoc_string(lfs, "sha256");
    const jsondoc *size = jsondoc_member(etag != NULL ? lfs : file, "size");
    if (etag == NULL) etag = jsondoc_string(file, "blobId");
    if (name == NULL || size == NULL || size->kind != JSON_NUMBER) return;
    list_add(list, name, etag != NULL ? etag : "", strtoull(size->text, NULL, 10));
}

static bool take_list(const hub *h, const text *answer, hub_list *list) {
    jsondoc *json = answer->length > 0 ? jsondoc_parse(answer->data, answer->length) : NULL;
    const char *commit = jsondoc_string(json, "sha");
    const jsondoc *files = jsondoc_member(json, "siblings");
    bool good = commit != NULL && strlen(commit) == 40 && strspn(commit, "0123456789abcdef") == 40 && files != NULL &&
                files->kind == JSON_ARRAY;
    if (good) strcpy(list->commit, commit);
    else hub_fail(h, "%s: %s answers with no list of files", h->repo, h->endpoint);
    for (const jsondoc *file = good ? files->child : NULL; file != NULL; file = file->next) take_file(list, file);
    jsondoc_free(json);
    return good;
}

remote_result remote_list(const hub *h, hub_list *list, char why[256]) {
    char *url = hub_format("%s/api/models/%s/revision/main?blobs=true", h->endpoint, h->repo);
    CURL *request = begin(h, url);
    text answer = {.data = NULL};
    remote_result result = REMOTE_FAILED;
    if (request != NULL) {
        curl_easy_setopt(request, CURLOPT_WRITEFUNCTION, take_text);
        curl_easy_setopt(request, CURLOPT_WRITEDATA, &answer);
        CURLcode code = curl_easy_perform(request);
        long status = status_of(request);
        bool away = code != CURLE_OK || status >= 500 || status == 429;
        if (code != CURLE_OK) snprintf(why, 256, "%s is not reached (%s)", h->endpoint, curl_easy_strerror(code));
        else if (away) snprintf(why, 256, "%s answers with HTTP status %ld", h->endpoint, status);
        if (away) result = REMOTE_AWAY;
        else if (status != 200) refused(h, status, h->repo);
        else if (take_list(h, &answer, list)) result = REMOTE_DONE;
        curl_easy_cleanup(request);
    }
    free(answer.data);
    free(url);
    return result;
}

// -- downloads ------------------------------------------------------------------------------------------------------

typedef struct {
    const hub *h;
    const hub_file *file;
    const char *path;
    CURL *request;
    int fd;
    uint64_t done, before; // now, and when the present request began
    bool kept;  // there is something of an earlier process
    bool first; // nothing has come of the present request
    bool too_long;
    int failed; // errno of a write
    digest sum;
    bar bar;
} download;

static void sum_start(download *d) {
    bool is_256 = strlen(d->file->etag) == 64;
    digest_start(&d->sum, is_256);
    if (is_256) return;
    char head[32]; // git's objects begin so
    digest_add(&d->sum, head, (size_t)snprintf(head, sizeof head, "blob %llu", (unsigned long long)d->file->size) + 1);
}

static bool start_over(download *d) {
    d->done = 0;
    d->kept = false;
    sum_start(d);
    return ftruncate(d->fd, 0) == 0 && lseek(d->fd, 0, SEEK_SET) == 0;
}

static size_t take_bytes(char *data, size_t one, size_t count, void *context) {
    download *d = context;
    size_t size = one * count;
    long status = status_of(d->request);
    if (status != 200 && status != 206) return size; // the text of an error
    // A server without ranges sends all of it.
    if (d->first && status == 200 && d->done > 0 && !start_over(d)) return d->failed = errno, 0;
    d->first = false;
    if (d->done + size > d->file->size) return d->too_long = true, 0;
    for (size_t written = 0; written < size;) {
        ssize_t part = write(d->fd, data + written, size - written);
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) return d->failed = part < 0 ? errno : EIO, 0;
        digest_add(&d->sum, data + written, (size_t)part);
        written += (size_t)part;
        d->done += (size_t)part;
    }
    bar_show(&d->bar, d->done);
    return size;
}

// Opens the file and takes up what is there of it.
static bool resume(download *d) {
    char chunk[1 << 16];
    ssize_t size;
    d->fd = open(d->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (d->fd < 0) return hub_fail(d->h, "%s: %s", d->path, strerror(errno));
    sum_start(d);
    while ((size = read(d->fd, chunk, sizeof chunk)) > 0 && !hub_stopped(d->h)) {
        digest_add(&d->sum, chunk, (size_t)size);
        d->done += (size_t)size;
    }
    d->kept = d->done > 0;
    bool useless = size < 0 || d->done > d->file->size;
    if (useless && !start_over(d)) return hub_fail(d->h, "%s: %s", d->path, strerror(errno));
    return true;
}

static char *url_of(const hub *h, const char *commit, const hub_file *file) {
    char *url = hub_format("%s/%s/resolve/%s", h->endpoint, h->repo, commit);
    char *copy = hub_format("%s", file->name), *rest = copy;
    for (char *part = strtok_r(copy, "/", &rest); part != NULL; part = strtok_r(NULL, "/", &rest)) {
        char *escaped = hub_must(curl_easy_escape(NULL, part, 0)), *longer = hub_format("%s/%s", url, escaped);
        curl_free(escaped);
        free(url);
        url = longer;
    }
    free(copy);
    return url;
}

// Draws the bar also while nothing comes.
static int watch(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t e) {
    download *d = context;
    (void)a, (void)b, (void)c, (void)e;
    bar_show(&d->bar, d->done);
    return hub_stopped(d->h);
}

typedef enum { WHOLE, PARTIAL, GIVE_UP } attempt_result;

// Says why a transfer ended early. PARTIAL: another one may go on.
static attempt_result judge(download *d, CURLcode code, long status, char why[256]) {
    if (hub_stopped(d->h)) return GIVE_UP;
    if (d->failed != 0) return hub_fail(d->h, "%s: %s", d->path, strerror(d->failed)), GIVE_UP;
    bool too_short = status == 416 || (code == CURLE_OK && status < 300 && d->done == d->before);
    if (d->too_long || too_short) {
        unlink(d->path);
        hub_fail(d->h, "%s: it is %s than the %llu bytes that %s lists", d->file->name,
                 too_short ? "shorter" : "longer", (unsigned long long)d->file->size, d->h->endpoint);
        return GIVE_UP;
    }
    if (status >= 400 && status < 500 && status != 408 && status != 429)
        return refused(d->h, status, d->file->name), GIVE_UP;
    if (status >= 400) snprintf(why, 256, "HTTP status %ld", status);
    else if (code != CURLE_OK) snprintf(why, 256, "%s", curl_easy_strerror(code));
    else if (d->done < d->file->size) snprintf(why, 256, "the server ended it");
    else return WHOLE;
    return PARTIAL;
}

static attempt_result attempt(download *d, const char *url, char why[256]) {
    char range[32];
    if (d->done == d->file->size) return WHOLE;
    d->first = true;
    d->request = begin(d->h, url);
    if (d->request == NULL) return GIVE_UP;
    snprintf(range, sizeof range, "%llu-", (unsigned long long)d->done);
    if (d->done > 0) curl_easy_setopt(d->request, CURLOPT_RANGE, range);
    curl_easy_setopt(d->request, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(d->request, CURLOPT_WRITEDATA, d);
    curl_easy_setopt(d->request, CURLOPT_XFERINFOFUNCTION, watch);
    curl_easy_setopt(d->request, CURLOPT_XFERINFODATA, d);
    CURLcode code = curl_easy_perform(d->request);
    attempt_result result = judge(d, code, status_of(d->request), why);
    curl_easy_cleanup(d->request);
    return result;
}

// Waits before another attempt, longer each time.
static void pause_before(const hub *h, int try) {
    for (int tenths = 5 << try; tenths > 0 && !hub_stopped(h); tenths--)
        nanosleep(&(struct timespec){0, 100000000}, NULL);
}

// Gets all bytes, in as many attempts as bring more of them.
static bool transfer(download *d, const char *url) {
    char why[256] = "";
    for (int try = 0; try < TRIES; try++) {
        d->before = d->done;
        attempt_result result = attempt(d, url, why);
        if (result != PARTIAL) return result == WHOLE;
        if (d->done > d->before) try = -1;
        if (try + 1 < TRIES) pause_before(d->h, try + 1);
        if (hub_stopped(d->h)) return false;
    }
    return hub_fail(d->h, "%s: %llu of %llu bytes have come: %s. The next call goes on from there.", d->file->name,
                    (unsigned long long)d->done, (unsigned long long)d->file->size, why);
}

static bool is_sound(download *d) {
    char hex[65];
    digest_end(&d->sum, hex);
    return strcmp(hex, d->file->etag) == 0;
}

bool remote_get(const hub *h, const char *commit, const hub_file *file, const char *path) {
    download d = {.h = h, .file = file, .path = path, .fd = -1};
    char *url = url_of(h, commit, file);
    bool good = resume(&d);
    if (good) {
        bar_start(&d.bar, h, file);
        good = transfer(&d, url);
        // A part that an earlier process left may be damaged.
        bool sound = good && is_sound(&d), again = good && !sound && d.kept;
        if (again) good = start_over(&d) && transfer(&d, url), sound = good && is_sound(&d);
        bar_end();
        if (hub_stopped(h)) hub_fail(h, "stopped: the next call goes on from there");
        if (good && !sound) {
            unlink(path);
            good = hub_fail(h, "%s: its checksum is not the one that %s lists: it was damaged on its way", file->name,
                            h->endpoint);
        }
    }
    if (d.fd >= 0 && close(d.fd) != 0 && good) good = hub_fail(h, "%s: %s", path, strerror(errno));
    free(url);
    return good;
}
