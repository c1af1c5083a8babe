#include "levels.h"

#include <stdexcept>

namespace sentport {

namespace {

struct Level {
    const char* name;
    bool runs;
    Kernels (*kernels)();
};

// __builtin_cpu_supports also asks whether the operating system saves the wider registers.
std::vector<Level> known() {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    return {
        {"plain", true, kernels_plain},
        {"avx2", avx2, kernels_avx2},
        {"avx-vnni", avx2 && __builtin_cpu_supports("avxvnni"), kernels_avx_vnni},
        {"avx512", avx512, kernels_avx512},
        {"avx512-vnni", vnni, kernels_avx512_vnni},
        {"avx512-bf16", vnni && __builtin_cpu_supports("avx512bf16"), kernels_avx512_bf16},
    };
}

}  // namespace

std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (const Level& level : known())
        if (level.runs && level.kernels != kernels_plain) names.push_back(level.name);
    return names;
}

Kernels kernels_of(const std::string& name) {
    for (const Level& level : known())
        if (name == level.name) {
            if (!level.runs) throw std::invalid_argument("this CPU does not run level " + name);
            return level.kernels();
        }
    throw std::invalid_argument("level " + name + " is unknown");
}

}  // namespace sentport
