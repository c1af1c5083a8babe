// Products of packed weights, over the operations S of a CPU level (simd_*.h). Private to the files that include it.
#pragma once

#include "kernels.h"

namespace {

using sentport::kRowTile;
using sentport::Packed;
using sentport::Step;

template <int N>
struct Rows {
    static constexpr int value = N;
};

// The rest, of fewer than R rows.
template <int R, class F>
inline void for_rest(int rows, int row, F f) {
    if constexpr (R > 1) {
        if (rows - row == R - 1) f(Rows<R - 1>{}, row);
        else for_rest<R - 1>(rows, row, f);
    }
}

// Calls f(Rows<..>, first row) for tiles of R rows and one that holds the rest. Short texts have many rests.
template <int R, class F>
inline void for_row_tiles(int rows, F f) {
    int row = 0;
    for (; row + R <= rows; row += R) f(Rows<R>{}, row);
    for_rest<R>(rows, row, f);
}

// What a product of real numbers takes at a time: a float, or two of bf16 that lie together.
template <class S>
struct Floats {
    using Element = float;
    using Vector = typename S::Float;
    static constexpr int group = 1;
    static Vector load(const float* p) { return S::load(p); }
    static Vector set(const float* p) { return S::set(*p); }
    static typename S::Float dot(typename S::Float sum, Vector a, Vector b) { return S::fma(a, b, sum); }
};

template <class S>
struct Halves {
    using Element = uint16_t;
    using Vector = typename S::Int;
    static constexpr int group = 2;
    static Vector load(const uint16_t* p) { return S::load_bytes(p); }
    static Vector set(const uint16_t* p) { return S::set_bytes(p); }
    static typename S::Float dot(typename S::Float sum, Vector a, Vector b) { return S::dot_bf16(sum, a, b); }
};

// c [R, V vectors] = start + a [R, inputs] x b [inputs / group][V vectors][group], whose groups are `ldb` elements apart.
// The unrolling is spelled out because gcc 12 otherwise keeps the sums on the stack.
template <class S, class E, int R, int V>
inline void tile(const typename E::Element* a, long lda, const typename E::Element* b, long ldb, int inputs,
                 const float* start, float* c, long ldc) {
    typename S::Float sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] = S::load(start + v * S::lanes);
    for (int i = 0; i < inputs; i += E::group, b += ldb) {
        typename E::Vector weight[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) weight[v] = E::load(b + E::group * v * S::lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const typename E::Vector x = E::set(a + r * lda + i);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = E::dot(sum[r][v], x, weight[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) S::store(c + r * ldc + v * S::lanes, sum[r][v]);
}

template <class S, class E>
void gemm(const typename E::Element* a, long lda, int rows, const Packed& w, float* c, long ldc) {
    constexpr int panel = S::lanes * S::vectors;
    const long inputs = (w.in + E::group - 1) / E::group * E::group;
    // All inputs at once, though a panel of many leaves the first-level cache: with 384 at a time, which fit, sums are
    // stored and loaded again, and widths of 768 and 1024 took a tenth longer.
    for (int column = 0; column < w.out; column += panel) {
        const auto* b = static_cast<const typename E::Element*>(w.weights) + column * inputs;
        for_row_tiles<kRowTile>(rows, [&](auto height, int row) {
            tile<S, E, height.value, S::vectors>(a + row * lda, lda, b, E::group * panel, w.in, w.bias + column,
                                                 c + row * ldc + column, ldc);
        });
    }
}

template <class S, int R>
inline void tile_i8(const uint8_t* a, long lda, const Step* steps, const int8_t* b, int inputs, const Packed& w,
                    int column, float* c, long ldc) {
    constexpr int V = S::vectors, G = S::byte_groups;
    typename S::Sum sum[R][V];
    // Every byte is too large by the row's zero, and so every product by zero x weight.
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
            sum[r][v] = S::times(-steps[r].zero, w.sums + column + v * S::lanes);
    for (int i = 0; i < inputs; i += 4 * G, b += 4 * G * S::lanes * V) {
        typename S::Int weight[V][G];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
#pragma GCC unroll 2
            for (int g = 0; g < G; ++g) weight[v][g] = S::load_bytes(b + 4 * (g * V + v) * S::lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            typename S::Int x[G];
#pragma GCC unroll 2
            for (int g = 0; g < G; ++g) x[g] = S::set_bytes(a + r * lda + i + 4 * g);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = S::dot_i8(sum[r][v], x, weight[v]);
        }
    }
    // Back to real numbers: a row's scale, an output's scale, the bias.
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            const int at = column + v * S::lanes;
            const typename S::Float product = S::to_float(sum[r][v]) * S::set(steps[r].scale);
            S::store(c + r * ldc + v * S::lanes, S::fma(product, S::load(w.scale + at), S::load(w.bias + at)));
        }
}

template <class S>
void gemm_i8(const uint8_t* a, long lda, int rows, const Step* steps, const Packed& w, float* c, long ldc) {
    constexpr int panel = S::lanes * S::vectors;
    const int inputs = (w.in + 7) / 8 * 8;
    for (int column = 0; column < w.out; column += panel) {
        const int8_t* b = static_cast<const int8_t*>(w.weights) + static_cast<long>(column) * inputs;
        for_row_tiles<S::byte_rows>(rows, [&](auto height, int row) {
            tile_i8<S, height.value>(a + row * lda, lda, steps + row, b, inputs, w, column, c + row * ldc + column, ldc);
        });
    }
}

}  // namespace
