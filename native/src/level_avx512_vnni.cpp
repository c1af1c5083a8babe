#include "products.h"
#include "simd_avx512.h"

namespace {

struct Avx512Vnni : Avx512 {
    static constexpr int byte_rows = 6, byte_groups = 1;  // as of floats

    // vpdpbusd: four products in 32 bits, nothing saturates.
    static Sum dot_i8(Sum sum, const Int* a, const Int* b) {
        return (Sum)_mm512_dpbusd_epi32((Int)sum, *a, *b);
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
