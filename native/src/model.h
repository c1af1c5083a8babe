// A BERT-shaped encoder and what stands behind it, from token ids to sentence vectors.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "linear.h"

namespace sentport {

// What the tensors do not say.
struct Description {
    int layers;
    int heads;
    std::string activation;  // gelu, gelu_tanh or relu
    float epsilon;           // of the encoder's norms
    // RoBERTa's positions: counted over ids that are not the pad's, from pad_id + 1 on. -1: 0, 1, 2, …
    int pad_id;
    std::vector<std::string> pooling;  // mean, cls, max; several stand beside each other
    // Modules on the sentence vector, and what belongs to them: Dense and its activation, LayerNorm, Normalize,
    // Truncate and its width.
    std::vector<std::pair<std::string, std::string>> modules;
};

// Rows of tokens end to end.
struct Batch {
    const int64_t* ids;      // [total]
    long total;
    const int32_t* lengths;  // [rows]
    long rows;
    const int64_t* types;    // [total], or null for zeros
    const int64_t* pooled;   // [total]: 0 where pooling leaves a token out; or null for all ones
};

// Safe to run from several threads; a forked child may go on using it, since no thread outlives a call.
class Model {
public:
    // Throws std::invalid_argument when a tensor is missing or has another shape than the others ask for. All are
    // copied but embeddings.word, which the caller keeps where it is.
    Model(const std::string& level, const Tensors& tensors, Description description);
    ~Model();

    int dim() const { return dim_; }

    // Vectors [rows, dim]. Rows are cut into blocks of some `block_tokens` or fewer, of which `threads` are computed at
    // once; a single one they share. Throws std::invalid_argument for an id, type or length out of range.
    void run(const Batch& batch, int threads, long block_tokens, float* out) const;

private:
    struct Norm {
        Buffer<float> gain, shift;
    };
    struct Layer {
        Linear qkv, output, up, down;
        Norm attention_norm, output_norm;
    };
    struct Module {
        std::string kind, detail;
        std::unique_ptr<Linear> linear;
        Norm norm;
        int width;  // of what comes out
    };
    struct Block {
        long row, rows, token, tokens;
    };
    struct Scratch;

    Norm read_norm(const Tensors& tensors, const std::string& name, long width) const;
    void read_modules(const Tensors& tensors);
    void check(const Batch& batch) const;
    int position(const Batch& batch, long token, int& counted) const;
    void embed(const Batch& batch, const Block& block, Scratch& s, Team& team) const;
    void encode(const Layer& layer, const Batch& batch, const Block& block, Scratch& s, Team& team) const;
    void activate(float* x, int n) const;
    void pool(const Batch& batch, const Block& block, const float* x, float* out) const;
    void finish(const Block& block, Scratch& s, float* out, Team& team) const;
    std::unique_ptr<Scratch> take_scratch() const;
    void give_scratch(std::unique_ptr<Scratch> scratch) const;

    Kernels kernels_;
    Description description_;
    int width_ = 0, embedded_ = 0, dim_ = 0, inner_ = 0;  // hidden size, the embeddings', the vectors', the widest
    long vocabulary_ = 0, positions_ = 0, types_ = 0, pooled_ = 0;
    const float* words_ = nullptr;  // the caller's: the largest table, and a file that processes share
    Buffer<float> places_, kinds_, relative_;
    Norm embedding_norm_;
    std::unique_ptr<Linear> projection_;  // where embeddings are narrower than the rest (ELECTRA)
    std::vector<Layer> layers_;
    std::vector<Module> modules_;
    // Memory of calls that are over, for those to come: as many as ever ran at once.
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace sentport
