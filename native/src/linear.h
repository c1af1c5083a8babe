// A linear layer: its weights packed for a level, and what has to be done to a row before they are applied.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "buffer.h"
#include "kernels.h"
#include "team.h"

namespace sentport {

// An array of the caller's, who keeps it: `type` is "F32", "BF16" or "I8" as in safetensors.
struct Tensor {
    std::string type;
    std::vector<long> shape;
    const void* data;
};

// Arrays by name, which throw std::invalid_argument, saying what was found and expected, when they are not as asked.
class Tensors {
public:
    void add(const std::string& name, Tensor tensor) { held_[name] = std::move(tensor); }
    bool has(const std::string& name) const { return held_.count(name) != 0; }
    const Tensor& at(const std::string& name) const;
    // A matrix whose sizes may be anything from 1 on.
    const Tensor& matrix(const std::string& name) const;
    // fp32 of exactly this shape, where the caller has it.
    const float* view(const std::string& name, const std::vector<long>& shape) const;
    // The same copied, with at least kAlign zeros behind it.
    Buffer<float> floats(const std::string& name, const std::vector<long>& shape) const;

private:
    std::map<std::string, Tensor> held_;
};

// Rows that are ready to be multiplied, in the type of the layer.
struct Inputs {
    Buffer<uint16_t> bf16;
    Buffer<uint8_t> i8;
    Buffer<Step> steps;
};

class Linear {
public:
    // `name`.weight [out, in] fp32, bf16 or int8, `name`.bias [out] or none; of int8 `name`.scale [out], and
    // `name`.smoothing [in], by which inputs are divided, or none.
    Linear(const Tensors& tensors, const std::string& name, const Kernels& kernels);

    Kind kind() const { return kind_; }
    int in() const { return in_; }
    int out() const { return out_; }
    long stride() const { return row_stride(out_); }

    // Row `row` of the inputs, from values that are to be multiplied; for fp32 nothing has to be done.
    void prepare(const float* x, long row, Inputs& inputs) const;
    // c [rows, out] of the prepared rows; `x`, rows `ldx` floats apart, is what fp32 takes. The team shares the outputs.
    void apply(const float* x, long ldx, const Inputs& inputs, int rows, float* c, Team& team) const;

private:
    void pack(const std::string& name, const Tensor& weight);
    long grouped() const { return (in_ + step_of(kind_) - 1L) / step_of(kind_) * step_of(kind_); }
    long size() const { return kind_ == Kind::f32 ? 4 : kind_ == Kind::bf16 ? 2 : 1; }

    Kernels kernels_;
    Kind kind_;
    int in_ = 0, out_ = 0;
    Buffer<uint8_t> weights_;
    Buffer<float> bias_, scale_, factors_;
    Buffer<int32_t> sums_;
};

}  // namespace sentport
