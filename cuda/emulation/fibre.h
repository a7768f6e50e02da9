// Stacks that take turns on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulation {

// A stack, and where execution left it.
struct Fibre {
    static constexpr size_t STACK = size_t(256) << 10;

    char *stack = nullptr;
    size_t bytes = 0;
    void *fake_stack = nullptr;
#if defined(__x86_64__)
    void *top = nullptr;
#else
    ucontext_t context;
#endif
};

#if defined(__x86_64__)
// Saves the callee-saved registers on the stack that it leaves. swapcontext would be two orders of magnitude slower,
// with a system call each, and AddressSanitizer warns about it.
extern "C" __attribute__((naked, noipa, no_sanitize("address", "undefined"))) inline void
bn_fibre_switch(void ** /* from */, void * /* to */) {
    asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
#endif

// The fibre that was left last.
inline Fibre *left = nullptr;

// A fibre's first step when it continues. ASan reports the stack that was left, which for a launch is not known before.
inline void arrive([[maybe_unused]] void *fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom = nullptr;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &left->bytes);
    left->stack = static_cast<char *>(const_cast<void *>(bottom));
#endif
}

// Continues `to` where it was left. Returns when somebody switches back to `from`.
inline void switch_fibre(Fibre &from, Fibre &to) {
    left = &from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.bytes);
#endif
#if defined(__x86_64__)
    bn_fibre_switch(&from.top, to.top);
#else
    swapcontext(&from.context, &to.context);
#endif
    arrive(from.fake_stack);
}

// Gives `fibre` a stack on which `entry` will run. `entry` must call `arrive(nullptr)` first and never return.
inline void make_fibre(Fibre &fibre, void (*entry)()) {
    void *stack = mmap(nullptr, Fibre::STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        std::fprintf(stderr, "no memory for a fibre's stack\n");
        std::abort();
    }
    fibre.stack = static_cast<char *>(stack);
    fibre.bytes = Fibre::STACK;
#if defined(__x86_64__)
    // Six registers, the entry's address and a return address of 0, as a call would leave the stack.
    void **top = reinterpret_cast<void **>(fibre.stack + fibre.bytes) - 8;
    top[6] = reinterpret_cast<void *>(entry);
    fibre.top = top;
#else
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = stack;
    fibre.context.uc_stack.ss_size = fibre.bytes;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, entry, 0);
#endif
}

} // namespace emulation
