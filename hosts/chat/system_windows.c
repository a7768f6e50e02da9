// The system, where it is Windows. A console gives and takes UTF-16, and whole lines that it edits itself.
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <windows.h>

#include <shellapi.h>

// The console outlives this program: what it was set to before.
static UINT code_page;
static DWORD error_mode;

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

// A path for the system. One of more than 259 characters needs a prefix, behind which the system takes each character
// as it is: it has to be whole, with backslashes. Shorter ones, and those that have a prefix, stay.
static wchar_t *wide_path(const char *path) {
    enum { PREFIX = 8, SHORT = 220 }; // create_beside adds to it
    wchar_t *wide = wide_of(path);
    if (wcsncmp(wide, L"\\\\?\\", 4) == 0 || wcsncmp(wide, L"\\\\.\\", 4) == 0) return wide;
    DWORD room = GetFullPathNameW(wide, 0, NULL, NULL);
    wchar_t *whole = must(calloc((size_t)room + PREFIX + 1, sizeof *whole)), *rest = whole + PREFIX;
    DWORD length = GetFullPathNameW(wide, room, rest, NULL);
    if (length < SHORT || length >= room) return free(whole), wide;
    free(wide);
    bool of_server = wcsncmp(rest, L"\\\\", 2) == 0; // two backslashes, its name, the name of a folder
    const wchar_t *prefix = of_server ? L"\\\\?\\UNC" : L"\\\\?\\";
    if (of_server) rest++;
    memmove(whole + wcslen(prefix), rest, (wcslen(rest) + 1) * sizeof *whole);
    memcpy(whole, prefix, wcslen(prefix) * sizeof *whole);
    return whole;
}

// The system's words for its last error, until the next call.
static const char *last_error(void) {
    enum { FROM = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS | FORMAT_MESSAGE_MAX_WIDTH_MASK };
    static char text[1024];
    wchar_t wide[256];
    DWORD error = GetLastError(), length = FormatMessageW(FROM, NULL, error, 0, wide, 256, NULL);
    while (length > 0 && (wide[length - 1] <= L' ' || wide[length - 1] == L'.')) length--;
    int size = length > 0 ? WideCharToMultiByte(CP_UTF8, 0, wide, (int)length, text, sizeof text - 1, NULL, NULL) : 0;
    if (size > 0) text[size] = 0;
    else snprintf(text, sizeof text, "error %lu of Windows", error);
    return text;
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

static void restore_console(void) {
    fflush(NULL); // what is left is UTF-8
    if (code_page != 0) SetConsoleOutputCP(code_page);
    if (error_mode != 0) SetConsoleMode(GetStdHandle(STD_ERROR_HANDLE), error_mode);
}

char **system_start(char **args) {
    code_page = GetConsoleOutputCP();
    atexit(restore_console);
    SetConsoleOutputCP(CP_UTF8);
    SetConsoleCtrlHandler(on_control, TRUE);
    // As on Unix: a line ends with one byte, and what a pipe gives is taken as it is.
    _setmode(0, _O_BINARY);
    _setmode(1, _O_BINARY);
    // Without a buffer, the C runtime writes byte by byte to a console, which takes each part of a character for one.
    static char buffer_out[BUFSIZ];
    setvbuf(stdout, buffer_out, _IOFBF, sizeof buffer_out);
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

// A console before Windows 10 prints the sequences that terminals act on; later ones act on them if asked.
bool is_terminal_err(void) {
    HANDLE console = GetStdHandle(STD_ERROR_HANDLE);
    DWORD mode;
    if (!GetConsoleMode(console, &mode)) return false;
    if (error_mode == 0) error_mode = mode;
    return SetConsoleMode(console, mode | ENABLE_PROCESSED_OUTPUT | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
}

bool file_exists(const char *path) {
    wchar_t *wide = wide_path(path);
    bool exists = GetFileAttributesW(wide) != INVALID_FILE_ATTRIBUTES;
    free(wide);
    return exists;
}

uint64_t process_number(void) {
    return GetCurrentProcessId();
}

const char *home_folder(void) {
    static char *home;
    const wchar_t *wide = _wgetenv(L"USERPROFILE");
    if (home == NULL && wide != NULL) home = utf8_of(wide, -1);
    return home;
}

bool is_separator(char c) {
    return c == '/' || c == '\\';
}

static bool is_half(wchar_t c) {
    return c >= 0xD800 && c < 0xDC00;
}

// A line of the console, or a part of one. Ctrl-C ends the call with a count of 0, before its handler has run or after.
static ptrdiff_t read_console(char *to, size_t room) {
    static wchar_t high; // the first half of a character whose second one has not come
    wchar_t wide[1024];
    size_t length = 0;
    while (length == 0) {
        size_t kept = high != 0;
        wide[0] = high;
        // No unit of UTF-16 takes more than three bytes of UTF-8.
        DWORD count = 0, most = (DWORD)(room / 3 < 1024 ? room / 3 : 1024) - 1;
        SetLastError(0);
        if (!ReadConsoleW(GetStdHandle(STD_INPUT_HANDLE), wide + kept, most, &count, NULL)) return errno = EIO, -2;
        if (count == 0 || GetLastError() == ERROR_OPERATION_ABORTED) {
            for (int i = 0; i < 100 && !interrupted; i++) Sleep(1);
            return interrupted ? -1 : 0;
        }
        // Ctrl-Z at the beginning of a line is the end of the input.
        if (kept == 0 && wide[0] == 26) return 0;
        length = kept + count;
        high = is_half(wide[length - 1]) ? wide[--length] : 0;
    }
    return WideCharToMultiByte(CP_UTF8, 0, wide, (int)length, to, (int)room, NULL, NULL);
}

ptrdiff_t read_input(char *to, size_t room) {
    if (interrupted) return -1;
    if (is_terminal_in()) return read_console(to, room);
    int count = _read(0, to, (unsigned)room);
    if (interrupted) return -1;
    return count < 0 ? -2 : count;
}

static const char not_regular[] = "it is not a regular file", too_large[] = "it is too large";

// Files, and folders too, so that errors can say that it is one. The server of a pipe learns who opens it, and cannot
// act for him.
static HANDLE open_there(const wchar_t *path, DWORD access) {
    DWORD all = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    DWORD how = FILE_FLAG_BACKUP_SEMANTICS | SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION;
    return CreateFileW(path, access, all, NULL, OPEN_EXISTING, how, NULL);
}

static bool is_regular(HANDLE file) {
    BY_HANDLE_FILE_INFORMATION facts;
    return GetFileType(file) == FILE_TYPE_DISK && GetFileInformationByHandle(file, &facts) &&
           (facts.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) == 0;
}

// The path behind links, in `*real`, or `path` where there is nothing yet. Returns what is wrong, or NULL.
static const char *real_path(const char *path, wchar_t **real) {
    *real = wide_path(path);
    HANDLE there = open_there(*real, 0);
    if (there == INVALID_HANDLE_VALUE) return NULL;
    const char *wrong = is_regular(there) ? NULL : not_regular;
    DWORD room = wrong == NULL ? GetFinalPathNameByHandleW(there, NULL, 0, 0) : 0;
    if (room > 0) {
        wchar_t *final = must(calloc((size_t)room + 1, sizeof *final));
        DWORD length = GetFinalPathNameByHandleW(there, final, room, 0);
        if (length > 0 && length < room) free(*real), *real = final;
        else free(final);
    }
    CloseHandle(there);
    return wrong;
}

// A new file beside `path`, whose name goes to `*name`.
static HANDLE create_beside(const wchar_t *path, wchar_t **name) {
    enum { TRIES = 1000, MORE = 32 };
    size_t room = wcslen(path) + MORE;
    HANDLE file = INVALID_HANDLE_VALUE;
    *name = must(calloc(room, sizeof **name));
    for (int i = 0; i < TRIES && file == INVALID_HANDLE_VALUE; i++) {
        swprintf(*name, room, L"%ls.%lu-%d.part", path, GetCurrentProcessId(), i);
        file = CreateFileW(*name, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
        if (file == INVALID_HANDLE_VALUE && GetLastError() != ERROR_FILE_EXISTS) break;
    }
    return file;
}

static bool write_all(HANDLE file, const char *data, size_t length) {
    DWORD count = 0;
    for (; length > 0; data += count, length -= count)
        if (!WriteFile(file, data, (DWORD)(length < 1 << 30 ? length : 1 << 30), &count, NULL)) return false;
    return true;
}

const char *write_file(const char *path, const char *data, size_t length) {
    wchar_t *to, *from = NULL;
    const char *wrong = real_path(path, &to);
    HANDLE file = wrong == NULL ? create_beside(to, &from) : INVALID_HANDLE_VALUE;
    bool made = file != INVALID_HANDLE_VALUE;
    if (wrong == NULL && !made) wrong = last_error();
    if (wrong == NULL && !is_regular(file)) wrong = not_regular; // a device has its name with each ending
    if (wrong == NULL && !write_all(file, data, length)) wrong = last_error();
    if (made && !CloseHandle(file) && wrong == NULL) wrong = last_error();
    if (wrong == NULL && !MoveFileExW(from, to, MOVEFILE_REPLACE_EXISTING)) wrong = last_error();
    if (made && wrong != NULL) DeleteFileW(from);
    free(from);
    free(to);
    return wrong;
}

const char *read_file(const char *path, uint64_t most, buffer *out) {
    char chunk[1 << 14];
    wchar_t *wide = wide_path(path);
    HANDLE file = open_there(wide, GENERIC_READ);
    free(wide);
    if (file == INVALID_HANDLE_VALUE) return last_error();
    LARGE_INTEGER size;
    const char *wrong = !is_regular(file) ? not_regular : !GetFileSizeEx(file, &size) ? last_error() : NULL;
    if (wrong == NULL && (uint64_t)size.QuadPart > most) wrong = too_large;
    for (DWORD count = 1; wrong == NULL && count > 0 && out->length <= most;) {
        if (!ReadFile(file, chunk, sizeof chunk, &count, NULL)) wrong = last_error();
        else buffer_add(out, chunk, count);
    }
    CloseHandle(file);
    return wrong;
}

void remove_file(const char *path) {
    wchar_t *wide = wide_path(path);
    DeleteFileW(wide);
    free(wide);
}
