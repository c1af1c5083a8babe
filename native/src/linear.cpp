#include "linear.h"

#include <cmath>
#include <stdexcept>

namespace sentport {

namespace {

std::string words(const std::vector<long>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

Kind kind_of(const std::string& name, const std::string& type) {
    if (type == "F32") return Kind::f32;
    if (type == "BF16") return Kind::bf16;
    if (type == "I8") return Kind::i8;
    throw std::invalid_argument(name + " is " + type + "; expected F32, BF16 or I8");
}

// Whether no sum of products in 16 bits can leave its range; see kSameSign.
bool fits_16_bits(const int8_t* row, long in) {
    for (long i = 0; i < in; i += i % 8 ? 6 : 2) {
        int up = 0, down = 0;
        for (const long n : {i, i + 1, i + 4, i + 5})
            if (n < in) (row[n] > 0 ? up : down) += row[n];
        if (up > kSameSign || -down > kSameSign) return false;
    }
    return true;
}

bool is_finite(Kind kind, const uint8_t* value) {
    uint32_t bits = 0;
    if (kind == Kind::f32) std::memcpy(&bits, value, 4);
    if (kind == Kind::bf16) std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, value, 2);
    return (bits & 0x7f800000) != 0x7f800000;
}

constexpr long kLargest = 1L << 24;  // of any size: their products stay far from overflow

}  // namespace

const Tensor& Tensors::at(const std::string& name) const {
    const auto found = held_.find(name);
    if (found == held_.end()) throw std::invalid_argument("tensor " + name + " is missing");
    return found->second;
}

const Tensor& Tensors::matrix(const std::string& name) const {
    const Tensor& tensor = at(name);
    const auto& shape = tensor.shape;
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > kLargest || shape[1] > kLargest)
        throw std::invalid_argument(name + " is " + words(shape) + "; expected a matrix");
    return tensor;
}

const float* Tensors::view(const std::string& name, const std::vector<long>& shape) const {
    const Tensor& tensor = at(name);
    if (tensor.type != "F32" || tensor.shape != shape)
        throw std::invalid_argument(name + " is " + tensor.type + words(tensor.shape) + "; expected F32" +
                                    words(shape));
    return static_cast<const float*>(tensor.data);
}

Buffer<float> Tensors::floats(const std::string& name, const std::vector<long>& shape) const {
    const float* values = view(name, shape);
    long count = 1;
    for (const long size : shape) count *= size;
    Buffer<float> copy(count + kAlign);
    for (long i = 0; i < count; ++i) {
        // Comparisons drop a NaN in silence, so that wrong vectors would look like right ones.
        if (!std::isfinite(values[i])) throw std::invalid_argument(name + " has a value that is no finite number");
        copy[i] = values[i];
    }
    return copy;
}

Linear::Linear(const Tensors& tensors, const std::string& name, const Kernels& kernels) : kernels_(kernels) {
    const Tensor& weight = tensors.matrix(name + ".weight");
    kind_ = kind_of(name + ".weight", weight.type);
    if (kind_ == Kind::bf16 && !kernels.gemm_bf16)
        throw std::invalid_argument(std::string("level ") + kernels.level + " has no bf16 products");
    out_ = static_cast<int>(weight.shape[0]);
    in_ = static_cast<int>(weight.shape[1]);
    bias_ = tensors.has(name + ".bias") ? tensors.floats(name + ".bias", {out_}) : Buffer<float>(padded(out_));
    if (kind_ == Kind::i8) {
        scale_ = tensors.floats(name + ".scale", {out_});
        sums_.reserve(padded(out_));
        if (tensors.has(name + ".smoothing")) {
            factors_ = tensors.floats(name + ".smoothing", {in_});
            for (int i = 0; i < in_; ++i) {
                if (!(factors_[i] > 0)) throw std::invalid_argument(name + ".smoothing has a factor that is not above 0");
                factors_[i] = 1.0f / factors_[i];
            }
        }
    }
    pack(name, weight);
}

void Linear::pack(const std::string& name, const Tensor& weight) {
    const int group = group_of(kind_), panel = kernels_.panel;
    const long size = this->size(), grouped = this->grouped();
    const auto* from = static_cast<const uint8_t*>(weight.data);
    weights_.reserve(padded(out_) * grouped * size);
    for (long o = 0; o < out_; ++o) {
        int32_t total = 0;
        for (long i = 0; i < in_; ++i) {
            // [out / panel][in / group][output of the panel][input of the group]
            const long at = o / panel * panel * grouped + i / group * group * panel + o % panel * group + i % group;
            if (!is_finite(kind_, from + (o * in_ + i) * size))
                throw std::invalid_argument(name + ".weight has a value that is no finite number");
            std::memcpy(weights_.data() + at * size, from + (o * in_ + i) * size, static_cast<std::size_t>(size));
            if (kind_ == Kind::i8) total += static_cast<int8_t>(from[o * in_ + i]);
        }
        if (kind_ != Kind::i8) continue;
        sums_[o] = total;
        if (!fits_16_bits(reinterpret_cast<const int8_t*>(from + o * in_), in_))
            throw std::invalid_argument(name + ": int8 weights of output " + std::to_string(o) +
                                        " do not fit 16-bit sums");
    }
}

void Linear::prepare(const float* x, long row, Inputs& inputs) const {
    if (kind_ == Kind::bf16) kernels_.to_bf16(x, in_, inputs.bf16.data() + row * row_stride(in_));
    if (kind_ == Kind::i8)
        inputs.steps[row] = kernels_.quantise(x, factors_.data(), in_, inputs.i8.data() + row * row_stride(in_));
}

void Linear::apply(const float* x, long ldx, const Inputs& inputs, int rows, float* c, Team& team) const {
    const long ld = row_stride(in_), ldc = stride();
    team.share(padded(out_) / kAlign, [&](long from, long to) {  // in whole panels
        const long at = from * kAlign;
        const bool bytes = kind_ == Kind::i8;
        const Packed part{in_, static_cast<int>((to - from) * kAlign), weights_.data() + at * grouped() * size(),
                          bias_.data() + at, bytes ? scale_.data() + at : nullptr, bytes ? sums_.data() + at : nullptr};
        if (kind_ == Kind::f32) kernels_.gemm_f32(x, ldx, rows, part, c + at, ldc);
        if (kind_ == Kind::bf16) kernels_.gemm_bf16(inputs.bf16.data(), ld, rows, part, c + at, ldc);
        if (bytes) kernels_.gemm_i8(inputs.i8.data(), ld, rows, inputs.steps.data(), part, c + at, ldc);
    });
}

}  // namespace sentport
