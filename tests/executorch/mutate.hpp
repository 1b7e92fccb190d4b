/*
 * Damaging .pte files on purpose: finding one field of their tables, and writing over it.
 *
 * Field numbers are those of ExecuTorch's schema/program.fbs and qc_compiler_spec.fbs. The files that are damaged are known
 * to be in order, so nothing is checked here.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_TESTS_EXECUTORCH_MUTATE_HPP
#define ETGENAI_TESTS_EXECUTORCH_MUTATE_HPP

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace mutate {

using Bytes = std::vector<std::uint8_t>;

template <class T>
T get(const Bytes &bytes, std::size_t at)
{
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

template <class T>
void put(Bytes &bytes, std::size_t at, T value)
{
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

/** A table, by its position in the file. */
struct Table {
    const Bytes *bytes;
    std::size_t position;

    /** Position of the field's entry in the vtable. */
    std::size_t entry(std::size_t field) const
    {
        const auto back = get<std::int32_t>(*bytes, position);
        return static_cast<std::size_t>(static_cast<std::int64_t>(position) - back) + 4 + 2 * field;
    }
    /** Position of the field's value. */
    std::size_t field(std::size_t number) const
    {
        return position + get<std::uint16_t>(*bytes, entry(number));
    }
    /** Position of the count of a vector or string. */
    std::size_t vector(std::size_t number) const
    {
        return field(number) + get<std::uint32_t>(*bytes, field(number));
    }
    std::size_t count(std::size_t number) const
    {
        return get<std::uint32_t>(*bytes, vector(number));
    }
    Table table(std::size_t number) const
    {
        return {bytes, vector(number)};
    }
    Table element(std::size_t number, std::size_t index) const
    {
        const std::size_t at = vector(number) + 4 + 4 * index;
        return {bytes, at + get<std::uint32_t>(*bytes, at)};
    }
    std::string text(std::size_t number) const
    {
        const std::size_t at = vector(number);
        return std::string(reinterpret_cast<const char *>(bytes->data()) + at + 4, get<std::uint32_t>(*bytes, at));
    }
};

/** The interesting places of a program with a QNN delegate. */
struct Places {
    explicit Places(const Bytes &bytes, const std::string &method = "kv_forward")
        : root{&bytes, get<std::uint32_t>(bytes, 0)}, plan(find(root, method)), delegate(plan.element(7, 0)),
          spec(delegate.element(2, 0)), options_start(spec.vector(1) + 4),
          options{&bytes, options_start + get<std::uint32_t>(bytes, options_start)},
          blob(static_cast<std::size_t>(get<std::uint64_t>(bytes, 24)) +
               static_cast<std::size_t>(segment_offset(delegate.table(1)))),
          call(plan.element(5, 0).element(2, 0).table(1))
    {
    }

    static Table find(const Table &root, const std::string &method)
    {
        for (std::size_t i = 0; i < root.count(1); ++i) {
            if (root.element(1, i).text(0) == method) {
                return root.element(1, i);
            }
        }
        std::abort();
    }

    std::uint64_t segment_offset(const Table &processed) const
    {
        const Table segment = root.element(4, get<std::uint32_t>(*root.bytes, processed.field(1)));
        // The first segment's offset is zero, which writers leave out.
        return get<std::uint16_t>(*root.bytes, segment.entry(0)) == 0 ? 0 : get<std::uint64_t>(*root.bytes, segment.field(0));
    }

    /** The tensor behind an input of the method. */
    Table input_tensor(std::size_t index) const
    {
        const auto value = get<std::uint32_t>(*root.bytes, plan.vector(3) + 4 + 4 * index);
        return plan.element(2, value).table(1);
    }

    Table root;
    Table plan;
    Table delegate;
    Table spec;
    std::size_t options_start;
    Table options;
    std::size_t blob;
    Table call;
};

} // namespace mutate

#endif
