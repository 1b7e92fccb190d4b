/*
 * Declarations of the QNN C ABI are our own, of the parts that are used; core API 2.27 to 2.40, System API 1, LP64.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "qnn_system.hpp"

#include "etgenai_executorch.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace etgenai::executorch {

struct QnnVersion {
    std::uint32_t major;
    std::uint32_t minor;
    std::uint32_t patch;
};

struct QnnTensor {
    std::int32_t version;
    std::uint32_t padding;
    std::uint32_t id;
    const char *name;
    std::int32_t type;
    std::uint32_t data_format;
    std::int32_t data_type;
    std::uint64_t quantization[5];
    std::uint32_t rank;
    const std::uint32_t *dims;
    std::uint64_t rest[6];
};
static_assert(offsetof(QnnTensor, name) == 16 && offsetof(QnnTensor, data_type) == 32);
static_assert(offsetof(QnnTensor, rank) == 80 && offsetof(QnnTensor, dims) == 88 && sizeof(QnnTensor) == 144);

struct QnnGraphInfo {
    std::int32_t version;
    const char *name;
    std::uint32_t input_count;
    const QnnTensor *inputs;
    std::uint32_t output_count;
    const QnnTensor *outputs;
    std::uint64_t rest[5];
};
static_assert(offsetof(QnnGraphInfo, inputs) == 24 && offsetof(QnnGraphInfo, outputs) == 40 && sizeof(QnnGraphInfo) == 88);

struct QnnBinaryInfo {
    std::int32_t version;
    std::uint32_t padding;
    std::uint32_t backend;
    const char *build;
    QnnVersion core;
    QnnVersion backend_version;
    const char *soc;
    QnnVersion blob_version;
    std::uint64_t blob_size;
    std::uint32_t context_tensor_count;
    const QnnTensor *context_tensors;
    std::uint32_t graph_count;
    const QnnGraphInfo *graphs;
};
static_assert(offsetof(QnnBinaryInfo, build) == 16 && offsetof(QnnBinaryInfo, core) == 24);
static_assert(offsetof(QnnBinaryInfo, blob_size) == 72 && offsetof(QnnBinaryInfo, graph_count) == 96);
static_assert(offsetof(QnnBinaryInfo, graphs) == 104);

/** What QnnSystemInterface_getProviders hands out; the functions we use are its first four. */
struct QnnSystemInterface {
    std::uint32_t id;
    const char *name;
    QnnVersion version;
    std::uint64_t (*create)(void **handle);
    std::uint64_t (*binary_info)(void *handle, void *binary, std::uint64_t size, const QnnBinaryInfo **info,
                                 std::uint64_t *info_size);
    void *metadata;
    std::uint64_t (*free)(void *handle);
};
static_assert(offsetof(QnnSystemInterface, create) == 32);

/** What QnnInterface_getProviders hands out, up to its versions. */
struct QnnBackendInterface {
    std::uint32_t id;
    const char *name;
    QnnVersion core;
};
static_assert(offsetof(QnnBackendInterface, core) == 16);

namespace {

constexpr std::uint32_t kCoreMajor = 2;
constexpr std::uint32_t kSystemMajor = 1;
constexpr std::int32_t kBinaryInfoVersion = 3;

std::string text(const QnnVersion &version)
{
    return std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.patch);
}

[[noreturn]] void unsupported(const std::string &message)
{
    throw Failure(ETG_ENGINE_ERROR_UNSUPPORTED, message);
}

/** Opens a library and leaves it open. */
void *open_library(const std::string &directory, const char *name)
{
    const std::string path = directory.empty() ? name : directory + "/" + name;
    void *const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char *const reason = dlerror();
        unsupported("the program needs QNN, and " + path + " cannot be opened: " + (reason == nullptr ? "" : reason) +
                    "; name its folder with the option qnn_library_dir or with ETGENAI_QNN_LIBRARY_DIR");
    }
    return handle;
}

template <class Interface>
const Interface &provider(void *library, const char *symbol)
{
    using GetProviders = std::uint64_t (*)(const Interface ***, std::uint32_t *);
    const auto get = reinterpret_cast<GetProviders>(dlsym(library, symbol));
    const Interface **providers = nullptr;
    std::uint32_t count = 0;
    if (get == nullptr || get(&providers, &count) != 0 || count == 0 || providers == nullptr || providers[0] == nullptr) {
        unsupported(std::string("this QNN library offers nothing through ") + symbol);
    }
    return *providers[0];
}

/** Bytes of an element, or 0 for a type that no argument can have. */
std::size_t element_size(std::int32_t data_type)
{
    switch (data_type) {
    case 0x0008:
    case 0x0108:
    case 0x0308:
    case 0x0408:
    case 0x0508:
        return 1;
    case 0x0016:
    case 0x0116:
    case 0x0216:
    case 0x0316:
    case 0x0416:
        return 2;
    case 0x0032:
    case 0x0132:
    case 0x0232:
    case 0x0332:
    case 0x0432:
        return 4;
    case 0x0064:
    case 0x0164:
    case 0x0264:
        return 8;
    default:
        return 0;
    }
}

bool contains(const char *name, std::string_view part)
{
    return name != nullptr && std::string_view(name).find(part) != std::string_view::npos;
}

constexpr long kNoPosition = -1;

/** The number behind the first underscore of a name like `input_3_args_0@0`, by which the backend sorts inputs; kNoPosition if
 *  there is none that fits. */
long position_in_name(const char *name)
{
    const char *const underscore = name == nullptr ? nullptr : std::strchr(name, '_');
    if (underscore == nullptr) {
        return kNoPosition;
    }
    char *end = nullptr;
    const long number = std::strtol(underscore + 1, &end, 10);
    return end == underscore + 1 || number < 0 || number > INT32_MAX ? kNoPosition : number;
}

/** A system context, whose memory the binary info lies in. */
class SystemContext {
  public:
    explicit SystemContext(const QnnSystemInterface &system) : system_(system)
    {
        if (system_.create(&handle_) != 0) {
            throw Failure(ETG_ENGINE_ERROR_FAILED, "libQnnSystem.so cannot create a context");
        }
    }
    ~SystemContext()
    {
        system_.free(handle_);
    }
    SystemContext(const SystemContext &) = delete;
    SystemContext &operator=(const SystemContext &) = delete;

    void *get() const noexcept
    {
        return handle_;
    }

  private:
    const QnnSystemInterface &system_;
    void *handle_ = nullptr;
};

/** Compares one graph with the call that will execute it. */
class GraphCheck {
  public:
    GraphCheck(const QnnGraphInfo &graph, bool from_context_binary, const Method &method, const Call &call)
        : graph_(graph), from_context_binary_(from_context_binary), method_(method), call_(call),
          where_("method '" + method.name + "', QNN graph: ")
    {
    }

    void run() const
    {
        const std::vector<const QnnTensor *> inputs = bound_inputs();
        const std::vector<const QnnTensor *> outputs = bound_outputs();
        if (inputs.size() + outputs.size() != call_.arguments.size()) {
            fail("it has " + std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) +
                 " outputs, the program passes " + std::to_string(call_.arguments.size()) + " arguments");
        }
        for (std::size_t i = 0; i < call_.arguments.size(); ++i) {
            const bool is_input = i < inputs.size();
            check_argument(*(is_input ? inputs[i] : outputs[i - inputs.size()]), method_.values[call_.arguments[i]]);
        }
    }

  private:
    [[noreturn]] void fail(const std::string &message) const
    {
        throw Failure(ETG_ENGINE_ERROR_FORMAT, where_ + message);
    }

    /** Inputs in the order in which the backend takes arguments. State of the graph's own (`mutbuf_`) takes none. */
    std::vector<const QnnTensor *> bound_inputs() const
    {
        std::vector<std::pair<long, const QnnTensor *>> numbered;
        for (std::uint32_t i = 0; i < graph_.input_count; ++i) {
            const QnnTensor &tensor = graph_.inputs[i];
            if (contains(tensor.name, "mutbuf_")) {
                continue;
            }
            if (from_context_binary_) {
                numbered.emplace_back(i, &tensor);
                continue;
            }
            const long position = position_in_name(tensor.name);
            if (position == kNoPosition) {
                fail("input '" + std::string(tensor.name == nullptr ? "" : tensor.name) +
                     "' has no number in its name, by which inputs are bound (input_0_…)");
            }
            numbered.emplace_back(position, &tensor);
        }
        std::stable_sort(numbered.begin(), numbered.end(),
                         [](const auto &left, const auto &right) { return left.first < right.first; });
        std::vector<const QnnTensor *> inputs;
        for (const auto &entry : numbered) {
            inputs.push_back(entry.second);
        }
        return inputs;
    }

    std::vector<const QnnTensor *> bound_outputs() const
    {
        std::vector<const QnnTensor *> outputs;
        for (std::uint32_t i = 0; i < graph_.output_count; ++i) {
            const QnnTensor &tensor = graph_.outputs[i];
            if (contains(tensor.name, "mutbuf_")) {
                continue;
            }
            if (!from_context_binary_ &&
                (tensor.name == nullptr || std::string_view(tensor.name).substr(0, 7) != "output_")) {
                fail("output '" + std::string(tensor.name == nullptr ? "" : tensor.name) +
                     "' will not be bound: its name does not begin with output_");
            }
            outputs.push_back(&tensor);
        }
        return outputs;
    }

    void check_argument(const QnnTensor &tensor, const Value &value) const
    {
        const std::string name = "'" + std::string(tensor.name == nullptr ? "" : tensor.name) + "'";
        if (!value.is_tensor) {
            fail(name + " is bound to a value that is not a tensor");
        }
        const auto *const dims = tensor.dims;
        const bool same = value.sizes.size() == tensor.rank && (tensor.rank == 0 || dims != nullptr) &&
                          std::equal(value.sizes.begin(), value.sizes.end(), dims,
                                     [](std::int32_t left, std::uint32_t right) {
                                         return left >= 0 && static_cast<std::uint32_t>(left) == right;
                                     });
        if (!same) {
            fail(name + " has shape " + shape(dims, dims == nullptr ? 0 : tensor.rank) + ", the program's tensor " +
                 shape(value.sizes.data(), value.sizes.size()));
        }
        const auto type = static_cast<runtime::etensor::ScalarType>(value.scalar_type);
        const std::size_t program_bytes = runtime::isValid(type) ? runtime::elementSize(type) : 0;
        if (program_bytes == 0 || program_bytes != element_size(tensor.data_type)) {
            char code[16];
            std::snprintf(code, sizeof code, "0x%04x", static_cast<unsigned>(tensor.data_type));
            fail(name + " has element type " + code + " of QNN (" + std::to_string(element_size(tensor.data_type)) +
                 " bytes), the program's tensor has type " + std::to_string(value.scalar_type) + " of ExecuTorch (" +
                 std::to_string(program_bytes) + " bytes)");
        }
    }

    template <class T>
    static std::string shape(const T *dims, std::size_t rank)
    {
        std::string text = "[";
        for (std::size_t i = 0; i < rank; ++i) {
            text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
        }
        return text + "]";
    }

    const QnnGraphInfo &graph_;
    bool from_context_binary_;
    const Method &method_;
    const Call &call_;
    std::string where_;
};

} // namespace

const QnnLibraries &QnnLibraries::open(const std::string &directory)
{
    // Never closed: the backend's own handles refer to these libraries until the process ends.
    static const QnnLibraries *opened = nullptr;
    if (opened == nullptr) {
        opened = new QnnLibraries(directory);
    }
    return *opened;
}

QnnLibraries::QnnLibraries(const std::string &directory) : directory_(directory)
{
    void *const htp = open_library(directory, "libQnnHtp.so");
    const auto &backend = provider<QnnBackendInterface>(htp, "QnnInterface_getProviders");
    if (backend.core.major != kCoreMajor) {
        unsupported("libQnnHtp.so has core API " + text(backend.core) + "; this engine needs version " +
                    std::to_string(kCoreMajor));
    }
    core_version_[0] = backend.core.major;
    core_version_[1] = backend.core.minor;
    core_version_[2] = backend.core.patch;
    void *const system = open_library(directory, "libQnnSystem.so");
    const auto &interface = provider<QnnSystemInterface>(system, "QnnSystemInterface_getProviders");
    if (interface.version.major != kSystemMajor) {
        unsupported("libQnnSystem.so has API " + text(interface.version) + "; this engine needs version " +
                    std::to_string(kSystemMajor));
    }
    system_ = &interface;
}

void QnnLibraries::check_graph(const std::uint8_t *file, const QnnBlob &blob, const Method &method, const Call &call) const
{
    const std::string where = "method '" + method.name + "', QNN context binary: ";
    const SystemContext context(*system_);
    const QnnBinaryInfo *info = nullptr;
    std::uint64_t info_size = 0;
    // The library takes a pointer to mutable bytes, and only reads them.
    auto *const binary = const_cast<std::uint8_t *>(file + blob.binary.offset);
    const std::uint64_t error = system_->binary_info(context.get(), binary, blob.binary.size, &info, &info_size);
    if (error != 0 || info == nullptr) {
        throw Failure(ETG_ENGINE_ERROR_FORMAT, where + "libQnnSystem.so cannot read it (error " +
                                                   std::to_string(error & 0xffff) + ")");
    }
    if (info->version != kBinaryInfoVersion) {
        unsupported(where + "it has a description of version " + std::to_string(info->version) + "; this engine reads " +
                    std::to_string(kBinaryInfoVersion));
    }
    const std::uint32_t core[] = {info->core.major, info->core.minor, info->core.patch};
    if (core[0] != kCoreMajor || std::lexicographical_compare(std::begin(core_version_), std::end(core_version_),
                                                              std::begin(core), std::end(core))) {
        unsupported(where + "it was made with core API " + text(info->core) + ", libQnnHtp.so has " +
                    text({core_version_[0], core_version_[1], core_version_[2]}) +
                    "; it needs that version or a newer one of the same major version");
    }
    std::string names;
    for (std::uint32_t i = 0; i < info->graph_count; ++i) {
        const QnnGraphInfo &graph = info->graphs[i];
        const std::string name = graph.name == nullptr ? "" : graph.name;
        if (name == method.name) {
            GraphCheck(graph, blob.from_context_binary, method, call).run();
            return;
        }
        names += (names.empty() ? "'" : ", '") + name + "'";
    }
    throw Failure(ETG_ENGINE_ERROR_FORMAT,
                  where + "it has no graph of the method's name; it has " + (names.empty() ? "none" : names));
}

} // namespace etgenai::executorch
