// Stands in front of the compiler's own header: the AVX-512 intrinsics of SIMDe (Debian: libsimde-dev), which computes
// them in plain C++, and the few that it lacks. So the very source of those levels runs on a CPU that has none of them.
#pragma once

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <cmath>
#include <cstdint>

using __mmask16 = simde__mmask16;

namespace emulated {

template <class To, class From, class F>
To each(From from, F f) {
    To to;
    for (int i = 0; i < 16; ++i) to[i] = f(from[i]);
    return to;
}

using Ints = int32_t __attribute__((vector_size(64)));
using Words = int16_t __attribute__((vector_size(32)));
using Bytes = int8_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(64)));

inline __m512 cvtepi32_ps(__m512i v) {
    return (__m512)each<Floats>((Ints)v, [](int32_t x) { return static_cast<float>(x); });
}
inline __m512i cvtps_epi32(__m512 v) {
    return (__m512i)each<Ints>((Floats)v, [](float x) { return static_cast<int32_t>(std::lrint(x)); });
}
inline __m512i cvtepu16_epi32(__m256i v) {
    return (__m512i)each<Ints>((Words)v, [](int16_t x) { return static_cast<int32_t>(static_cast<uint16_t>(x)); });
}
inline __m256i cvtneps_pbh(__m512 v) {  // whose numbers are normal ones
    return (__m256i)each<Words>((Ints)v, [](int32_t bits) {
        return static_cast<int16_t>((static_cast<uint32_t>(bits) + 0x7fff + ((bits >> 16) & 1)) >> 16);
    });
}
inline __m128i cvtepi32_epi8(__m512i v) {
    return (__m128i)each<Bytes>((Ints)v, [](int32_t x) { return static_cast<int8_t>(x); });
}
inline float reduce_add_ps(__m512 v) {
    Floats sum = (Floats)v;
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    return sum[0];
}
inline float reduce_max_ps(__m512 v) {
    float most = ((Floats)v)[0];
    for (int i = 1; i < 16; ++i) most = std::fmax(most, ((Floats)v)[i]);
    return most;
}
inline __m256i dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) {
    using Ints8 = int32_t __attribute__((vector_size(32)));
    using Signed = int8_t __attribute__((vector_size(32)));
    using Unsigned = uint8_t __attribute__((vector_size(32)));
    Ints8 total = (Ints8)sum;
    for (int i = 0; i < 32; ++i) total[i / 4] += ((Unsigned)a)[i] * ((Signed)b)[i];
    return (__m256i)total;
}

}  // namespace emulated

#undef _mm512_madd_epi16  // of another function in SIMDe 0.7.4
#define _mm512_madd_epi16 simde_mm512_madd_epi16
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtneps_pbh emulated::cvtneps_pbh
#define _mm512_cvtepi32_epi8 emulated::cvtepi32_epi8
#define _mm512_reduce_add_ps emulated::reduce_add_ps
#define _mm512_reduce_max_ps emulated::reduce_max_ps
#define _mm256_dpbusd_avx_epi32 emulated::dpbusd_avx_epi32
