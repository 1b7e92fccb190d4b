/*
 * A checkpoint becomes a quantized model and answers: prepare, observe in two shards, join, quantize, open, measure, chat, compile, chat;
 * and every stage is cancelled once. tests/capi_quantize.rs passes a checkpoint, a text, and an empty folder to write to.
 */
#include "etgenai.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

static void expect(int right, const char *what)
{
    if (!right) {
        fprintf(stderr, "%s; last error: %s\n", what, etg_last_error_message());
        ++failures;
    }
}

#define EXPECT(condition) expect((condition), #condition)
#define EXPECT_STATUS(status, call)                                                                                    \
    do {                                                                                                               \
        const int32_t got_ = (call);                                                                                   \
        if (got_ != (status)) {                                                                                        \
            fprintf(stderr, "%s gave %s: %s\n", #call, etg_status_name(got_), etg_last_error_message());               \
            ++failures;                                                                                                \
        }                                                                                                              \
    } while (0)

/* What a callback saw, and when it shall end the work (0: never). */
struct watch {
    int calls;
    int end_at;
    char stage[32];
    char phase[32];
};

static int32_t watch(void *user_data, const etg_stage_progress *progress)
{
    struct watch *seen = user_data;
    EXPECT(progress->struct_size == sizeof *progress);
    EXPECT(progress->component != NULL && progress->layer != NULL);
    EXPECT(progress->total == 0 || progress->done <= progress->total);
    snprintf(seen->stage, sizeof seen->stage, "%s", progress->stage);
    snprintf(seen->phase, sizeof seen->phase, "%s", progress->phase);
    ++seen->calls;
    return seen->calls == seen->end_at;
}

static int exists(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file) {
        fclose(file);
    }
    return file != NULL;
}

static const char *in(const char *folder, const char *name)
{
    static char paths[16][1024];
    static unsigned next = 0;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Both shards of the calibration data, joined. */
static void observe(const etg_prepared_model *model, etg_calibration_options *data, const etg_quantize_options *options,
                    const char *folder)
{
    const char *parts[2] = {in(folder, "part1.json"), in(folder, "part2.json")};
    const char *joined = in(folder, "joined.json");
    const size_t lengths[2] = {strlen(parts[0]), strlen(parts[1])};
    for (size_t i = 0; i < 2; ++i) {
        struct watch seen = {0, 0, "", ""};
        (void)remove(parts[i]); /* a file of an earlier run would be gone on with */
        EXPECT_STATUS(ETG_OK, etg_calibration_options_set_shard(data, i + 1, 2));
        EXPECT_STATUS(ETG_OK, etg_prepared_model_observe(model, data, options, parts[i], lengths[i], watch, &seen));
        EXPECT(seen.calls > 0 && strcmp(seen.stage, "quantization") == 0 && strcmp(seen.phase, "ranges") == 0);
    }
    EXPECT_STATUS(ETG_OK, etg_calibration_options_set_shard(data, 0, 0));
    EXPECT_STATUS(ETG_OK, etg_observations_merge(parts, lengths, 2, joined, strlen(joined)));
    /* The same part twice. */
    parts[1] = parts[0];
    EXPECT_STATUS(ETG_ERROR_INVALID_ARGUMENT, etg_observations_merge(parts, lengths, 2, joined, strlen(joined)));
    EXPECT_STATUS(ETG_ERROR_INVALID_ARGUMENT, etg_observations_merge(parts, lengths, 0, joined, strlen(joined)));
    EXPECT(strncmp(etg_last_error_message(), "[quantization]", 14) != 0); /* refused before the stage began */
}

static void cancel_each_stage(const char *checkpoint, const etg_prepared_model *model, const etg_calibration_options *data,
                              const etg_quantize_options *options, const char *folder)
{
    const char *out = in(folder, "cancelled");
    const char *ranges = in(folder, "cancelled.json");
    etg_prepared_model *prepared = NULL;
    etg_quantized_model *quantized = NULL;
    struct watch first = {0, 1, "", ""};
    struct watch whole = {0, 0, "", ""};
    EXPECT_STATUS(ETG_ERROR_CANCELLED, etg_prepared_model_create(checkpoint, strlen(checkpoint), NULL, watch, &first, &prepared));
    EXPECT(prepared == NULL && strstr(etg_last_error_message(), "[model_preparation]") != NULL);
    first.calls = 0;
    EXPECT_STATUS(ETG_ERROR_CANCELLED,
                  etg_prepared_model_observe(model, data, options, ranges, strlen(ranges), watch, &first));
    EXPECT(!exists(ranges));
    EXPECT_STATUS(ETG_OK, etg_prepared_model_quantize(model, data, options, NULL, 0, out, strlen(out), watch, &whole,
                                                      NULL));
    EXPECT(exists(in(out, "manifest.json")));
    out = in(folder, "cancelled2");
    for (int end_at = 1; end_at <= whole.calls; end_at += 1 + whole.calls / 3) {
        struct watch one = {0, end_at, "", ""};
        EXPECT_STATUS(ETG_ERROR_CANCELLED, etg_prepared_model_quantize(model, data, options, NULL, 0, out, strlen(out),
                                                                       watch, &one, &quantized));
        EXPECT(quantized == NULL && !exists(in(out, "manifest.json")));
        EXPECT(strncmp(etg_last_error_message(), "[quantization]", 14) == 0);
    }
}

static void measure(const etg_quantized_model *model, const char *text)
{
    etg_perplexity file = etg_perplexity_init();
    etg_perplexity tokens = etg_perplexity_init();
    const uint32_t ids[4] = {5, 6, 7, 8};
    const uint32_t wrong[2] = {5, 4000000000u};
    struct watch seen = {0, 0, "", ""};
    struct watch first = {0, 1, "", ""};
    EXPECT_STATUS(ETG_OK, etg_quantized_model_perplexity_of_file(model, text, strlen(text), 32, 1, 1, watch, &seen, &file));
    EXPECT(strcmp(seen.stage, "evaluation") == 0);
    EXPECT(isfinite(file.perplexity) && file.perplexity > 1.0 && file.windows > 0);
    EXPECT(file.scored_tokens == file.windows * 31 && file.mean_nll > 0.0 && file.mean_nll < file.perplexity);
    EXPECT_STATUS(ETG_OK, etg_quantized_model_perplexity_of_tokens(model, ids, 4, 0, 0, 1, NULL, NULL, &tokens));
    EXPECT(tokens.windows == 1 && tokens.scored_tokens == 3);
    EXPECT_STATUS(ETG_ERROR_INVALID_ARGUMENT,
                  etg_quantized_model_perplexity_of_tokens(model, wrong, 2, 0, 0, 1, NULL, NULL, &tokens));
    EXPECT(strstr(etg_last_error_message(), "ids[1] is 4000000000") != NULL && tokens.scored_tokens == 3);
    EXPECT_STATUS(ETG_ERROR_CANCELLED,
                  etg_quantized_model_perplexity_of_tokens(model, ids, 4, 0, 0, 1, watch, &first, &tokens));
}

static void compile(const etg_quantized_model *model, const char *folder)
{
    struct watch seen = {0, 0, "", ""};
    struct watch first = {0, 2, "", ""};
    const char *ended = in(folder, "ended");
    const char *compiled = in(folder, "compiled");
    EXPECT_STATUS(ETG_ERROR_CANCELLED, etg_quantized_model_compile(model, ended, strlen(ended), 0, 1, watch, &first));
    EXPECT(strncmp(etg_last_error_message(), "[compilation]", 13) == 0 && !exists(in(ended, "manifest.json")));
    EXPECT_STATUS(ETG_OK, etg_quantized_model_compile(model, compiled, strlen(compiled), 0, 1, watch, &seen));
    EXPECT(strcmp(seen.stage, "compilation") == 0 && strcmp(seen.phase, "finish") == 0);
    EXPECT(exists(in(compiled, "manifest.json")));
}

static void chat(const char *folder)
{
    etg_runner *runner = NULL;
    etg_generate_options *options = NULL;
    etg_messages *messages = NULL;
    etg_turn_result result = etg_turn_result_init();
    EXPECT_STATUS(ETG_OK, etg_runner_open(folder, strlen(folder), NULL, &runner));
    EXPECT_STATUS(ETG_OK, etg_generate_options_create(&options));
    EXPECT_STATUS(ETG_OK, etg_generate_options_set_max_new_tokens(options, 4));
    EXPECT_STATUS(ETG_OK, etg_generate_options_set_ignore_eos(options, 1));
    EXPECT_STATUS(ETG_OK, etg_messages_create(&messages));
    EXPECT_STATUS(ETG_OK, etg_messages_add(messages, ETG_ROLE_USER));
    EXPECT_STATUS(ETG_OK, etg_messages_add_text(messages, "hello", 5));
    EXPECT_STATUS(ETG_STOP_LENGTH, etg_runner_generate(runner, messages, options, NULL, NULL, &result));
    EXPECT(result.generated_tokens == 4);
    etg_messages_free(messages);
    etg_generate_options_free(options);
    etg_runner_free(runner);
}

int main(int argc, char **argv)
{
    etg_prepared_model *saved = NULL;
    etg_prepared_model *model = NULL;
    etg_calibration_options *data = NULL;
    etg_quantize_options *options = NULL;
    etg_quantized_model *quantized = NULL;
    etg_buffer *report = NULL;
    const char *text = NULL;
    size_t length = 0;
    struct watch seen = {0, 0, "", ""};
    const char *checkpoint, *folder, *joined, *out;
    const char json[] = "{\"dtypes\": {\"text_decoder\": {\"dtype\": \"16a4w_block\", \"block\": 16}}, \"threads\": 1}";

    if (argc != 4) {
        return 2;
    }
    checkpoint = argv[1];
    folder = argv[3];
    joined = in(folder, "joined.json");

    EXPECT_STATUS(ETG_OK, etg_prepared_model_create(checkpoint, strlen(checkpoint), NULL, watch, &seen, &saved));
    EXPECT(strcmp(seen.stage, "model_preparation") == 0);
    EXPECT_STATUS(ETG_OK, etg_prepared_model_save(saved, folder, strlen(folder)));
    EXPECT_STATUS(ETG_OK, etg_prepared_model_load(folder, strlen(folder), NULL, 0, &model));
    etg_prepared_model_free(saved);

    EXPECT_STATUS(ETG_OK, etg_calibration_options_create(&data));
    EXPECT_STATUS(ETG_OK, etg_calibration_options_add_text(data, argv[2], strlen(argv[2])));
    EXPECT_STATUS(ETG_OK, etg_calibration_options_set_text_limit(data, 4));
    EXPECT_STATUS(ETG_OK, etg_calibration_options_set_text_window(data, 24));
    EXPECT_STATUS(ETG_OK, etg_quantize_options_create(&options));
    EXPECT_STATUS(ETG_OK, etg_quantize_options_set_json(options, json, strlen(json)));

    observe(model, data, options, folder);
    out = in(folder, "quantized");
    EXPECT_STATUS(ETG_OK, etg_prepared_model_quantize(model, data, options, joined, strlen(joined), out, strlen(out),
                                                      watch, &seen, &quantized));
    etg_quantized_model_free(quantized);
    EXPECT_STATUS(ETG_OK, etg_quantized_model_open(out, strlen(out), &quantized));
    EXPECT_STATUS(ETG_OK, etg_quantized_model_report_json(quantized, &report));
    EXPECT_STATUS(ETG_OK, etg_buffer_text(report, &text, &length));
    EXPECT(text != NULL && strstr(text, "\"model_preparation\"") != NULL && strstr(text, "\"16a4w_block\"") != NULL);
    etg_buffer_free(report);
    measure(quantized, argv[2]);
    chat(out);
    compile(quantized, folder);
    chat(in(folder, "compiled"));
    cancel_each_stage(checkpoint, model, data, options, folder);

    etg_quantized_model_free(quantized);
    etg_quantize_options_free(options);
    etg_calibration_options_free(data);
    etg_prepared_model_free(model);
    EXPECT(etg_live_handle_count() == 0);
    return failures != 0;
}
