#include "model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "levels.h"

namespace sentport {

struct Model::Scratch {
    Buffer<float> x;       // [tokens, width] the hidden states
    Buffer<float> wide;    // [tokens, 3 x width or inner]
    Buffer<float> narrow;  // [tokens, width]
    Buffer<float> attention;
    Buffer<float> pooled, next;  // [rows, width of a module]
    Inputs inputs;
};

namespace {

constexpr long kFewTokens = 64;  // blocks of 32 run at 0.8 of the speed of these (MiniLM, fp32, AVX2), of 16 at 0.65
constexpr float kModuleEpsilon = 1e-5f;  // of torch's LayerNorm
constexpr float kNormEpsilon = 1e-12f;   // divides a vector of zeros, as in torch's normalize

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

void activate_vector(const std::string& name, float* x, int n) {
    for (int i = 0; i < n; ++i) {
        if (name == "Tanh") x[i] = std::tanh(x[i]);
        if (name == "ReLU") x[i] = std::max(x[i], 0.0f);
        if (name == "Sigmoid") x[i] = 1.0f / (1.0f + std::exp(-x[i]));
        if (name == "GELU") x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
    }
}

}  // namespace

Model::Model(const std::string& level, const Tensors& tensors, Description description)
    : kernels_(kernels_of(level)), description_(std::move(description)) {
    const auto rows_of = [&](const std::string& name) { return tensors.matrix(name).shape[0]; };
    embedded_ = static_cast<int>(tensors.matrix("embeddings.word").shape[1]);
    vocabulary_ = rows_of("embeddings.word");
    words_ = tensors.view("embeddings.word", {vocabulary_, embedded_});
    positions_ = rows_of("embeddings.position");
    places_ = tensors.floats("embeddings.position", {positions_, embedded_});
    if (tensors.has("embeddings.type")) {
        types_ = rows_of("embeddings.type");
        kinds_ = tensors.floats("embeddings.type", {types_, embedded_});
    }
    embedding_norm_ = read_norm(tensors, "embeddings.norm", embedded_);
    width_ = embedded_;
    if (tensors.has("embeddings.projection.weight")) {
        projection_ = std::make_unique<Linear>(tensors, "embeddings.projection", kernels_);
        if (projection_->in() != embedded_) refuse("embeddings.projection does not take the embeddings");
        width_ = projection_->out();
    }
    const auto& d = description_;
    if (d.layers < 1 || d.layers > 1000 || d.heads < 1 || width_ % d.heads)
        refuse("a model of " + std::to_string(d.layers) + " layers and " + std::to_string(d.heads) +
               " heads cannot have width " + std::to_string(width_));
    if (!(d.epsilon > 0 && d.epsilon < 1)) refuse("epsilon " + std::to_string(d.epsilon) + " is not a small number");
    if (d.pad_id >= positions_)  // positions are counted from there on
        refuse("pad_id " + std::to_string(d.pad_id) + " has no position; there are " + std::to_string(positions_));
    if (d.activation != "gelu" && d.activation != "gelu_tanh" && d.activation != "relu")
        refuse("activation " + d.activation + " is unknown; known: gelu, gelu_tanh, relu");
    if (tensors.has("attention.relative"))
        relative_ = tensors.floats("attention.relative", {d.heads, 2 * positions_ - 1});
    for (int n = 0; n < d.layers; ++n) {
        const std::string name = "layers." + std::to_string(n) + ".";
        Layer layer{Linear(tensors, name + "qkv", kernels_),  Linear(tensors, name + "output", kernels_),
                    Linear(tensors, name + "up", kernels_),   Linear(tensors, name + "down", kernels_),
                    read_norm(tensors, name + "attention_norm", width_),
                    read_norm(tensors, name + "output_norm", width_)};
        if (layer.qkv.in() != width_ || layer.qkv.out() != 3 * width_ || layer.output.in() != width_ ||
            layer.output.out() != width_ || layer.up.in() != width_ || layer.down.in() != layer.up.out() ||
            layer.down.out() != width_)
            refuse(name + " has weights that do not fit each other, or width " + std::to_string(width_));
        inner_ = std::max({inner_, layer.up.out(), 3 * width_, embedded_});
        layers_.push_back(std::move(layer));
    }
    read_modules(tensors);
    sentport::check(kernels_, {13, 71, 83, 3, 20, 1});  // some 2 ms: a level that errs is not used
}

Model::~Model() = default;

Model::Norm Model::read_norm(const Tensors& tensors, const std::string& name, long width) const {
    return {tensors.floats(name + ".weight", {width}), tensors.floats(name + ".bias", {width})};
}

void Model::read_modules(const Tensors& tensors) {
    for (const std::string& mode : description_.pooling)
        if (mode != "mean" && mode != "cls" && mode != "max") refuse("pooling " + mode + " is unknown");
    if (description_.pooling.empty() || description_.pooling.size() > 3)
        refuse(std::to_string(description_.pooling.size()) + " modes of pooling; expected one to three");
    dim_ = width_ * static_cast<int>(description_.pooling.size());
    pooled_ = row_stride(dim_);
    for (std::size_t n = 0; n < description_.modules.size(); ++n) {
        const auto& [kind, detail] = description_.modules[n];
        const std::string name = "modules." + std::to_string(n);
        Module module{kind, detail, nullptr, {}, dim_};
        if (kind == "Dense") {
            module.linear = std::make_unique<Linear>(tensors, name, kernels_);
            if (module.linear->kind() != Kind::f32) refuse(name + " is not fp32");
            if (module.linear->in() != dim_) refuse(name + " does not take vectors of " + std::to_string(dim_));
            module.width = module.linear->out();
            const std::vector<std::string> known{"Identity", "Tanh", "ReLU", "Sigmoid", "GELU"};
            if (std::find(known.begin(), known.end(), detail) == known.end()) refuse(name + ": " + detail);
        } else if (kind == "LayerNorm") {
            module.norm = read_norm(tensors, name, dim_);
        } else if (kind == "Truncate") {
            const long width = std::strtol(detail.c_str(), nullptr, 10);
            if (width < 1 || width > dim_) refuse(name + " cuts vectors to " + detail);
            module.width = static_cast<int>(width);
        } else if (kind != "Normalize") {
            refuse("module " + kind + " is unknown; known: Dense, LayerNorm, Normalize, Truncate");
        }
        dim_ = module.width;
        pooled_ = std::max(pooled_, row_stride(dim_));
        modules_.push_back(std::move(module));
    }
}

// Everything that could lead out of a table.
void Model::check(const Batch& batch) const {
    long total = 0;
    for (long row = 0; row < batch.rows; ++row) {
        if (batch.lengths[row] < 0) refuse("row " + std::to_string(row) + " has a negative length");
        int counted = 0;
        for (long n = 0; n < batch.lengths[row]; ++n, ++total) {
            const auto where = [&] { return "token " + std::to_string(n) + " of row " + std::to_string(row); };
            if (total >= batch.total) refuse("the lengths add up to more than the ids");
            if (batch.ids[total] < 0 || batch.ids[total] >= vocabulary_)
                refuse(where() + " has id " + std::to_string(batch.ids[total]) + "; the vocabulary has " +
                       std::to_string(vocabulary_));
            const long type = batch.types ? batch.types[total] : 0;
            if (type < 0 || type >= std::max(types_, 1L)) refuse(where() + " has type " + std::to_string(type));
            const int place = description_.pad_id < 0 ? static_cast<int>(n) : position(batch, total, counted);
            if (place >= positions_ || n >= positions_)
                refuse("row " + std::to_string(row) + " has more tokens than the model has positions");
        }
    }
    if (total != batch.total) refuse("the lengths add up to less than the ids");
}

// RoBERTa's position of a token; `counted` tokens of its row before it were no pads.
int Model::position(const Batch& batch, long token, int& counted) const {
    if (batch.ids[token] == description_.pad_id) return description_.pad_id;
    return description_.pad_id + ++counted;
}

void Model::run(const Batch& batch, int threads, long block_tokens, float* out) const {
    check(batch);
    // As many blocks for each thread, all about as large: with one more than that, most threads would wait for it.
    const long block = std::min(block_tokens, std::max(batch.total, 1L));
    const long rounds = (batch.total + threads * block - 1) / (threads * block);
    const long parts = batch.total > block ? std::min(threads * rounds, batch.total / std::min(block, kFewTokens)) : 1;
    std::vector<Block> blocks;
    for (long row = 0, token = 0, last = -1; row < batch.rows; ++row) {
        const long length = batch.lengths[row];
        const long part = (2 * token + length) * parts / (2 * batch.total + 1);  // where the middle of the row lies
        if (part != last) blocks.push_back({row, 0, token, 0});
        last = part;
        blocks.back().rows += 1;
        blocks.back().tokens += length;
        token += length;
    }
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failing;
    const auto work = [&] {
        try {
            const int most = static_cast<int>(padded(inner_) / kAlign);  // parts that the widest layer has
            Team team(blocks.size() == 1 ? std::min(threads, most) : 1);
            std::unique_ptr<Scratch> scratch = take_scratch();
            for (std::size_t n; (n = next++) < blocks.size();) {
                embed(batch, blocks[n], *scratch, team);
                for (const Layer& layer : layers_) encode(layer, batch, blocks[n], *scratch, team);
                scratch->pooled.reserve(blocks[n].rows * pooled_);
                scratch->next.reserve(blocks[n].rows * pooled_);
                pool(batch, blocks[n], scratch->x.data(), scratch->pooled.data());
                finish(blocks[n], *scratch, out + blocks[n].row * dim_, team);
            }
            give_scratch(std::move(scratch));
        } catch (...) {
            const std::lock_guard<std::mutex> lock(failing);
            failure = std::current_exception();
        }
    };
    // Threads of one call alone: starting one takes some 20 us, and a fork between calls finds none.
    std::vector<std::thread> others;
    others.reserve(std::min(static_cast<std::size_t>(threads), blocks.size()));
    try {
        for (int n = 1; n < threads && n < static_cast<int>(blocks.size()); ++n) others.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads to be had: those that run do all blocks.
    }
    work();
    for (std::thread& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
}

void Model::embed(const Batch& batch, const Block& block, Scratch& s, Team& team) const {
    const long stride = row_stride(width_), wide = row_stride(inner_);
    // A vector more, since attention reads whole vectors of a head's last values.
    s.x.reserve(block.tokens * stride);
    s.narrow.reserve(block.tokens * stride);
    s.wide.reserve(block.tokens * wide + kAlign);
    s.inputs.bf16.reserve(block.tokens * wide);
    s.inputs.i8.reserve(block.tokens * wide);
    s.inputs.steps.reserve(block.tokens);
    float* into = projection_ ? s.wide.data() : s.x.data();
    const long into_stride = row_stride(embedded_);
    long token = block.token;
    for (long row = block.row; row < block.row + block.rows; ++row) {
        int counted = 0;
        for (int n = 0; n < batch.lengths[row]; ++n, ++token) {
            const int place = description_.pad_id < 0 ? n : position(batch, token, counted);
            const float* word = words_ + batch.ids[token] * embedded_;
            const float* where = places_.data() + static_cast<long>(place) * embedded_;
            const float* kind = kinds_.data() + (batch.types ? batch.types[token] * embedded_ : 0);
            float* x = into + (token - block.token) * into_stride;
            for (int i = 0; i < embedded_; ++i) x[i] = word[i] + (types_ ? kind[i] : 0.0f) + where[i];
            kernels_.norm(x, nullptr, embedding_norm_.gain.data(), embedding_norm_.shift.data(), embedded_,
                          description_.epsilon);
            if (!std::isfinite(x[0]))  // the norm spreads what is none over its row; the table is too large to look at
                refuse("the embedding of id " + std::to_string(batch.ids[token]) + " is not finite");
            if (projection_) projection_->prepare(x, token - block.token, s.inputs);
        }
    }
    if (projection_) projection_->apply(into, into_stride, s.inputs, static_cast<int>(block.tokens), s.x.data(), team);
}

void Model::encode(const Layer& layer, const Batch& batch, const Block& block, Scratch& s, Team& team) const {
    const int tokens = static_cast<int>(block.tokens);
    const long stride = row_stride(width_), qkv = layer.qkv.stride(), up = layer.up.stride();
    float *x = s.x.data(), *wide = s.wide.data(), *narrow = s.narrow.data();
    const auto each_token = [&](const auto& job) {
        team.share(tokens, [&](long from, long to) {
            for (long t = from; t < to; ++t) job(t);
        });
    };
    each_token([&](long t) { layer.qkv.prepare(x + t * stride, t, s.inputs); });
    layer.qkv.apply(x, stride, s.inputs, tokens, wide, team);
    for (long row = block.row, t = 0; row < block.row + block.rows; t += batch.lengths[row++]) {
        const int heads = description_.heads, length = batch.lengths[row];
        const long scratch = attention_scratch(length, width_ / heads);
        s.attention.reserve(scratch * (team.size() > 1 ? heads : 1));
        const auto attention = layer.qkv.kind() == Kind::bf16 ? kernels_.attention_bf16 : kernels_.attention_f32;
        team.share(heads, [&](long from, long to) {
            for (int h = static_cast<int>(from); h < to; ++h)
                attention(wide + t * qkv, qkv, length, h, heads, width_, relative_.data(), static_cast<int>(positions_),
                          narrow + t * stride, stride, s.attention.data() + from * scratch);
        });
    }
    each_token([&](long t) { layer.output.prepare(narrow + t * stride, t, s.inputs); });
    layer.output.apply(narrow, stride, s.inputs, tokens, wide, team);
    each_token([&](long t) {
        kernels_.norm(x + t * stride, wide + t * stride, layer.attention_norm.gain.data(),
                      layer.attention_norm.shift.data(), width_, description_.epsilon);
        layer.up.prepare(x + t * stride, t, s.inputs);
    });
    layer.up.apply(x, stride, s.inputs, tokens, wide, team);
    each_token([&](long t) {
        activate(wide + t * up, layer.up.out());
        layer.down.prepare(wide + t * up, t, s.inputs);
    });
    layer.down.apply(wide, up, s.inputs, tokens, narrow, team);
    each_token([&](long t) {
        kernels_.norm(x + t * stride, narrow + t * stride, layer.output_norm.gain.data(),
                      layer.output_norm.shift.data(), width_, description_.epsilon);
    });
}

void Model::activate(float* x, int n) const {
    if (description_.activation == "gelu") return kernels_.gelu_erf(x, n);
    if (description_.activation == "gelu_tanh") return kernels_.gelu_tanh(x, n);
    for (int i = 0; i < n; ++i) x[i] = std::max(x[i], 0.0f);
}

// A row without a token that takes part pools to zeros.
void Model::pool(const Batch& batch, const Block& block, const float* x, float* out) const {
    const long stride = row_stride(width_);
    long token = block.token;
    for (long row = 0; row < block.rows; ++row, out += pooled_) {
        const long end = token + batch.lengths[block.row + row];
        std::fill(out, out + pooled_, 0.0f);
        long count = 0;
        for (; token < end; ++token) {
            if (batch.pooled && !batch.pooled[token]) continue;
            const float* values = x + (token - block.token) * stride;
            for (std::size_t mode = 0; mode < description_.pooling.size(); ++mode) {
                const std::string& name = description_.pooling[mode];
                float* to = out + static_cast<long>(mode) * width_;
                if (name == "mean") std::transform(to, to + width_, values, to, std::plus<float>());
                else if (count == 0) std::copy_n(values, width_, to);
                else if (name == "max")
                    std::transform(to, to + width_, values, to, [](float x, float y) { return std::max(x, y); });
            }
            ++count;
        }
        for (std::size_t mode = 0; mode < description_.pooling.size(); ++mode)
            if (description_.pooling[mode] == "mean" && count)
                for (int i = 0; i < width_; ++i) out[static_cast<long>(mode) * width_ + i] /= static_cast<float>(count);
    }
}

// The modules behind pooling, in order, and the vectors to the caller.
void Model::finish(const Block& block, Scratch& s, float* out, Team& team) const {
    int width = width_ * static_cast<int>(description_.pooling.size());
    long stride = pooled_;
    for (const Module& module : modules_) {
        if (module.linear) {
            module.linear->apply(s.pooled.data(), stride, s.inputs, static_cast<int>(block.rows), s.next.data(), team);
            std::swap(s.pooled, s.next);
            stride = module.linear->stride();
        }
        for (long row = 0; row < block.rows; ++row) {
            float* x = s.pooled.data() + row * stride;
            if (module.kind == "Dense") activate_vector(module.detail, x, module.width);
            if (module.kind == "LayerNorm")
                kernels_.norm(x, nullptr, module.norm.gain.data(), module.norm.shift.data(), width, kModuleEpsilon);
            if (module.kind == "Normalize") {
                float squares = 0.0f;
                for (int i = 0; i < width; ++i) squares += x[i] * x[i];
                const float norm = std::max(std::sqrt(squares), kNormEpsilon);
                for (int i = 0; i < width; ++i) x[i] /= norm;
            }
        }
        width = module.width;
    }
    for (long row = 0; row < block.rows; ++row)
        std::copy_n(s.pooled.data() + row * stride, dim_, out + row * dim_);
}

// Neither waits for the lock: a child that was forked while another thread held it would wait for ever.
std::unique_ptr<Model::Scratch> Model::take_scratch() const {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || idle_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
}

void Model::give_scratch(std::unique_ptr<Scratch> scratch) const {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock) idle_.push_back(std::move(scratch));
}

}  // namespace sentport
