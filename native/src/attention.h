// Attention of one text by tiles of keys, with the softmax's maximum and sum carried along (Milakov and Gimelshein
// 2018, Dao et al. 2022), so that memory grows with the length and not with its square. The softmax is fp32; products
// take floats, or what bf16 makes of them. Private to the files that include it.
#pragma once

#include "products.h"
#include "rows.h"

namespace {

using sentport::kKeyTile;

constexpr float kFar = 1e30f;

template <class T>
struct Operand {
    const T* at;
    long stride;  // from one row, or group of rows, to the next
};

// Rows [count, n] of floats as the left operand of a product: themselves, or rounded into `out`.
template <class S>
inline Operand<float> left_operand(Floats<S>, const float* x, long stride, int, int, float*) {
    return {x, stride};
}

template <class S>
inline Operand<uint16_t> left_operand(Halves<S>, const float* x, long stride, int count, int n, uint16_t* out) {
    const long width = sentport::padded(n);
    for (int r = 0; r < count; ++r) {
        to_bf16<S>(x + r * stride, n, out + r * width);
        if (n % 2) out[r * width + n] = 0;  // what makes the last one a pair
    }
    return {out, width};
}

// Keys [count, head] as the right operand [head / group][kKeyTile][group], zeros behind the last to its vector's end.
template <class S, class E>
inline Operand<typename E::Element> keys_operand(const float* keys, long stride, int count, int head,
                                                 typename E::Element* rows, typename E::Element* out) {
    constexpr int group = E::group;
    const int end = (count + S::lanes - 1) / S::lanes * S::lanes;
    const auto key = left_operand(E{}, keys, stride, count, head, rows);
    for (int d = 0; d < head; d += group) {
        typename E::Element* to = out + d * kKeyTile;
        for (int j = 0; j < count; ++j)
            for (int g = 0; g < group; ++g) *to++ = key.at[j * key.stride + d + g];
        for (int n = count * group; n < end * group; ++n) *to++ = 0;
    }
    return {out, group * kKeyTile};
}

// Values [count, head] as the right operand: where they are, or two rows interleaved, zeros beside the last odd one.
template <class S>
inline Operand<float> values_operand(Floats<S>, const float* values, long stride, int, int, float*) {
    return {values, stride};
}

template <class S>
inline Operand<uint16_t> values_operand(Halves<S>, const float* values, long stride, int count, int head,
                                        uint16_t* out) {
    const long width = 2 * sentport::padded(head);
    for (int j = 0; j < count; j += 2)
        for (int d = 0; d < head; d += S::lanes) {
            const float* at = values + j * stride + d;
            S::store_pairs(out + j / 2 * width + 2 * d, S::load(at), j + 1 < count ? S::load(at + stride) : S::set(0.0f));
        }
    return {out, width};
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

// c [R, columns] = a [R, inputs] x b, and what is in b behind the columns to the end of a vector.
template <class S, class E, int R>
inline void multiply(Operand<typename E::Element> a, Operand<typename E::Element> b, int inputs, int columns, float* c,
                     long ldc) {
    static const float zeros[2 * S::lanes] = {};
    int j = 0;
    for (; j + S::lanes < columns; j += 2 * S::lanes)
        tile<S, E, R, 2>(a.at, a.stride, b.at + E::group * j, b.stride, inputs, zeros, c + j, ldc);
    if (j < columns) tile<S, E, R, 1>(a.at, a.stride, b.at + E::group * j, b.stride, inputs, zeros, c + j, ldc);
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

template <class S, class E>
void attention(const float* qkv, long stride, int length, int h, int heads, int width, const float* relative,
               int positions, float* out, long out_stride, float* scratch) {
    using Element = typename E::Element;
    const int head = width / heads;
    const long depth = sentport::padded(head);
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head));
    float* maximum = scratch;                                           // [length]
    float* sum = maximum + sentport::padded(length);                    // [length]
    float* scores = sum + sentport::padded(length);                     // [kRowTile, kKeyTile]
    float* mixed = scores + kRowTile * kKeyTile;                        // [kRowTile, head]
    auto* keys = reinterpret_cast<Element*>(mixed + kRowTile * depth);  // [head, kKeyTile]
    // Floats are taken where they are; their bf16 is [kKeyTile, head], and [kRowTile, head or kKeyTile].
    Element* values = E::group > 1 ? keys + kKeyTile * depth : nullptr;
    Element* rows = E::group > 1 ? values + kKeyTile * depth : nullptr;
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
        const auto key = keys_operand<S, E>(k, stride, count, head, values, keys);
        const auto value = values_operand(E{}, k + width, stride, count, head, values);
        for_row_tiles<kRowTile>(length, [&](auto height, int i) {
            constexpr int R = height.value;
            float left[R];
            const auto query = left_operand(E{}, q + i * stride, stride, R, head, rows);
            multiply<S, E, R>(query, key, head, count, scores, kKeyTile);
            for (int r = 0; r < R; ++r)
                left[r] = soften<S>(scores + r * kKeyTile, count, scale, table ? table + from - (i + r) : nullptr,
                                    maximum + i + r, sum + i + r);
            const auto share = left_operand(E{}, scores, kKeyTile, R, count, rows);
            multiply<S, E, R>(share, value, count, head, mixed, depth);
            for (int r = 0; r < R; ++r)
                blend<S>(out + (i + r) * out_stride, left[r], mixed + r * depth, last ? 1.0f / sum[i + r] : 1.0f, head);
        });
    }
}

}  // namespace
