/*
 * The classes of etgenai.hpp for quantization, with and without exceptions. tests/capi_quantize.rs passes a checkpoint and an empty
 * folder.
 */
#include "etgenai.hpp"

#include <cstdio>
#include <string>

namespace {

int failures = 0;

void expect(bool right, const char *what)
{
    if (!right) {
        std::fprintf(stderr, "%s; last error: %s\n", what, etg_last_error_message());
        ++failures;
    }
}
#define EXPECT(condition) expect((condition), #condition)

#ifdef ETG_NO_EXCEPTIONS
bool done(const etg::Result<void> &result)
{
    return static_cast<bool>(result);
}
/** The value of a call that must go well. */
template <typename T> T value(etg::Result<T> result)
{
    return std::move(*result);
}
/** The code of a call that must fail. */
template <typename Call> std::int32_t code_of(Call &&call)
{
    return call().error().code;
}
#else
template <typename T> T value(T result)
{
    return result;
}
template <typename Call> std::int32_t code_of(Call &&call)
{
    try {
        call();
        return ETG_OK;
    } catch (const etg::Error &error) {
        return error.code();
    }
}
#define done(call) ((call), true)
#endif

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        return 2;
    }
    const std::string checkpoint = argv[1];
    const std::string folder = argv[2];
    {
        etg::PreparationOptions preparation;
        EXPECT(done(preparation.max_context(64)));
        EXPECT(done(preparation.prefill_ar(16)));
        EXPECT(done(preparation.mode(ETG_MODE_HYBRID)));
        const etg::PreparedModel model = value(etg::PreparedModel::create(checkpoint, preparation));
        EXPECT(value(model.info_json()).find("\"text_decoder\"") != std::string::npos);
        EXPECT(done(model.save(folder)));
        const etg::PreparedModel loaded = value(etg::PreparedModel::load(folder));

        etg::CalibrationOptions data;
        EXPECT(done(data.random(4, 8, 5)));
        etg::QuantizeOptions options;
        EXPECT(done(options.dtype("text_decoder", ETG_QUANT_16A4W)));
        EXPECT(done(options.observer(ETG_OBSERVER_PERCENTILE, 0.999)));
        EXPECT(done(options.threads(1)));
        EXPECT(code_of([&] { return options.kv8(5); }) == ETG_ERROR_INVALID_ARGUMENT);
        EXPECT(value(model.calibration_json(data)).find("\"smoke_only\":true") != std::string::npos);

        const std::string parts[2] = {folder + "/part1", folder + "/part2"};
        for (std::size_t part = 0; part < 2; ++part) {
            EXPECT(done(data.shard(part + 1, 2)));
            EXPECT(done(model.observe(data, options, parts[part])));
        }
        EXPECT(done(data.shard(0, 0)));
        EXPECT(done(etg::merge_observations({parts[0], parts[1]}, folder + "/joined")));

        int steps = 0;
        const auto count = [&](const etg_stage_progress &progress) {
            ++steps;
            return std::string(progress.stage) == "quantization";
        };
        const etg::QuantizedModel quantized =
            value(loaded.quantize(data, options, folder + "/model", folder + "/joined", count));
        EXPECT(steps > 0);
        EXPECT(value(quantized.report_json()).find("16a4w") != std::string::npos);
        const etg_perplexity found = value(quantized.perplexity_of_tokens({5, 6, 7, 8}));
        EXPECT(found.scored_tokens == 3 && found.perplexity > 1.0);
        EXPECT(done(quantized.save_aimet("text_decoder", folder + "/encodings.json")));
        EXPECT(code_of([&] { return quantized.save_aimet("head", folder + "/x"); }) == ETG_ERROR_NOT_FOUND);

        EXPECT(done(quantized.compile(folder + "/compiled")));

        const auto never = [](const etg_stage_progress &) { return false; };
        EXPECT(code_of([&] { return model.quantize(data, options, folder + "/ended", {}, never); }) ==
               ETG_ERROR_CANCELLED);
        EXPECT(code_of([&] { return etg::QuantizedModel::open(folder + "/ended"); }) == ETG_ERROR_NOT_FOUND);
        EXPECT(code_of([&] { return etg::run_pipeline("{}"); }) == ETG_ERROR_INVALID_ARGUMENT);
#ifndef ETG_NO_EXCEPTIONS
        /* What a callback throws comes out of the call. */
        bool thrown = false;
        try {
            model.quantize(data, options, folder + "/ended", {},
                           [](const etg_stage_progress &) -> bool { throw std::logic_error("mine"); });
        } catch (const std::logic_error &error) {
            thrown = std::string(error.what()) == "mine";
        }
        EXPECT(thrown);
#endif
    }
    EXPECT(etg_live_handle_count() == 0);
    return failures != 0;
}
