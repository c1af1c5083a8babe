// Attention of one text by tiles of keys, with the softmax's maximum and sum carried along (Milakov and Gimelshein
// 2018, Dao et al. 2022), so that memory grows with the length and not with its square. Scores and probabilities are
// fp32 whatever the precision. Private to the files that include it.
#pragma once

#include "products.h"
#include "rows.h"

namespace {

using sentport::kKeyTile;

constexpr float kFar = 1e30f;

// Keys [count, head] as [head, kKeyTile], zeros behind the last key to the end of its vector.
template <class S>
inline void transpose_keys(const float* keys, long stride, int count, int head, float* out) {
    const int end = (count + S::lanes - 1) / S::lanes * S::lanes;
    for (int d = 0; d < head; ++d, out += kKeyTile) {
        for (int j = 0; j < count; ++j) out[j] = keys[j * stride + d];
        for (int j = count; j < end; ++j) out[j] = 0.0f;
    }
}

// A row of scores becomes e^(score - maximum); gives by what all that was summed before has to be multiplied.
template <class S>
inline float soften(float* scores, int count, float scale, const float* relative, float* maximum, float* sum) {
    typename S::Float most = S::set(*maximum);
    for (int j = 0; j < count; j += S::lanes) {
        typename S::Float s = S::load(scores + j) * S::set(scale);
        if (relative) s = s + S::load(relative + j);
        // Behind the last key as far down as can be, so that none of them is the maximum.
        s = S::first(s, count - j) - (S::set(kFar) - S::first(S::set(kFar), count - j));
        S::store(scores + j, s);
        most = S::max(most, s);
    }
    const float largest = S::largest(most);
    typename S::Float total = S::set(0.0f);
    for (int j = 0; j < count; j += S::lanes) {
        const typename S::Float e = S::first(exponential<S>(S::load(scores + j) - S::set(largest)), count - j);
        S::store(scores + j, e);
        total = total + e;
    }
    float left[S::lanes] = {};
    if (*maximum > -kFar) S::store(left, exponential<S>(S::set(*maximum - largest)));
    *sum = *sum * left[0] + S::sum(total);
    *maximum = largest;
    return left[0];
}

// c [R, columns] = a [R, inputs] x b [inputs, columns], and what is in b behind the columns to the end of a vector.
template <class S, int R>
inline void multiply(const float* a, long lda, const float* b, long ldb, int inputs, int columns, float* c, long ldc) {
    static const float zeros[2 * S::lanes] = {};
    int j = 0;
    for (; j + S::lanes < columns; j += 2 * S::lanes)
        tile_f32<S, R, 2>(a, lda, b + j, ldb, inputs, zeros, c + j, ldc);
    if (j < columns) tile_f32<S, R, 1>(a, lda, b + j, ldb, inputs, zeros, c + j, ldc);
}

// out [head] = (out x left + mixed) x scale; where nothing is left, whatever it held. The last values go one by one,
// since the next head's follow.
template <class S>
inline void blend(float* out, float left, const float* mixed, float scale, int head) {
    int d = 0;
    for (; d + S::lanes <= head; d += S::lanes) {
        const typename S::Float before = left == 0.0f ? S::set(0.0f) : S::load(out + d);
        S::store(out + d, S::fma(before, S::set(left), S::load(mixed + d)) * S::set(scale));
    }
    for (; d < head; ++d) out[d] = __builtin_fmaf(left == 0.0f ? 0.0f : out[d], left, mixed[d]) * scale;
}

template <class S>
void attention(const float* qkv, long stride, int length, int h, int heads, int width, const float* relative,
               int positions, float* out, long out_stride, float* scratch) {
    const int head = width / heads;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head));
    float* maximum = scratch;                                  // [length]
    float* sum = maximum + sentport::padded(length);           // [length]
    float* keys = sum + sentport::padded(length);              // [head, kKeyTile]
    float* scores = keys + kKeyTile * sentport::padded(head);  // [kRowTile, kKeyTile]
    float* mixed = scores + kRowTile * kKeyTile;               // [kRowTile, head]
    const float* q = qkv + h * head;
    const float* table = relative ? relative + h * (2L * positions - 1) + positions - 1 : nullptr;
    out += h * head;
    for (int i = 0; i < length; ++i) {
        maximum[i] = -kFar;
        sum[i] = 0.0f;
    }
    for (int from = 0; from < length; from += kKeyTile) {
        const int count = length - from < kKeyTile ? length - from : kKeyTile;
        const bool last = from + count == length;
        const float* k = q + width + from * stride;
        transpose_keys<S>(k, stride, count, head, keys);
        for_row_tiles<kRowTile>(length, [&](auto tile, int i) {
            constexpr int R = tile.value;
            float left[R];
            multiply<S, R>(q + i * stride, stride, keys, kKeyTile, head, count, scores, kKeyTile);
            for (int r = 0; r < R; ++r)
                left[r] = soften<S>(scores + r * kKeyTile, count, scale, table ? table + from - (i + r) : nullptr,
                                    maximum + i + r, sum + i + r);
            multiply<S, R>(scores, kKeyTile, k + width, stride, count, head, mixed, sentport::padded(head));
            for (int r = 0; r < R; ++r)
                blend<S>(out + (i + r) * out_stride, left[r], mixed + r * sentport::padded(head),
                         last ? 1.0f / sum[i + r] : 1.0f, head);
        });
    }
}

}  // namespace
