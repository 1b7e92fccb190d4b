/*
 * Which inputs are row numbers of a table. Embedding kernels read the row they are told to, wherever that is, so the numbers
 * are checked first.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_ID_RANGES_HPP
#define ETGENAI_SRC_EXECUTORCH_ID_RANGES_HPP

#include "etgenai_executorch.hpp"
#include "program.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace etgenai::executorch {

/** An input whose elements must be in 0 to rows-1. */
struct IdRange {
    std::size_t input = 0;
    std::int64_t rows = 0;
    /** i64 instead of i32. */
    bool wide = false;
};

/** The inputs of `method` that reach an embedding kernel unchanged. */
std::vector<IdRange> find_id_ranges(const Method &method);

/** Checks one execution. Throws Failure (invalid argument) that names input, place and number. */
void check_ids(const std::vector<IdRange> &ranges, const etg_engine_call &call);

} // namespace etgenai::executorch

#endif
