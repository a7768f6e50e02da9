// Linked into the shared object, where the Rust code's calls are renamed to these functions, so
// that dlclose can return what they took. Each copy of Rust's standard library makes a pthread key
// for its thread-local values and never deletes it, and a process has no more than 1024.
#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 16 };
static _Atomic unsigned long keys[MOST]; // plus 1; 0: none

static void replace(unsigned long old, unsigned long new) {
    for (int i = 0; i < MOST; i++) {
        unsigned long expected = old;
        if (atomic_compare_exchange_strong(&keys[i], &expected, new)) return;
    }
}

int unload_pthread_key_create(pthread_key_t *key, void (*destroy)(void *));
int unload_pthread_key_delete(pthread_key_t key);

int unload_pthread_key_create(pthread_key_t *key, void (*destroy)(void *)) {
    int status = pthread_key_create(key, destroy);
    if (status == 0) replace(0, *key + 1ul);
    return status;
}

int unload_pthread_key_delete(pthread_key_t key) {
    replace(key + 1ul, 0);
    return pthread_key_delete(key);
}

// A thread with values keeps the library mapped, so dlclose runs this when none is left. At the end
// of the process, threads that still run need no destructors.
__attribute__((destructor)) static void delete_keys(void) {
    for (int i = 0; i < MOST; i++) {
        unsigned long key = atomic_exchange(&keys[i], 0);
        if (key != 0) pthread_key_delete((pthread_key_t)(key - 1));
    }
}

// GCC's crtbeginS.o defines this handle, by which libc drops the library's fork handlers. This is
// for compilers that lack it.
__attribute__((weak, visibility("hidden"))) void *__dso_handle = &__dso_handle;
void __cxa_finalize(void *handle);

__attribute__((destructor)) static void finalize(void) { __cxa_finalize(__dso_handle); }

#ifdef __GLIBC__
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *handle);
#endif
int unload_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

// glibc links its own version, which passes the handle, into each library. If only its list of
// functions is present, there is only an old version for programs.
int unload_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
#ifdef __GLIBC__
    return __register_atfork(prepare, parent, child, __dso_handle);
#else
    return pthread_atfork(prepare, parent, child);
#endif
}
