/*
 * What the tests of the ExecuTorch engine share: the engine behind its C functions, and a plain greedy decoder over the graph
 * contract, written without any of etgenai's own runner.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_TESTS_EXECUTORCH_DRIVER_HPP
#define ETGENAI_TESTS_EXECUTORCH_DRIVER_HPP

#include "etgenai_engine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace driver {

/** A check that does not hold ends the test. */
inline void check(bool holds, const std::string &what)
{
    if (!holds) {
        throw std::runtime_error(what);
    }
}

inline std::vector<std::uint8_t> read_file(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    check(file.good(), "cannot read " + path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::string &path, const std::vector<std::uint8_t> &bytes)
{
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char *>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    check(file.good(), "cannot write " + path);
}

/** A tensor of a safetensors file, as the type the caller knows it to have. */
template <class T>
std::vector<T> read_tensor(const std::string &path, const std::string &name)
{
    const std::vector<std::uint8_t> file = read_file(path);
    std::uint64_t header_size = 0;
    std::memcpy(&header_size, file.data(), sizeof header_size);
    const std::string header(file.begin() + 8, file.begin() + 8 + static_cast<std::ptrdiff_t>(header_size));
    const std::size_t entry = header.find("\"" + name + "\":");
    check(entry != std::string::npos, path + " has no " + name);
    const std::size_t offsets = header.find("\"data_offsets\":[", entry);
    char *next = nullptr;
    const std::size_t first = std::strtoull(header.c_str() + offsets + 16, &next, 10);
    const std::size_t last = std::strtoull(next + 1, nullptr, 10);
    std::vector<T> values((last - first) / sizeof(T));
    std::memcpy(values.data(), file.data() + 8 + header_size + first, values.size() * sizeof(T));
    return values;
}

/** A status that is not ETG_ENGINE_OK. */
struct EngineError : std::runtime_error {
    EngineError(std::int32_t code, const std::string &message) : std::runtime_error(message), status(code) {}
    std::int32_t status;
};

/** Room for the text of an error; throws it. */
class ErrorRoom {
  public:
    etg_engine_error *get()
    {
        return &error_;
    }

    void require_ok(std::int32_t status) const
    {
        if (status != ETG_ENGINE_OK) {
            throw EngineError(status, text_);
        }
    }

  private:
    char text_[2048] = "";
    etg_engine_error error_{sizeof(etg_engine_error), text_, sizeof text_};
};

/** Calls that fail give their status, and the text in `message`; calls that do not give ETG_ENGINE_OK. */
inline std::int32_t status_of(const std::function<void()> &call, std::string &message)
{
    try {
        call();
    } catch (const EngineError &error) {
        message = error.what();
        check(!message.empty(), "an error without a text");
        return error.status;
    }
    message.clear();
    return ETG_ENGINE_OK;
}

template <class T>
void check_equal(const std::vector<T> &left, const std::vector<T> &right, const std::string &what)
{
    check(left.size() == right.size(), what + ": " + std::to_string(left.size()) + " numbers, not " + std::to_string(right.size()));
    for (std::size_t i = 0; i < left.size(); ++i) {
        check(!(left[i] < right[i]) && !(right[i] < left[i]),
              what + ": number " + std::to_string(i) + " is " + std::to_string(left[i]) + ", not " + std::to_string(right[i]));
    }
}

/** A named test. */
struct Test {
    const char *name;
    void (*run)();
};

/** Runs the tests that the command line names, or all; gives the exit code. */
template <std::size_t N>
int run_tests(const Test (&tests)[N], int argc, char **argv)
{
    int failures = 0;
    for (const Test &test : tests) {
        const bool wanted =
            argc < 2 || std::any_of(argv + 1, argv + argc, [&](const char *name) { return std::string_view(name) == test.name; });
        if (!wanted) {
            continue;
        }
        std::printf("%s\n", test.name);
        std::fflush(stdout);
        try {
            test.run();
        } catch (const std::exception &exception) {
            std::printf("  FAILED: %s\n", exception.what());
            ++failures;
        }
    }
    std::printf(failures == 0 ? "all passed\n" : "%d failed\n", failures);
    return failures == 0 ? 0 : 1;
}

/** An engine library. */
class Engine {
  public:
    Engine(const std::string &library, const std::string &options)
    {
        void *const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        check(handle != nullptr, "cannot open " + library + ": " + (handle == nullptr ? dlerror() : ""));
        const auto open = reinterpret_cast<etg_engine_open_fn>(dlsym(handle, ETG_ENGINE_OPEN_SYMBOL));
        check(open != nullptr, library + " has no " ETG_ENGINE_OPEN_SYMBOL);
        open_with(open, options);
    }
    /** An engine inside this program: `open`, which a library exports, or one of the host's own. */
    Engine(etg_engine_open_fn open, const std::string &options)
    {
        open_with(open, options);
    }
    explicit Engine(const etg_engine_functions &functions) : functions_(functions) {}
    ~Engine()
    {
        if (functions_.destroy != nullptr) {
            functions_.destroy(functions_.user_data);
        }
    }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    const etg_engine_functions &functions() const
    {
        return functions_;
    }

    /** Lines that the engine logged, oldest first. */
    std::vector<std::string> log() const
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        return lines_;
    }

  private:
    void open_with(etg_engine_open_fn open, const std::string &options)
    {
        functions_.struct_size = sizeof functions_;
        ErrorRoom error;
        error.require_ok(open(&host_, options.data(), options.size(), &functions_, error.get()));
    }

    static void append(void *user_data, std::int32_t, const char *message, std::size_t length)
    {
        auto &engine = *static_cast<Engine *>(user_data);
        const std::lock_guard<std::mutex> lock(engine.mutex_);
        engine.lines_.emplace_back(message, length);
    }

    mutable std::mutex mutex_;
    std::vector<std::string> lines_;
    etg_engine_host host_{sizeof(etg_engine_host), ETG_ENGINE_ABI_VERSION, this, append};
    etg_engine_functions functions_{};
};

/** Bytes that lie where the plug-in ABI wants them. */
class AlignedBytes {
  public:
    explicit AlignedBytes(const std::vector<std::uint8_t> &bytes) : storage_(bytes.size() / sizeof(Block) + 1), size_(bytes.size())
    {
        std::memcpy(storage_.data(), bytes.data(), bytes.size());
    }
    const std::uint8_t *data() const
    {
        return storage_.front().bytes;
    }
    std::size_t size() const
    {
        return size_;
    }

  private:
    struct alignas(16) Block {
        std::uint8_t bytes[16];
    };
    std::vector<Block> storage_;
    std::size_t size_;
};

/** Memory of one tensor. */
class Tensor {
  public:
    explicit Tensor(const etg_engine_tensor_info &info) : info_(info)
    {
        bytes_ = element_size(info.dtype);
        for (std::uint32_t i = 0; i < info.rank; ++i) {
            bytes_ *= info.dims[i];
        }
        storage_.resize(bytes_ / 16 + 1);
    }

    static std::size_t element_size(std::int32_t dtype)
    {
        switch (dtype) {
        case ETG_DTYPE_U8:
        case ETG_DTYPE_I8:
            return 1;
        case ETG_DTYPE_F16:
        case ETG_DTYPE_BF16:
        case ETG_DTYPE_U16:
        case ETG_DTYPE_I16:
            return 2;
        case ETG_DTYPE_I64:
            return 8;
        default:
            return 4;
        }
    }

    etg_engine_tensor view()
    {
        return {data<void>(), bytes_};
    }
    template <class T>
    T *data()
    {
        return reinterpret_cast<T *>(storage_.data());
    }
    std::size_t bytes() const
    {
        return bytes_;
    }
    std::size_t dim(std::size_t index) const
    {
        return static_cast<std::size_t>(info_.dims[index]);
    }
    std::size_t last_dim() const
    {
        return dim(info_.rank - 1);
    }
    const etg_engine_tensor_info &info() const
    {
        return info_;
    }

  private:
    struct alignas(16) Block {
        std::uint8_t bytes[16] = {};
    };
    etg_engine_tensor_info info_;
    std::size_t bytes_ = 0;
    std::vector<Block> storage_;
};

/** A graph with memory for all its tensors. */
class Graph {
  public:
    Graph(const Engine &engine, void *component, std::uint32_t index, const etg_engine_graph &graph)
        : engine_(engine), component_(component), index_(index)
    {
        for (std::size_t i = 0; i < graph.input_count; ++i) {
            inputs.emplace_back(graph.inputs[i]);
        }
        for (std::size_t i = 0; i < graph.output_count; ++i) {
            outputs.emplace_back(graph.outputs[i]);
        }
    }

    void execute()
    {
        std::vector<etg_engine_tensor> in;
        std::vector<etg_engine_tensor> out;
        for (Tensor &tensor : inputs) {
            in.push_back(tensor.view());
        }
        for (Tensor &tensor : outputs) {
            out.push_back(tensor.view());
        }
        execute(in, out);
    }

    void execute(const std::vector<etg_engine_tensor> &in, const std::vector<etg_engine_tensor> &out)
    {
        const etg_engine_call call{sizeof(etg_engine_call), index_, in.data(), in.size(), out.data(), out.size(), SIZE_MAX, 0, SIZE_MAX};
        ErrorRoom error;
        error.require_ok(engine_.functions().execute(engine_.functions().user_data, component_, &call, error.get()));
    }

    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;

  private:
    const Engine &engine_;
    void *component_;
    std::uint32_t index_;
};

/** A loaded component. */
class Component {
  public:
    Component(const Engine &engine, const std::string &path, const std::string &role = "text_decoder") : engine_(engine)
    {
        load({sizeof(etg_engine_source), role.data(), role.size(), path.data(), path.size(), nullptr, 0, 0});
    }
    Component(const Engine &engine, const AlignedBytes &bytes, const std::string &role = "text_decoder") : engine_(engine)
    {
        load({sizeof(etg_engine_source), role.data(), role.size(), nullptr, 0, bytes.data(), bytes.size(), 0});
    }
    ~Component()
    {
        engine_.functions().close(engine_.functions().user_data, component_.handle);
    }
    Component(const Component &) = delete;
    Component &operator=(const Component &) = delete;

    const etg_engine_component &description() const
    {
        return component_;
    }

    const etg_engine_constant *constant(std::string_view name) const
    {
        for (std::size_t i = 0; i < component_.constant_count; ++i) {
            if (std::string_view(component_.constants[i].name, component_.constants[i].name_length) == name) {
                return &component_.constants[i];
            }
        }
        return nullptr;
    }

    bool has_graph(std::string_view name) const
    {
        return find(name) < component_.graph_count;
    }

    Graph graph(std::string_view name) const
    {
        const std::size_t index = find(name);
        check(index < component_.graph_count, "no graph " + std::string(name));
        return Graph(engine_, component_.handle, static_cast<std::uint32_t>(index), component_.graphs[index]);
    }

  private:
    void load(const etg_engine_source &source)
    {
        component_.struct_size = sizeof component_;
        ErrorRoom error;
        error.require_ok(engine_.functions().load(engine_.functions().user_data, &source, &component_, error.get()));
    }

    std::size_t find(std::string_view name) const
    {
        std::size_t index = 0;
        while (index < component_.graph_count &&
               std::string_view(component_.graphs[index].name, component_.graphs[index].name_length) != name) {
            ++index;
        }
        return index;
    }

    const Engine &engine_;
    etg_engine_component component_{};
};

/** Greedy decoding over the graph contract: input 0 ids or rows, mask, positions, K caches, V caches; the current block in the
 *  last columns of the mask. */
class Decoder {
  public:
    /** `hybrid`: take blocks of the prompt through prefill_forward. */
    Decoder(const Component &component, bool hybrid) : decode_(component.graph("kv_forward"))
    {
        if (hybrid) {
            prefill_ = std::make_unique<Graph>(component.graph("prefill_forward"));
        }
        key_count_ = (decode_.outputs.size() - 1) / 2; // and as many of V
        context_ = decode_.inputs[1].last_dim();
        if (const etg_engine_constant *const scale = component.constant("get_logits_scale")) {
            scale_ = static_cast<float>(scale->values[0].real);
            zero_point_ = static_cast<float>(component.constant("get_logits_zero_point")->values[0].integer);
        }
        for (std::size_t i = 0; i < 2 * key_count_; ++i) {
            const Tensor &slot = decode_.outputs[1 + i];
            // One column (K) or row (V) for each position of the context.
            cache_.emplace_back(slot.bytes() * context_);
        }
    }

    /** Runs the prompt, then `count` greedy steps; what was fed before stays in the cache. */
    std::vector<std::int32_t> generate(const std::vector<std::int32_t> &prompt, std::size_t count)
    {
        std::vector<std::int32_t> result;
        feed(prompt);
        while (result.size() < count) {
            result.push_back(best());
            if (result.size() < count) {
                feed({result.back()});
            }
        }
        return result;
    }

    /** Token ids in. */
    void feed(const std::vector<std::int32_t> &ids)
    {
        blocks(ids.size(), [&](Graph &graph, std::size_t first, std::size_t rows) {
            for (std::size_t i = 0; i < rows; ++i) {
                if (graph.inputs[0].info().dtype == ETG_DTYPE_I64) {
                    graph.inputs[0].data<std::int64_t>()[i] = ids[first + i];
                } else {
                    graph.inputs[0].data<std::int32_t>()[i] = ids[first + i];
                }
            }
        });
    }

    /** Hidden states in, `width` numbers a row. */
    void feed_rows(const std::vector<float> &values, std::size_t width)
    {
        blocks(values.size() / width, [&](Graph &graph, std::size_t first, std::size_t rows) {
            std::memcpy(graph.inputs[0].data<float>(), values.data() + first * width, rows * width * sizeof(float));
        });
    }

    /** Logits of every row fed so far. */
    const std::vector<float> &logits() const
    {
        return logits_;
    }

    std::int32_t best() const
    {
        const auto first = logits_.end() - static_cast<std::ptrdiff_t>(width_);
        return static_cast<std::int32_t>(std::max_element(first, logits_.end()) - first);
    }

  private:
    template <class Fill>
    void blocks(std::size_t count, Fill &&fill)
    {
        for (std::size_t done = 0; done < count;) {
            Graph &graph = prefill_ != nullptr && count - done > 1 ? *prefill_ : decode_;
            const std::size_t block = graph.inputs[1].dim(graph.inputs[1].info().rank - 2);
            const std::size_t rows = std::min(block, count - done);
            std::memset(graph.inputs[0].data<void>(), 0, graph.inputs[0].bytes());
            fill(graph, done, rows);
            run(graph, block, rows);
            done += rows;
        }
    }

    void run(Graph &graph, std::size_t block, std::size_t rows)
    {
        const std::size_t past = context_ - block;
        for (std::size_t row = 0; row < block; ++row) {
            for (std::size_t column = 0; column < context_; ++column) {
                const bool attend = column < past ? column < filled_ : column - past <= row;
                set_mask(graph.inputs[1], row * context_ + column, attend);
            }
            graph.inputs[2].data<std::int32_t>()[row] = static_cast<std::int32_t>(std::min(filled_ + row, context_ - 1));
        }
        for (std::size_t i = 0; i < 2 * key_count_; ++i) {
            copy_cache(i, graph.inputs[3 + i].data<std::uint8_t>(), past, 0, past, true, graph.outputs[1 + i]);
        }
        graph.execute();
        for (std::size_t i = 0; i < 2 * key_count_; ++i) {
            copy_cache(i, graph.outputs[1 + i].data<std::uint8_t>(), block, filled_, rows, false, graph.outputs[1 + i]);
        }
        append_logits(graph.outputs[0], rows);
        filled_ += rows;
    }

    static void set_mask(Tensor &mask, std::size_t index, bool attend)
    {
        if (mask.info().dtype == ETG_DTYPE_F32) {
            mask.data<float>()[index] = attend ? 0.0F : -65535.0F;
        } else if (mask.info().dtype == ETG_DTYPE_U8) {
            mask.data<std::uint8_t>()[index] = attend ? 255 : 0;
        } else {
            mask.data<std::uint16_t>()[index] = attend ? 65535 : 0;
        }
    }

    /** Moves `count` positions between a tensor with `stride` positions and the cache, from position `first` on. K has
     *  positions innermost, V one dimension further out. */
    void copy_cache(std::size_t index, std::uint8_t *tensor, std::size_t stride, std::size_t first, std::size_t count,
                    bool to_tensor, const Tensor &shape)
    {
        const bool is_key = index < key_count_;
        // Older programs have a tensor for each head: [1, dim, positions] and [1, positions, dim].
        const std::uint32_t rank = shape.info().rank;
        const std::size_t heads = rank == 4 ? shape.dim(1) : 1;
        const std::size_t width = shape.dim(is_key ? rank - 2 : rank - 1);
        const std::size_t element = Tensor::element_size(shape.info().dtype);
        const std::size_t outer = is_key ? heads * width : heads;
        const std::size_t unit = is_key ? element : width * element;
        for (std::size_t row = 0; row < outer; ++row) {
            std::uint8_t *const here = tensor + row * stride * unit;
            std::uint8_t *const kept = cache_[index].data() + (row * context_ + first) * unit;
            std::memcpy(to_tensor ? here : kept, to_tensor ? kept : here, count * unit);
        }
    }

    void append_logits(Tensor &tensor, std::size_t rows)
    {
        width_ = tensor.last_dim();
        for (std::size_t i = 0; i < rows * width_; ++i) {
            logits_.push_back(tensor.info().dtype == ETG_DTYPE_F32
                                  ? tensor.data<float>()[i]
                                  : (static_cast<float>(tensor.data<std::uint16_t>()[i]) - zero_point_) * scale_);
        }
    }

    Graph decode_;
    std::unique_ptr<Graph> prefill_;
    std::size_t key_count_ = 0;
    std::size_t context_ = 0;
    std::size_t filled_ = 0;
    std::size_t width_ = 0;
    float scale_ = 1.0F;
    float zero_point_ = 0.0F;
    std::vector<std::vector<std::uint8_t>> cache_;
    std::vector<float> logits_;
};

} // namespace driver

#endif
