/*
 * Reading FlatBuffers that nobody can be sure of: every offset is checked against the bytes there are.
 *
 * Layout (https://flatbuffers.dev/internals): a table begins with a signed offset back to its vtable; the vtable holds its own
 * size, the table's size and one u16 per field, 0 for an absent one; vectors and strings begin with a u32 count.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_FLATBUFFER_HPP
#define ETGENAI_SRC_EXECUTORCH_FLATBUFFER_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "etgenai_executorch.hpp"

namespace etgenai::executorch::flatbuffer {

// Sums of positions and products of counts are not checked for overflow, only their results against the size.
static_assert(sizeof(std::size_t) >= 8);

/** The bytes of one buffer. Whatever goes wrong is a Failure that begins with the name of the buffer. */
class Buffer {
  public:
    /** `name` appears in messages: `program`, `qnn_compile_spec`. */
    Buffer(std::string_view name, const std::uint8_t *data, std::size_t size)
        : name_(name), data_(data), size_(size), budget_(kBudgetBase + 4 * size)
    {
    }

    std::size_t size() const noexcept
    {
        return size_;
    }

    template <class T>
    T read(std::size_t position) const
    {
        static_assert(std::is_arithmetic_v<T>);
        require(position, sizeof(T));
        T value;
        std::memcpy(&value, data_ + position, sizeof value);
        return value;
    }

    const std::uint8_t *bytes(std::size_t position, std::size_t length) const
    {
        require(position, length);
        return data_ + position;
    }

    /** Where the offset that is stored at `position` points to. */
    std::size_t follow(std::size_t position) const
    {
        const std::size_t target = position + read<std::uint32_t>(position);
        require(target, sizeof(std::uint32_t));
        return target;
    }

    /** Counts elements that are about to be read. Vectors may be shared, so a small file could describe very much work. */
    void spend(std::size_t elements) const
    {
        if (elements > budget_) {
            throw Failure(ETG_ENGINE_ERROR_FORMAT, name_ + ": its tables refer to each other more often than its size explains");
        }
        budget_ -= elements;
    }

    [[noreturn]] void fail(std::size_t position) const
    {
        throw Failure(ETG_ENGINE_ERROR_FORMAT, name_ + " is damaged at byte " + std::to_string(position) + " of " +
                                                   std::to_string(size_));
    }

  private:
    static constexpr std::size_t kBudgetBase = std::size_t{1} << 20;

    void require(std::size_t position, std::size_t length) const
    {
        if (position > size_ || length > size_ - position) {
            fail(position);
        }
    }

    std::string name_;
    const std::uint8_t *data_;
    std::size_t size_;
    mutable std::size_t budget_;
};

/** A vector of numbers, or of tables. */
class Vector {
  public:
    /** `position` is that of the count. */
    Vector(const Buffer &buffer, std::size_t position, std::size_t element_size)
        : buffer_(&buffer), first_(position + sizeof(std::uint32_t)), count_(buffer.read<std::uint32_t>(position)),
          element_size_(element_size)
    {
        // No overflow: the count has 32 bits and elements at most 8 bytes.
        buffer.bytes(first_, count_ * element_size_);
        if (element_size_ > 1) {
            buffer.spend(count_);
        }
    }

    std::size_t size() const noexcept
    {
        return count_;
    }

    /** Position of the first element. */
    std::size_t first() const noexcept
    {
        return first_;
    }

    template <class T>
    T at(std::size_t index) const
    {
        if (index >= count_ || sizeof(T) != element_size_) {
            buffer_->fail(first_);
        }
        return buffer_->read<T>(first_ + index * sizeof(T));
    }

    /** Position of the table or string that an element refers to. */
    std::size_t target(std::size_t index) const
    {
        if (index >= count_) {
            buffer_->fail(first_);
        }
        return buffer_->follow(first_ + index * sizeof(std::uint32_t));
    }

  private:
    const Buffer *buffer_;
    std::size_t first_;
    std::size_t count_;
    std::size_t element_size_;
};

/** A table. Fields are numbered from 0 in the order of the schema; a union takes two numbers, type and value. */
class Table {
  public:
    Table(const Buffer &buffer, std::size_t position) : buffer_(&buffer), position_(position)
    {
        // The offset is signed, and an i64 holds every sum.
        const auto vtable = static_cast<std::int64_t>(position) - buffer.read<std::int32_t>(position);
        if (vtable < 0) {
            buffer.fail(position);
        }
        vtable_ = static_cast<std::size_t>(vtable);
        vtable_size_ = buffer.read<std::uint16_t>(vtable_);
        buffer.bytes(vtable_, vtable_size_);
    }

    /** The table at the beginning of a buffer. */
    static Table root(const Buffer &buffer)
    {
        return Table(buffer, buffer.follow(0));
    }

    bool has(std::size_t field) const
    {
        return offset(field) != 0;
    }

    template <class T>
    T number(std::size_t field, T absent) const
    {
        const std::size_t at = offset(field);
        return at == 0 ? absent : buffer_->read<T>(position_ + at);
    }

    std::optional<Table> table(std::size_t field) const
    {
        const std::size_t at = offset(field);
        return at == 0 ? std::nullopt : std::optional(Table(*buffer_, buffer_->follow(position_ + at)));
    }

    /** An absent vector is an empty one. */
    template <class T>
    std::optional<Vector> vector(std::size_t field) const
    {
        const std::size_t at = offset(field);
        return at == 0 ? std::nullopt : std::optional(Vector(*buffer_, buffer_->follow(position_ + at), sizeof(T)));
    }

    std::optional<Vector> tables(std::size_t field) const
    {
        return vector<std::uint32_t>(field);
    }

    Table element(const Vector &vector, std::size_t index) const
    {
        return Table(*buffer_, vector.target(index));
    }

    std::optional<std::string_view> text(std::size_t field) const
    {
        const std::optional<Vector> characters = vector<char>(field);
        if (!characters) {
            return std::nullopt;
        }
        buffer_->spend(characters->size());
        const auto *const first =
            reinterpret_cast<const char *>(buffer_->bytes(characters->first(), characters->size() + 1));
        // Readers of C strings rely on this.
        if (first[characters->size()] != '\0') {
            buffer_->fail(characters->first());
        }
        return std::string_view(first, characters->size());
    }

  private:
    std::size_t offset(std::size_t field) const
    {
        const std::size_t entry = 2 * sizeof(std::uint16_t) + field * sizeof(std::uint16_t);
        return entry + sizeof(std::uint16_t) <= vtable_size_ ? buffer_->read<std::uint16_t>(vtable_ + entry) : 0;
    }

    const Buffer *buffer_;
    std::size_t position_;
    std::size_t vtable_ = 0;
    std::size_t vtable_size_ = 0;
};

} // namespace etgenai::executorch::flatbuffer

#endif
