// Gates on attention's output, and factors on rows. All results have the CPU's bits (src/ops/rows.rs).
//
// Lower bound: the rows' bytes, 115 KB to part one row of 24 heads of 256 elements with gates and 4 heads of keys and
// values: less than a launch's latency. A thread has one column at a time, so neighbors read and write next to each
// other.
//
// Included after rows.cu, whose columns it uses.
#include "device.cuh"

namespace rows {

// Parts rows in which each of `heads` queries of `dim` elements is followed by its gate, and all by `kv` other columns.
// x [rows, 2 heads dim + kv], qkv [rows, heads dim + kv], gate [rows, heads dim]. Grid: rows, and any number of blocks
// that share a row. Block: any.
BN_KERNEL(split_gate)(const float *x, float *qkv, float *gate, int heads, int dim, int kv) {
    begin_kernel();
    int gates = heads * dim;
    x += row_at(2 * gates + kv), qkv += row_at(gates + kv), gate += row_at(gates);
    each_column(2 * gates + kv, [&](int i) {
        int head = i / (2 * dim), at = i % (2 * dim);
        if (i >= 2 * gates) {
            qkv[i - gates] = x[i];
        } else if (at < dim) {
            qkv[head * dim + at] = x[i];
        } else {
            gate[head * dim + at - dim] = x[i];
        }
    });
}

// out = x times the logistic function of the gate. x, out [rows, cols], gate [rows, gates]: one gate for each column,
// or for each of `gates` equal parts of a row. Grid: rows, and any number of blocks that share a row. Block: any.
BN_KERNEL(gate)(const float *x, const float *gate, float *out, int cols, int gates) {
    begin_kernel();
    x += row_at(cols), gate += row_at(gates), out += row_at(cols);
    each_column(cols, [&](int i) {
        float below = add_rn(1.0f, bn_exp(-gate[gates == cols ? i : i / (cols / gates)]));
        // The CPU divides once for each gate.
        out[i] = gates == cols ? div_rn(x[i], below) : mul_rn(x[i], div_rn(1.0f, below));
    });
}

// x *= by, n elements. Grid: enough blocks for one thread per element. Block: any.
BN_KERNEL(scale)(float *x, float by, size_t n) {
    begin_kernel();
    size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] = mul_rn(x[i], by);
    }
}

} // namespace rows
