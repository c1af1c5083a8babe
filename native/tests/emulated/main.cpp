// Every kernel of the levels beyond AVX2 against its scalar reference, their instructions computed in plain C++.

#include <cstdio>
#include <exception>

#include "levels.h"

using namespace sentport;

int main() {
    try {
        for (const Kernels& kernels : {kernels_avx_vnni(), kernels_avx512(), kernels_avx512_vnni(), kernels_avx512_bf16()}) {
            unsigned seed = 0;
            for (const int rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 130})
                for (const int in : {1, 3, 16, 31, 64, 100, 390})
                    for (const int out : {1, 63, 64, 65, 130}) {
                        ++seed;
                        const int number = static_cast<int>(seed);
                        check(kernels, {rows, in, out, 1 + number % 16, 1 + 7 * number % 40, seed});
                    }
            std::printf("%s: %u sizes\n", kernels.level, seed);
        }
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
}
