#include "products.h"
#include "simd_avx2.h"

namespace {

struct AvxVnni : Avx2 {
    // vpdpbusd in its VEX form: four products in 32 bits, nothing saturates.
    static Int dot_i8(Int sum, Int a, Int b, Int a_next, Int b_next) {
        return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(sum, a, b), a_next, b_next);
    }
};

}  // namespace

namespace sentport {

Kernels kernels_avx_vnni() {
    Kernels kernels = kernels_avx2();
    kernels.level = "avx-vnni";
    kernels.gemm_i8 = gemm_i8<AvxVnni>;
    return kernels;
}

}  // namespace sentport
