// Functions that LLVM's instrumentation calls and GCC's ThreadSanitizer lacks under these names: its own
// versions of the plain functions record the accesses.
#include <string.h>

void *__tsan_memcpy(void *to, const void *from, size_t size) { return memcpy(to, from, size); }
void *__tsan_memmove(void *to, const void *from, size_t size) { return memmove(to, from, size); }
void *__tsan_memset(void *to, int byte, size_t size) { return memset(to, byte, size); }
