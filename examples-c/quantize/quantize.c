/*
 * Quantizes a checkpoint, with a progress bar.
 *
 *     quantize [--model NAME] [--dtype 16a8w|16a4w|16a4w_block] [--context N] [--windows N] [--eval FILE] CHECKPOINT TEXT OUT
 *
 * CHECKPOINT is a Hugging Face folder or a GGUF file, TEXT the calibration data, OUT the folder of the quantized model. NAME is the
 * model's name in the registry, whose recipe is used where no dtype is given. --eval prints the perplexity of another text. Ctrl-C
 * ends the work; what is under OUT stays as it was.
 */
#include <etgenai.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t interrupted = 0;

static void on_interrupt(int number)
{
    interrupted = 1;
    signal(number, SIG_DFL);
}

/* Draws one line and returns to its beginning. A non-zero answer ends the work. */
static int32_t on_progress(void *user_data, const etg_stage_progress *progress)
{
    char bar[31];
    size_t filled = 0;
    (void)user_data;
    if (progress->total > 0) {
        filled = (size_t)(progress->done * (sizeof bar - 1) / progress->total);
    }
    memset(bar, '.', sizeof bar - 1);
    memset(bar, '#', filled);
    bar[sizeof bar - 1] = '\0';
    fprintf(stderr, "\r%-17s %-14s %-8s [%s] %-40.40s", progress->stage, progress->component, progress->phase, bar,
            progress->layer);
    return interrupted;
}

/* What was asked for on the command line. */
struct asked {
    const char *model;
    const char *eval;
    const char *checkpoint;
    const char *text;
    const char *out;
    int32_t dtype; /* -1: the recipe of the model */
    size_t context;
    size_t windows;
};

static int usage(void)
{
    fputs("usage: quantize [--model NAME] [--dtype 16a8w|16a4w|16a4w_block] [--context N] [--windows N] [--eval FILE]\n"
          "                CHECKPOINT TEXT OUT\n",
          stderr);
    return 2;
}

static int parse(int argc, char **argv, struct asked *asked)
{
    static const char *const names[] = {"16a16w", "16a8w", "16a4w", "16a4w_block", "8a8w", "8a4w"};
    int next = 1;
    for (; next + 1 < argc && strncmp(argv[next], "--", 2) == 0; next += 2) {
        const char *value = argv[next + 1];
        if (strcmp(argv[next], "--model") == 0) {
            asked->model = value;
        } else if (strcmp(argv[next], "--eval") == 0) {
            asked->eval = value;
        } else if (strcmp(argv[next], "--context") == 0) {
            asked->context = strtoul(value, NULL, 10);
        } else if (strcmp(argv[next], "--windows") == 0) {
            asked->windows = strtoul(value, NULL, 10);
        } else if (strcmp(argv[next], "--dtype") == 0) {
            for (int32_t dtype = 0; dtype < 6; ++dtype) { /* the order of the ETG_QUANT_ constants */
                asked->dtype = strcmp(value, names[dtype]) == 0 ? dtype : asked->dtype;
            }
            if (asked->dtype < 0) {
                return 0;
            }
        } else {
            return 0;
        }
    }
    if (argc - next != 3) {
        return 0;
    }
    asked->checkpoint = argv[next];
    asked->text = argv[next + 1];
    asked->out = argv[next + 2];
    return 1;
}

/* Stage model_preparation. */
static int32_t prepare(const struct asked *asked, etg_prepared_model **model_out)
{
    etg_preparation_options *options = NULL;
    int32_t status = etg_preparation_options_create(&options);
    if (status >= 0) {
        status = etg_preparation_options_set_model(options, asked->model, strlen(asked->model));
    }
    if (status >= 0) {
        status = etg_preparation_options_set_max_context(options, asked->context);
    }
    if (status >= 0) {
        status = etg_prepared_model_create(asked->checkpoint, strlen(asked->checkpoint), options, on_progress, NULL,
                                           model_out);
    }
    etg_preparation_options_free(options);
    return status;
}

/* Stage quantization. */
static int32_t quantize(const struct asked *asked, const etg_prepared_model *model, etg_quantized_model **quantized_out)
{
    etg_calibration_options *data = NULL;
    etg_quantize_options *options = NULL;
    int32_t status = etg_calibration_options_create(&data);
    if (status >= 0) {
        status = etg_calibration_options_add_text(data, asked->text, strlen(asked->text));
    }
    if (status >= 0) {
        status = etg_calibration_options_set_text_limit(data, asked->windows);
    }
    if (status >= 0) {
        status = etg_quantize_options_create(&options);
    }
    if (status >= 0 && asked->dtype >= 0) {
        status = etg_quantize_options_set_dtype(options, "text_decoder", strlen("text_decoder"), asked->dtype, 0);
    }
    if (status >= 0) {
        status = etg_prepared_model_quantize(model, data, options, NULL, 0, asked->out, strlen(asked->out), on_progress,
                                             NULL, quantized_out);
    }
    etg_quantize_options_free(options);
    etg_calibration_options_free(data);
    return status;
}

static int32_t evaluate(const struct asked *asked, const etg_quantized_model *model)
{
    etg_perplexity found = etg_perplexity_init();
    const int32_t status = etg_quantized_model_perplexity_of_file(model, asked->eval, strlen(asked->eval), 0, 0, 0,
                                                                  on_progress, NULL, &found);
    if (status >= 0) {
        fputc('\n', stderr);
        printf("perplexity %.3f over %llu tokens\n", found.perplexity, (unsigned long long)found.scored_tokens);
    }
    return status;
}

int main(int argc, char **argv)
{
    struct asked asked = {"", NULL, NULL, NULL, NULL, -1, 0, 4};
    etg_prepared_model *model = NULL;
    etg_quantized_model *quantized = NULL;
    int32_t status;

    if (!parse(argc, argv, &asked)) {
        return usage();
    }
    if (etg_check_abi() != ETG_OK) {
        fprintf(stderr, "quantize: library %s does not fit this program\n", etg_version_string());
        return 1;
    }
    signal(SIGINT, on_interrupt);
    status = prepare(&asked, &model);
    if (status >= 0) {
        status = quantize(&asked, model, &quantized);
    }
    if (status >= 0) {
        fputc('\n', stderr);
        printf("quantized %s to %s\n", asked.checkpoint, asked.out);
    }
    if (status >= 0 && asked.eval) {
        status = evaluate(&asked, quantized);
    }
    if (status < 0) {
        fprintf(stderr, "\nquantize: %s\n", etg_last_error_message());
    }
    etg_quantized_model_free(quantized);
    etg_prepared_model_free(model);
    return status < 0;
}
