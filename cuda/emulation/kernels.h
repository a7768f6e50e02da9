// Every kernel by its name, as a driver launches them: with pointers to its arguments.
#pragma once

#include "../kernels/all.cu"

#include <utility>

using namespace attention;
using namespace sampling;

struct Kernel {
    const char *name;
    void (*run)(dim3 grid, dim3 block, size_t shared, void **arguments);
};

template <auto kernel> struct Call;

template <class... Params, void (*kernel)(Params...)> struct Call<kernel> {
    template <size_t... I>
    static void with(std::index_sequence<I...>, dim3 grid, dim3 block, size_t shared, void **arguments) {
        emulation::launch(kernel, grid, block, shared, *static_cast<Params *>(arguments[I])...);
    }

    static void run(dim3 grid, dim3 block, size_t shared, void **arguments) {
        with(std::index_sequence_for<Params...>(), grid, block, shared, arguments);
    }
};

inline const Kernel kernels[] = {
#define KERNEL(name) {#name, Call<name>::run},
#include "kernel_names.inc" // written by build.sh
#undef KERNEL
};
