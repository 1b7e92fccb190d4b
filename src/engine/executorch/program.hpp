/*
 * What a .pte file says about itself, read before the runtime acts on it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_PROGRAM_HPP
#define ETGENAI_SRC_EXECUTORCH_PROGRAM_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace etgenai::executorch {

/** A range of the file. */
struct Range {
    std::size_t offset = 0;
    std::size_t size = 0;
};

/** Where the elements of a tensor are. */
enum class Storage {
    /** In the file, or in a file beside it. */
    constant,
    /** In memory that the program's plan reserves. */
    planned,
    /** In memory of the caller; inputs and outputs only. */
    callers,
};

/** A value of a method; everything but tensors and lists of them is of no interest here. */
struct Value {
    bool is_tensor = false;
    /** ExecuTorch's number of the element type. */
    std::int8_t scalar_type = 0;
    std::vector<std::int32_t> sizes;
    Storage storage = Storage::callers;
    /** Values that a list of tensors refers to. */
    std::vector<std::size_t> elements;
};

/** A compile spec of a delegate; `value` is a range of the file. */
struct CompileSpec {
    std::string key;
    Range value;
};

/** A compiled part of a method and who executes it. */
struct Delegate {
    std::string backend;
    Range blob;
    std::vector<CompileSpec> specs;
};

/** A call of an operator or of a delegate, with indices of values. */
struct Call {
    /** Index into Method::operators or Method::delegates. */
    std::size_t callee = 0;
    std::vector<std::size_t> arguments;
};

struct Method {
    std::string name;
    std::vector<Value> values;
    /** Indices of values. */
    std::vector<std::size_t> inputs;
    std::vector<std::size_t> outputs;
    /** `aten::add.out` */
    std::vector<std::string> operators;
    std::vector<Delegate> delegates;
    std::vector<Call> kernel_calls;
    std::vector<Call> delegate_calls;
};

struct Program {
    std::vector<Method> methods;
    /** Bytes of all segments: weights, and compiled parts with theirs. */
    std::uint64_t segment_bytes = 0;
};

/** Reads the tables of a program. Trusts nothing: indices, ranges and offsets are checked, and that all tensors that a call
 *  uses have memory.
 *  Throws Failure (format). */
Program read_program(const std::uint8_t *file, std::size_t size);

} // namespace etgenai::executorch

#endif
