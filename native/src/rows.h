// What is done to one row at a time: norm, activation functions, quantisation; and the functions behind them.
// Over the operations S of a CPU level. Private to the files that include it.
#pragma once

#include "kernels.h"

namespace {

// e^x to the last digit or two, x cut to where the result is a normal number. 2^n x e^f with |f| <= ln(2) / 2, and
// e^f by its Taylor series, whose next term is under 6e-9.
template <class S>
inline typename S::Float exponential(typename S::Float x) {
    x = S::min(S::max(x, S::set(-87.0f)), S::set(87.0f));
    const typename S::Int n = S::rounded(x * S::set(1.44269504f));
    const typename S::Float whole = S::to_float(n);
    // ln(2) in two parts: the first has few digits, so that its product with n is exact.
    typename S::Float f = S::fma(whole, S::set(-0.693359375f), x);
    f = S::fma(whole, S::set(2.12194440e-4f), f);
    typename S::Float e = S::set(1.0f / 5040);
    e = S::fma(e, f, S::set(1.0f / 720));
    e = S::fma(e, f, S::set(1.0f / 120));
    e = S::fma(e, f, S::set(1.0f / 24));
    e = S::fma(e, f, S::set(1.0f / 6));
    e = S::fma(e, f, S::set(0.5f));
    e = S::fma(e, f, S::set(1.0f));
    e = S::fma(e, f, S::set(1.0f));
    return S::times_power(e, n);
}

// x / 2 x (1 + erf(x / sqrt(2))). erf(z) = z x P(z^2) / Q(z^2) up to 3.9, where it is 1 - 3e-8: a minimax fit with an
// error of 2e-8, so that its rounding is what remains. One division costs less than the exponential of other forms.
template <class S>
void gelu_erf(float* x, int n) {
    for (int i = 0; i < n; i += S::lanes) {
        const typename S::Float v = S::load(x + i);
        typename S::Float z = v * S::set(0.707106781f);
        z = S::min(S::max(z, S::set(-3.9f)), S::set(3.9f));
        const typename S::Float t = z * z;
        typename S::Float p = S::set(2.0503869e-6f);
        p = S::fma(p, t, S::set(2.8745702e-4f));
        p = S::fma(p, t, S::set(3.8368711e-3f));
        p = S::fma(p, t, S::set(5.2966904e-2f));
        p = S::fma(p, t, S::set(0.1919409037f));
        p = S::fma(p, t, S::set(1.1283789873f));
        typename S::Float q = S::set(3.8230726e-5f);
        q = S::fma(q, t, S::set(1.18173298e-3f));
        q = S::fma(q, t, S::set(1.510919444e-2f));
        q = S::fma(q, t, S::set(0.11475815624f));
        q = S::fma(q, t, S::set(0.50343495607f));
        q = S::fma(q, t, S::set(1.0f));
        const typename S::Float half = v * S::set(0.5f);
        S::store(x + i, S::fma(half, z * p / q, half));
    }
}

// x / 2 x (1 + tanh(u)) with u = sqrt(2 / pi) x (x + 0.044715 x^3), as x / (1 + e^(-2u)).
template <class S>
void gelu_tanh(float* x, int n) {
    for (int i = 0; i < n; i += S::lanes) {
        const typename S::Float v = S::load(x + i);
        const typename S::Float cubic = S::fma(v * v * v, S::set(0.044715f), v);
        S::store(x + i, v / (S::set(1.0f) + exponential<S>(cubic * S::set(-1.59576912f))));
    }
}

template <class S>
void norm(float* x, const float* residual, const float* gain, const float* shift, int n, float epsilon) {
    typename S::Float total = S::set(0.0f);
    for (int i = 0; i < n; i += S::lanes) {
        typename S::Float v = S::load(x + i);
        if (residual) v = v + S::load(residual + i);
        v = S::first(v, n - i);
        S::store(x + i, v);
        total = total + v;
    }
    const typename S::Float mean = S::set(S::sum(total) / static_cast<float>(n));
    total = S::set(0.0f);
    for (int i = 0; i < n; i += S::lanes) {
        const typename S::Float v = S::first(S::load(x + i) - mean, n - i);
        S::store(x + i, v);
        total = S::fma(v, v, total);
    }
    const float spread = __builtin_sqrtf(S::sum(total) / static_cast<float>(n) + epsilon);
    const typename S::Float inverse = S::set(1.0f / spread);
    for (int i = 0; i < n; i += S::lanes)  // gain and shift are zero behind their last value, and so is the row
        S::store(x + i, S::fma(S::load(x + i) * inverse, S::load(gain + i), S::load(shift + i)));
}

// Not symmetric: what comes out of an activation function is hardly negative, and half of the steps would be wasted.
template <class S>
sentport::Step quantise(const float* x, const float* factors, int n, uint8_t* out) {
    const auto smoothed = [&](int i) { return factors ? S::load(x + i) * S::load(factors + i) : S::load(x + i); };
    const typename S::Float none = S::set(0.0f), most = S::set(255.0f);
    typename S::Float high = none, low = none;  // zero has a step of its own: it is what stands behind a row
    for (int i = 0; i < n; i += S::lanes) {
        const typename S::Float v = smoothed(i);
        high = S::max(high, v);
        low = S::min(low, v);
    }
    const float bottom = S::largest(none - low), span = S::largest(high) + bottom;
    const float scale = (span > 1e-30f ? span : 1e-30f) / 255.0f;  // a row of zeros has no scale of its own
    const float zero = __builtin_rintf(bottom / scale);
    const typename S::Float steps = S::set(1.0f / scale), offset = S::set(zero);
    for (int i = 0; i < n; i += S::lanes) {  // the ends may be rounded away from each other, by half a step
        const typename S::Float v = S::fma(smoothed(i), steps, offset);
        S::store_bytes(out + i, S::rounded(S::min(S::max(v, none), most)));
    }
    return {scale, static_cast<int32_t>(zero)};
}

template <class S>
void to_bf16(const float* x, int n, uint16_t* out) {
    for (int i = 0; i < n; i += S::lanes) S::store_bf16(out + i, S::load(x + i));
}

}  // namespace
