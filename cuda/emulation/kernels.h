// All kernels by name, called as a driver launches them: with pointers to the arguments.
#pragma once

#include "../kernels/all.cu"

#include <tuple>
#include <type_traits>
#include <utility>

using namespace attention;
using namespace recurrent;
using namespace rows;
using namespace sampling;

// A launch with copies of its arguments, to run later, and those arguments that are pointers.
struct Bound {
    std::function<void()> run;
    std::vector<uintptr_t> pointers;
};

struct Kernel {
    const char *name;
    // per block, at most
    unsigned threads;
    Bound (*bind)(dim3 grid, dim3 block, size_t shared, void **arguments);
};

template <auto kernel> struct Call;

template <class... Params, void (*kernel)(Params...)> struct Call<kernel> {
    template <class Param> static void keep(std::vector<uintptr_t> &pointers, Param value) {
        if constexpr (std::is_pointer_v<Param>) pointers.push_back(reinterpret_cast<uintptr_t>(value));
    }

    template <size_t... I>
    static Bound with(std::index_sequence<I...>, dim3 grid, dim3 block, size_t shared, void **arguments) {
        Bound bound;
        std::tuple<Params...> values(*static_cast<Params *>(arguments[I])...);
        std::apply([&](auto... value) { (keep(bound.pointers, value), ...); }, values);
        bound.run = [=] {
            std::apply([&](auto... value) { emulation::launch(kernel, grid, block, shared, value...); }, values);
        };
        return bound;
    }

    static Bound bind(dim3 grid, dim3 block, size_t shared, void **arguments) {
        return with(std::index_sequence_for<Params...>(), grid, block, shared, arguments);
    }
};

inline const Kernel kernels[] = {
#define KERNEL(name) {#name, name##_threads, Call<name>::bind},
#include "kernel_names.inc" // written by build.sh
#undef KERNEL
};
