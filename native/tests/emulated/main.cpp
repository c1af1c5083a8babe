// Every kernel of the levels beyond AVX2 against its scalar reference, their instructions computed in plain C++.

#include <cstdio>
#include <exception>

#include "levels.h"

using namespace sentport;

int main() {
    try {
        for (const Kernels& kernels : {kernels_avx_vnni(), kernels_avx512(), kernels_avx512_vnni(), kernels_avx512_bf16()}) {
            check_all(kernels);
            std::printf("%s\n", kernels.level);
        }
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
}
