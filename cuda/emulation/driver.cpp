// A driver for tests: the functions of cuda.h that src/device uses, on the heap and the CPU. Kernels run when they are
// launched, under the emulation. Each allocation is one of malloc's, so that ASan sees what a kernel touches beside it.

#include "kernels.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::map<void *, size_t> allocations;
std::map<std::string, int> failures;
size_t memory = size_t(1) << 30;
// Contexts, streams and modules.
size_t objects = 0;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_FOUND = 500 };

size_t taken() {
    size_t bytes = 0;
    for (auto &[pointer, size] : allocations) bytes += size;
    return bytes;
}

// The code that `function` is to fail with this once.
int failure(const char *function) {
    std::lock_guard lock(mutex);
    auto found = failures.find(function);
    if (found == failures.end()) return SUCCESS;
    int code = found->second;
    failures.erase(found);
    return code;
}

int make(void **handle) {
    static int something;
    std::lock_guard lock(mutex);
    *handle = &something;
    objects++;
    return SUCCESS;
}

int end() {
    std::lock_guard lock(mutex);
    objects--;
    return SUCCESS;
}

} // namespace

#define FAILS                                                                                                                  \
    if (int code = failure(__func__)) return code

extern "C" {

// For tests.
void bn_emulated_memory(size_t bytes) {
    memory = bytes;
}

void bn_emulated_fail(const char *function, int code) {
    std::lock_guard lock(mutex);
    failures[function] = code;
}

size_t bn_emulated_live() {
    std::lock_guard lock(mutex);
    return objects + allocations.size();
}

void bn_emulated_reset() {
    std::lock_guard lock(mutex);
    for (auto &[pointer, size] : allocations) free(pointer);
    allocations.clear();
    failures.clear();
    objects = 0;
}

int cuInit(unsigned) {
    FAILS;
    return SUCCESS;
}

int cuDriverGetVersion(int *version) {
    FAILS;
    *version = 13000;
    return SUCCESS;
}

int cuGetErrorName(int code, const char **name) {
    static const std::map<int, const char *> names = {
        {SUCCESS, "CUDA_SUCCESS"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    };
    auto found = names.find(code);
    if (found == names.end()) return INVALID_VALUE;
    *name = found->second;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    FAILS;
    *count = 1;
    return SUCCESS;
}

int cuDeviceGet(int *device, int number) {
    FAILS;
    *device = number;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int) {
    FAILS;
    snprintf(name, size_t(length), "Emulated");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int) {
    FAILS;
    switch (attribute) {
    case 16: *value = 4; return SUCCESS;
    case 75: *value = 9; return SUCCESS;
    case 76: *value = 0; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

int cuDeviceTotalMem_v2(size_t *bytes, int) {
    FAILS;
    *bytes = memory;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int) {
    FAILS;
    return make(context);
}

int cuDevicePrimaryCtxRelease_v2(int) {
    FAILS;
    return end();
}

int cuCtxSetCurrent(void *) {
    FAILS;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    FAILS;
    std::lock_guard lock(mutex);
    *total = memory;
    *free = memory - taken();
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    FAILS;
    std::lock_guard lock(mutex);
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > memory - taken()) return OUT_OF_MEMORY;
    // As aligned as the driver's, which promises 256 bytes.
    void *pointer = nullptr;
    if (posix_memalign(&pointer, 256, bytes) != 0) return OUT_OF_MEMORY;
    memset(pointer, 0xA5, bytes);
    allocations[pointer] = bytes;
    *address = reinterpret_cast<uint64_t>(pointer);
    return SUCCESS;
}

int cuMemFree_v2(uint64_t address) {
    FAILS;
    std::lock_guard lock(mutex);
    void *pointer = reinterpret_cast<void *>(address);
    if (allocations.erase(pointer) == 0) return INVALID_VALUE;
    free(pointer);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *) {
    FAILS;
    memcpy(reinterpret_cast<void *>(to), from, bytes);
    return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *) {
    FAILS;
    memcpy(to, reinterpret_cast<void *>(from), bytes);
    return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *) {
    FAILS;
    memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes);
    return SUCCESS;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *) {
    FAILS;
    memset(reinterpret_cast<void *>(to), value, bytes);
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned) {
    FAILS;
    return make(stream);
}

int cuStreamDestroy_v2(void *) {
    FAILS;
    return end();
}

int cuStreamSynchronize(void *) {
    FAILS;
    return SUCCESS;
}

int cuModuleLoadData(void **module, const void *) {
    FAILS;
    return make(module);
}

int cuModuleUnload(void *) {
    FAILS;
    return end();
}

int cuModuleGetFunction(void **function, void *, const char *name) {
    FAILS;
    for (const Kernel &kernel : kernels) {
        if (strcmp(kernel.name, name) == 0) {
            *function = const_cast<Kernel *>(&kernel);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int cuFuncSetAttribute(void *, int, int) {
    FAILS;
    return SUCCESS;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *, void **arguments, void **) {
    FAILS;
    // Of all that this driver does, kernels alone run one at a time.
    static std::mutex one;
    std::lock_guard lock(one);
    static_cast<const Kernel *>(function)->run({gx, gy, gz}, {bx, by, bz}, shared, arguments);
    return SUCCESS;
}

} // extern "C"
