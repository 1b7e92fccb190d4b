/*
 * The bytes of a program, in memory that may be written to where that is necessary.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_PROGRAM_FILE_HPP
#define ETGENAI_SRC_EXECUTORCH_PROGRAM_FILE_HPP

#include "options.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace etgenai::executorch {

/** Where a program lies. The runtime refers to these bytes as long as the program is loaded. */
class ProgramFile {
  public:
    /** A file. Throws Failure (not found, input/output, format). */
    static ProgramFile open(const std::string &path, LoadMode mode);

    /** Bytes of the caller, used in place. Throws Failure (invalid argument) if they are not aligned to 16. */
    static ProgramFile borrow(const std::uint8_t *bytes, std::size_t size);

    ProgramFile(ProgramFile &&other) noexcept;
    ProgramFile &operator=(ProgramFile &&) = delete;
    ~ProgramFile();

    const std::uint8_t *data() const noexcept
    {
        return data_;
    }
    std::size_t size() const noexcept
    {
        return size_;
    }

    /** The same bytes, to be changed for this process only: a mapped file copies the pages that are written to. Borrowed bytes
     *  are copied first, so what data() returned before is no longer it. */
    std::uint8_t *writable();

  private:
    enum class Memory { borrowed, mapped, owned };

    ProgramFile(Memory memory, std::uint8_t *data, std::size_t size) : memory_(memory), data_(data), size_(size) {}

    static ProgramFile allocate(std::size_t size);

    Memory memory_;
    /** Not written to while borrowed. */
    std::uint8_t *data_;
    std::size_t size_;
};

} // namespace etgenai::executorch

#endif
