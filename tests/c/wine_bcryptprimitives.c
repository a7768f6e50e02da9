// For Wine before version 9, which lacks the library that Rust's standard library takes random bytes from.
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(void *to, ULONG count); // RtlGenRandom of advapi32

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *to, SIZE_T count);

BOOL WINAPI ProcessPrng(BYTE *to, SIZE_T count) {
    return SystemFunction036(to, (ULONG)count);
}
