#include "attention.h"
#include "simd_plain.h"

namespace sentport {

Kernels kernels_plain() {
    return {"plain",
            Plain::lanes * Plain::vectors,
            gemm<Plain, Floats<Plain>>,
            gemm<Plain, Halves<Plain>>,
            gemm_i8<Plain>,
            to_bf16<Plain>,
            quantise<Plain>,
            norm<Plain>,
            gelu_erf<Plain>,
            gelu_tanh<Plain>,
            attention<Plain, Floats<Plain>>,
            attention<Plain, Halves<Plain>>};
}

}  // namespace sentport
