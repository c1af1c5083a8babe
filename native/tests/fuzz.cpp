// Random models and batches, good and malformed, for a build with sanitizers: fuzz SECONDS [SEED].
//
// Good ones: every vector is finite, the same bits alone, in company, in other blocks, and on more threads, of which
// several call one model at once. Malformed ones: refused by std::invalid_argument, whatever is wrong with them.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "levels.h"
#include "model.h"

using namespace sentport;

namespace {

std::mt19937 random_bits;

int draw(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_bits); }

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "fuzz: %s\n", what);
    std::abort();
}

// Arrays that live as long as the model.
struct Arrays {
    std::vector<std::vector<float>> floats;
    std::vector<std::vector<uint8_t>> bytes;
    Tensors tensors;
    std::vector<std::string> names;

    void add(const std::string& name, std::vector<long> shape) {
        long count = 1;
        for (const long size : shape) count *= size;
        std::normal_distribution<float> normal(0.0f, 0.3f);
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = normal(random_bits);
        floats.push_back(std::move(values));
        put(name, {"F32", std::move(shape), floats.back().data()});
    }
    void put(const std::string& name, Tensor tensor) {
        tensors.add(name, std::move(tensor));
        names.push_back(name);
    }
    void linear(const std::string& name, int in, int out, bool may_be_small) {
        const int kind = may_be_small ? draw(0, 2) : 0;
        if (kind == 0) {
            add(name + ".weight", {out, in});
        } else {
            std::vector<uint8_t> raw(static_cast<std::size_t>(out) * in * (kind == 1 ? 2 : 1));
            for (std::size_t n = 0; n < raw.size(); ++n)  // of bf16, the upper byte of numbers around one
                raw[n] = static_cast<uint8_t>(kind == 1 ? (n % 2 ? 0x3e : draw(0, 255)) : draw(-kSameSign / 4, kSameSign / 4));
            bytes.push_back(std::move(raw));
            put(name + ".weight", {kind == 1 ? "BF16" : "I8", {out, in}, bytes.back().data()});
            if (kind == 2) add(name + ".scale", {out});
            if (kind == 2) add(name + ".smoothing", {in});
            if (kind == 2)  // which divides
                for (float& value : floats.back()) value = 0.1f + std::fabs(value);
        }
        if (draw(0, 3)) add(name + ".bias", {out});
    }
    void norm(const std::string& name, int width) {
        add(name + ".weight", {width});
        add(name + ".bias", {width});
    }
};

struct Case {
    Arrays arrays;
    Description description;
    int vocabulary, positions, types;
};

void make(Case& c) {
    Arrays& a = c.arrays;
    const bool wide = !draw(0, 5);
    const int heads = draw(1, wide ? 3 : 16), width = heads * (wide ? draw(40, 130) : draw(1, 9));
    const int embedded = draw(0, 3) ? width : draw(1, 40);
    const int inner = draw(1, 150), layers = draw(1, 2);
    c.vocabulary = draw(2, 60);
    c.positions = draw(4, 300);
    c.types = draw(0, 3);
    a.floats.reserve(1000);
    a.bytes.reserve(1000);
    a.add("embeddings.word", {c.vocabulary, embedded});
    a.add("embeddings.position", {c.positions, embedded});
    if (c.types) a.add("embeddings.type", {c.types, embedded});
    a.norm("embeddings.norm", embedded);
    if (embedded != width) a.linear("embeddings.projection", embedded, width, true);
    if (draw(0, 1)) a.add("attention.relative", {heads, 2 * c.positions - 1});
    for (int n = 0; n < layers; ++n) {
        const std::string name = "layers." + std::to_string(n) + ".";
        a.linear(name + "qkv", width, 3 * width, true);
        a.linear(name + "output", width, width, true);
        a.linear(name + "up", width, inner, true);
        a.linear(name + "down", inner, width, true);
        a.norm(name + "attention_norm", width);
        a.norm(name + "output_norm", width);
    }
    c.description = {layers, heads, draw(0, 2) ? "gelu" : draw(0, 1) ? "gelu_tanh" : "relu", 1e-5f, -1, {}, {}};
    if (draw(0, 1)) c.description.pad_id = draw(0, 1);
    const std::vector<std::string> modes{"mean", "cls", "max"};
    for (int n = draw(1, 3); n; --n) c.description.pooling.push_back(modes[static_cast<std::size_t>(draw(0, 2))]);
    int dim = width * static_cast<int>(c.description.pooling.size());
    for (int n = 0, count = draw(0, 3); n < count; ++n) {
        const std::string name = "modules." + std::to_string(n);
        const int kind = draw(0, 3), next = draw(1, 40);
        if (kind == 0) a.linear(name, dim, next, false);
        if (kind == 1) a.norm(name, dim);
        if (kind == 0) c.description.modules.push_back({"Dense", "Tanh"});
        if (kind == 1) c.description.modules.push_back({"LayerNorm", ""});
        if (kind == 2) c.description.modules.push_back({"Normalize", ""});
        const int cut = draw(1, dim);
        if (kind == 3) c.description.modules.push_back({"Truncate", std::to_string(cut)});
        dim = kind == 0 ? next : kind == 3 ? cut : dim;
    }
}

struct Tokens {
    std::vector<int64_t> ids, types, pooled;
    std::vector<int32_t> lengths;
    bool has_types, has_pooled;

    Batch batch() const {
        return {ids.data(), static_cast<long>(ids.size()), lengths.data(), static_cast<long>(lengths.size()),
                has_types ? types.data() : nullptr, has_pooled ? pooled.data() : nullptr};
    }
};

Tokens make_tokens(const Case& c) {
    Tokens t;
    t.has_types = draw(0, 1);
    t.has_pooled = draw(0, 1);
    // Positions of RoBERTa start behind the pad's.
    const int longest = std::max(1, c.positions - 2);
    for (int row = draw(0, 8); row; --row) {
        const int length = draw(0, 5) ? draw(0, std::min(longest, 20)) : draw(0, longest);
        t.lengths.push_back(length);
        for (int n = 0; n < length; ++n) {
            t.ids.push_back(draw(0, c.vocabulary - 1));
            t.types.push_back(draw(0, std::max(0, c.types - 1)));
            t.pooled.push_back(draw(0, 2) != 0);
        }
    }
    return t;
}

std::vector<float> run(const Model& model, const Batch& batch, int threads, long block) {
    std::vector<float> out(static_cast<std::size_t>(batch.rows * model.dim()));
    model.run(batch, threads, block, out.data());
    return out;
}

void check_vectors(const Case& c, const Model& model) {
    const Tokens tokens = make_tokens(c);
    const Batch batch = tokens.batch();
    const auto wanted = run(model, batch, 1, 1 << 20);
    for (const float value : wanted) require(std::isfinite(value), "a vector is not finite");
    std::vector<std::vector<float>> found(3);
    std::vector<std::thread> callers;
    for (auto& vectors : found) {
        const int threads = draw(1, 4), block = draw(1, 40);
        callers.emplace_back([&, threads, block] { vectors = run(model, batch, threads, block); });
    }
    for (std::thread& caller : callers) caller.join();
    for (const auto& vectors : found) require(vectors == wanted, "blocks or threads change a vector");
    long token = 0;
    for (long row = 0; row < batch.rows; token += batch.lengths[row++]) {
        const Batch alone{batch.ids + token, batch.lengths[row], batch.lengths + row, 1,
                          batch.types ? batch.types + token : nullptr, batch.pooled ? batch.pooled + token : nullptr};
        const auto vector = run(model, alone, 1, 100);
        require(std::equal(vector.begin(), vector.end(), wanted.begin() + row * model.dim()), "company changes a vector");
    }
}

template <class F>
void must_refuse(F f, const char* what) {
    try {
        f();
    } catch (const std::invalid_argument&) {
        return;
    }
    require(false, what);
}

void check_bad_batches(const Case& c, const Model& model) {
    Tokens tokens = make_tokens(c);
    if (tokens.ids.empty()) return;
    const auto at = static_cast<std::size_t>(draw(0, static_cast<int>(tokens.ids.size()) - 1));
    const int kind = draw(0, 4);
    if (kind == 0) tokens.ids[at] = draw(0, 1) ? -1 - draw(0, 1000) : c.vocabulary + draw(0, 1000);
    if (kind == 1) tokens.has_types = true, tokens.types[at] = draw(0, 1) ? -1 : std::max(1, c.types);
    if (kind == 2) tokens.lengths[0] += draw(0, 1) ? 1 : -1000;
    if (kind == 3) tokens.lengths.push_back(1 << 30);
    if (kind == 4) {
        tokens.lengths = {c.positions + 1};
        tokens.ids.assign(static_cast<std::size_t>(c.positions) + 1, c.vocabulary - 1);
        tokens.has_types = tokens.has_pooled = false;
    }
    must_refuse([&] { run(model, tokens.batch(), 2, 10); }, "a malformed batch was taken");
}

void check_bad_models(Case& c, const std::string& level) {
    const std::string name = c.arrays.names[static_cast<std::size_t>(draw(0, static_cast<int>(c.arrays.names.size()) - 1))];
    Tensor tensor = c.arrays.tensors.at(name);
    const int kind = draw(0, 3);
    if (kind == 0) tensor.type = "F16";
    if (kind == 1) tensor.shape[0] += 1;
    if (kind == 2) tensor.shape.push_back(1);
    if (kind == 3) tensor.shape = {};
    // One row more of a table is a table still; and so is a longer position table without relative bias.
    if (kind == 1 && (name == "embeddings.word" || name == "embeddings.type" || name == "embeddings.position")) return;
    if (kind == 1 && name.rfind("modules.", 0) == 0) return;  // and vectors of a module's may be longer
    long count = 1;
    for (const long size : tensor.shape) count *= size;
    const std::vector<float> numbers(static_cast<std::size_t>(count));  // a matrix is read before its neighbours are
    if (kind == 1) tensor.data = numbers.data();
    Tensors tensors = c.arrays.tensors;
    tensors.add(name, tensor);
    must_refuse([&] { Model(level, tensors, c.description); }, ("a malformed model was taken: " + name).c_str());
}

// What the tensors do not say, wrong in one place.
void check_bad_descriptions(const Case& c, const std::string& level) {
    const int most = std::numeric_limits<int>::max();
    const std::vector<std::function<void(Description&)>> faults{
        [&](Description& d) { d.layers = draw(0, 1) ? draw(-1, 0) : d.layers + draw(1, 1 << 30); },
        [&](Description& d) { d.heads = draw(0, 1) ? draw(-1, 0) : most; },
        [&](Description& d) { d.activation = "swish"; },
        [&](Description& d) { d.epsilon = draw(0, 1) ? std::nanf("") : -1e-5f; },
        [&](Description& d) { d.pad_id = draw(0, 1) ? c.positions : most; },
        [&](Description& d) { d.pooling.assign(draw(0, 1) ? 0 : 1 << 20, "mean"); },
        [&](Description& d) { d.pooling[0] = "median"; },
        [&](Description& d) { d.modules.push_back({"Truncate", draw(0, 1) ? "0" : "99999999999999999999"}); },
        [&](Description& d) { d.modules.push_back({draw(0, 1) ? "Dense" : "Residual", "Tanh"}); },
    };
    Description description = c.description;
    const auto fault = static_cast<std::size_t>(draw(0, static_cast<int>(faults.size()) - 1));
    faults[fault](description);
    must_refuse([&] { Model(level, c.arrays.tensors, description); },
                ("a malformed description was taken: " + std::to_string(fault)).c_str());
}

}  // namespace

int main(int count, char** arguments) {
    const double seconds = count > 1 ? std::atof(arguments[1]) : 10;
    random_bits.seed(count > 2 ? static_cast<unsigned>(std::atoi(arguments[2])) : 1u);
    std::vector<std::string> known = levels();
    known.push_back("plain");
    for (const std::string& level : known) check_all(kernels_of(level), level == "plain" ? 10 : 1);
    const auto start = std::chrono::steady_clock::now();
    int rounds = 0;
    for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds; ++rounds) {
        const std::string level = known[static_cast<std::size_t>(draw(0, static_cast<int>(known.size()) - 1))];
        Case c;
        make(c);
        const Model model(level, c.arrays.tensors, c.description);
        for (int n = 0; n < 4; ++n) check_vectors(c, model);
        for (int n = 0; n < 4; ++n) check_bad_batches(c, model);
        for (int n = 0; n < 4; ++n) check_bad_models(c, level);
        for (int n = 0; n < 4; ++n) check_bad_descriptions(c, level);
    }
    std::printf("fuzz: %d models\n", rounds);
}
