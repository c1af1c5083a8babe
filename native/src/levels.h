// Which CPU levels there are, which of them this CPU runs, and the proof that their kernels compute what they should.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace sentport {

// Names of the levels that this CPU, and its operating system, run; the best last.
std::vector<std::string> levels();

// The kernels of a level; "plain" runs everywhere. Throws std::invalid_argument for one that this CPU does not run.
Kernels kernels_of(const std::string& level);

// Sizes that kernels are checked at.
struct Sizes {
    int rows;
    int in;
    int out;
    int heads;
    int head;
    unsigned seed;
};

// Compares every kernel of a level with its scalar reference; throws std::runtime_error that names the first one that
// differs, or whose rows depend on their neighbours.
void check(const Kernels& kernels, const Sizes& sizes);

// The same for 1 to 130 rows, or every so manieth of them, each with other odd sizes: 1 to 16 heads, widths on both
// sides of a vector, a panel and a block of inputs.
void check_all(const Kernels& kernels, int every = 1);

}  // namespace sentport
