/*
 * etgenai: an adapter for programs that own executorch::extension::Module objects (C++17, header only).
 *
 * Hand the Modules over by role, and etgenai's runner drives them; nothing is loaded twice, and the process keeps its one
 * copy of ExecuTorch:
 *
 *     executorch::extension::Module decoder("decoder.pte", executorch::extension::Module::LoadMode::Mmap);
 *     etgenai::executorch::ModuleEngine modules;
 *     modules.add("text_decoder", decoder);
 *     const etg_engine_functions functions = modules.functions();
 *     etg_engine_from_functions(&functions, &engine);    // etgenai.h; keep `modules` until the engine is freed
 *
 * It needs the headers of ExecuTorch 1.5 or newer and etgenai_engine.h, and links nothing of its own. Kernels and backends
 * that the programs need are the host's to register. The functions handed over never throw: C++ exceptions become errors,
 * and after hook_runtime() failed checks of the runtime, which otherwise end the process, do too.
 *
 * The engine library libetgenai_executorch.so (which loads .pte files itself) is made of this header as well.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_EXECUTORCH_HPP
#define ETGENAI_EXECUTORCH_HPP

#include "etgenai_engine.h"

#include <executorch/extension/module/module.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/method_meta.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#if defined(__ANDROID__)
#include <dlfcn.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/** The entry of the engine that loads .pte files itself (see etg_engine_open_fn): in libetgenai_executorch.so, and in programs
 *  that compile its sources in (CMake target etgenai::executorch_engine_sources).
 *
 *  Options are a JSON object; all of them may be left out:
 *  - `library_dir`: folder of ExecuTorch's kernel and backend libraries; default: where the runtime was loaded from. They are
 *    opened when a program needs them, and only if this process has no such kernels yet.
 *  - `libraries`: list of further kernel and backend libraries, opened at once.
 *  - `qnn_library_dir`: folder of libQnnHtp.so and libQnnSystem.so; default: ETGENAI_QNN_LIBRARY_DIR of the environment, else
 *    the system's search. The first program that needs QNN decides for the process.
 *  - `load_mode`: `mmap` (default) or `file`.
 *  - `log_level`: `off`, `error`, `warning` (default), `info`, `debug` or `trace`.
 *  - `handle_aborts`: call hook_runtime(); default true. */
extern "C" __attribute__((visibility("default"))) std::int32_t
etg_engine_open(const etg_engine_host *host, const char *options, std::size_t options_length,
                etg_engine_functions *functions_out, etg_engine_error *error);

namespace etgenai {
namespace executorch {

namespace runtime = ::executorch::runtime;
namespace extension = ::executorch::extension;

/** Why a call failed: a status of etgenai_engine.h (ETG_ENGINE_ERROR_…) and a sentence. Thrown inside the engine only; at
 *  the C boundary it becomes that status and an etg_engine_error. */
class Failure : public std::runtime_error {
  public:
    Failure(std::int32_t status, const std::string &message) : std::runtime_error(message), status_(status) {}

    /** ETG_ENGINE_ERROR_… */
    std::int32_t status() const noexcept
    {
        return status_;
    }

  private:
    std::int32_t status_;
};

/** Where log lines of the runtime go that are written inside engine calls. */
struct LogTarget {
    /** As in etg_engine_host; NULL: wherever they went before hook_runtime(). */
    void (*log)(void *user_data, std::int32_t level, const char *message, std::size_t message_length) = nullptr;
    void *user_data = nullptr;
    /** Lines above this level are dropped: 0 all, 1 errors … 5 trace. */
    std::int32_t max_level = 2;
};

namespace detail {

/** What a failed check of the runtime throws; never leaves a guarded call. */
class RuntimeAbort : public std::exception {
  public:
    const char *what() const noexcept override
    {
        return "a check inside ExecuTorch failed";
    }
};

/** The engine call that runs on this thread, if any. */
struct CallState {
    int depth = 0;
    const LogTarget *log = nullptr;
    std::string last_error;
};

inline thread_local CallState call_state;

/** The platform functions that were in charge before hook_runtime(); they stay it outside of engine calls. */
inline runtime::PalImpl &previous_platform()
{
    static runtime::PalImpl previous{};
    return previous;
}

/** Unwinds to the engine call. Where there is none (other threads, the host's own calls, static initialisers inside dlopen)
 *  there is nothing to unwind to, and the process ends as it would have. */
inline void on_abort()
{
    if (call_state.depth > 0) {
        throw RuntimeAbort();
    }
    if (previous_platform().abort != nullptr) {
        previous_platform().abort();
    }
    std::abort();
}

inline std::int32_t log_level_of(et_pal_log_level_t level) noexcept
{
    switch (level) {
    case kError:
    case kFatal:
        return 1;
    case kInfo:
        return 3;
    case kDebug:
    case kUnknown:
        break;
    }
    return 4;
}

inline void on_log(et_timestamp_t timestamp, et_pal_log_level_t level, const char *file, const char *function,
                   std::size_t line, const char *message, std::size_t length)
{
    CallState &call = call_state;
    if (call.depth > 0) {
        if (level == kError || level == kFatal) {
            try {
                call.last_error.assign(message, length);
            } catch (const std::bad_alloc &) {
                call.last_error.clear();
            }
        }
        if (call.log != nullptr && call.log->log != nullptr) {
            if (log_level_of(level) <= call.log->max_level) {
                call.log->log(call.log->user_data, log_level_of(level), message, length);
            }
            return;
        }
    }
    if (previous_platform().emit_log_message != nullptr) {
        previous_platform().emit_log_message(timestamp, level, file, function, line, message, length);
    }
}

/** A status for an error of the runtime. */
inline std::int32_t status_of(runtime::Error error) noexcept
{
    switch (error) {
    case runtime::Error::InvalidProgram:
    case runtime::Error::InvalidExternalData:
        return ETG_ENGINE_ERROR_FORMAT;
    case runtime::Error::NotSupported:
    case runtime::Error::NotImplemented:
    case runtime::Error::OperatorMissing:
    case runtime::Error::NotFound:
    case runtime::Error::DelegateInvalidCompatibility:
        return ETG_ENGINE_ERROR_UNSUPPORTED;
    case runtime::Error::AccessFailed:
        return ETG_ENGINE_ERROR_IO;
    default:
        return ETG_ENGINE_ERROR_FAILED;
    }
}

/** `what: name of the error (code): the runtime's last error line`. */
inline std::string runtime_message(const std::string &what, runtime::Error error)
{
    std::string message =
        what + ": ExecuTorch says " + runtime::to_string(error) + " (" + std::to_string(static_cast<int>(error)) + ")";
    if (!call_state.last_error.empty()) {
        message += ": " + call_state.last_error;
    }
    return message;
}

[[noreturn]] inline void fail(const std::string &what, runtime::Error error)
{
    throw Failure(status_of(error), runtime_message(what, error));
}

inline void check(runtime::Error error, const std::string &what)
{
    if (error != runtime::Error::Ok) {
        fail(what, error);
    }
}

inline void report(etg_engine_error *error, std::string_view text) noexcept
{
    if (error == nullptr || error->message == nullptr || error->capacity == 0) {
        return;
    }
    const std::size_t length = std::min(text.size(), error->capacity - 1);
    std::memcpy(error->message, text.data(), length);
    error->message[length] = '\0';
}

/** Runs `body` as an engine call: whatever it throws becomes a status and a text. Calls may be nested. */
template <class Body>
std::int32_t guarded(const LogTarget *log, etg_engine_error *error, Body &&body) noexcept
{
    CallState &call = call_state;
    const LogTarget *const outer_log = call.log;
    if (call.depth == 0) {
        call.last_error.clear();
    }
    ++call.depth;
    call.log = log;
    std::int32_t status = ETG_ENGINE_OK;
    try {
        body();
    } catch (const Failure &failure) {
        status = failure.status();
        report(error, failure.what());
    } catch (const std::bad_alloc &) {
        status = ETG_ENGINE_ERROR_FAILED;
        report(error, "out of memory");
    } catch (const std::exception &exception) {
        // Not concatenated: an exception handler that allocates may throw out of the guard.
        char text[1024];
        std::snprintf(text, sizeof text, "%s%s%s", exception.what(), call.last_error.empty() ? "" : ": ",
                      call.last_error.c_str());
        status = ETG_ENGINE_ERROR_FAILED;
        report(error, text);
    } catch (...) {
        status = ETG_ENGINE_ERROR_FAILED;
        report(error, "a C++ exception of unknown type");
    }
    call.log = outer_log;
    --call.depth;
    return status;
}

/** ETG_DTYPE_… of an element type, or 0 if the plug-in ABI has none. */
inline std::int32_t dtype_of(runtime::etensor::ScalarType type) noexcept
{
    using runtime::etensor::ScalarType;
    switch (type) {
    case ScalarType::Float:
        return ETG_DTYPE_F32;
    case ScalarType::Half:
        return ETG_DTYPE_F16;
    case ScalarType::BFloat16:
        return ETG_DTYPE_BF16;
    case ScalarType::Byte:
        return ETG_DTYPE_U8;
    case ScalarType::Char:
        return ETG_DTYPE_I8;
    case ScalarType::UInt16:
    case ScalarType::Bits16: // how files from before UInt16 call it
        return ETG_DTYPE_U16;
    case ScalarType::Short:
        return ETG_DTYPE_I16;
    case ScalarType::Int:
        return ETG_DTYPE_I32;
    case ScalarType::Long:
        return ETG_DTYPE_I64;
    default:
        return 0;
    }
}

/** The decoder's graphs first, in the order in which people name them; all others by name. */
inline bool comes_before(const std::string &left, const std::string &right)
{
    const auto rank = [](const std::string &name) { return name == "kv_forward" ? 0 : name == "prefill_forward" ? 1 : 2; };
    return std::make_pair(rank(left), std::string_view(left)) < std::make_pair(rank(right), std::string_view(right));
}

/** An input or output of a graph, and the runtime's tensor behind it. */
class Slot {
  public:
    Slot(std::string name, const runtime::TensorInfo &info)
        : name_(std::move(name)), dims_(info.sizes().begin(), info.sizes().end()),
          sizes_(info.sizes().begin(), info.sizes().end()), order_(info.dim_order().begin(), info.dim_order().end()),
          strides_(sizes_.size(), 1), planned_(info.is_memory_planned()), bytes_(info.nbytes()),
          dtype_(dtype_of(info.scalar_type())), type_(info.scalar_type())
    {
        std::int64_t stride = 1;
        for (std::size_t i = strides_.size(); i-- > 0;) {
            strides_[i] = static_cast<runtime::etensor::TensorImpl::StridesType>(stride);
            stride *= std::max(sizes_[i], 1);
        }
    }

    /** Why the plug-in ABI cannot express this tensor; empty if it can. */
    std::string obstacle() const
    {
        if (dtype_ == 0) {
            return "has element type " + std::to_string(static_cast<int>(type_)) + " of ExecuTorch";
        }
        for (std::size_t i = 0; i < order_.size(); ++i) {
            if (order_[i] != i) {
                return "is not row-major";
            }
        }
        return "";
    }

    etg_engine_tensor_info info() const
    {
        return {name_.data(), name_.size(), dtype_, static_cast<std::uint32_t>(dims_.size()), dims_.data()};
    }

    const std::string &name() const noexcept
    {
        return name_;
    }
    std::size_t bytes() const noexcept
    {
        return bytes_;
    }
    bool planned() const noexcept
    {
        return planned_;
    }

    /** Remembers the method's own tensor, whose address then says what is bound. */
    void attach(const runtime::EValue &value)
    {
        tensor_ = value.toTensor().unsafeGetTensorImpl();
    }

    /** What the method reads from or writes to. */
    const void *bound() const noexcept
    {
        return tensor_->data();
    }

    /** False if the method changed the size of its tensor: it may be dynamic. */
    bool has_full_size() const
    {
        return tensor_->nbytes() == bytes_;
    }

    /** A tensor of this shape over `data`, which refers to `storage` and to this slot. */
    runtime::etensor::TensorImpl over(void *data)
    {
        return runtime::etensor::TensorImpl(type_, static_cast<ssize_t>(sizes_.size()), sizes_.data(), data, order_.data(),
                                            strides_.data());
    }

  private:
    std::string name_;
    std::vector<std::uint64_t> dims_;
    std::vector<runtime::etensor::TensorImpl::SizesType> sizes_;
    std::vector<runtime::etensor::TensorImpl::DimOrderType> order_;
    std::vector<runtime::etensor::TensorImpl::StridesType> strides_;
    bool planned_;
    std::size_t bytes_;
    std::int32_t dtype_;
    runtime::etensor::ScalarType type_;
    const runtime::etensor::TensorImpl *tensor_ = nullptr;
};

// Module::method(), Method::get_input() and friends are marked as deprecated because most programs do better without. Here
// they save looking the method up and building a vector of values on each call.
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
inline runtime::Method &method_of(extension::Module &module, const std::string &name)
{
    runtime::Result<runtime::Method *> method = module.method(name);
    if (!method.ok()) {
        fail("method '" + name + "' cannot be loaded", method.error());
    }
    return **method;
}

inline const runtime::EValue &input_of(const runtime::Method &method, std::size_t index)
{
    return method.get_input(index);
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#if defined(__ANDROID__)
/** A C function of the QNN backend, or NULL. The backend may have been opened for itself alone, under either of its names. */
template <class Function>
Function *qnn_function(const char *name)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    for (const char *const library : {"libexecutorch_backend_qnn.so", "libqnn_executorch_backend.so"}) {
        void *const handle = symbol == nullptr ? dlopen(library, RTLD_NOW | RTLD_NOLOAD) : nullptr;
        if (handle != nullptr) {
            symbol = dlsym(handle, name);
            dlclose(handle); // the reference of whoever opened it stays
        }
    }
    return reinterpret_cast<Function *>(symbol);
}
#endif

/** Memory that QNN shares with the processor; nothing of it exists outside Android. */
class SharedMemory {
  public:
    SharedMemory() = default;
    SharedMemory(const SharedMemory &) = delete;
    SharedMemory &operator=(const SharedMemory &) = delete;

#if defined(__ANDROID__)
    /** NULL if the QNN backend is not there, or has no such memory. */
    void *allocate(std::size_t bytes, std::size_t alignment)
    {
        auto *const take = qnn_function<void *(std::size_t, std::size_t)>("QnnExecuTorchAllocCustomMem");
        void *const memory = take == nullptr ? nullptr : take(bytes, alignment);
        if (memory != nullptr) {
            std::memset(memory, 0, bytes);
            blocks_[static_cast<std::uint8_t *>(memory)] = bytes;
        }
        return memory;
    }

    void release(void *memory) noexcept
    {
        blocks_.erase(static_cast<std::uint8_t *>(memory));
        if (auto *const give = qnn_function<void(void *)>("QnnExecuTorchFreeCustomMem")) {
            give(memory);
        }
    }

    /** Tells the backend that a tensor lies at `data`, if that is memory of allocate(). */
    void announce(void *data)
    {
        auto block = blocks_.upper_bound(static_cast<std::uint8_t *>(data));
        if (block == blocks_.begin()) {
            return;
        }
        --block;
        if (static_cast<std::uint8_t *>(data) >= block->first + block->second) {
            return;
        }
        if (auto *const add = qnn_function<void(void *, void *)>("QnnExecuTorchAddCustomMemTensorAddr")) {
            add(data, block->first);
        }
    }

  private:
    std::map<std::uint8_t *, std::size_t> blocks_;
#else
    void announce(void *) noexcept {}
#endif
};

/** A method with tensors in and out. */
class Graph {
  public:
    Graph(extension::Module &module, std::string name) : module_(module), name_(std::move(name)) {}

    /** Reads the signature; returns why the plug-in ABI cannot express it, or nothing. */
    std::string describe(const runtime::MethodMeta &meta)
    {
        for (std::size_t i = 0; i < meta.num_inputs(); ++i) {
            const std::string obstacle = describe_slot("input_", i, meta.input_tag(i), meta.input_tensor_meta(i), inputs_);
            if (!obstacle.empty()) {
                return obstacle;
            }
        }
        for (std::size_t i = 0; i < meta.num_outputs(); ++i) {
            const std::string obstacle = describe_slot("output_", i, meta.output_tag(i), meta.output_tensor_meta(i), outputs_);
            if (!obstacle.empty()) {
                return obstacle;
            }
        }
        for (const Slot &slot : inputs_) {
            input_infos_.push_back(slot.info());
        }
        for (const Slot &slot : outputs_) {
            output_infos_.push_back(slot.info());
        }
        return "";
    }

    /** Loads the method, if that has not happened, and remembers its tensors. */
    void attach()
    {
        runtime::Method &method = method_of(module_, name_);
        for (std::size_t i = 0; i < inputs_.size(); ++i) {
            inputs_[i].attach(input_of(method, i));
        }
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            outputs_[i].attach(method.get_output(i));
        }
        method_ = &method;
        inputs_were_set_ = false;
    }

    etg_engine_graph view() const
    {
        return {name_.data(),        name_.size(),         input_infos_.data(),
                input_infos_.size(), output_infos_.data(), output_infos_.size()};
    }

    const std::string &name() const noexcept
    {
        return name_;
    }

    void execute(const etg_engine_call &call, SharedMemory &shared)
    {
        check_call(call.inputs, call.input_count, inputs_);
        check_call(call.outputs, call.output_count, outputs_);
        if (method_ == nullptr) {
            recover();
        }
        set_inputs(call.inputs, shared);
        set_outputs(call.outputs, shared);
        // Cleared for the case that execution ends in an abort, which leaves the method between two instructions.
        runtime::Method &method = *std::exchange(method_, nullptr);
        const runtime::Error error = method.execute();
        method_ = &method;
        if (error != runtime::Error::Ok) {
            fail("method '" + name_ + "' failed", error);
        }
        finish_outputs(call.outputs);
    }

  private:
    static std::string describe_slot(const char *prefix, std::size_t index, runtime::Result<runtime::Tag> tag,
                                     runtime::Result<runtime::TensorInfo> info, std::deque<Slot> &slots)
    {
        std::string name = prefix + std::to_string(index);
        if (!tag.ok() || *tag != runtime::Tag::Tensor || !info.ok()) {
            return name + " is not a tensor";
        }
        slots.emplace_back(name, *info);
        const std::string obstacle = slots.back().obstacle();
        return obstacle.empty() ? "" : name + " " + obstacle;
    }

    void check_call(const etg_engine_tensor *tensors, std::size_t count, const std::deque<Slot> &slots) const
    {
        const char *const kind = &slots == &inputs_ ? "inputs" : "outputs";
        if (count != slots.size() || (tensors == nullptr && count > 0)) {
            throw Failure(ETG_ENGINE_ERROR_INVALID_ARGUMENT, "method '" + name_ + "' has " + std::to_string(slots.size()) +
                                                                 " " + kind + ", not " + std::to_string(count));
        }
        for (std::size_t i = 0; i < count; ++i) {
            if (tensors[i].bytes != slots[i].bytes() || (tensors[i].data == nullptr && tensors[i].bytes > 0)) {
                throw Failure(ETG_ENGINE_ERROR_INVALID_ARGUMENT,
                              "method '" + name_ + "': " + slots[i].name() + " takes " + std::to_string(slots[i].bytes()) +
                                  " bytes, not " +
                                  (tensors[i].data == nullptr ? "NULL" : std::to_string(tensors[i].bytes)));
            }
        }
    }

    /** Memory of a tensor; one without elements may come without any, which the runtime does not take for an address. */
    static void *memory_of(const etg_engine_tensor &tensor) noexcept
    {
        alignas(16) static std::uint8_t nothing[16];
        return tensor.data == nullptr ? nothing : tensor.data;
    }

    /** Inputs without planned memory are aliased, which is done again only where the address changed; the others are copied
     *  by the runtime. */
    void set_inputs(const etg_engine_tensor *tensors, SharedMemory &shared)
    {
        for (std::size_t i = 0; i < inputs_.size(); ++i) {
            Slot &slot = inputs_[i];
            void *const data = memory_of(tensors[i]);
            if (inputs_were_set_ && !slot.planned() && slot.bound() == data) {
                continue;
            }
            shared.announce(data);
            runtime::etensor::TensorImpl tensor = slot.over(data);
            const runtime::Error error = method_->set_input(runtime::EValue(runtime::etensor::Tensor(&tensor)), i);
            if (error != runtime::Error::Ok) {
                fail("method '" + name_ + "': " + slot.name() + " cannot be set", error);
            }
        }
        inputs_were_set_ = true;
    }

    void set_outputs(const etg_engine_tensor *tensors, SharedMemory &shared)
    {
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            Slot &slot = outputs_[i];
            void *const data = memory_of(tensors[i]);
            if (slot.planned() || slot.bound() == data) {
                continue;
            }
            shared.announce(data);
            const runtime::Error error = method_->set_output_data_ptr(data, slot.bytes(), i);
            if (error != runtime::Error::Ok) {
                fail("method '" + name_ + "': " + slot.name() + " cannot be bound", error);
            }
        }
    }

    void finish_outputs(const etg_engine_tensor *tensors) const
    {
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            const Slot &slot = outputs_[i];
            if (!slot.has_full_size()) {
                throw Failure(ETG_ENGINE_ERROR_FAILED, "method '" + name_ + "': " + slot.name() +
                                                           " came out with another size than its " +
                                                           std::to_string(slot.bytes()) + " bytes");
            }
            if (slot.planned() && slot.bytes() > 0) {
                std::memcpy(tensors[i].data, slot.bound(), slot.bytes());
            }
        }
    }

    /** After an abort the method cannot be used any more; a fresh one can. */
    void recover()
    {
        module_.unload_method(name_);
        attach();
    }

    extension::Module &module_;
    std::string name_;
    // Deques, as describe() and the infos point into slots.
    std::deque<Slot> inputs_;
    std::deque<Slot> outputs_;
    std::vector<etg_engine_tensor_info> input_infos_;
    std::vector<etg_engine_tensor_info> output_infos_;
    runtime::Method *method_ = nullptr;
    bool inputs_were_set_ = false;
};

/** A named constant and the memory of its values. */
class Constant {
  public:
    Constant(std::string name, const std::vector<runtime::EValue> &values) : name_(std::move(name))
    {
        for (const runtime::EValue &value : values) {
            append(value);
        }
    }

    etg_engine_constant view() const
    {
        return {name_.data(), name_.size(), values_.data(), values_.size()};
    }

  private:
    void append(const runtime::EValue &value)
    {
        if (value.isInt()) {
            values_.push_back({ETG_VALUE_INTEGER, value.toInt(), 0.0, nullptr, 0});
        } else if (value.isDouble()) {
            values_.push_back({ETG_VALUE_REAL, 0, value.toDouble(), nullptr, 0});
        } else if (value.isBool()) {
            values_.push_back({ETG_VALUE_BOOLEAN, value.toBool() ? 1 : 0, 0.0, nullptr, 0});
        } else if (value.isString()) {
            texts_.emplace_back(value.toString());
            values_.push_back({ETG_VALUE_TEXT, 0, 0.0, texts_.back().data(), texts_.back().size()});
        }
    }

    std::string name_;
    std::vector<etg_engine_value> values_;
    std::deque<std::string> texts_;
};

} // namespace detail

/** Makes failed checks inside ExecuTorch (ET_CHECK) errors of the engine call in which they happen, instead of the end of the
 *  process, and puts the runtime's last error line into messages. Process-wide, by runtime::register_pal; outside of engine
 *  calls the platform functions that were registered before stay in charge. Checks that fail on threads of the runtime's own
 *  still end the process. Calling it again does nothing. The code it is compiled into must not be unloaded afterwards. */
inline void hook_runtime()
{
    static const bool once = [] {
        runtime::runtime_init();
        detail::previous_platform() = *runtime::get_pal_impl();
        return runtime::register_pal(runtime::PalImpl::create(nullptr, detail::on_abort, nullptr, nullptr, detail::on_log,
                                                              nullptr, nullptr, __FILE__));
    }();
    static_cast<void>(once);
}

/** One loaded Module, as the plug-in ABI sees it.
 *
 *  Graphs are the methods with tensors in and out: `kv_forward`, `prefill_forward`, then the others by name; their tensors are
 *  called `input_0`, …, `output_0`, … . Constants are the methods without inputs whose outputs are numbers, truth values or
 *  texts, each output one value. Methods of any other kind are left out (see left_out()).
 *
 *  Inputs without planned memory are aliased and outputs without planned memory are bound, once, and again when the caller
 *  brings other addresses; planned ones are copied. Nothing is allocated per call. */
class ModuleComponent {
  public:
    /** Loads the program of `module`, if that has not happened, and those methods that are graphs. The module must outlive
     *  this object, and none of its methods may be unloaded meanwhile.
     *  Throws Failure. */
    explicit ModuleComponent(extension::Module &module) : module_(module)
    {
        detail::check(module.is_loaded() ? runtime::Error::Ok : module.load(), "the program cannot be loaded");
        runtime::Result<std::unordered_set<std::string>> names = module.method_names();
        if (!names.ok()) {
            detail::fail("the methods cannot be listed", names.error());
        }
        std::vector<std::string> sorted(names->begin(), names->end());
        std::sort(sorted.begin(), sorted.end(), detail::comes_before);
        for (const std::string &name : sorted) {
            add_method(name);
        }
        for (detail::Graph &graph : graphs_) {
            graph.attach();
            graph_views_.push_back(graph.view());
        }
        for (const detail::Constant &constant : constants_) {
            constant_views_.push_back(constant.view());
        }
    }

    ModuleComponent(const ModuleComponent &) = delete;
    ModuleComponent &operator=(const ModuleComponent &) = delete;

    /** Fills in graphs and constants, which point into this object; leaves the other fields as they are. */
    void describe(etg_engine_component &component) const noexcept
    {
        component.graphs = graph_views_.data();
        component.graph_count = graph_views_.size();
        component.constants = constant_views_.data();
        component.constant_count = constant_views_.size();
    }

    /** Executes a graph. Throws Failure: with ETG_ENGINE_ERROR_INVALID_ARGUMENT nothing was executed. */
    void execute(const etg_engine_call &call)
    {
        if (call.graph >= graphs_.size()) {
            throw Failure(ETG_ENGINE_ERROR_INVALID_ARGUMENT, "there is no graph " + std::to_string(call.graph) + "; there are " +
                                                                 std::to_string(graphs_.size()));
        }
        graphs_[call.graph].execute(call, shared_);
    }

    /** Backends that the methods use, each once, in order of appearance. */
    const std::vector<std::string> &backends() const noexcept
    {
        return backends_;
    }

    /** Methods that the plug-in ABI cannot express, and why: `encode: input_1 is not a tensor`. */
    const std::vector<std::string> &left_out() const noexcept
    {
        return left_out_;
    }

    /** Memory that QNN shares with the processor (Android only). */
    detail::SharedMemory &shared_memory() noexcept
    {
        return shared_;
    }

  private:
    void add_method(const std::string &name)
    {
        const runtime::Result<runtime::MethodMeta> meta = module_.method_meta(name);
        if (!meta.ok()) {
            detail::fail("method '" + name + "' cannot be described", meta.error());
        }
        if (is_constant(*meta)) {
            read_constant(name);
            return;
        }
        detail::Graph graph(module_, name);
        const std::string obstacle = graph.describe(*meta);
        if (!obstacle.empty()) {
            left_out_.push_back(name + ": " + obstacle);
            return;
        }
        for (std::size_t i = 0; i < meta->num_backends(); ++i) {
            const runtime::Result<const char *> backend = meta->get_backend_name(i);
            if (backend.ok() && std::find(backends_.begin(), backends_.end(), *backend) == backends_.end()) {
                backends_.emplace_back(*backend);
            }
        }
        graphs_.push_back(std::move(graph));
    }

    static bool is_constant(const runtime::MethodMeta &meta)
    {
        for (std::size_t i = 0; i < meta.num_outputs(); ++i) {
            const runtime::Result<runtime::Tag> tag = meta.output_tag(i);
            if (!tag.ok() || (*tag != runtime::Tag::Int && *tag != runtime::Tag::Double && *tag != runtime::Tag::Bool &&
                              *tag != runtime::Tag::String)) {
                return false;
            }
        }
        return meta.num_inputs() == 0 && meta.num_outputs() > 0;
    }

    void read_constant(const std::string &name)
    {
        const bool was_loaded = module_.is_method_loaded(name);
        const runtime::Result<std::vector<runtime::EValue>> values = module_.execute(name);
        if (!values.ok()) {
            detail::fail("constant '" + name + "' cannot be read", values.error());
        }
        constants_.emplace_back(name, *values);
        if (!was_loaded) {
            module_.unload_method(name);
        }
    }

    extension::Module &module_;
    detail::SharedMemory shared_;
    // Deques: views point into their elements.
    std::deque<detail::Graph> graphs_;
    std::deque<detail::Constant> constants_;
    std::vector<etg_engine_graph> graph_views_;
    std::vector<etg_engine_constant> constant_views_;
    std::vector<std::string> backends_;
    std::vector<std::string> left_out_;
};

/** Modules that the host owns, as an engine. Each is used by one loaded component at a time, since a Module is not for two
 *  threads: a second runner needs Modules of its own.
 *
 *  Neither copied nor moved, as the functions it gives point to it. */
class ModuleEngine {
  public:
    ModuleEngine() = default;
    ModuleEngine(const ModuleEngine &) = delete;
    ModuleEngine &operator=(const ModuleEngine &) = delete;

    /** The program for a role: `text_decoder`, `tok_embedding`, `vision_encoder`, `audio_encoder` or
     *  `attention_sink_evictor`. A later one for the same role replaces an earlier one. The Module must outlive the engine, and
     *  the host must not execute it, or unload its methods, while a component is loaded. */
    ModuleEngine &add(std::string component, extension::Module &module)
    {
        return add(std::move(component), std::shared_ptr<extension::Module>(std::shared_ptr<void>(), &module));
    }

    /** As above; shares ownership. */
    ModuleEngine &add(std::string component, std::shared_ptr<extension::Module> module)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        modules_[std::move(component)] = std::move(module);
        return *this;
    }

    /** The functions to hand to etg_engine_from_functions. This object must stay where it is until the engine is freed. */
    etg_engine_functions functions() noexcept
    {
        static const char name[] = "executorch";
        etg_engine_functions functions{};
        functions.struct_size = sizeof functions;
        functions.abi_version = ETG_ENGINE_ABI_VERSION;
        functions.user_data = this;
        functions.name = name;
        functions.name_length = sizeof name - 1;
        functions.load = load;
        functions.execute = execute;
        functions.close = close;
#if defined(__ANDROID__)
        functions.allocate = allocate;
        functions.release = release;
#endif
        return functions;
    }

  private:
    struct Loaded {
        std::shared_ptr<extension::Module> module;
        std::unique_ptr<ModuleComponent> component;
        std::string description;
    };

    static std::int32_t load(void *user_data, const etg_engine_source *source, etg_engine_component *out,
                             etg_engine_error *error)
    {
        return detail::guarded(nullptr, error,
                               [&] { static_cast<ModuleEngine *>(user_data)->load_component(*source, *out); });
    }

    static std::int32_t execute(void *, void *component, const etg_engine_call *call, etg_engine_error *error)
    {
        return detail::guarded(nullptr, error, [&] { static_cast<Loaded *>(component)->component->execute(*call); });
    }

    static void close(void *user_data, void *component)
    {
        detail::guarded(nullptr, nullptr, [&] {
            const std::unique_ptr<Loaded> loaded(static_cast<Loaded *>(component));
            static_cast<ModuleEngine *>(user_data)->give_back(loaded->module.get());
        });
    }

#if defined(__ANDROID__)
    static std::int32_t allocate(void *, void *component, std::size_t bytes, std::size_t alignment, void **out,
                                 etg_engine_error *error)
    {
        return detail::guarded(nullptr, error, [&] {
            *out = static_cast<Loaded *>(component)->component->shared_memory().allocate(bytes, alignment);
        });
    }

    static void release(void *, void *component, void *memory)
    {
        static_cast<Loaded *>(component)->component->shared_memory().release(memory);
    }
#endif

    void load_component(const etg_engine_source &source, etg_engine_component &out)
    {
        const std::string role(source.component, source.component_length);
        auto loaded = std::make_unique<Loaded>();
        loaded->module = take(role);
        try {
            loaded->component = std::make_unique<ModuleComponent>(*loaded->module);
            loaded->description = "ExecuTorch";
            for (const std::string &backend : loaded->component->backends()) {
                loaded->description += ", " + backend;
            }
        } catch (...) {
            give_back(loaded->module.get());
            throw;
        }
        loaded->component->describe(out);
        out.description = loaded->description.data();
        out.description_length = loaded->description.size();
        out.weight_bytes = 0;
        out.handle = loaded.release();
    }

    std::shared_ptr<extension::Module> take(const std::string &role)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = modules_.find(role);
        if (found == modules_.end()) {
            std::string known;
            for (const auto &entry : modules_) {
                known += (known.empty() ? "" : ", ") + entry.first;
            }
            throw Failure(ETG_ENGINE_ERROR_NOT_FOUND, "no Module was added for '" + role + "'; there are: " +
                                                          (known.empty() ? "none" : known));
        }
        if (std::find(in_use_.begin(), in_use_.end(), found->second.get()) != in_use_.end()) {
            throw Failure(ETG_ENGINE_ERROR_FAILED,
                          "the Module for '" + role + "' is in use by another runner; add a Module of its own for each");
        }
        in_use_.push_back(found->second.get());
        return found->second;
    }

    void give_back(const extension::Module *module)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        in_use_.erase(std::remove(in_use_.begin(), in_use_.end(), module), in_use_.end());
    }

    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<extension::Module>> modules_;
    std::vector<const extension::Module *> in_use_;
};

} // namespace executorch
} // namespace etgenai

#endif /* ETGENAI_EXECUTORCH_HPP */
