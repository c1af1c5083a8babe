#include "attention.h"
#include "simd_avx512.h"

namespace {

struct Avx512Bf16 : Avx512 {
    // vcvtneps2bf16: to the nearest even.
    static __m256i halved(Float v) { return (__m256i)_mm512_cvtneps_pbh(v); }
    static void store_bf16(uint16_t* p, Float v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halved(v)); }
    static void store_pairs(uint16_t* p, Float first, Float second) {
        const __m512i low = _mm512_cvtepu16_epi32(halved(first)), high = _mm512_cvtepu16_epi32(halved(second));
        _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
    // vdpbf16ps: two products of bf16 added to an fp32 sum; it and vcvtneps2bf16 take subnormal numbers as zero.
    static Float dot_bf16(Float sum, Int a, Int b) {
        return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
};

}  // namespace

namespace sentport {

Kernels kernels_avx512_bf16() {
    Kernels kernels = kernels_avx512_vnni();
    kernels.level = "avx512-bf16";
    kernels.gemm_bf16 = gemm<Avx512Bf16, Halves<Avx512Bf16>>;
    kernels.to_bf16 = to_bf16<Avx512Bf16>;
    kernels.attention_bf16 = attention<Avx512Bf16, Halves<Avx512Bf16>>;
    return kernels;
}

}  // namespace sentport
