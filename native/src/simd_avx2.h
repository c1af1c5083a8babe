// Eight lanes: AVX2 and FMA. Included only by files that are compiled for it; everything is private to them, so that
// the linker can never hand this code to a caller on a lesser CPU.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct Avx2 {
    using Float = __m256;
    using Int = __m256i;
    // Of 32 bits: __m256i is of 64, and gcc 12 then keeps every sum of vpdpbusd in both kinds, on the stack.
    using Sum = int32_t __attribute__((vector_size(32)));
    static constexpr int lanes = 8;
    static constexpr int vectors = 2;  // of a panel: 6 x 2 sums, 2 weights and an activation fit 16 registers
    static constexpr int byte_groups = 2;  // of four inputs that one step of an int8 product takes
    static constexpr int byte_rows = 4;    // 4 x 2 sums, 4 weights, 2 activations and ones leave one for products

    static Float load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
    static Float set(float x) { return _mm256_set1_ps(x); }
    static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
    static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }

    // The first n lanes, zeros behind them.
    static Float first(Float v, int n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)));
    }
    static float sum(Float v) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    static float largest(Float v) {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }
    static Int rounded(Float v) { return _mm256_cvtps_epi32(v); }  // nearest even
    static Float to_float(Int v) { return _mm256_cvtepi32_ps(v); }
    // v * 2^n by adding n to the exponent; the caller keeps the result in range.
    static Float times_power(Float v, Int n) {
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), _mm256_slli_epi32(n, 23)));
    }
    static Float to_float(Sum v) { return to_float((Int)v); }
    static Sum times(int32_t x, const int32_t* p) {
        return (Sum)_mm256_mullo_epi32(_mm256_set1_epi32(x), load_bytes(p));
    }
    static Int load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    static Int set_bytes(const void* four) {
        int32_t bits;
        std::memcpy(&bits, four, 4);
        return _mm256_set1_epi32(bits);
    }
    // Values of 0 .. 255 as bytes.
    static void store_bytes(uint8_t* p, Int v) {
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
    }
    // bf16 is the upper half of a float, here rounded to the nearest even.
    static Int halved(Float v) {
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        return _mm256_srli_epi32(up, 16);
    }
    static void store_bf16(uint16_t* p, Float v) {
        const __m256i high = halved(v);
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words);
    }
    // first[0], second[0], first[1], ...
    static void store_pairs(uint16_t* p, Float first, Float second) {
        const __m256i both = _mm256_or_si256(halved(first), _mm256_slli_epi32(halved(second), 16));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), both);
    }
    // Each lane: sum + eight products of unsigned a and signed b. vpmaddubsw adds two of them in 16 bits with saturation,
    // which kSameSign keeps out of reach even of four; so vpmaddwd by ones, which adds neighbours in 32 bits and takes
    // the same ports, is needed once for eight.
    static Sum dot_i8(Sum sum, const Int* a, const Int* b) {
        const __m256i four = _mm256_add_epi16(_mm256_maddubs_epi16(a[0], b[0]), _mm256_maddubs_epi16(a[1], b[1]));
        return sum + (Sum)_mm256_madd_epi16(four, _mm256_set1_epi16(1));
    }
    // Each lane: sum + two products of bf16, the second first as vdpbf16ps has it.
    static Float dot_bf16(Float sum, Int a, Int b) {
        const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
        const auto high = [&](Int v) { return _mm256_castsi256_ps(_mm256_and_si256(v, upper)); };
        const auto low = [](Int v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); };
        return fma(low(a), low(b), fma(high(a), high(b), sum));
    }
};

}  // namespace
