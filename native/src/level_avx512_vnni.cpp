#include "products.h"
#include "simd_avx512.h"

namespace {

struct Avx512Vnni : Avx512 {
    // vpdpbusd: four products in 32 bits, nothing saturates.
    static Int dot_i8(Int sum, Int a, Int b, Int a_next, Int b_next) {
        return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, a, b), a_next, b_next);
    }
};

}  // namespace

namespace sentport {

Kernels kernels_avx512_vnni() {
    Kernels kernels = kernels_avx512();
    kernels.level = "avx512-vnni";
    kernels.gemm_i8 = gemm_i8<Avx512Vnni>;
    return kernels;
}

}  // namespace sentport
