// Sixteen lanes in plain C++: the scalar reference of every operation, and of a whole 16-lane level.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kPlainLanes = 16;

struct PlainFloat {
    float v[kPlainLanes];
};

struct PlainInt {
    int32_t v[kPlainLanes];
};

template <class F>
PlainFloat each(F value) {
    PlainFloat r;
    for (int i = 0; i < kPlainLanes; ++i) r.v[i] = value(i);
    return r;
}

template <class F>
PlainInt each_int(F value) {
    PlainInt r;
    for (int i = 0; i < kPlainLanes; ++i) r.v[i] = value(i);
    return r;
}

inline PlainFloat operator+(PlainFloat a, PlainFloat b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline PlainFloat operator-(PlainFloat a, PlainFloat b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline PlainFloat operator*(PlainFloat a, PlainFloat b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline PlainFloat operator/(PlainFloat a, PlainFloat b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }

template <class To, class From>
To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &value, sizeof to);
    return to;
}

struct Plain {
    using Float = PlainFloat;
    using Int = PlainInt;
    using Sum = PlainInt;
    static constexpr int lanes = kPlainLanes;
    static constexpr int vectors = 4;
    static constexpr int byte_rows = 6, byte_groups = 1;

    static Float load(const float* p) { return each([&](int i) { return p[i]; }); }
    static void store(float* p, Float v) { std::memcpy(p, v.v, sizeof v.v); }
    static Float set(float x) { return each([&](int) { return x; }); }
    static Float fma(Float a, Float b, Float c) { return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
    static Float max(Float a, Float b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
    static Float min(Float a, Float b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
    static Float first(Float v, int n) { return each([&](int i) { return i < n ? v.v[i] : 0.0f; }); }
    // Halves are added to halves, which is the order of _mm512_reduce_add_ps.
    static float sum(Float v) {
        for (int half = lanes / 2; half; half /= 2)
            for (int i = 0; i < half; ++i) v.v[i] += v.v[i + half];
        return v.v[0];
    }
    static float largest(Float v) {
        float most = v.v[0];
        for (float x : v.v) most = x > most ? x : most;
        return most;
    }
    static Int rounded(Float v) { return each_int([&](int i) { return static_cast<int32_t>(std::lrint(v.v[i])); }); }
    static Float to_float(Int v) { return each([&](int i) { return static_cast<float>(v.v[i]); }); }
    static Float times_power(Float v, Int n) { return each([&](int i) { return std::ldexp(v.v[i], n.v[i]); }); }
    static Sum times(int32_t x, const int32_t* p) { return each_int([&](int i) { return x * p[i]; }); }
    static Int load_bytes(const void* p) {
        Int r;
        std::memcpy(r.v, p, sizeof r.v);
        return r;
    }
    static Int set_bytes(const void* four) {
        int32_t bits;
        std::memcpy(&bits, four, 4);
        return each_int([&](int) { return bits; });
    }
    static void store_bytes(uint8_t* p, Int v) {
        for (int i = 0; i < lanes; ++i) p[i] = static_cast<uint8_t>(v.v[i]);
    }
    static uint16_t halved(float x) {
        const auto bits = bits_as<uint32_t>(x);
        return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
    static void store_bf16(uint16_t* p, Float v) {
        for (int i = 0; i < lanes; ++i) p[i] = halved(v.v[i]);
    }
    static void store_pairs(uint16_t* p, Float first, Float second) {
        for (int i = 0; i < lanes; ++i) {
            p[2 * i] = halved(first.v[i]);
            p[2 * i + 1] = halved(second.v[i]);
        }
    }
    static Sum dot_i8(Sum sum, const Int* a, const Int* b) {
        const auto product = [](int32_t a, int32_t b, int shift) {
            return static_cast<uint8_t>(static_cast<uint32_t>(a) >> shift) *
                   static_cast<int8_t>(static_cast<uint32_t>(b) >> shift);
        };
        return each_int([&](int i) {
            int32_t total = sum.v[i];
            for (int shift = 0; shift < 32; shift += 8) total += product(a->v[i], b->v[i], shift);
            return total;
        });
    }
    static Float dot_bf16(Float sum, Int a, Int b) {
        const auto high = [](int32_t v) { return bits_as<float>(static_cast<uint32_t>(v) & 0xffff0000u); };
        const auto low = [](int32_t v) { return bits_as<float>(static_cast<uint32_t>(v) << 16); };
        return each([&](int i) {
            return std::fma(low(a.v[i]), low(b.v[i]), std::fma(high(a.v[i]), high(b.v[i]), sum.v[i]));
        });
    }
};

}  // namespace
