/*
 * Every function with each of its pointers NULL in turn, all others right: an error code and a text, never a crash.
 * tests/capi.rs writes the calls from the header and passes the folder of a compiled model that takes pictures, a
 * picture, a checkpoint, and the folder of a quantized model.
 */
#include "etgenai.h"

#include <stdio.h>
#include <string.h>

static int failures = 0;

static void nulled(int32_t status, int may_be_null, const char *call)
{
    if (!may_be_null && status != ETG_ERROR_INVALID_ARGUMENT) {
        fprintf(stderr, "%s gave %s\n", call, etg_status_name(status));
        ++failures;
    }
    if (status < 0 && etg_last_error_message()[0] == '\0') {
        fprintf(stderr, "%s left no message\n", call);
        ++failures;
    }
}

/* With NULL options a picture is made all the same. */
#define NULLED(call, may_be_null)                                                                                      \
    do {                                                                                                               \
        nulled((call), (may_be_null), #call);                                                                          \
        etg_image_free(new_image);                                                                                     \
        new_image = NULL;                                                                                              \
    } while (0)
#define NEEDED(call)                                                                                                   \
    if ((call) < 0) {                                                                                                  \
        fprintf(stderr, "%s: %s\n", #call, etg_last_error_message());                                                  \
        return 1;                                                                                                      \
    }

int main(int argc, char **argv)
{
    /* What the calls use ... */
    etg_buffer *buffer = NULL;
    etg_messages *messages = NULL;
    etg_generate_options *generate_options = NULL;
    etg_runner_options *runner_options = NULL;
    etg_compile_options *compile_options = NULL;
    etg_tokenizer *tokenizer = NULL;
    etg_detokenizer *detokenizer = NULL;
    etg_runner *runner = NULL;
    etg_image_options *image_options = NULL;
    etg_image *image = NULL;
    etg_pixels *pixels = NULL;
    etg_image_processor *image_processor = NULL;
    etg_embedding *embedding = NULL;
    etg_audio *audio = NULL;
    etg_engine *engine = NULL;
    etg_model_files *model_files = NULL;
    etg_preparation_options *preparation_options = NULL;
    etg_calibration_options *calibration_options = NULL;
    etg_quantize_options *quantize_options = NULL;
    etg_prepared_model *prepared_model = NULL;
    etg_quantized_model *quantized_model = NULL;
    etg_engine_functions functions = etg_engine_functions_init();
    etg_yuv420 frame = etg_yuv420_init();
    const etg_image *images[1];
    const etg_embedding *embeddings[1];
    const char *const texts[1] = {"x"};
    const size_t lengths[1] = {1};
    const uint8_t bytes[16] = {0};
    float values[64] = {0};
    const uint32_t ids[1] = {1};
    /* ... and where their results go. */
    etg_buffer *new_buffer = NULL;
    etg_messages *new_messages = NULL;
    etg_generate_options *new_generate_options = NULL;
    etg_runner_options *new_runner_options = NULL;
    etg_compile_options *new_compile_options = NULL;
    etg_tokenizer *new_tokenizer = NULL;
    etg_detokenizer *new_detokenizer = NULL;
    etg_runner *new_runner = NULL;
    etg_image_options *new_image_options = NULL;
    etg_image *new_image = NULL;
    etg_pixels *new_pixels = NULL;
    etg_image_processor *new_image_processor = NULL;
    etg_embedding *new_embedding = NULL;
    etg_audio *new_audio = NULL;
    etg_engine *new_engine = NULL;
    etg_model_files *new_model_files = NULL;
    etg_preparation_options *new_preparation_options = NULL;
    etg_calibration_options *new_calibration_options = NULL;
    etg_quantize_options *new_quantize_options = NULL;
    etg_prepared_model *new_prepared_model = NULL;
    etg_quantized_model *new_quantized_model = NULL;
    uint8_t hash[ETG_IMAGE_HASH_BYTES];
    const uint8_t *bytes_out = NULL;
    const char *text_out = NULL;
    const uint32_t *ids_out = NULL;
    const float *logits_out = NULL;
    size_t size_out = 0;
    uint32_t id_out = 0;
    int32_t flag_out = 0;
    etg_turn_result result = etg_turn_result_init();
    etg_perplexity perplexity = etg_perplexity_init();

    /* Not every result has a second pointer beside it. */
    (void)new_messages, (void)new_generate_options, (void)new_runner_options, (void)new_compile_options;
    (void)new_tokenizer, (void)new_detokenizer, (void)new_runner, (void)new_buffer, (void)new_image_options;
    (void)new_pixels, (void)new_image_processor, (void)new_embedding, (void)new_audio, (void)new_engine;
    (void)new_model_files, (void)hash;
    (void)new_preparation_options, (void)new_calibration_options, (void)new_quantize_options;
    (void)new_prepared_model, (void)new_quantized_model;

    if (argc != 5) {
        return 2;
    }
    NEEDED(etg_messages_create(&messages));
    NEEDED(etg_messages_add(messages, ETG_ROLE_USER));
    NEEDED(etg_messages_add_text(messages, "hello", 5));
    NEEDED(etg_generate_options_create(&generate_options));
    NEEDED(etg_generate_options_set_max_new_tokens(generate_options, 1));
    NEEDED(etg_runner_options_create(&runner_options));
    NEEDED(etg_compile_options_create(&compile_options));
    NEEDED(etg_engine_builtin("cpu", 3, "", 0, &engine));
    NEEDED(etg_model_files_create(&model_files));
    NEEDED(etg_runner_open(argv[1], strlen(argv[1]), runner_options, &runner));
    NEEDED(etg_image_options_create(&image_options));
    NEEDED(etg_image_from_file(argv[2], strlen(argv[2]), image_options, &image));
    NEEDED(etg_image_processor_open(argv[1], strlen(argv[1]), &image_processor));
    NEEDED(etg_runner_preprocess_image(runner, image, &pixels));
    NEEDED(etg_runner_encode_pixels(runner, pixels, &embedding));
    NEEDED(etg_audio_from_samples(values, 1, 16000, &audio));
    NEEDED(etg_preparation_options_create(&preparation_options));
    NEEDED(etg_calibration_options_create(&calibration_options));
    NEEDED(etg_quantize_options_create(&quantize_options));
    NEEDED(etg_prepared_model_create(argv[3], strlen(argv[3]), NULL, NULL, NULL, &prepared_model));
    NEEDED(etg_quantized_model_open(argv[4], strlen(argv[4]), &quantized_model));
    frame.width = frame.height = frame.y_row_stride = frame.uv_row_stride = 1;
    frame.y = frame.u = frame.v = bytes;
    frame.y_length = frame.u_length = frame.v_length = 1;
    images[0] = image;
    embeddings[0] = embedding;
    NEEDED(etg_runner_tokenizer(runner, &tokenizer));
    NEEDED(etg_detokenizer_create(tokenizer, 1, &detokenizer));
    NEEDED(etg_runner_render(runner, messages, &buffer));

/* CALLS */

    etg_quantized_model_free(quantized_model);
    etg_prepared_model_free(prepared_model);
    etg_quantize_options_free(quantize_options);
    etg_calibration_options_free(calibration_options);
    etg_preparation_options_free(preparation_options);
    etg_model_files_free(model_files);
    etg_engine_free(engine);
    etg_audio_free(audio);
    etg_embedding_free(embedding);
    etg_image_processor_free(image_processor);
    etg_pixels_free(pixels);
    etg_image_free(image);
    etg_image_options_free(image_options);
    etg_buffer_free(buffer);
    etg_detokenizer_free(detokenizer);
    etg_tokenizer_free(tokenizer);
    etg_runner_free(runner);
    etg_compile_options_free(compile_options);
    etg_runner_options_free(runner_options);
    etg_generate_options_free(generate_options);
    etg_messages_free(messages);
    if (etg_live_handle_count() != 0) {
        fprintf(stderr, "%zu handles leaked\n", etg_live_handle_count());
        ++failures;
    }
    return failures != 0;
}
