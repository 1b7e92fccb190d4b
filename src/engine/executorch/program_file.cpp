/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "program_file.hpp"

#include "etgenai_executorch.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace etgenai::executorch {

namespace {

/** What the runtime asks of the beginning of a program, and delegates of their parts. */
constexpr std::size_t kAlignment = 128;
constexpr std::size_t kCallersAlignment = 16;

class Descriptor {
  public:
    explicit Descriptor(const std::string &path) : path_(path), value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC))
    {
        if (value_ < 0) {
            fail(errno == ENOENT ? ETG_ENGINE_ERROR_NOT_FOUND : ETG_ENGINE_ERROR_IO);
        }
    }
    ~Descriptor()
    {
        ::close(value_);
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;

    std::size_t file_size() const
    {
        struct stat status = {};
        if (::fstat(value_, &status) != 0) {
            fail(ETG_ENGINE_ERROR_IO);
        }
        if (!S_ISREG(status.st_mode)) {
            throw Failure(ETG_ENGINE_ERROR_IO, "it is not a regular file");
        }
        if (status.st_size == 0) {
            throw Failure(ETG_ENGINE_ERROR_FORMAT, "the file is empty");
        }
        return static_cast<std::size_t>(status.st_size);
    }

    void read_all(std::uint8_t *destination, std::size_t size) const
    {
        for (std::size_t done = 0; done < size;) {
            const ssize_t count = ::read(value_, destination + done, size - done);
            if (count < 0 && errno == EINTR) {
                continue;
            }
            if (count < 0) {
                fail(ETG_ENGINE_ERROR_IO);
            }
            if (count == 0) {
                throw Failure(ETG_ENGINE_ERROR_IO, "the file became shorter while it was read");
            }
            done += static_cast<std::size_t>(count);
        }
    }

    int get() const noexcept
    {
        return value_;
    }

    [[noreturn]] void fail(std::int32_t status) const
    {
        throw Failure(status, "it cannot be read: " + std::string(std::strerror(errno)));
    }

  private:
    std::string path_;
    int value_;
};

} // namespace

ProgramFile ProgramFile::open(const std::string &path, LoadMode mode)
{
    const Descriptor file(path);
    const std::size_t size = file.file_size();
    if (mode == LoadMode::file) {
        ProgramFile program = allocate(size);
        file.read_all(program.data_, size);
        return program;
    }
    void *const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
    if (memory == MAP_FAILED) {
        file.fail(ETG_ENGINE_ERROR_IO);
    }
    return ProgramFile(Memory::mapped, static_cast<std::uint8_t *>(memory), size);
}

ProgramFile ProgramFile::borrow(const std::uint8_t *bytes, std::size_t size)
{
    if (reinterpret_cast<std::uintptr_t>(bytes) % kCallersAlignment != 0) {
        throw Failure(ETG_ENGINE_ERROR_INVALID_ARGUMENT, "the bytes are not aligned to " + std::to_string(kCallersAlignment));
    }
    if (size == 0) {
        throw Failure(ETG_ENGINE_ERROR_FORMAT, "there are no bytes");
    }
    return ProgramFile(Memory::borrowed, const_cast<std::uint8_t *>(bytes), size);
}

ProgramFile ProgramFile::allocate(std::size_t size)
{
    void *memory = nullptr;
    if (::posix_memalign(&memory, kAlignment, size) != 0) {
        throw std::bad_alloc();
    }
    return ProgramFile(Memory::owned, static_cast<std::uint8_t *>(memory), size);
}

ProgramFile::ProgramFile(ProgramFile &&other) noexcept
    : memory_(std::exchange(other.memory_, Memory::borrowed)), data_(other.data_), size_(other.size_)
{
}

ProgramFile::~ProgramFile()
{
    switch (memory_) {
    case Memory::borrowed:
        break;
    case Memory::mapped:
        ::munmap(data_, size_);
        break;
    case Memory::owned:
        std::free(data_);
        break;
    }
}

std::uint8_t *ProgramFile::writable()
{
    if (memory_ == Memory::borrowed) {
        ProgramFile copy = allocate(size_);
        std::memcpy(copy.data_, data_, size_);
        data_ = copy.data_;
        memory_ = std::exchange(copy.memory_, Memory::borrowed);
    }
    return data_;
}

} // namespace etgenai::executorch
