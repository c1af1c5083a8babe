// The Python module: arrays checked and handed over, the interpreter lock released while vectors are computed.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "levels.h"
#include "model.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace sentport;

namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Lengths = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Vectors = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// As safetensors names it; bf16 comes as the 16 bits that it is, since numpy has no such type.
std::string type_of(const AnyArray& array) {
    if (array.dtype() == nb::dtype<float>()) return "F32";
    if (array.dtype() == nb::dtype<uint16_t>()) return "BF16";
    if (array.dtype() == nb::dtype<int8_t>()) return "I8";
    return "of another type";
}

class PythonModel {
public:
    PythonModel(const std::string& level, const nb::dict& arrays, int layers, int heads, std::string activation,
                float epsilon, int pad_id, std::vector<std::string> pooling,
                std::vector<std::pair<std::string, std::string>> modules) {
        Tensors tensors;
        for (const auto& [name, value] : arrays) {
            held_.push_back(nb::cast<AnyArray>(value));
            const AnyArray& array = held_.back();
            Tensor tensor{type_of(array), {}, array.data()};
            for (std::size_t axis = 0; axis < array.ndim(); ++axis)
                tensor.shape.push_back(static_cast<long>(array.shape(axis)));
            tensors.add(nb::cast<std::string>(name), std::move(tensor));
        }
        model_ = std::make_unique<Model>(
            level, tensors,
            Description{layers, heads, std::move(activation), epsilon, pad_id, std::move(pooling), std::move(modules)});
        // What was copied goes back to the caller; the table of words stays where it is.
        const AnyArray words = nb::cast<AnyArray>(arrays["embeddings.word"]);
        held_.assign(1, words);
    }

    int dim() const { return model_->dim(); }

    Vectors run(const Ids& ids, const Lengths& lengths, const std::optional<Ids>& types,
                const std::optional<Ids>& pooled, int threads, long block_tokens) const {
        for (const auto* optional : {&types, &pooled})
            if (*optional && (*optional)->shape(0) != ids.shape(0))
                throw std::invalid_argument("types and pooled have one value for each id, or are None");
        if (threads < 1 || block_tokens < 1) throw std::invalid_argument("threads and block_tokens are 1 or more");
        const auto rows = static_cast<long>(lengths.shape(0));
        auto* out = new float[static_cast<std::size_t>(std::max(1L, rows * dim()))];
        const nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
        const Batch batch{ids.data(), static_cast<long>(ids.shape(0)), lengths.data(), rows,
                          types ? types->data() : nullptr, pooled ? pooled->data() : nullptr};
        {
            const nb::gil_scoped_release released;
            model_->run(batch, threads, block_tokens, out);
        }
        return Vectors(out, {static_cast<std::size_t>(rows), static_cast<std::size_t>(dim())}, owner);
    }

private:
    std::vector<AnyArray> held_;
    std::unique_ptr<Model> model_;
};

// Floating-point or integer operations a second (two a multiply-add) of one thread, in a level's product at
// [rows, in] x [in, out]: the ceiling that encoding is measured against.
double speed(const std::string& level, const std::string& type, int rows, int in, int out, int repeats) {
    const std::vector<uint8_t> zeros(static_cast<std::size_t>(in) * out * 4);
    const std::vector<float> scale(static_cast<std::size_t>(out), 1.0f);
    Tensors tensors;
    tensors.add("l.weight", {type, {out, in}, zeros.data()});
    tensors.add("l.scale", {"F32", {out}, scale.data()});
    const Linear layer(tensors, "l", kernels_of(level));
    Buffer<float> x(rows * row_stride(in)), c(rows * layer.stride());
    Inputs inputs;
    inputs.bf16.reserve(rows * row_stride(in));
    inputs.i8.reserve(rows * row_stride(in));
    inputs.steps.reserve(rows);
    const nb::gil_scoped_release released;
    const auto start = std::chrono::steady_clock::now();
    Team alone(1);
    for (int n = 0; n < repeats; ++n) layer.apply(x.data(), row_stride(in), inputs, rows, c.data(), alone);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return 2.0 * rows * in * out * repeats / seconds.count();
}

}  // namespace

NB_MODULE(_native, module) {
    nb::set_leak_warnings(false);  // a model that is alive when Python ends is no leak
    module.def("levels", &levels);
    module.def(
        "check", [](const std::string& level, int every) { check_all(kernels_of(level), std::max(1, every)); },
        "level"_a, "every"_a);
    module.def("speed", &speed, "level"_a, "type"_a, "rows"_a, "inputs"_a, "outputs"_a, "repeats"_a);
    nb::class_<PythonModel>(module, "Model")
        .def(nb::init<const std::string&, const nb::dict&, int, int, std::string, float, int, std::vector<std::string>,
                      std::vector<std::pair<std::string, std::string>>>(),
             nb::kw_only(), "level"_a, "tensors"_a, "layers"_a, "heads"_a, "activation"_a, "epsilon"_a, "pad_id"_a,
             "pooling"_a, "modules"_a)
        .def_prop_ro("dim", &PythonModel::dim)
        .def("run", &PythonModel::run, "ids"_a, "lengths"_a, "types"_a.none(), "pooled"_a.none(), "threads"_a,
             "block_tokens"_a);
}
