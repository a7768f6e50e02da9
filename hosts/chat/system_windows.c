// The system, where it is Windows. A console gives and takes UTF-16, and whole lines that it edits itself.
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <windows.h>

#include <shellapi.h>

static BOOL WINAPI on_control(DWORD kind) {
    if (kind != CTRL_C_EVENT && kind != CTRL_BREAK_EVENT) return FALSE;
    interrupted = 1;
    return TRUE;
}

static char *utf8_of(const wchar_t *wide, int count) {
    int size = WideCharToMultiByte(CP_UTF8, 0, wide, count, NULL, 0, NULL, NULL);
    char *text = must(calloc((size_t)size + 1, 1));
    WideCharToMultiByte(CP_UTF8, 0, wide, count, text, size, NULL, NULL);
    return text;
}

static wchar_t *wide_of(const char *text) {
    int size = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
    wchar_t *wide = must(calloc((size_t)size + 1, sizeof *wide));
    MultiByteToWideChar(CP_UTF8, 0, text, -1, wide, size);
    return wide;
}

// The C runtime's arguments are in the system's code page, which lacks most characters.
static char **utf8_arguments(char **args) {
    int count = 0;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &count);
    if (wide == NULL) return args;
    char **out = must(calloc((size_t)count + 1, sizeof *out));
    for (int i = 0; i < count; i++) out[i] = utf8_of(wide[i], -1);
    LocalFree(wide);
    return out;
}

char **system_start(char **args) {
    SetConsoleOutputCP(CP_UTF8);
    SetConsoleCtrlHandler(on_control, TRUE);
    // As on Unix: a line ends with one byte, and what a pipe gives is taken as it is.
    _setmode(0, _O_BINARY);
    _setmode(1, _O_BINARY);
    return utf8_arguments(args);
}

static bool is_console(DWORD which) {
    DWORD mode;
    return GetConsoleMode(GetStdHandle(which), &mode);
}

bool is_terminal_in(void) {
    return is_console(STD_INPUT_HANDLE);
}

bool is_terminal_out(void) {
    return is_console(STD_OUTPUT_HANDLE);
}

bool is_terminal_err(void) {
    return is_console(STD_ERROR_HANDLE);
}

bool file_exists(const char *path) {
    wchar_t *wide = wide_of(path);
    bool exists = GetFileAttributesW(wide) != INVALID_FILE_ATTRIBUTES;
    free(wide);
    return exists;
}

uint64_t process_number(void) {
    return GetCurrentProcessId();
}

const char *home_folder(void) {
    return getenv("USERPROFILE");
}

// A line of the console, or a part of one. Ctrl-C ends the call with a count of 0, before its handler has run or after.
static ptrdiff_t read_console(char *to, size_t room) {
    static wchar_t high; // the first half of a character whose second one has not come
    wchar_t wide[1024];
    DWORD count = 0;
    size_t kept = high != 0;
    if (kept != 0) wide[0] = high;
    DWORD most = (DWORD)(room / 3 < 1000 ? room / 3 : 1000);
    SetLastError(0);
    if (!ReadConsoleW(GetStdHandle(STD_INPUT_HANDLE), wide + kept, most, &count, NULL)) return errno = EIO, -2;
    if (count == 0 || GetLastError() == ERROR_OPERATION_ABORTED) {
        for (int i = 0; i < 100 && !interrupted; i++) Sleep(1);
        return interrupted ? -1 : 0;
    }
    size_t length = kept + count;
    high = wide[length - 1] >= 0xD800 && wide[length - 1] < 0xDC00 ? wide[--length] : 0;
    // Ctrl-Z at the beginning of a line is the end of the input.
    if (wide[0] == 26) return 0;
    return WideCharToMultiByte(CP_UTF8, 0, wide, (int)length, to, (int)room, NULL, NULL);
}

ptrdiff_t read_input(char *to, size_t room) {
    if (interrupted) return -1;
    if (is_terminal_in()) return read_console(to, room);
    int count = _read(0, to, (unsigned)room);
    if (interrupted) return -1;
    return count < 0 ? -2 : count;
}

const char *write_file(const char *path, const char *data, size_t length) {
    char *next = format_text("%s.part", path);
    wchar_t *from = wide_of(next), *to = wide_of(path);
    FILE *file = _wfopen(from, L"wb");
    bool good = file != NULL && fwrite(data, 1, length, file) == length;
    int error = errno;
    if (file != NULL && fclose(file) != 0 && good) good = false, error = errno;
    if (good && !MoveFileExW(from, to, MOVEFILE_REPLACE_EXISTING)) good = false, error = EACCES;
    if (!good && file != NULL) DeleteFileW(from);
    free(from);
    free(to);
    free(next);
    return good ? NULL : strerror(error);
}

const char *read_file(const char *path, uint64_t most, buffer *out) {
    char chunk[1 << 14];
    wchar_t *wide = wide_of(path);
    FILE *file = _wfopen(wide, L"rb");
    int error = errno;
    free(wide);
    if (file == NULL) return strerror(error);
    struct _stat64 there;
    const char *wrong = _fstat64(_fileno(file), &there) != 0 ? strerror(errno)
                        : (there.st_mode & _S_IFREG) == 0    ? "it is not a regular file"
                        : (uint64_t)there.st_size > most     ? "it is too large"
                                                             : NULL;
    size_t count;
    while (wrong == NULL && (count = fread(chunk, 1, sizeof chunk, file)) > 0) buffer_add(out, chunk, count);
    if (wrong == NULL && ferror(file)) wrong = strerror(errno);
    fclose(file);
    return wrong;
}

void remove_file(const char *path) {
    wchar_t *wide = wide_of(path);
    DeleteFileW(wide);
    free(wide);
}
