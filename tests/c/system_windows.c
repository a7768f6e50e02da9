#include "system.h"

#include <stdio.h>
#include <windows.h>

enum { TIMEOUT_MS = 600 * 1000 }; // tests wait for a state without a limit of their own

// Windows has no fork, so the program runs itself once more (harness.c, main).
bool run_alone(const char *name, void (*run)(void), const char **why) {
    (void)run;
    char program[MAX_PATH], command[MAX_PATH + 256];
    if (GetModuleFileNameA(NULL, program, sizeof program) == 0) return *why = "it has no name", false;
    snprintf(command, sizeof command, "\"%s\" --alone %s", program, name);
    STARTUPINFOA how = {.cb = sizeof how};
    PROCESS_INFORMATION child;
    fflush(NULL);
    if (!CreateProcessA(program, command, NULL, NULL, TRUE, 0, NULL, NULL, &how, &child))
        return *why = "no process", false;
    bool ended = WaitForSingleObject(child.hProcess, TIMEOUT_MS) == WAIT_OBJECT_0;
    DWORD code = 1;
    if (ended) GetExitCodeProcess(child.hProcess, &code);
    else TerminateProcess(child.hProcess, 1);
    CloseHandle(child.hThread);
    CloseHandle(child.hProcess);
    *why = !ended ? "hung" : code == 1 ? "see above" : "crashed";
    return ended && code == 0;
}

bool make_temporary(char *folder, size_t size) {
    static int count;
    char base[MAX_PATH + 1];
    if (GetTempPathA(sizeof base, base) == 0) return false;
    // A run that was killed may have left a folder, and process ids are reused.
    do {
        snprintf(folder, size, "%sbn-test-%lu-%d", base, GetCurrentProcessId(), count++);
        if (CreateDirectoryA(folder, NULL)) return true;
    } while (GetLastError() == ERROR_ALREADY_EXISTS);
    return false;
}

bool make_directory(const char *path) {
    return CreateDirectoryA(path, NULL);
}

bn_status call_for_a_wait(const bn_engine *engine, bn_error *error) {
    void *handle = NULL;
    return bn_engine_wait_handle(engine, &handle, error);
}

bool is_awake(const bn_engine *engine, int timeout_ms) {
    void *handle = NULL;
    return bn_engine_wait_handle(engine, &handle, NULL) == BN_OK &&
           WaitForMultipleObjects(1, &handle, FALSE, (DWORD)timeout_ms) == WAIT_OBJECT_0;
}

bool has_one_wait(const bn_engine *engine) {
    void *handle = NULL, *again = NULL;
    return bn_engine_wait_handle(engine, &handle, NULL) == BN_OK && handle != NULL &&
           bn_engine_wait_handle(engine, &again, NULL) == BN_OK && again == handle &&
           bn_engine_wait_fd(engine, NULL) == BN_ERR_UNSUPPORTED;
}

uint64_t machine_bytes(void) {
    MEMORYSTATUSEX status = {.dwLength = sizeof status};
    return GlobalMemoryStatusEx(&status) ? status.ullTotalPhys : 0;
}
