// The kernels of one CPU level, as a table of functions, and the weights as they want them.
//
// Every row of a result depends on its own row of the input alone: sums run in the same order in a full tile, in a
// tail, and on any thread. That is what makes a text's vector the same, bit for bit, alone and in any company.
//
// Buffers: rows are `kAlign` floats apart or a multiple of it, and what lies behind a row's last value is zero.
#pragma once

#include <cstdint>

namespace sentport {

constexpr int kAlign = 64;     // floats: the widest panel of any level, and a multiple of every vector
constexpr int kKeyTile = 128;  // keys that attention looks at in one go: what bounds its memory

constexpr long padded(long n) { return (n + kAlign - 1) / kAlign * kAlign; }
// From one row of n values to the next: never whole pages of floats, as which the rows of a tile would compete for the
// same few lines of the first-level cache (widths of 1024, 2048, 3072 ...).
constexpr long row_stride(long n) { return padded(n) + (padded(n) % 1024 ? 0 : kAlign); }

enum class Kind { f32, bf16, i8 };

// Values of the input that lie together for each output, and those that one step of a product takes.
constexpr int group_of(Kind kind) { return kind == Kind::f32 ? 1 : kind == Kind::bf16 ? 2 : 4; }
constexpr int step_of(Kind kind) { return kind == Kind::i8 ? 8 : group_of(kind); }
// Most that int8 weights of one sign may sum up to that are added in 16 bits: 255 x 128 < 32768. Of each eight inputs
// these are the first two of both groups, and the last two; see dot_i8 in simd_avx2.h.
constexpr int kSameSign = 128;

// A weight [in, out], cut into panels of `panel` outputs: panel [in / group][output][input of the group].
struct Packed {
    int in;
    int out;                    // padded to kAlign, with zeros
    const void* weights;        // float, bf16 or int8
    const float* bias;          // [out]
    const float* scale;         // [out], int8 alone
    const int32_t* sums;  // [out], int8 alone: of the output's weights
};

// What a row's bytes stand for: (byte - zero) x scale.
struct Step {
    float scale;
    int32_t zero;
};

// Products: c [rows, out] of a [rows, in], rows `lda` elements and `ldc` floats apart.
struct Kernels {
    const char* level;
    int panel;
    void (*gemm_f32)(const float* a, long lda, int rows, const Packed& w, float* c, long ldc);
    void (*gemm_bf16)(const uint16_t* a, long lda, int rows, const Packed& w, float* c, long ldc);
    void (*gemm_i8)(const uint8_t* a, long lda, int rows, const Step* steps, const Packed& w, float* c, long ldc);

    // One row of n values, n <= padded(n) readable: to bf16, nearest even.
    void (*to_bf16)(const float* x, int n, uint16_t* out);
    // One row times `factors` (or null) in 256 steps from its smallest value, or zero, to its largest.
    Step (*quantise)(const float* x, const float* factors, int n, uint8_t* out);
    // One row: x = norm(x + residual) * gain + shift; residual may be null.
    void (*norm)(float* x, const float* residual, const float* gain, const float* shift, int n, float epsilon);
    void (*gelu_erf)(float* x, int n);
    void (*gelu_tanh)(float* x, int n);

    // Head `h` of one text's attention. qkv [length, 3 x width] in rows `stride` apart, to the head's values in out
    // [length, width], rows `out_stride` apart. `relative` [heads, 2 x positions - 1], at j - i + positions - 1, is added
    // to the score of query i and key j; null where there is none. `scratch` has attention_scratch(length, width / heads)
    // floats. In bf16 the operands of both products are rounded; the softmax is fp32.
    using Attention = void (*)(const float* qkv, long stride, int length, int h, int heads, int width,
                               const float* relative, int positions, float* out, long out_stride, float* scratch);
    Attention attention_f32, attention_bf16;
};

constexpr int kRowTile = 6;  // rows of a register tile

// Floats that attention needs: fp32 keeps keys, bf16 keys and values in half the size each, and rows of either operand.
constexpr long attention_scratch(long length, long head) {
    return 2 * padded(length) + 2 * kRowTile * (kKeyTile + padded(head)) + kKeyTile * padded(head);
}

// The levels, each in a file of its own that is compiled for it; a null kernel is one that the level has not.
Kernels kernels_plain();        // the algorithm of the 16-lane levels in plain C++: for tests, whatever the CPU
Kernels kernels_avx2();         // AVX2 and FMA; bf16 as the twin of the instruction, which rounds alike
Kernels kernels_avx_vnni();     // AVX2 with the 8-bit dot product
Kernels kernels_avx512();       // F, BW, VL, DQ
Kernels kernels_avx512_vnni();
Kernels kernels_avx512_bf16();  // VNNI too

}  // namespace sentport
