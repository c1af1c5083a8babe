// Each kernel against its scalar reference, at any size.

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "levels.h"
#include "linear.h"

namespace sentport {

namespace {

using Matrix = std::vector<double>;

// Plain loops in double precision: what the kernels should compute.
Matrix reference_product(const Matrix& a, const Matrix& w, const std::vector<float>& bias, int rows, int in, int out) {
    Matrix c(static_cast<std::size_t>(rows) * out);
    for (int r = 0; r < rows; ++r)
        for (int o = 0; o < out; ++o) {
            double sum = bias[o];
            for (int i = 0; i < in; ++i) sum += a[r * in + i] * w[o * in + i];
            c[r * out + o] = sum;
        }
    return c;
}

Matrix reference_norm(const Matrix& x, const Matrix& residual, const Matrix& gain, const Matrix& shift, double epsilon) {
    const std::size_t n = x.size();
    Matrix y(n);
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < n; ++i) mean += (y[i] = x[i] + residual[i]) / static_cast<double>(n);
    for (const double v : y) variance += (v - mean) * (v - mean) / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) y[i] = (y[i] - mean) / std::sqrt(variance + epsilon) * gain[i] + shift[i];
    return y;
}

double reference_gelu(double x, bool tanh) {
    return tanh ? 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
                : 0.5 * x * (1 + std::erf(x * 0.70710678118654752));
}

Matrix reference_attention(const float* qkv, long stride, int length, int heads, int head, const float* relative) {
    const int width = heads * head;
    Matrix out(static_cast<std::size_t>(length) * width);
    for (int h = 0; h < heads; ++h)
        for (int i = 0; i < length; ++i) {
            Matrix score(length);
            double most = -1e300, sum = 0;
            for (int j = 0; j < length; ++j) {
                for (int d = 0; d < head; ++d)
                    score[j] += static_cast<double>(qkv[i * stride + h * head + d]) *
                                qkv[j * stride + width + h * head + d];
                score[j] = score[j] / std::sqrt(head) + relative[h * (2 * length - 1) + j - i + length - 1];
                most = std::max(most, score[j]);
            }
            for (double& s : score) sum += s = std::exp(s - most);
            for (int j = 0; j < length; ++j)
                for (int d = 0; d < head; ++d)
                    out[i * width + h * head + d] += score[j] / sum * qkv[j * stride + 2 * width + h * head + d];
        }
    return out;
}

float rounded_to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    std::memcpy(&x, &bits, 4);
    return x;
}

class Check {
public:
    Check(const Kernels& kernels, const Sizes& sizes) : k_(kernels), s_(sizes), random_(sizes.seed) {}

    void run() {
        const auto x = numbers(static_cast<long>(s_.rows) * s_.in);
        const auto w = numbers(static_cast<long>(s_.out) * s_.in);
        const auto bias = numbers(s_.out);
        product("F32", x, w, bias);
        if (k_.gemm_bf16) product("BF16", x, w, bias);
        product("I8", x, w, bias);
        quantise();
        rows();
        for (const bool relative : {false, true}) {
            attention("attention, fp32", k_.attention_f32, relative);
            if (k_.attention_bf16) attention("attention, bf16", k_.attention_bf16, relative);
        }
    }

private:
    [[noreturn]] void differs(const std::string& kernel, double found, double wanted) const {
        throw std::runtime_error("level " + std::string(k_.level) + ", kernel " + kernel + " at rows " +
                                 std::to_string(s_.rows) + ", in " + std::to_string(s_.in) + ", out " +
                                 std::to_string(s_.out) + ", heads " + std::to_string(s_.heads) + " x " +
                                 std::to_string(s_.head) + " gives " + std::to_string(found) +
                                 ", its scalar reference " + std::to_string(wanted));
    }

    void near(const std::string& kernel, double found, double wanted, double tolerance) const {
        if (!(std::fabs(found - wanted) <= tolerance)) differs(kernel, found, wanted);
    }

    std::vector<float> numbers(long count) {
        std::normal_distribution<float> normal;
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = normal(random_);
        return values;
    }

    // A layer as the model has it; then each row again, alone.
    void product(const std::string& type, std::vector<float> x, std::vector<float> w, const std::vector<float>& bias) {
        if (type == "I8") std::fill_n(x.begin(), s_.in, 1.0f);  // 255 in every byte, where nothing is smoothed
        std::vector<int8_t> levels(w.size());
        std::vector<uint16_t> halves(w.size());
        std::vector<float> scale(static_cast<std::size_t>(s_.out)), smoothing(static_cast<std::size_t>(s_.in));
        for (float& s : scale) s = 0.01f + 0.02f * std::fabs(numbers(1)[0]);
        for (float& s : smoothing) s = 0.5f + std::fabs(numbers(1)[0]);
        for (std::size_t n = 0; n < w.size(); ++n) {
            const long most = kSameSign / 4, output = static_cast<long>(n) / s_.in;
            levels[n] = static_cast<int8_t>(output < 2 ? (output ? -most : most)  // as large as sums may be
                                                       : std::clamp(std::lrint(w[n] * 40), -most, most));
            uint32_t bits;
            const float rounded = rounded_to_bf16(w[n]);
            std::memcpy(&bits, &rounded, 4);
            halves[n] = static_cast<uint16_t>(bits >> 16);
        }
        Tensors tensors;
        const void* data = type == "F32" ? static_cast<const void*>(w.data())
                                         : type == "I8" ? static_cast<const void*>(levels.data()) : halves.data();
        tensors.add("l.weight", {type, {s_.out, s_.in}, data});
        tensors.add("l.bias", {"F32", {s_.out}, bias.data()});
        tensors.add("l.scale", {"F32", {s_.out}, scale.data()});
        if (s_.seed % 2) tensors.add("l.smoothing", {"F32", {s_.in}, smoothing.data()});
        const Linear layer(tensors, "l", k_);

        const long ldx = row_stride(s_.in), ldc = layer.stride();
        Buffer<float> input(s_.rows * ldx), c(s_.rows * ldc), alone(ldc);
        for (int r = 0; r < s_.rows; ++r) std::copy_n(&x[static_cast<long>(r) * s_.in], s_.in, &input[r * ldx]);
        Inputs inputs, one;
        Team nobody(1), team(1 + static_cast<int>(s_.seed % 3));
        for (Inputs* each : {&inputs, &one}) {
            each->bf16.reserve(s_.rows * ldx);
            each->i8.reserve(s_.rows * ldx);
            each->steps.reserve(s_.rows);
        }
        for (int r = 0; r < s_.rows; ++r) layer.prepare(&input[r * ldx], r, inputs);
        layer.apply(input.data(), ldx, inputs, s_.rows, c.data(), team);

        Matrix a(x.begin(), x.end()), b(w.begin(), w.end());
        for (std::size_t n = 0; n < a.size(); ++n) {
            const long row = static_cast<long>(n) / s_.in, column = static_cast<long>(n) % s_.in;
            if (type == "BF16") a[n] = rounded_to_bf16(x[n]);
            if (type == "I8") 
                a[n] = (inputs.i8[row * ldx + column] - inputs.steps[row].zero) *
                       static_cast<double>(inputs.steps[row].scale);
        }
        for (std::size_t n = 0; n < b.size(); ++n) {
            if (type == "BF16") b[n] = rounded_to_bf16(w[n]);
            if (type == "I8") b[n] = levels[n] * static_cast<double>(scale[n / static_cast<std::size_t>(s_.in)]);
        }
        const Matrix wanted = reference_product(a, b, bias, s_.rows, s_.in, s_.out);
        const double tolerance = 4e-6 * std::sqrt(s_.in) + 2e-6 * s_.in / 10;
        for (int r = 0; r < s_.rows; ++r) {
            layer.prepare(&input[r * ldx], 0, one);
            layer.apply(&input[r * ldx], ldx, one, 1, alone.data(), nobody);
            for (int o = 0; o < s_.out; ++o) {
                near("product " + type, c[r * ldc + o], wanted[r * s_.out + o], tolerance);
                if (c[r * ldc + o] != alone[o]) differs("product " + type + ", row alone", c[r * ldc + o], alone[o]);
            }
            for (long o = s_.out; o < ldc; ++o) near("product " + type + ", behind a row", c[r * ldc + o], 0, 0);
        }
    }

    void quantise() {
        auto x = numbers(padded(s_.in)), factors = numbers(padded(s_.in));
        std::fill(x.begin() + s_.in, x.end(), 0.0f);
        std::vector<uint8_t> levels(x.size());
        const auto [scale, zero] = k_.quantise(x.data(), factors.data(), s_.in, levels.data());
        double low = 0, high = 0;
        for (int i = 0; i < s_.in; ++i) {
            low = std::min(low, static_cast<double>(x[i]) * factors[i]);
            high = std::max(high, static_cast<double>(x[i]) * factors[i]);
        }
        near("quantise, scale", scale, (high - low) / 255, 1e-7 * (high - low));
        for (int i = 0; i < s_.in; ++i)  // half a step, and what rounding to fp32 adds
            near("quantise", (levels[i] - zero) * static_cast<double>(scale), static_cast<double>(x[i]) * factors[i],
                 0.5001 * scale);
    }

    void rows() {
        const int n = s_.in;
        auto x = numbers(padded(n)), residual = numbers(padded(n)), gain = numbers(padded(n)), shift = numbers(padded(n));
        for (auto* values : {&x, &residual, &gain, &shift}) std::fill(values->begin() + n, values->end(), 0.0f);
        const auto cut = [&](const std::vector<float>& v) { return Matrix(v.begin(), v.begin() + n); };
        const Matrix wanted = reference_norm(cut(x), cut(residual), cut(gain), cut(shift), 1e-5);
        auto y = x;
        k_.norm(y.data(), residual.data(), gain.data(), shift.data(), n, 1e-5f);
        for (int i = 0; i < n; ++i) near("norm", y[i], wanted[i], 1e-5 * (1 + std::fabs(wanted[i])));
        for (const bool tanh : {false, true}) {
            y = x;
            for (int i = 0; i < n; ++i) y[i] *= 4;
            (tanh ? k_.gelu_tanh : k_.gelu_erf)(y.data(), n);
            for (int i = 0; i < n; ++i)
                near(tanh ? "gelu_tanh" : "gelu_erf", y[i], reference_gelu(4.0 * x[i], tanh), 3e-6);
        }
    }

    void attention(const std::string& name, Kernels::Attention kernel, bool relative) {
        const int width = s_.heads * s_.head, length = s_.rows;
        const long stride = row_stride(3 * width), out_stride = row_stride(width);
        auto qkv = numbers(length * stride + kAlign);
        auto table = numbers(static_cast<long>(s_.heads) * (2 * length - 1) + kAlign);
        if (!relative) std::fill(table.begin(), table.end(), 0.0f);
        std::vector<float> out(static_cast<std::size_t>(length * out_stride));
        Buffer<float> scratch(attention_scratch(length, s_.head));
        std::fill_n(scratch.data(), attention_scratch(length, s_.head), NAN);  // nothing may be read before it is written
        for (int h = 0; h < s_.heads; ++h)
            kernel(qkv.data(), stride, length, h, s_.heads, width, relative ? table.data() : nullptr, length,
                   out.data(), out_stride, scratch.data());
        const bool halves = kernel == k_.attention_bf16;
        if (halves)
            for (float& value : qkv) value = rounded_to_bf16(value);
        const Matrix wanted = reference_attention(qkv.data(), stride, length, s_.heads, s_.head, table.data());
        for (int i = 0; i < length; ++i)
            for (int d = 0; d < width; ++d)
                // Probabilities are rounded too, each by up to 2^-9 of itself; their sum, by which it is divided, is not.
                near(name + (relative ? ", relative" : ""), out[i * out_stride + d], wanted[i * width + d],
                     halves ? 5.0 / 512 : 2e-5);
    }

    const Kernels& k_;
    const Sizes& s_;
    std::mt19937 random_;
};

}  // namespace

void check(const Kernels& kernels, const Sizes& sizes) { Check(kernels, sizes).run(); }

void check_all(const Kernels& kernels, int every) {
    for (int rows = 1; rows <= 130; rows += every)
        check(kernels, {rows, 3 * rows - 2, 131 - rows, 1 + rows % 16, 1 + 7 * rows % 40, static_cast<unsigned>(rows)});
    for (const int head : {63, 64, 65, 127, 128})
        for (const int rows : {3, 129}) check(kernels, {rows, 20, 30, 2, head, static_cast<unsigned>(head)});
}

}  // namespace sentport
