// All kernels, as one module.
#include "attention.cu"
#include "gemm.cu"
#include "gemv.cu"
#include "rows.cu"
#include "sampling.cu"
