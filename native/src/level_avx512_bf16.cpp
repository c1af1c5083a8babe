#include "products.h"
#include "simd_avx512.h"

namespace {

struct Avx512Bf16 : Avx512 {
    // vdpbf16ps: two products of bf16 added to an fp32 sum; it takes subnormal numbers as zero.
    static Float dot_bf16(Float sum, Int a, Int b) {
        return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
};

}  // namespace

namespace sentport {

Kernels kernels_avx512_bf16() {
    Kernels kernels = kernels_avx512_vnni();
    kernels.level = "avx512-bf16";
    kernels.gemm_bf16 = gemm_bf16<Avx512Bf16>;
    return kernels;
}

}  // namespace sentport
