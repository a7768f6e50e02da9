#include "process.h"

#include <stdint.h>
#include <windows.h>

#include <psapi.h>
#include <tlhelp32.h>

int count_threads(void) {
    HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    if (all == INVALID_HANDLE_VALUE) return -1;
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    int count = 0;
    for (BOOL more = Thread32First(all, &entry); more; more = Thread32Next(all, &entry))
        count += entry.th32OwnerProcessID == GetCurrentProcessId();
    CloseHandle(all);
    return count;
}

// The runtimes keep handles of some first-time actions of a process, so this number alone means nothing.
int count_fds(void) {
    return -1;
}

// Wine 8 has no GetProcessHandleCount: it returns 0.
int count_handles(void) {
    enum { MOST = 1 << 13 }; // handles are multiples of four, from below
    int count = 0;
    DWORD flags;
    for (uintptr_t i = 4; i < MOST; i += 4) count += GetHandleInformation((HANDLE)i, &flags);
    return count;
}

int thread_number(void) {
    return (int)GetCurrentThreadId();
}

// This cannot be queried, so wait long enough for a thread that is about to wait.
int sleeps(int thread) {
    (void)thread;
    Sleep(100);
    return 1;
}

long resident_kib(void) {
    PROCESS_MEMORY_COUNTERS counters;
    if (!GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters)) return -1;
    return (long)(counters.WorkingSetSize / 1024);
}

long heap_bytes(void) {
    return -1;
}
