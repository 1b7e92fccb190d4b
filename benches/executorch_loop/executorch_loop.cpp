// What the runner costs on top of ExecuTorch.
//
//     executorch_loop DECODER.pte TOKENIZER [--tokens N] [--rounds N]
//
// One Module, two ways to decode greedily from the same prompt, in turns: a bare loop over Module::execute as upstream's
// programs have it (set the token, execute, copy the new column and row into the caches, take the largest logit), and
// etgenai's runner over the same Module (etg_runner_sample and etg_runner_decode_one). Both must choose the same tokens.
// For each position of the reply the fastest of all rounds counts, since other work on the machine only ever adds time. Printed
// are the means of those, and the difference.
#include <etgenai.hpp>
#include <etgenai_executorch.hpp>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace runtime = ::executorch::runtime;
using ::executorch::aten::ScalarType;
using ::executorch::extension::Module;
using ::executorch::extension::TensorPtr;

constexpr char kMethod[] = "kv_forward";

double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check(bool holds, const char *what)
{
    if (!holds) {
        throw std::runtime_error(what);
    }
}

/** Memory of a tensor and the tensor over it. */
struct Buffer {
    explicit Buffer(const runtime::TensorInfo &info)
        : bytes(info.nbytes()), sizes(info.sizes().begin(), info.sizes().end()), type(info.scalar_type()),
          tensor(::executorch::extension::from_blob(bytes.data(), sizes, type))
    {
    }
    std::vector<std::uint8_t> bytes;
    std::vector<::executorch::aten::SizesType> sizes;
    ScalarType type;
    TensorPtr tensor;
};

/** The bare loop: one token a call, caches of one tensor a layer. */
class BareLoop {
  public:
    explicit BareLoop(Module &module) : module_(module)
    {
        check(module.load_method(kMethod) == runtime::Error::Ok, "kv_forward cannot be loaded");
        const auto meta = module.method_meta(kMethod);
        for (std::size_t i = 0; i < meta->num_inputs(); ++i) {
            inputs_.emplace_back(*meta->input_tensor_meta(i));
        }
        for (std::size_t i = 0; i < meta->num_outputs(); ++i) {
            outputs_.emplace_back(*meta->output_tensor_meta(i));
        }
        context_ = static_cast<std::size_t>(inputs_[1].sizes.back());
        layers_ = (outputs_.size() - 1) / 2;
        check(inputs_[0].type == ScalarType::Int && inputs_.size() == 3 + 2 * layers_ && inputs_[3].sizes.size() == 4,
              "the decoder is none with tokens in and a cache a layer");
        element_ = inputs_[3].type == ScalarType::Byte ? 1 : inputs_[3].type == ScalarType::Float ? 4 : 2;
    }

    /** Binds the memory of this loop; the runner has bound its own in between. */
    void reset()
    {
        arguments_.clear();
        for (Buffer &input : inputs_) {
            std::fill(input.bytes.begin(), input.bytes.end(), std::uint8_t{0});
            arguments_.emplace_back(*input.tensor);
        }
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            check(module_.set_output(kMethod, *outputs_[i].tensor, i) == runtime::Error::Ok, "an output cannot be bound");
        }
        for (std::size_t column = 0; column < context_; ++column) {
            attend(column, column + 1 == context_);
        }
        position_ = 0;
    }

    /** Processes a token and gives the one with the largest logit. */
    std::uint32_t step(std::uint32_t token)
    {
        const auto id = static_cast<std::int32_t>(token);
        const auto position = static_cast<std::int32_t>(position_);
        std::memcpy(inputs_[0].bytes.data(), &id, sizeof id);
        std::memcpy(inputs_[2].bytes.data(), &position, sizeof position);
        check(module_.execute(kMethod, arguments_).ok(), "execute failed");
        for (std::size_t layer = 0; layer < layers_; ++layer) {
            keep(inputs_[3 + layer], outputs_[1 + layer], 1);
            keep(inputs_[3 + layers_ + layer], outputs_[1 + layers_ + layer], static_cast<std::size_t>(outputs_[1 + layers_ + layer].sizes[3]));
        }
        attend(position_, true);
        ++position_;
        return outputs_[0].type == ScalarType::Float ? largest<float>() : largest<std::uint16_t>();
    }

  private:
    void attend(std::size_t column, bool yes)
    {
        Buffer &mask = inputs_[1];
        if (mask.type == ScalarType::Float) {
            const float value = yes ? 0.0F : -65535.0F;
            std::memcpy(mask.bytes.data() + column * sizeof value, &value, sizeof value);
        } else {
            const std::uint16_t value = yes ? 65535 : 0;
            std::memcpy(mask.bytes.data() + column * sizeof value, &value, sizeof value);
        }
    }

    /** Copies the new entries into a cache; `run` elements of each lie together. */
    void keep(Buffer &cache, const Buffer &fresh, std::size_t run) const
    {
        const std::size_t unit = run * element_;
        const std::size_t stride = (context_ - 1) * unit;
        for (std::size_t row = 0; row * unit < fresh.bytes.size(); ++row) {
            std::memcpy(cache.bytes.data() + row * stride + position_ * unit, fresh.bytes.data() + row * unit, unit);
        }
    }

    template <class T>
    std::uint32_t largest() const
    {
        const auto *const first = reinterpret_cast<const T *>(outputs_[0].bytes.data());
        return static_cast<std::uint32_t>(std::max_element(first, first + outputs_[0].bytes.size() / sizeof(T)) - first);
    }

    Module &module_;
    std::vector<Buffer> inputs_;
    std::vector<Buffer> outputs_;
    std::vector<runtime::EValue> arguments_;
    std::size_t context_ = 0;
    std::size_t layers_ = 0;
    std::size_t element_ = 0;
    std::size_t position_ = 0;
};

/** The runner, step by step. */
class RunnerLoop {
  public:
    RunnerLoop(Module &module, const std::string &tokenizer)
    {
        modules_.add("text_decoder", module);
        const etg::Engine engine = etg::Engine::from_functions(modules_.functions());
        etg::ModelFiles files;
        files.component_held("text_decoder");
        files.tokenizer(tokenizer);
        etg::RunnerOptions options;
        check(etg_runner_options_set_decoding(options.get(), ETG_DECODING_KV) >= 0, etg_last_error_message());
        check(etg_runner_open_files(files.get(), engine.get(), options.get(), &runner_) >= 0, etg_last_error_message());
        check(etg_generate_options_create(&greedy_) >= 0, etg_last_error_message());
        check(etg_generate_options_set_temperature(greedy_, 0.0) >= 0, etg_last_error_message());
    }
    ~RunnerLoop()
    {
        etg_generate_options_free(greedy_);
        etg_runner_free(runner_);
    }
    RunnerLoop(const RunnerLoop &) = delete;
    RunnerLoop &operator=(const RunnerLoop &) = delete;

    void reset()
    {
        check(etg_runner_reset(runner_) >= 0, etg_last_error_message());
    }

    std::uint32_t step(std::uint32_t token)
    {
        std::uint32_t next = 0;
        check(etg_runner_decode_one(runner_, token) >= 0 && etg_runner_sample(runner_, greedy_, &next) >= 0,
              etg_last_error_message());
        return next;
    }

  private:
    etgenai::executorch::ModuleEngine modules_;
    etg_runner *runner_ = nullptr;
    etg_generate_options *greedy_ = nullptr;
};

/** The fastest time of each position so far, and the tokens of the last round. */
struct Record {
    explicit Record(std::size_t count) : seconds(count, 1e9) {}

    /** Mean time a token, microseconds. */
    double microseconds() const
    {
        return 1e6 * std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
    }

    std::vector<double> seconds;
    std::vector<std::uint32_t> tokens;
};

template <class Loop>
void time_round(Loop &loop, const std::vector<std::uint32_t> &prompt, Record &record)
{
    loop.reset();
    std::uint32_t next = 0;
    for (const std::uint32_t token : prompt) {
        next = loop.step(token);
    }
    record.tokens.clear();
    for (double &best : record.seconds) {
        record.tokens.push_back(next);
        const double start = now();
        next = loop.step(next);
        best = std::min(best, now() - start);
    }
}

void run(const std::string &decoder, const std::string &tokenizer, std::size_t count, std::size_t rounds)
{
    const std::vector<std::uint32_t> prompt{5, 6, 7, 8};
    Module module(decoder, Module::LoadMode::Mmap);
    BareLoop bare(module);
    RunnerLoop ours(module, tokenizer);
    Record bare_record(count);
    Record our_record(count);
    for (std::size_t round = 0; round < rounds; ++round) {
        time_round(bare, prompt, bare_record);
        time_round(ours, prompt, our_record);
        check(bare_record.tokens == our_record.tokens, "the two ways chose different tokens");
    }
    const double more = our_record.microseconds() - bare_record.microseconds();
    std::printf("%s: %zu rounds of %zu tokens\n", decoder.c_str(), rounds, count);
    std::printf("  bare loop over Module::execute  %10.2f us a token\n", bare_record.microseconds());
    std::printf("  etgenai's runner                %10.2f us a token\n", our_record.microseconds());
    std::printf("  the runner costs                %10.2f us a token more, %.2f %%\n", more, 100.0 * more / bare_record.microseconds());
}

} // namespace

int main(int argc, char **argv)
{
    std::size_t count = 32;
    std::size_t rounds = 50;
    std::vector<std::string> files;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if ((word == "--tokens" || word == "--rounds") && i + 1 < argc) {
            (word == "--tokens" ? count : rounds) = std::strtoul(argv[++i], nullptr, 10);
        } else {
            files.push_back(word);
        }
    }
    if (files.size() != 2 || count == 0 || rounds == 0) {
        std::fprintf(stderr, "usage: executorch_loop DECODER.pte TOKENIZER [--tokens N] [--rounds N]\n");
        return 2;
    }
    try {
        run(files[0], files[1], count, rounds);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "executorch_loop: %s\n", error.what());
        return 1;
    }
    return 0;
}
