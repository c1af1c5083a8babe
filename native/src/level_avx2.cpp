#include "attention.h"
#include "simd_avx2.h"

namespace sentport {

Kernels kernels_avx2() {
    return {"avx2",
            Avx2::lanes * Avx2::vectors,
            gemm<Avx2, Floats<Avx2>>,
            gemm<Avx2, Halves<Avx2>>,
            gemm_i8<Avx2>,
            to_bf16<Avx2>,
            quantise<Avx2>,
            norm<Avx2>,
            gelu_erf<Avx2>,
            gelu_tanh<Avx2>,
            attention<Avx2, Floats<Avx2>>,
            attention<Avx2, Halves<Avx2>>};
}

}  // namespace sentport
