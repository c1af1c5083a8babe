#include "attention.h"
#include "simd_avx512.h"

namespace sentport {

Kernels kernels_avx512() {
    return {"avx512",
            Avx512::lanes * Avx512::vectors,
            gemm<Avx512, Floats<Avx512>>,
            nullptr,
            gemm_i8<Avx512>,
            nullptr,
            quantise<Avx512>,
            norm<Avx512>,
            gelu_erf<Avx512>,
            gelu_tanh<Avx512>,
            attention<Avx512, Floats<Avx512>>,
            nullptr};
}

}  // namespace sentport
