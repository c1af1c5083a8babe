// Attention of one text by tiles of keys, with the softmax's maximum and sum carried along (Milakov and Gimelshein
// 2018, Dao et al. 2022), so that memory grows with the length and not with its square. Scores and probabilities are
// fp32 whatever the precision. Private to the files that include it.
#pragma once

#include "products.h"
#include "rows.h"

namespace {

using sentport::kKeyTile;

constexpr float kFar = 1e30f;

// Keys [count, head] as [head, kKeyTile], zeros behind the last key.
inline void transpose_keys(const float* keys, long stride, int count, int head, float* out) {
    for (int d = 0; d < head; ++d) {
        for (int j = 0; j < count; ++j) out[d * kKeyTile + j] = keys[j * stride + d];
        for (int j = count; j < kKeyTile; ++j) out[d * kKeyTile + j] = 0.0f;
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
    float before[S::lanes];
    S::store(before, exponential<S>(S::set(*maximum - largest)));
    *sum = *sum * before[0] + S::sum(total);
    *maximum = largest;
    return before[0];
}

// One tile of queries against one tile of keys: out [R, head] = out x what is left of it + probabilities x values.
template <class S, int R>
inline void attend(const float* q, long stride, const float* keys, const float* values, int count, int head,
                   float scale, const float* const* relative, float* maximum, float* sum, float* scores, float* mixed,
                   float* out, long out_stride) {
    static const float zeros[S::lanes] = {};
    const long width = sentport::padded(head);
    for (int j = 0; j < count; j += S::lanes)
        tile_f32<S, R, 1>(q, stride, keys + j, kKeyTile, head, zeros, scores + j, kKeyTile);
    float left[R];
    for (int r = 0; r < R; ++r)
        left[r] = soften<S>(scores + r * kKeyTile, count, scale, relative[r], maximum + r, sum + r);
    for (int d = 0; d < head; d += S::lanes)  // the last vector may reach into what follows, which is not kept
        tile_f32<S, R, 1>(scores, kKeyTile, values + d, stride, count, zeros, mixed + d, width);
    for (int r = 0; r < R; ++r)
        for (int d = 0; d < head; ++d)
            out[r * out_stride + d] = __builtin_fmaf(out[r * out_stride + d], left[r], mixed[r * width + d]);
}

template <class S>
void attention(const float* qkv, long stride, int length, int h, int heads, int width, const float* relative,
               int positions, float* out, long out_stride, float* scratch) {
    const int head = width / heads;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head));
    float* maximum = scratch;                             // [length]
    float* sum = maximum + sentport::padded(length);      // [length]
    float* keys = sum + sentport::padded(length);         // [head, kKeyTile]
    float* scores = keys + kKeyTile * sentport::padded(head);  // [kRowTile, kKeyTile]
    float* mixed = scores + kRowTile * kKeyTile;          // [kRowTile, head]
    const float* q = qkv + h * head;
    const float* table = relative ? relative + h * (2L * positions - 1) + positions - 1 : nullptr;
    out += h * head;
    for (int i = 0; i < length; ++i) {
        maximum[i] = -kFar;
        sum[i] = 0.0f;
        for (int d = 0; d < head; ++d) out[i * out_stride + d] = 0.0f;
    }
    for (int from = 0; from < length; from += kKeyTile) {
        const int count = length - from < kKeyTile ? length - from : kKeyTile;
        const float* k = q + width + from * stride;
        transpose_keys(k, stride, count, head, keys);
        for_row_tiles(length, [&](auto tile, int i) {
            const float* rows[kRowTile];
            for (int r = 0; r < tile.value; ++r) rows[r] = table ? table + from - (i + r) : nullptr;
            attend<S, tile.value>(q + i * stride, stride, keys, k + width, count, head, scale, rows, maximum + i,
                                  sum + i, scores, mixed, out + i * out_stride, out_stride);
        });
    }
    for (int i = 0; i < length; ++i)
        for (int d = 0; d < head; ++d) out[i * out_stride + d] /= sum[i];
}

}  // namespace
