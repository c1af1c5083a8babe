// Sixteen lanes: AVX-512 F, BW, VL, DQ. Private to the files that include it, as simd_avx2.h is.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct Avx512 {
    using Float = __m512;
    using Int = __m512i;
    // Of 32 bits: __m512i is of 64, and gcc 12 then keeps every sum of vpdpbusd in both kinds, on the stack.
    using Sum = int32_t __attribute__((vector_size(64)));
    static constexpr int lanes = 16;
    static constexpr int vectors = 4;  // of a panel: 6 x 4 sums, 4 weights and an activation fit 32 registers
    static constexpr int byte_groups = 2;
    static constexpr int byte_rows = 5;  // 5 x 4 sums, 8 weights, 2 activations and ones leave one for products

    static Float load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
    static Float set(float x) { return _mm512_set1_ps(x); }
    static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
    static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
    static Float first(Float v, int n) {
        return n >= lanes ? v : _mm512_maskz_mov_ps(static_cast<__mmask16>((1u << n) - 1), v);
    }
    static float sum(Float v) { return _mm512_reduce_add_ps(v); }
    static float largest(Float v) { return _mm512_reduce_max_ps(v); }
    static Int rounded(Float v) { return _mm512_cvtps_epi32(v); }
    static Float to_float(Int v) { return _mm512_cvtepi32_ps(v); }
    static Float times_power(Float v, Int n) {
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), _mm512_slli_epi32(n, 23)));
    }
    static Float to_float(Sum v) { return to_float((Int)v); }
    static Sum times(int32_t x, const int32_t* p) {
        return (Sum)_mm512_mullo_epi32(_mm512_set1_epi32(x), _mm512_loadu_si512(p));
    }
    static Int load_bytes(const void* p) { return _mm512_loadu_si512(p); }
    static Int set_bytes(const void* four) {
        int32_t bits;
        std::memcpy(&bits, four, 4);
        return _mm512_set1_epi32(bits);
    }
    static void store_bytes(uint8_t* p, Int v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));  // truncates: values are 0 .. 255
    }
    static Sum dot_i8(Sum sum, const Int* a, const Int* b) {  // without saturation as in simd_avx2.h
        const __m512i four = _mm512_add_epi16(_mm512_maddubs_epi16(a[0], b[0]), _mm512_maddubs_epi16(a[1], b[1]));
        return sum + (Sum)_mm512_madd_epi16(four, _mm512_set1_epi16(1));
    }
};

}  // namespace
