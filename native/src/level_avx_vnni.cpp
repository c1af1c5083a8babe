#include "products.h"
#include "simd_avx2.h"

namespace {

struct AvxVnni : Avx2 {
    static constexpr int byte_rows = 6, byte_groups = 1;  // as of floats

    // vpdpbusd in its VEX form: four products in 32 bits, nothing saturates.
    static Sum dot_i8(Sum sum, const Int* a, const Int* b) {
        return (Sum)_mm256_dpbusd_avx_epi32((Int)sum, *a, *b);
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
