// Lines that are edited, by libedit, with a history and completion. Keys that are not bound here are libedit's, and
// those of the user's ~/.editrc.
#include "edit.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

static struct {
    EditLine *line;
    History *history;
    const char *file; // of the history, or NULL
    const char *prompt;
    bool typed; // a SIGINT found text in the line
    bool pastes;
    bool dumb; // the terminal knows no sequences
} editor;

static char *show_prompt(EditLine *line) {
    (void)line;
    return (char *)editor.prompt;
}

static void on_signal(int signal) {
    (void)signal;
    redraw = 1;
}

// After a change of the terminal's size, and after Ctrl-Z and fg, when the shell has set the terminal's modes.
static void draw_again(void) {
    redraw = 0;
    el_set(editor.line, EL_PREP_TERM, 0);
    el_set(editor.line, EL_PREP_TERM, 1);
    el_resize(editor.line);
    fputs(editor.dumb ? "\r" : "\r\033[K", stdout);
    fflush(stdout);
    el_set(editor.line, EL_REFRESH);
}

// Returns the next byte of input, or -1 at its end, after an error (errno), or a SIGINT (EINTR).
static int next_byte(void) {
    static unsigned char bytes[4096];
    static size_t at, count;
    if (at < count) return bytes[at++];
    while (!wait_for_input()) {
        if (interrupted) return errno = EINTR, -1;
        draw_again();
    }
    ssize_t length = read(STDIN_FILENO, bytes, sizeof bytes);
    if (length <= 0) {
        if (length == 0) errno = 0;
        return -1;
    }
    count = (size_t)length;
    at = 1;
    return bytes[0];
}

// Terminals tell pastes from typing only while they are asked to.
static void pastes(bool on) {
    if (editor.dumb || on == editor.pastes) return;
    editor.pastes = on;
    fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    fflush(stdout);
}

// Reads a character: what libedit calls in place of its own function, which a SIGINT would not end.
static int next_character(EditLine *line, wchar_t *out) {
    mbstate_t state = {0};
    pastes(true); // not before libedit has set the terminal's modes
    for (;;) {
        int byte = next_byte();
        if (byte < 0) {
            const LineInfo *typed = el_line(line);
            editor.typed = typed->lastchar > typed->buffer;
            return errno == 0 ? 0 : -1;
        }
        char c = (char)byte;
        size_t used = mbrtowc(out, &c, 1, &state);
        if (used == 0) *out = 0;
        if (used <= 1) return 1;
        if (used == (size_t)-1) memset(&state, 0, sizeof state); // not of this encoding: passed over
    }
}

// Inserts a paste, line breaks too: the terminal sends it between two sequences.
static unsigned char insert_paste(EditLine *line, int key) {
    static const wchar_t end[] = L"\033[201~";
    const size_t ending = sizeof end / sizeof *end - 1;
    wchar_t *text = NULL;
    size_t length = 0, room = 0;
    (void)key;
    while (length < ending || wmemcmp(text + length - ending, end, ending) != 0) {
        if (length + 2 > room) {
            wchar_t *more = realloc(text, (room = 2 * room + 64) * sizeof *text);
            if (more == NULL) return free(text), CC_FATAL;
            text = more;
        }
        if (el_wgetc(line, &text[length]) != 1) return free(text), CC_EOF;
        if (text[length] == L'\r') text[length] = L'\n';
        length++;
    }
    text[length - ending] = 0;
    int failed = *text != 0 && el_winsertstr(line, text) != 0;
    free(text);
    return failed ? CC_ERROR : CC_REFRESH;
}

// Completes the word before the cursor: a command, or the file behind one.
static unsigned char complete(EditLine *line, int key) {
    const LineInfo *typed = el_line(line);
    bn_string text = {typed->buffer, (size_t)(typed->cursor - typed->buffer)};
    buffer common = {0}, list = {0};
    size_t found = completions(text, &common, &list);
    (void)key;
    if (found > 0 && common.length > 1) el_insertstr(line, common.data);
    bool show = found > 1 && common.length <= 1;
    if (show) printf("\n%.*s\n", (int)list.length, list.data), fflush(stdout);
    buffer_free(&common);
    buffer_free(&list);
    return show ? CC_REDISPLAY : found > 0 ? CC_REFRESH : CC_REFRESH_BEEP;
}

static void add(const char *text) {
    HistEvent event;
    history(editor.history, &event, H_ENTER, text);
}

static void bind_keys(EditLine *line) {
    static const char *const keys[][2] = {
        {"^R", "em-inc-search-prev"},
        {"^I", "bn-complete"},
        {"\033[200~", "bn-paste"},
        {"\033[H", "ed-move-to-beg"},
        {"\033[1~", "ed-move-to-beg"},
        {"\033[F", "ed-move-to-end"},
        {"\033[4~", "ed-move-to-end"},
        {"\033[3~", "ed-delete-next-char"},
        {"\033[1;5C", "em-next-word"},
        {"\033[1;5D", "ed-prev-word"},
    };
    el_set(line, EL_ADDFN, "bn-complete", "complete commands and file names", complete);
    el_set(line, EL_ADDFN, "bn-paste", "insert a paste", insert_paste);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) el_set(line, EL_BIND, keys[i][0], keys[i][1], NULL);
}

bool edit_start(const options *o) {
    HistEvent event;
    const char *terminal = getenv("TERM");
    editor.dumb = terminal == NULL || strcmp(terminal, "dumb") == 0;
    if (setlocale(LC_CTYPE, "") == NULL || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    editor.line = el_init("bn-chat", stdin, stdout, stderr);
    editor.history = history_init();
    if (editor.line == NULL || editor.history == NULL) return complain("the terminal cannot be prepared"), false;
    history(editor.history, &event, H_SETSIZE, 1000);
    history(editor.history, &event, H_SETUNIQUE, 1);
    el_set(editor.line, EL_PROMPT, show_prompt);
    el_set(editor.line, EL_EDITOR, "emacs");
    el_set(editor.line, EL_HIST, history, editor.history);
    el_wset(editor.line, EL_GETCFN, next_character);
    bind_keys(editor.line);
    el_source(editor.line, NULL);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGWINCH, &action, NULL);
    sigaction(SIGCONT, &action, NULL);
    editor.file = past_file(o->history);
    if (editor.file != NULL) past_read(editor.file, add);
    return true;
}

void edit_stop(void) {
    if (editor.line != NULL) el_end(editor.line);
    if (editor.history != NULL) history_end(editor.history);
}

const char *edit_help(void) {
    return "Up, down and Ctrl-R find earlier prompts; Tab completes commands and file names.\n";
}

line_result edit_line(const char *prompt, bn_string *line) {
    int count = 0;
    editor.prompt = prompt;
    editor.typed = false;
    if (redraw) redraw = 0, el_resize(editor.line);
    errno = 0;
    const char *text = el_gets(editor.line, &count);
    int error = errno;
    pastes(false);
    if (interrupted) return editor.typed ? LINE_DROPPED : LINE_INTERRUPTED;
    if (count < 0 && error != 0) return errno = error, LINE_FAILED;
    if (text == NULL || count <= 0) return LINE_END;
    size_t length = (size_t)count;
    if (text[length - 1] == '\n') length--;
    *line = (bn_string){text, length};
    return LINE;
}

void edit_remember(const char *text) {
    add(text);
    if (editor.file == NULL || past_add(editor.file, text)) return;
    note("(no more prompts are kept: %s: %s)", editor.file, strerror(errno));
    editor.file = NULL;
}
