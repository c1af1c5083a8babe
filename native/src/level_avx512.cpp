#include "attention.h"
#include "simd_avx512.h"

namespace sentport {

Kernels kernels_avx512() {
    return {"avx512",          Avx512::lanes * Avx512::vectors, gemm_f32<Avx512>, nullptr, gemm_i8<Avx512>,
            to_bf16<Avx512>,   quantise<Avx512>, norm<Avx512>, gelu_erf<Avx512>, gelu_tanh<Avx512>,
            attention<Avx512>};
}

}  // namespace sentport
