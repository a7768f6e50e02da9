// Linked into the DLL, where it intercepts calls of the code inside (--wrap), so that FreeLibrary
// can return what they took. Each copy of Rust's standard library takes a slot for each kind of
// thread-local value and never frees it, and a process has no more than 1088.
#include <windows.h>

enum { MOST = 256 };
static volatile LONG slots[MOST]; // plus 1; 0: none

static void replace(LONG old, LONG new) {
    for (int i = 0; i < MOST; i++)
        if (InterlockedCompareExchange(&slots[i], new, old) == old) return;
}

DWORD __real_TlsAlloc(void);
BOOL __real_TlsFree(DWORD slot);
DWORD __wrap_TlsAlloc(void);
BOOL __wrap_TlsFree(DWORD slot);

DWORD __wrap_TlsAlloc(void) {
    DWORD slot = __real_TlsAlloc();
    if (slot != TLS_OUT_OF_INDEXES) replace(0, (LONG)slot + 1);
    return slot;
}

BOOL __wrap_TlsFree(DWORD slot) {
    replace((LONG)slot + 1, 0);
    return __real_TlsFree(slot);
}

// If a thread outlives the DLL, so do its values, which nothing uses any more. The end of the
// process frees them.
BOOL WINAPI DllMain(HINSTANCE library, DWORD reason, void *at_the_end) {
    (void)library;
    if (reason != DLL_PROCESS_DETACH || at_the_end != NULL) return TRUE;
    for (int i = 0; i < MOST; i++) {
        LONG slot = InterlockedExchange(&slots[i], 0);
        if (slot != 0) __real_TlsFree((DWORD)slot - 1);
    }
    return TRUE;
}
