/*
 * Blob: u32 magic at 0, i64 signature at 4, u64 size of the context binary at 12, zeros to 256, context binary.
 * Compile spec: a FlatBuffer without identifier; field numbers are those of QnnExecuTorchOptions in ExecuTorch's
 * backends/qualcomm/serialization/qc_compiler_spec.fbs.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "qnn_blob.hpp"

#include "flatbuffer.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <string>

namespace etgenai::executorch {

namespace {

using flatbuffer::Buffer;
using flatbuffer::Table;

constexpr char kSpecKey[] = "qnn_compile_spec";
constexpr std::uint32_t kMagic = 0x5678ABCD;
constexpr std::size_t kSignatureAt = 4;
constexpr std::size_t kSizeAt = 12;
constexpr std::size_t kHeaderSize = 256;
constexpr std::int32_t kHtpBackend = 2;

/** Processors that ExecuTorch 1.5 has a number for (QcomChipset). */
constexpr std::int32_t kProcessors[] = {30, 36, 39, 42, 43, 45, 46, 52, 53, 57, 58, 60, 69, 72, 75, 77, 87, 93, 95, 96, 97};

class Checker {
  public:
    Checker(const std::uint8_t *file, const Delegate &delegate, const Method &method)
        : file_(file), delegate_(delegate), where_("method '" + method.name + "', QNN delegate: ")
    {
    }

    QnnBlob run() const
    {
        QnnBlob blob;
        blob.binary = check_blob();
        check_spec_count();
        const CompileSpec &spec = delegate_.specs.front();
        // The backend's FlatBuffers reader loads numbers where they lie.
        if (reinterpret_cast<std::uintptr_t>(file_ + spec.value.offset) % alignof(std::uint32_t) != 0) {
            fail(std::string(kSpecKey) + " is not aligned to 4 bytes");
        }
        const Buffer buffer(where_ + kSpecKey, file_ + spec.value.offset, spec.value.size);
        const Table options = Table::root(buffer);
        check_soc(need(options.table(0), "soc_info"));
        check_backend(need(options.table(1), "backend_options"));
        if (!options.text(2)) {
            fail("library_path is missing; an empty one stands for the default");
        }
        in_range(options.number<std::int32_t>(3, 0), 5, "log_level");
        if (options.number<std::uint8_t>(4, 0) != 0) {
            fail("online_prepare is set: the graph would be compiled on the device, which this engine does not do",
                 ETG_ENGINE_ERROR_UNSUPPORTED);
        }
        in_range(options.number<std::int32_t>(6, 0), 3, "profile_level");
        check_op_packages(options);
        blob.from_context_binary = options.number<std::uint8_t>(8, 0) != 0;
        return blob;
    }

  private:
    [[noreturn]] void fail(const std::string &message, std::int32_t status = ETG_ENGINE_ERROR_FORMAT) const
    {
        throw Failure(status, where_ + message);
    }

    Table need(const std::optional<Table> &table, const char *name) const
    {
        if (!table) {
            fail(std::string(kSpecKey) + " has no " + name);
        }
        return *table;
    }

    void in_range(std::int32_t value, std::int32_t last, const char *name) const
    {
        if (value < 0 || value > last) {
            fail(std::string(kSpecKey) + ": " + name + " is " + std::to_string(value) + ", known are 0 to " +
                 std::to_string(last));
        }
    }

    Range check_blob() const
    {
        const Range &blob = delegate_.blob;
        if (blob.size < kHeaderSize) {
            fail("the blob has " + std::to_string(blob.size) + " bytes, its header alone takes " +
                 std::to_string(kHeaderSize));
        }
        const std::uint8_t *const header = file_ + blob.offset;
        std::uint32_t magic = 0;
        std::uint64_t size = 0;
        std::memcpy(&magic, header, sizeof magic);
        std::memcpy(&size, header + kSizeAt, sizeof size);
        if (magic != kMagic) {
            char text[64];
            std::snprintf(text, sizeof text, "the blob's magic number is 0x%08x, not 0x%08x", magic, kMagic);
            fail(text);
        }
        if (size == 0 || size > blob.size - kHeaderSize) {
            fail("the blob's context binary has " + std::to_string(size) + " bytes, there are " +
                 std::to_string(blob.size - kHeaderSize));
        }
        return {blob.offset + kHeaderSize, static_cast<std::size_t>(size)};
    }

    void check_spec_count() const
    {
        if (delegate_.specs.size() == 1 && delegate_.specs.front().key == kSpecKey) {
            return;
        }
        std::string keys;
        for (const CompileSpec &spec : delegate_.specs) {
            keys += (keys.empty() ? "'" : ", '") + spec.key + "'";
        }
        fail(std::string("one compile spec is needed, '") + kSpecKey + "'; there is " + (keys.empty() ? "none" : keys));
    }

    void check_soc(const Table &soc) const
    {
        const auto model = soc.number<std::int32_t>(0, 0);
        if (std::find(std::begin(kProcessors), std::end(kProcessors), model) == std::end(kProcessors)) {
            fail(std::string(kSpecKey) + ": soc_model is " + std::to_string(model) + ", which is no known processor",
                 model == 0 ? ETG_ENGINE_ERROR_FORMAT : ETG_ENGINE_ERROR_UNSUPPORTED);
        }
        need(soc.table(1), "soc_info.htp_info");
    }

    void check_backend(const Table &backend) const
    {
        const auto type = backend.number<std::int32_t>(0, 0);
        if (type != kHtpBackend) {
            fail(std::string(kSpecKey) + ": backend_type is " + std::to_string(type) + "; this engine runs the HTP, " +
                     std::to_string(kHtpBackend),
                 ETG_ENGINE_ERROR_UNSUPPORTED);
        }
        const Table htp = need(backend.table(1), "backend_options.htp_options");
        in_range(htp.number<std::int32_t>(1, 0), 8, "performance_mode");
        in_range(htp.number<std::int32_t>(2, 0), 1, "precision");
        in_range(htp.number<std::int32_t>(3, 0), 1, "pd_session");
    }

    void check_op_packages(const Table &options) const
    {
        const std::optional<Table> packages = options.table(11);
        const std::optional<flatbuffer::Vector> infos = packages ? packages->tables(0) : std::nullopt;
        for (std::size_t i = 0; infos && i < infos->size(); ++i) {
            const Table info = packages->element(*infos, i);
            for (const std::size_t field : {0, 1, 2, 4, 5}) {
                if (!info.text(field)) {
                    fail(std::string(kSpecKey) + ": op package " + std::to_string(i) + " lacks text field " +
                         std::to_string(field));
                }
            }
        }
    }

    const std::uint8_t *file_;
    const Delegate &delegate_;
    std::string where_;
};

/** Never the same number twice in a process. Exporters use the time in nanoseconds since 1970, which stays below bit 62 until
 *  the year 2116; the address of the counter keeps two copies of this code apart. */
std::uint64_t fresh_signature()
{
    static std::atomic<std::uint64_t> count{0};
    const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&count));
    constexpr std::uint64_t kTag = std::uint64_t{1} << 62;
    return kTag | (((address << 14) + count.fetch_add(1)) & (kTag - 1));
}

} // namespace

QnnBlob check_qnn_delegate(const std::uint8_t *file, const Delegate &delegate, const Method &method)
{
    return Checker(file, delegate, method).run();
}

void sign_qnn_blob(std::uint8_t *blob)
{
    const std::uint64_t signature = fresh_signature();
    std::memcpy(blob + kSignatureAt, &signature, sizeof signature);
}

} // namespace etgenai::executorch
