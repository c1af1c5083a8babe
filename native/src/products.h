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

// c [R, V vectors] = start + a [R, inputs] x b [inputs, V vectors].
// The unrolling is spelled out because gcc 12 otherwise keeps the sums on the stack.
template <class S, int R, int V>
inline void tile_f32(const float* a, long lda, const float* b, long ldb, int inputs, const float* start, float* c,
                     long ldc) {
    typename S::Float sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] = S::load(start + v * S::lanes);
    for (int i = 0; i < inputs; ++i, b += ldb) {
        typename S::Float weight[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) weight[v] = S::load(b + v * S::lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const typename S::Float x = S::set(a[r * lda + i]);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = S::fma(x, weight[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) S::store(c + r * ldc + v * S::lanes, sum[r][v]);
}

template <class S>
void gemm_f32(const float* a, long lda, int rows, const Packed& w, float* c, long ldc) {
    constexpr int panel = S::lanes * S::vectors;
    // All inputs at once, though a panel of many leaves the first-level cache: with 384 at a time, which fit, sums are
    // stored and loaded again, and widths of 768 and 1024 took a tenth longer.
    for (int column = 0; column < w.out; column += panel) {
        const float* b = static_cast<const float*>(w.weights) + static_cast<long>(column) * w.in;
        for_row_tiles<kRowTile>(rows, [&](auto tile, int row) {
            tile_f32<S, tile.value, S::vectors>(a + row * lda, lda, b, panel, w.in, w.bias + column,
                                                c + row * ldc + column, ldc);
        });
    }
}

template <class S, int R>
inline void tile_bf16(const uint16_t* a, long lda, const uint16_t* b, int pairs, const float* bias, float* c,
                      long ldc) {
    constexpr int V = S::vectors;
    typename S::Float sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] = S::load(bias + v * S::lanes);
    for (int i = 0; i < pairs; ++i, b += 2 * S::lanes * V) {
        typename S::Int weight[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) weight[v] = S::load_bytes(b + 2 * v * S::lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const typename S::Int x = S::set_bytes(a + r * lda + 2 * i);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = S::dot_bf16(sum[r][v], x, weight[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) S::store(c + r * ldc + v * S::lanes, sum[r][v]);
}

template <class S>
void gemm_bf16(const uint16_t* a, long lda, int rows, const Packed& w, float* c, long ldc) {
    constexpr int panel = S::lanes * S::vectors;
    const int pairs = (w.in + 1) / 2;
    for (int column = 0; column < w.out; column += panel) {
        const uint16_t* b = static_cast<const uint16_t*>(w.weights) + 2L * column * pairs;
        for_row_tiles<kRowTile>(rows, [&](auto tile, int row) {
            tile_bf16<S, tile.value>(a + row * lda, lda, b, pairs, w.bias + column, c + row * ldc + column, ldc);
        });
    }
}

template <class S, int R>
inline void tile_i8(const uint8_t* a, long lda, const Step* steps, const int8_t* b, int eights, const Packed& w,
                    int column, float* c, long ldc) {
    constexpr int V = S::vectors;
    typename S::Int sum[R][V];
    // Every byte is too large by the row's zero, and so every product by zero x weight.
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
            sum[r][v] = S::times(S::set_int(-steps[r].zero), S::load_ints(w.sums + column + v * S::lanes));
    for (int i = 0; i < eights; ++i, b += 8 * S::lanes * V) {
        typename S::Int weight[V], next[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            weight[v] = S::load_bytes(b + 4 * v * S::lanes);
            next[v] = S::load_bytes(b + 4 * (V + v) * S::lanes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const typename S::Int x = S::set_bytes(a + r * lda + 8 * i), y = S::set_bytes(a + r * lda + 8 * i + 4);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = S::dot_i8(sum[r][v], x, weight[v], y, next[v]);
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
    const int eights = (w.in + 7) / 8;
    for (int column = 0; column < w.out; column += panel) {
        const int8_t* b = static_cast<const int8_t*>(w.weights) + 8L * column * eights;
        for_row_tiles<S::byte_rows>(rows, [&](auto tile, int row) {
            tile_i8<S, tile.value>(a + row * lda, lda, steps + row, b, eights, w, column, c + row * ldc + column, ldc);
        });
    }
}

}  // namespace
