/*
 * Reads the tables of a .pte file. Field numbers are those of ExecuTorch's schema/program.fbs (file identifier ET12).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "program.hpp"

#include "flatbuffer.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

namespace etgenai::executorch {

namespace {

using flatbuffer::Buffer;
using flatbuffer::Table;
using flatbuffer::Vector;

[[noreturn]] void malformed(const std::string &message)
{
    throw Failure(ETG_ENGINE_ERROR_FORMAT, message);
}

/** The header behind the file identifier; files without segments may lack it. */
struct Header {
    std::uint64_t program_size;
    std::uint64_t segment_base;
};

constexpr std::size_t kHeaderStart = 8;
constexpr std::size_t kHeaderEnd = kHeaderStart + 32;

Header read_header(const std::uint8_t *file, std::size_t size)
{
    if (size < kHeaderEnd) {
        malformed("the file has " + std::to_string(size) + " bytes; a program has at least " + std::to_string(kHeaderEnd));
    }
    if (std::memcmp(file + 4, "ET12", 4) != 0) {
        malformed("the file is not an ExecuTorch program: it does not have the identifier ET12");
    }
    Header header{size, 0};
    if (std::memcmp(file + kHeaderStart, "eh00", 4) == 0) {
        std::memcpy(&header.program_size, file + 16, sizeof header.program_size);
        std::memcpy(&header.segment_base, file + 24, sizeof header.segment_base);
    }
    if (header.program_size > size || header.segment_base > size) {
        malformed("the file is cut off: it has " + std::to_string(size) + " bytes, its program " +
                  std::to_string(header.program_size) + " and its segments begin at byte " +
                  std::to_string(header.segment_base));
    }
    return header;
}

/** Reads everything below the root table. */
class Reader {
  public:
    Reader(const std::uint8_t *file, std::size_t size, const Header &header)
        : buffer_("program", file, static_cast<std::size_t>(header.program_size)), root_(Table::root(buffer_))
    {
        read_segments(size, header);
        read_inline_data();
    }

    Program read() const
    {
        Program program;
        for (const Range &segment : segments_) {
            program.segment_bytes += segment.size;
        }
        each(root_, 1, [&](const Table &plan) { program.methods.push_back(read_method(plan)); });
        return program;
    }

  private:
    template <class Body>
    static void each(const Table &parent, std::size_t field, Body &&body)
    {
        const std::optional<Vector> tables = parent.tables(field);
        for (std::size_t i = 0; tables && i < tables->size(); ++i) {
            body(parent.element(*tables, i));
        }
    }

    void read_segments(std::size_t file_size, const Header &header)
    {
        each(root_, 4, [&](const Table &segment) {
            const auto offset = segment.number<std::uint64_t>(0, 0);
            const auto size = segment.number<std::uint64_t>(1, 0);
            const std::size_t room = file_size - static_cast<std::size_t>(header.segment_base);
            if (offset > room || size > room - offset) {
                malformed("segment " + std::to_string(segments_.size()) + " (offset " + std::to_string(offset) + ", " +
                          std::to_string(size) + " bytes) does not lie in the file, which has " + std::to_string(room) +
                          " bytes of segments");
            }
            segments_.push_back({static_cast<std::size_t>(header.segment_base + offset), static_cast<std::size_t>(size)});
        });
    }

    void read_inline_data()
    {
        each(root_, 3, [&](const Table &data) { inline_data_.push_back(bytes_of(data, 0)); });
    }

    static Range bytes_of(const Table &table, std::size_t field)
    {
        const std::optional<Vector> bytes = table.vector<std::uint8_t>(field);
        return bytes ? Range{bytes->first(), bytes->size()} : Range{};
    }

    Method read_method(const Table &plan) const
    {
        Method method;
        method.name = plan.text(0).value_or("");
        const std::optional<Vector> values = plan.tables(2);
        const std::size_t value_count = values ? values->size() : 0;
        each(plan, 2, [&](const Table &value) { method.values.push_back(read_value(value, value_count, method.name)); });
        method.inputs = indices(plan, 3, method.values.size(), method.name + ": inputs");
        method.outputs = indices(plan, 4, method.values.size(), method.name + ": outputs");
        each(plan, 6, [&](const Table &op) {
            const std::string overload(op.text(1).value_or(""));
            method.operators.push_back(std::string(op.text(0).value_or("")) + (overload.empty() ? "" : "." + overload));
        });
        each(plan, 7, [&](const Table &delegate) { method.delegates.push_back(read_delegate(delegate, method.name)); });
        each(plan, 5, [&](const Table &chain) {
            each(chain, 2, [&](const Table &instruction) { read_instruction(instruction, method); });
        });
        check_memory(method);
        return method;
    }

    static Value read_value(const Table &value, std::size_t value_count, const std::string &method)
    {
        constexpr std::uint8_t kTensor = 5;
        constexpr std::uint8_t kTensorList = 10;
        Value result;
        const std::optional<Table> body = value.table(1);
        const auto kind = value.number<std::uint8_t>(0, 0);
        if (body && kind == kTensor) {
            read_tensor(*body, result);
        } else if (body && kind == kTensorList) {
            result.elements = indices(*body, 0, value_count, method + ": a list of tensors");
        }
        return result;
    }

    static void read_tensor(const Table &tensor, Value &result)
    {
        constexpr std::int8_t kExternal = 1;
        result.is_tensor = true;
        result.scalar_type = tensor.number<std::int8_t>(0, 0);
        const std::optional<Vector> sizes = tensor.vector<std::int32_t>(2);
        for (std::size_t i = 0; sizes && i < sizes->size(); ++i) {
            result.sizes.push_back(sizes->at<std::int32_t>(i));
        }
        const std::optional<Table> extra = tensor.table(9);
        if (tensor.has(6)) {
            result.storage = Storage::planned;
        } else if (tensor.number<std::uint32_t>(5, 0) > 0 || (extra && extra->number<std::int8_t>(2, 0) == kExternal)) {
            result.storage = Storage::constant;
        }
    }

    Delegate read_delegate(const Table &table, const std::string &method) const
    {
        Delegate delegate;
        delegate.backend = table.text(0).value_or("");
        const std::optional<Table> processed = table.table(1);
        if (!processed) {
            malformed("method '" + method + "': the delegate for " + delegate.backend + " has no compiled part (processed)");
        }
        delegate.blob = data_of(*processed, method, delegate.backend);
        each(table, 2, [&](const Table &spec) {
            delegate.specs.push_back({std::string(spec.text(0).value_or("")), bytes_of(spec, 1)});
        });
        return delegate;
    }

    Range data_of(const Table &processed, const std::string &method, const std::string &backend) const
    {
        constexpr std::int8_t kInline = 0;
        const bool is_inline = processed.number<std::int8_t>(0, kInline) == kInline;
        const auto index = processed.number<std::uint32_t>(1, 0);
        const std::vector<Range> &ranges = is_inline ? inline_data_ : segments_;
        if (index >= ranges.size()) {
            malformed("method '" + method + "': the compiled part for " + backend + " is number " + std::to_string(index) +
                      " of " + std::to_string(ranges.size()));
        }
        return ranges[index];
    }

    static void read_instruction(const Table &instruction, Method &method)
    {
        constexpr std::uint8_t kKernelCall = 1;
        constexpr std::uint8_t kDelegateCall = 2;
        const auto kind = instruction.number<std::uint8_t>(0, 0);
        const std::optional<Table> arguments = instruction.table(1);
        if (!arguments) {
            malformed("method '" + method.name + "' has an instruction without arguments");
        }
        if (kind == kKernelCall) {
            method.kernel_calls.push_back(read_call(*arguments, method, method.operators.size(), "operator"));
        } else if (kind == kDelegateCall) {
            method.delegate_calls.push_back(read_call(*arguments, method, method.delegates.size(), "delegate"));
        }
    }

    static Call read_call(const Table &table, const Method &method, std::size_t callees, const char *kind)
    {
        const auto callee = table.number<std::int32_t>(0, 0);
        if (callee < 0 || static_cast<std::size_t>(callee) >= callees) {
            malformed("method '" + method.name + "' calls " + kind + " " + std::to_string(callee) + " of " +
                      std::to_string(callees));
        }
        return {static_cast<std::size_t>(callee),
                indices(table, 1, method.values.size(), method.name + ": arguments of a " + kind)};
    }

    static std::vector<bool> marked(const Method &method, const std::vector<const std::vector<std::size_t> *> &lists)
    {
        std::vector<bool> marks(method.values.size(), false);
        for (const std::vector<std::size_t> *const list : lists) {
            for (const std::size_t index : *list) {
                marks[index] = true;
            }
        }
        return marks;
    }

    /** Arguments of calls, and what lists among them refer to. */
    static std::vector<bool> used_values(const Method &method)
    {
        std::vector<const std::vector<std::size_t> *> arguments;
        for (const std::vector<Call> *const calls : {&method.kernel_calls, &method.delegate_calls}) {
            for (const Call &call : *calls) {
                arguments.push_back(&call.arguments);
            }
        }
        std::vector<bool> used = marked(method, arguments);
        for (std::size_t i = 0; i < method.values.size(); ++i) {
            for (const std::size_t element : method.values[i].elements) {
                used[element] = used[element] || used[i];
            }
        }
        return used;
    }

    /** The runtime gives each call the address that a tensor has, if it has one, and does not ask whether it may be written
     *  to. */
    static void check_memory(const Method &method)
    {
        const std::vector<bool> bound = marked(method, {&method.inputs, &method.outputs});
        const std::vector<bool> used = used_values(method);
        for (std::size_t i = 0; i < method.values.size(); ++i) {
            const Value &value = method.values[i];
            if (used[i] && value.is_tensor && value.storage == Storage::callers && !bound[i]) {
                malformed("method '" + method.name + "' uses tensor " + std::to_string(i) +
                          ", which has no memory and is neither input nor output");
            }
        }
        for (const Call &call : method.kernel_calls) {
            // The last argument is what an operator returns, which is what it wrote.
            if (!call.arguments.empty() && method.values[call.arguments.back()].is_tensor &&
                method.values[call.arguments.back()].storage == Storage::constant) {
                malformed("method '" + method.name + "': " + method.operators[call.callee] + " writes to a constant, value " +
                          std::to_string(call.arguments.back()));
            }
        }
    }

    static std::vector<std::size_t> indices(const Table &table, std::size_t field, std::size_t limit, const std::string &what)
    {
        std::vector<std::size_t> result;
        const std::optional<Vector> items = table.vector<std::int32_t>(field);
        for (std::size_t i = 0; items && i < items->size(); ++i) {
            const auto index = items->at<std::int32_t>(i);
            if (index < 0 || static_cast<std::size_t>(index) >= limit) {
                malformed("method " + what + " refer to value " + std::to_string(index) + " of " + std::to_string(limit));
            }
            result.push_back(static_cast<std::size_t>(index));
        }
        return result;
    }

    Buffer buffer_;
    Table root_;
    std::vector<Range> segments_;
    std::vector<Range> inline_data_;
};

} // namespace

Program read_program(const std::uint8_t *file, std::size_t size)
{
    return Reader(file, size, read_header(file, size)).read();
}

} // namespace etgenai::executorch
