/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "id_ranges.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace etgenai::executorch {

namespace {

/** Position of the row numbers among the arguments of an embedding operator; the table comes first in all of them. */
std::optional<std::size_t> ids_argument(std::string_view name)
{
    if (name == "aten::embedding.out") {
        return 1;
    }
    // weight, scales, zero points, minimum, maximum, ids
    if (name.substr(0, 32) == "quantized_decomposed::embedding_") {
        return 5;
    }
    return std::nullopt;
}

/** Operators whose first output has the elements of the first argument, in another type or shape. */
bool keeps_numbers(std::string_view name)
{
    constexpr std::string_view kOperators[] = {"aten::_to_copy.out",
                                               "dim_order_ops::_to_dim_order_copy.out",
                                               "dim_order_ops::_clone_dim_order.out",
                                               "aten::view_copy.out",
                                               "aten::clone.out",
                                               "aten::alias_copy.out",
                                               "aten::squeeze_copy.dim_out",
                                               "aten::squeeze_copy.dims_out",
                                               "aten::unsqueeze_copy.out",
                                               "executorch_prim::et_view.default"};
    return std::find(std::begin(kOperators), std::end(kOperators), name) != std::end(kOperators);
}

/** For each value that is a copy: what it is a copy of. */
std::map<std::size_t, std::size_t> copies(const Method &method)
{
    std::map<std::size_t, std::size_t> sources;
    for (const Call &call : method.kernel_calls) {
        if (call.arguments.size() >= 2 && keeps_numbers(method.operators[call.callee])) {
            sources.emplace(call.arguments.back(), call.arguments.front());
        }
    }
    return sources;
}

std::size_t origin(const std::map<std::size_t, std::size_t> &sources, std::size_t value)
{
    // A damaged program may go in circles.
    for (std::size_t steps = 0; steps < sources.size(); ++steps) {
        const auto source = sources.find(value);
        if (source == sources.end()) {
            break;
        }
        value = source->second;
    }
    return value;
}

template <class T>
void check_elements(const etg_engine_tensor &tensor, const IdRange &range)
{
    for (std::size_t i = 0; i < tensor.bytes / sizeof(T); ++i) {
        T id = 0;
        std::memcpy(&id, static_cast<const std::uint8_t *>(tensor.data) + i * sizeof(T), sizeof id);
        if (id < 0 || id >= range.rows) {
            throw Failure(ETG_ENGINE_ERROR_INVALID_ARGUMENT,
                          "input_" + std::to_string(range.input) + ", element " + std::to_string(i) + ": id " +
                              std::to_string(id) + " is not below " + std::to_string(range.rows) + ", the rows of its table");
        }
    }
}

} // namespace

std::vector<IdRange> find_id_ranges(const Method &method)
{
    constexpr std::int8_t kInt = 3;
    constexpr std::int8_t kLong = 4;
    const std::map<std::size_t, std::size_t> sources = copies(method);
    std::vector<IdRange> ranges;
    for (const Call &call : method.kernel_calls) {
        const std::optional<std::size_t> argument = ids_argument(method.operators[call.callee]);
        if (!argument || *argument >= call.arguments.size()) {
            continue;
        }
        const Value &table = method.values[call.arguments.front()];
        const std::size_t ids = origin(sources, call.arguments[*argument]);
        const auto input = std::find(method.inputs.begin(), method.inputs.end(), ids);
        const std::int8_t type = method.values[ids].scalar_type;
        if (input != method.inputs.end() && !table.sizes.empty() && (type == kInt || type == kLong)) {
            ranges.push_back({static_cast<std::size_t>(input - method.inputs.begin()), table.sizes.front(), type == kLong});
        }
    }
    return ranges;
}

void check_ids(const std::vector<IdRange> &ranges, const etg_engine_call &call)
{
    for (const IdRange &range : ranges) {
        // What does not fit the signature is refused later.
        if (range.input >= call.input_count || call.inputs == nullptr || call.inputs[range.input].data == nullptr) {
            continue;
        }
        if (range.wide) {
            check_elements<std::int64_t>(call.inputs[range.input], range);
        } else {
            check_elements<std::int32_t>(call.inputs[range.input], range);
        }
    }
}

} // namespace etgenai::executorch
