/*
 * etgenai: from a checkpoint to a conversation on a device.
 *
 * Generated from src/capi by cbindgen; do not edit.
 *
 * House rules, true of every function here:
 *
 * - Status. Functions return int32_t: ETG_OK (0), an error (negative), or something worth knowing that is not an
 *   error (positive). After an error etg_last_error_message() says what was wrong, for the thread that made the call;
 *   etg_runner_last_error() says it for a runner.
 * - Handles are opaque. etg_x_create and etg_x_open make them, etg_x_free takes them back; etg_x_free(NULL) does
 *   nothing. A handle that was freed or is of another kind is an error code, not undefined behaviour. A handle is a
 *   ticket and not the address of anything.
 * - Text is UTF-8 with a length in bytes. What comes in needs no NUL at its end, and is copied when it is kept. NULL with
 *   length 0 is the empty text.
 * - "borrowed" means: the library's memory, valid as long as the function says; do not free it.
 * - Structs start with struct_size; initialise them with their etg_x_init(). They grow at the end only.
 * - Callbacks get the user_data they were registered with, on the thread that made the call. No C++ exception and no
 *   longjmp may leave them.
 * - The library never prints, never exits, installs no signal handler, and needs no shutdown. It cannot be unloaded:
 *   dlclose leaves it in the process.
 * - Within a major version functions, constants and struct fields are only added.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_H
#define ETGENAI_H


#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "etgenai_engine.h"

/** Where functions live: define ETG_STATIC to link the static library on Windows. */
#if defined(_WIN32) && !defined(ETG_STATIC)
#define ETG_API __declspec(dllimport)
#else
#define ETG_API
#endif

/** The compiler warns when a status is dropped. */
#if defined(__cplusplus) && __cplusplus >= 201703L
#define ETG_MUST_USE [[nodiscard]]
#elif defined(__GNUC__) || defined(__clang__)
#define ETG_MUST_USE __attribute__((warn_unused_result))
#elif defined(_MSC_VER)
#define ETG_MUST_USE _Check_return_
#else
#define ETG_MUST_USE
#endif

/** Version of this header as one number; etg_version_number() is that of the loaded library. */
#define ETG_VERSION_NUMBER (ETG_VERSION_MAJOR * 1000000 + ETG_VERSION_MINOR * 1000 + ETG_VERSION_PATCH)


/**
 * Major version of this header. Within one major version, functions are only added.
 */
#define ETG_VERSION_MAJOR 0

/**
 * Minor version of this header.
 */
#define ETG_VERSION_MINOR 1

/**
 * Patch version of this header.
 */
#define ETG_VERSION_PATCH 0

/**
 * Success. Of `etg_runner_generate`: the model ended its reply itself.
 */
#define ETG_OK 0

/**
 * Not an error: the reply ended because of `etg_runner_cancel`.
 */
#define ETG_STOP_CANCELLED 1

/**
 * Not an error: the reply ended at `max_new_tokens`.
 */
#define ETG_STOP_LENGTH 2

/**
 * Not an error: the reply ended because the context is full.
 */
#define ETG_STOP_CONTEXT_FULL 3

/**
 * Not an error: the reply ended at a stop string, which is not part of the reply.
 */
#define ETG_STOP_STRING 4

/**
 * Not an error: the reply ended because the event callback asked for it.
 */
#define ETG_STOP_CALLBACK 5

/**
 * An argument or option has a value that is not allowed: NULL, not UTF-8, out of range, a handle that is not live.
 */
#define ETG_ERROR_INVALID_ARGUMENT -1

/**
 * The named thing (file, model, option, graph, tensor) does not exist.
 */
#define ETG_ERROR_NOT_FOUND -2

/**
 * The operating system refused a file operation.
 */
#define ETG_ERROR_IO -3

/**
 * A file, template or JSON text is malformed; the message names file, field and reason.
 */
#define ETG_ERROR_FORMAT -4

/**
 * A well-formed request for something this build cannot do.
 */
#define ETG_ERROR_UNSUPPORTED -5

/**
 * The conversation does not fit the context; the message holds both numbers.
 */
#define ETG_ERROR_CONTEXT_FULL -6

/**
 * The call is not allowed in the handle's present state.
 */
#define ETG_ERROR_INVALID_STATE -7

/**
 * An earlier call failed half way; only reset, free and getters are allowed now.
 */
#define ETG_ERROR_POISONED -8

/**
 * The handle is in use by another call (another thread, or the callback we are in).
 */
#define ETG_ERROR_BUSY -9

/**
 * The caller's progress callback ended the work.
 */
#define ETG_ERROR_CANCELLED -10

/**
 * The engine could not load or execute.
 */
#define ETG_ERROR_ENGINE -11

/**
 * A bug of this library, caught. The process is safe to go on.
 */
#define ETG_ERROR_INTERNAL -12

/**
 * Reserved: no function of this version returns it.
 */
#define ETG_ERROR_BUFFER_TOO_SMALL -13

/**
 * Log level: no messages.
 */
#define ETG_LOG_OFF 0

/**
 * Log level: failures that are bugs of this library.
 */
#define ETG_LOG_ERROR 1

/**
 * Log level: calls that failed, by name and code.
 */
#define ETG_LOG_WARN 2

/**
 * Log level: what was opened, compiled and run.
 */
#define ETG_LOG_INFO 3

/**
 * Log level: details; from here on messages may quote prompts and replies.
 */
#define ETG_LOG_DEBUG 4

/**
 * Log level: everything.
 */
#define ETG_LOG_TRACE 5

/**
 * Pixels: red, green, blue, one byte each.
 */
#define ETG_PIXELS_RGB8 0

/**
 * Pixels: red, green, blue, alpha, one byte each; alpha is not multiplied in.
 */
#define ETG_PIXELS_RGBA8 1

/**
 * Pixels: blue, green, red, alpha, one byte each; alpha is not multiplied in.
 */
#define ETG_PIXELS_BGRA8 2

/**
 * Pixels: one byte of brightness.
 */
#define ETG_PIXELS_GRAY8 3

/**
 * YUV: bytes span 0 to 255, as in JPEG files and most camera streams of phones.
 */
#define ETG_YUV_FULL 0

/**
 * YUV: Y spans 16 to 235, U and V span 16 to 240, as in video.
 */
#define ETG_YUV_LIMITED 1

/**
 * Bytes of a content hash (SHA-256).
 */
#define ETG_IMAGE_HASH_BYTES 32

/**
 * Preprocessing as SmolVLM and Idefics 3 publish it.
 */
#define ETG_IMAGE_FAMILY_SMOLVLM 0

/**
 * Preprocessing as InternVL publishes it.
 */
#define ETG_IMAGE_FAMILY_INTERNVL 1

/**
 * Tiling: as the checkpoint's own settings say. With an "upstream:" template this means `ETG_TILING_SINGLE`, which is
 * all that upstream knows.
 */
#define ETG_TILING_CHECKPOINT 0

/**
 * Tiling: crops and an overview, if the picture is large enough to be cut.
 */
#define ETG_TILING_SPLIT 1

/**
 * Tiling: one tile, as the Hugging Face processor makes it when it does not split.
 */
#define ETG_TILING_WHOLE 2

/**
 * Tiling: one tile, stretched straight to the encoder's square, as the ExecuTorch runtime feeds it.
 */
#define ETG_TILING_SINGLE 3

/**
 * Role of a message: instructions that hold for the whole conversation.
 */
#define ETG_ROLE_SYSTEM 0

/**
 * Role of a message: the person.
 */
#define ETG_ROLE_USER 1

/**
 * Role of a message: the model.
 */
#define ETG_ROLE_ASSISTANT 2

/**
 * Role of a message: the result of a tool the model called.
 */
#define ETG_ROLE_TOOL 3

/**
 * Decoding: every graph there is, prompts in the largest blocks that fit.
 */
#define ETG_DECODING_AUTO 0

/**
 * Decoding: the graph kv_forward alone, for prompts too.
 */
#define ETG_DECODING_KV 1

/**
 * Decoding: prefill_forward and kv_forward, which must both be there.
 */
#define ETG_DECODING_HYBRID 2

/**
 * Rounding of re-quantized levels: to the nearest, ties to even.
 */
#define ETG_REQUANT_NEAREST 0

/**
 * Rounding of re-quantized levels: towards zero, as upstream's runner did.
 */
#define ETG_REQUANT_TRUNCATE 1

/**
 * Event: the text of the new messages (`text`), when the option echo is on.
 */
#define ETG_EVENT_PROMPT 1

/**
 * Event: `done` of `total` prompt tokens are processed; those found in the KV cache do not count.
 */
#define ETG_EVENT_PREFILL 2

/**
 * Event: a token was sampled: its id (`token`) and its number in this reply from 0 (`done`). Comes before its text.
 */
#define ETG_EVENT_TOKEN 3

/**
 * Event: more of the reply (`text`): whole UTF-8 characters, never empty, never a part of a stop string.
 */
#define ETG_EVENT_TEXT 4

/**
 * Event: `done` of `total` tiles of new pictures are encoded, a sound counting as one; those whose rows are known do not
 * count.
 */
#define ETG_EVENT_IMAGES 6

/**
 * Event: the last one of every run: `status` is what the call is about to return, `text` the error's message if it is
 * negative.
 */
#define ETG_EVENT_FINISHED 5

/**
 * Weights: single precision.
 */
#define ETG_WEIGHTS_F32 0

/**
 * Weights: half precision.
 */
#define ETG_WEIGHTS_F16 1

/**
 * Weights: bfloat16.
 */
#define ETG_WEIGHTS_BF16 2

/**
 * Weights: int8 in groups of 32.
 */
#define ETG_WEIGHTS_W8 3

/**
 * Weights: int4 in groups of 32, with an int8 embedding table and output head.
 */
#define ETG_WEIGHTS_W4 4

/**
 * Weights of a component: what suits those of the decoder.
 */
#define ETG_WEIGHTS_AUTO -1

/**
 * Position rows of SmolVLM's encoder: as the model was trained.
 */
#define ETG_POSITIONS_IDENTITY 0

/**
 * Position rows of SmolVLM's encoder: what upstream's export computes, for comparisons with upstream's files only.
 */
#define ETG_POSITIONS_UPSTREAM_SHIFTED 1

/**
 * Stage of a compilation: building and checking the graphs.
 */
#define ETG_STAGE_GRAPHS 1

/**
 * Stage of a compilation: packing weights; `done` and `total` are bytes.
 */
#define ETG_STAGE_WEIGHTS 2

/**
 * Stage of a compilation: checking what was written, tokenizer and template.
 */
#define ETG_STAGE_FINISH 3

/**
 * Deployed graphs: kv_forward alone, prompts go in token by token.
 */
#define ETG_MODE_KV 0

/**
 * Deployed graphs: kv_forward and prefill_forward.
 */
#define ETG_MODE_HYBRID 1

/**
 * Deployed graphs: as hybrid; kv_forward takes the guesses of lookahead decoding at once.
 */
#define ETG_MODE_LOOKAHEAD 2

/**
 * A choice that is left to the model's entry in the registry.
 */
#define ETG_AS_MODEL -1

/**
 * Integers: 16-bit activations, 16-bit weights.
 */
#define ETG_QUANT_16A16W 0

/**
 * Integers: 16-bit activations, 8-bit weights.
 */
#define ETG_QUANT_16A8W 1

/**
 * Integers: 16-bit activations, 4-bit weights with a scale a channel.
 */
#define ETG_QUANT_16A4W 2

/**
 * Integers: 16-bit activations, 4-bit weights in blocks with scales of their own (LPBQ).
 */
#define ETG_QUANT_16A4W_BLOCK 3

/**
 * Integers: 8-bit activations, 8-bit weights.
 */
#define ETG_QUANT_8A8W 4

/**
 * Integers: 8-bit activations, 4-bit weights.
 */
#define ETG_QUANT_8A4W 5

/**
 * Encoder: quantized where conversations have one picture or a recipe of its own was given, float where they have several.
 */
#define ETG_ENCODER_AUTO 0

/**
 * Encoder: not quantized.
 */
#define ETG_ENCODER_FLOAT 1

/**
 * Encoder: quantized, by its recipe.
 */
#define ETG_ENCODER_QUANTIZED 2

/**
 * Calibration of the decoder: on the rows that the encoder will deliver, quantized if it is.
 */
#define ETG_ENCODER_ROWS_DELIVERED 0

/**
 * Calibration of the decoder: on the rows of the float encoder, as upstream does it.
 */
#define ETG_ENCODER_ROWS_FLOAT 1

/**
 * Ranges of activations: as each recipe says.
 */
#define ETG_OBSERVER_RECIPE -1

/**
 * Ranges of activations: from the smallest to the largest value ever seen.
 */
#define ETG_OBSERVER_MIN_MAX 0

/**
 * Ranges of activations: smallest and largest value of a batch, averaged over batches. The setting is the weight of a batch, above
 * 0 and at most 1; upstream's is 0.01. Cannot be joined from shards.
 */
#define ETG_OBSERVER_MOVING_AVERAGE 1

/**
 * Ranges of activations: those whose rounding and clipping err least.
 */
#define ETG_OBSERVER_HISTOGRAM 2

/**
 * Ranges of activations: without the values that are farthest out. The setting is the share that is kept, e.g. 0.9999.
 */
#define ETG_OBSERVER_PERCENTILE 3

/**
 * Channels of the residual stream: scaled where some stand out.
 */
#define ETG_RESIDUAL_AUTO 0

/**
 * Channels of the residual stream: as they are, the graph is upstream's.
 */
#define ETG_RESIDUAL_AS_THEY_ARE 1

/**
 * Scales of weights: so that the largest weight is on the grid.
 */
#define ETG_SCALES_MIN_MAX 0

/**
 * Scales of weights: SeqMSE, so that the outputs are off least, with one factor a layer as upstream has it.
 */
#define ETG_SCALES_SEQ_MSE_LAYER 1

/**
 * Scales of weights: SeqMSE with a factor an output channel.
 */
#define ETG_SCALES_SEQ_MSE_CHANNEL 2

/**
 * Scales of weights: SeqMSE with a factor a block; a channel where there are no blocks.
 */
#define ETG_SCALES_SEQ_MSE_BLOCK 3

/**
 * Rounding of weights: each to the nearest integer.
 */
#define ETG_ROUNDING_NEAREST 0

/**
 * Rounding of weights: one after the other, the later ones so that they correct the errors of the earlier ones (GPTQ).
 */
#define ETG_ROUNDING_GPTQ 1

/**
 * A piece of sound: samples of one channel, or a ready encoder tensor. It never changes, and may serve any number of
 * messages, runners and threads at once.
 */
typedef struct etg_audio etg_audio;

/**
 * Text or token ids that a call returned. Read it with `etg_buffer_text` or `etg_buffer_ids`, free it with
 * `etg_buffer_free`.
 */
typedef struct etg_buffer etg_buffer;

/**
 * Sources of calibration data and how they are cut. There is no source by default. All sources that are named are joined: token
 * rows, conversations, chat sets, texts, random ids, each kind in the order in which its files were added.
 */
typedef struct etg_calibration_options etg_calibration_options;

/**
 * How a checkpoint is compiled: weight formats, context, block size.
 */
typedef struct etg_compile_options etg_compile_options;

/**
 * Turns token ids that come one at a time into text that comes in whole UTF-8 characters.
 */
typedef struct etg_detokenizer etg_detokenizer;

/**
 * What an encoder made of a picture or of sound: rows that stand in the prompt in its place. It never changes, and may serve
 * any number of messages, runners of the same model and threads at once.
 */
typedef struct etg_embedding etg_embedding;

/**
 * What executes a model: loads its components and runs their graphs. Runners and other handles that use it keep it alive.
 */
typedef struct etg_engine etg_engine;

/**
 * How a reply is generated and how tokens are chosen. A new one is greedy, without a limit other than the context.
 * Setters check their value at once and leave the options unchanged when it is refused.
 */
typedef struct etg_generate_options etg_generate_options;

/**
 * A picture: decoded pixels, or a ready encoder tensor. It never changes, and may serve any number of messages, runners
 * and threads at once.
 */
typedef struct etg_image etg_image;

/**
 * How pictures are decoded: limits, and what becomes of transparency. The values are read when a picture is made.
 */
typedef struct etg_image_options etg_image_options;

/**
 * Everything about preprocessing pictures for one model: sizes, tiles, resampling, normalization. It never changes.
 */
typedef struct etg_image_processor etg_image_processor;

/**
 * A list of messages, each a role and its parts (text, pictures, sound) in order. Text is never scanned for markers and never
 * becomes control tokens.
 */
typedef struct etg_messages etg_messages;

/**
 * The files of a model as upstream's exporter writes them: a text decoder, and for models with pictures or sound a token
 * embedding and a vision or audio encoder, each of which can be replaced by itself; and a tokenizer. Read when a runner is opened.
 */
typedef struct etg_model_files etg_model_files;

/**
 * Normalized tiles of a picture, as a vision encoder takes them: floats [tiles, 3, height, width].
 */
typedef struct etg_pixels etg_pixels;

/**
 * How a checkpoint is prepared: context, deployed graphs, form of the decoder.
 */
typedef struct etg_preparation_options etg_preparation_options;

/**
 * A model whose graphs are built and whose weights have been found in its checkpoint, where they stay.
 */
typedef struct etg_prepared_model etg_prepared_model;

/**
 * How a prepared model is quantized: integers of each component, encoder, observers, scales and rounding of weights. The values are
 * read when a call uses them.
 */
typedef struct etg_quantize_options etg_quantize_options;

/**
 * A quantized model in its folder. `etg_runner_open` opens the same folder for a conversation.
 */
typedef struct etg_quantized_model etg_quantized_model;

/**
 * A conversation with a compiled model: its history, its KV cache, its weights.
 *
 * One call at a time: a call while another one runs, on another thread or from a callback, returns
 * `ETG_ERROR_BUSY` and changes nothing. Allowed at any time are `etg_runner_cancel` and the getters.
 */
typedef struct etg_runner etg_runner;

/**
 * How a runner is opened: threads, chat template, system prompt, pictures. The values are read when a runner is opened.
 */
typedef struct etg_runner_options etg_runner_options;

/**
 * The tokenizer of a compiled model. It never changes, so any number of threads may use it at once.
 */
typedef struct etg_tokenizer etg_tokenizer;

/**
 * Receives one log message: `level` (`ETG_LOG_ERROR` to `ETG_LOG_TRACE`) and `length` bytes of UTF-8 text without a
 * newline at its end. Called on whichever thread logs, several at once: it must be thread-safe. `text` is valid
 * during the call only. Calls into the library from here are allowed, what they log is dropped. It must return
 * normally: no exception, no longjmp.
 */
typedef void (*etg_log_fn)(void *user_data,
                           int32_t level,
                           const char *text,
                           size_t length);

/**
 * Called once with a `user_data` that the library will not use again.
 */
typedef void (*etg_destroy_fn)(void *user_data);

/**
 * A camera frame in YUV 4:2:0: full-size brightness, colour at half the width and height, in the caller's memory.
 * Initialise it with `etg_yuv420_init`.
 *
 * Planar (I420): `uv_pixel_stride` 1; for YV12 swap `u` and `v`. Interleaved: `uv_pixel_stride` 2; for NV12 `u` is the
 * chroma buffer and `v` the same buffer from its second byte on, for NV21 the other way round. Android's Image hands
 * its planes out in just this form.
 */
typedef struct etg_yuv420 {
    /**
     * Size of this struct as the program was compiled.
     */
    uint32_t struct_size;
    /**
     * `ETG_YUV_FULL` or `ETG_YUV_LIMITED`.
     */
    int32_t range;
    /**
     * Pixels in a row, at least 1; may be odd.
     */
    size_t width;
    /**
     * Rows, at least 1; may be odd.
     */
    size_t height;
    /**
     * Brightness.
     */
    const uint8_t *y;
    /**
     * Bytes that can be read at `y`.
     */
    size_t y_length;
    /**
     * Bytes between the starts of two rows of `y`.
     */
    size_t y_row_stride;
    /**
     * Blue difference (Cb), `(width + 1) / 2` by `(height + 1) / 2` samples.
     */
    const uint8_t *u;
    /**
     * Bytes that can be read at `u`.
     */
    size_t u_length;
    /**
     * Red difference (Cr), as many samples.
     */
    const uint8_t *v;
    /**
     * Bytes that can be read at `v`.
     */
    size_t v_length;
    /**
     * Bytes between the starts of two rows of `u` and of `v`.
     */
    size_t uv_row_stride;
    /**
     * Bytes between two samples of `u` and of `v`: 1 or 2.
     */
    size_t uv_pixel_stride;
} etg_yuv420;

/**
 * One event of a run. Fields that a kind does not name are 0 or NULL.
 */
typedef struct etg_event {
    /**
     * Bytes that the library filled.
     */
    uint32_t struct_size;
    /**
     * An `ETG_EVENT_` constant. Ignore kinds you do not know.
     */
    int32_t kind;
    /**
     * UTF-8 text without NUL at its end, valid during the callback only; NULL if the kind has none.
     */
    const char *text;
    /**
     * Bytes of `text`.
     */
    size_t text_length;
    /**
     * Token id.
     */
    uint32_t token;
    /**
     * Status code.
     */
    int32_t status;
    /**
     * Tokens done, or number of the token.
     */
    uint64_t done;
    /**
     * Tokens to do.
     */
    uint64_t total;
} etg_event;

/**
 * Receives the events of a run, on the thread that called. Returns 0 to go on; any other number ends the run with
 * `ETG_STOP_CALLBACK` (ignored on the last event). It may call `etg_runner_cancel` and the getters of the runner; other
 * calls on the same runner return `ETG_ERROR_BUSY`. It must return normally: no exception, no longjmp.
 */
typedef int32_t (*etg_event_fn)(void *user_data,
                                const struct etg_event *event);

/**
 * One finished reply: its text, its tokens, counts and times. Initialise it with `etg_turn_result_init`.
 */
typedef struct etg_turn_result {
    /**
     * Size of this struct as the program was compiled; afterwards the bytes that were filled.
     */
    uint32_t struct_size;
    /**
     * What the call returned: `ETG_OK` or an `ETG_STOP_` constant.
     */
    int32_t status;
    /**
     * The reply: UTF-8, with a NUL behind it that is not counted; no special tokens, nothing from a stop string on.
     */
    const char *text;
    /**
     * Bytes of `text`.
     */
    size_t text_length;
    /**
     * The sampled token ids, without the end-of-sequence token that ended the reply.
     */
    const uint32_t *tokens;
    /**
     * Number of `tokens`.
     */
    size_t token_count;
    /**
     * Seed that was used, if `has_seed` is 1.
     */
    uint64_t seed;
    /**
     * Tokens of the whole prompt, history included.
     */
    uint64_t prompt_tokens;
    /**
     * Prompt tokens that were in the KV cache already.
     */
    uint64_t reused_tokens;
    /**
     * Prompt tokens that were computed in this turn.
     */
    uint64_t prefilled_tokens;
    /**
     * Tokens sampled, the first and the end-of-sequence token included.
     */
    uint64_t generated_tokens;
    /**
     * Rendering and tokenizing, milliseconds.
     */
    double encode_ms;
    /**
     * Computing the prompt, milliseconds.
     */
    double prefill_ms;
    /**
     * From the start to the first sampled token, milliseconds; 0 if there was none.
     */
    double first_token_ms;
    /**
     * From the first sampled token to the end, milliseconds.
     */
    double decode_ms;
    /**
     * Choosing tokens, milliseconds.
     */
    double sampling_ms;
    /**
     * Inside the engine, milliseconds.
     */
    double engine_ms;
    /**
     * The whole turn, milliseconds.
     */
    double total_ms;
    /**
     * Computed prompt tokens a second; 0 if not defined.
     */
    double prefill_tokens_per_second;
    /**
     * Decode steps a second; 0 if not defined.
     */
    double decode_tokens_per_second;
    /**
     * 1 if tokens were drawn with `seed`, 0 if the choice was greedy.
     */
    int32_t has_seed;
    /**
     * 0.
     */
    int32_t reserved;
    /**
     * Pictures and sounds of the whole prompt, history included.
     */
    uint64_t images;
    /**
     * Pictures and sounds that were encoded in this turn; the rows of the others were known.
     */
    uint64_t encoded_images;
    /**
     * Decoded pictures to tiles of the encoder, milliseconds.
     */
    double image_preprocess_ms;
    /**
     * Inside the vision encoder, milliseconds.
     */
    double image_encode_ms;
} etg_turn_result;

/**
 * Where a compilation is.
 */
typedef struct etg_progress {
    /**
     * Bytes that the library filled.
     */
    uint32_t struct_size;
    /**
     * An `ETG_STAGE_` constant. Ignore stages you do not know.
     */
    int32_t stage;
    /**
     * What is worked on, a weight or a file: UTF-8 without NUL at its end, valid during the callback only.
     */
    const char *item;
    /**
     * Bytes of `item`.
     */
    size_t item_length;
    /**
     * Units of this stage that are done.
     */
    uint64_t done;
    /**
     * Units of this stage.
     */
    uint64_t total;
} etg_progress;

/**
 * Receives the progress of a compilation, on the thread that called. Returns 0 to go on; any other number ends the work
 * with `ETG_ERROR_CANCELLED`. It must return normally: no exception, no longjmp.
 */
typedef int32_t (*etg_progress_fn)(void *user_data,
                                   const struct etg_progress *progress);

/**
 * Where the work of a stage is. Its texts are UTF-8 with a NUL at their end, never NULL, and valid during the callback only.
 */
typedef struct etg_stage_progress {
    /**
     * Bytes that the library filled.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * "model_preparation", "quantization", "compilation" or "inference"; "evaluation" of a perplexity.
     */
    const char *stage;
    /**
     * The component, e.g. "text_decoder"; empty where the work is for all of them.
     */
    const char *component;
    /**
     * Part of the stage: "ranges", "weights", "check", "graphs", "finish", "windows", "prompt", "text" (`layer` is a piece of a
     * reply then), and "begin" and "end" of a stage. Ignore those you do not know.
     */
    const char *phase;
    /**
     * The layer, weight, file or prompt.
     */
    const char *layer;
    /**
     * Units of this phase that are done.
     */
    uint64_t done;
    /**
     * Units of this phase; 0 where it has no units.
     */
    uint64_t total;
} etg_stage_progress;

/**
 * Receives the progress of a stage, on the thread that called. Returns 0 to go on; any other number ends the work with
 * `ETG_ERROR_CANCELLED`. It must return normally: no exception, no longjmp.
 */
typedef int32_t (*etg_stage_progress_fn)(void *user_data,
                                         const struct etg_stage_progress *progress);

/**
 * Perplexity of a text. Initialise it with `etg_perplexity_init`.
 */
typedef struct etg_perplexity {
    /**
     * Size of this struct as the program was compiled; afterwards the bytes that were filled.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * exp(mean negative log-likelihood).
     */
    double perplexity;
    /**
     * Mean negative log-likelihood of a scored token, in nats.
     */
    double mean_nll;
    /**
     * Number of scored tokens: all but the first of each window.
     */
    uint64_t scored_tokens;
    /**
     * Number of windows.
     */
    uint64_t windows;
    /**
     * Time in the engine, milliseconds.
     */
    double engine_ms;
} etg_perplexity;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the loaded library: major * 1000000 + minor * 1000 + patch. Compare with `ETG_VERSION_NUMBER`, or let
 * `etg_check_abi` do it.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: none, cannot fail.
 * - After a failure: not applicable.
 */
ETG_API
uint32_t etg_version_number(void);

/**
 * Version of the loaded library as text, e.g. "0.1.0", NUL-terminated.
 *
 * - Threads: any.
 * - Owns: nothing; the text lives as long as the process.
 * - Codes: none, cannot fail, never NULL.
 * - After a failure: not applicable.
 */
ETG_API
const char *etg_version_string(void);

/**
 * Name of a status code, e.g. "ETG_ERROR_IO"; "unknown status" for a number that is none. NUL-terminated.
 *
 * - Threads: any.
 * - Owns: nothing; the text lives as long as the process.
 * - Codes: none, cannot fail, never NULL.
 * - After a failure: not applicable.
 */
ETG_API
const char *etg_status_name(int32_t status);

/**
 * Code of the last call that failed on this thread; `ETG_OK` when none did.
 *
 * - Threads: any; each thread has its own record.
 * - Owns: nothing.
 * - Codes: those of the call that failed.
 * - After a failure: not applicable, cannot fail.
 */
ETG_API
int32_t etg_last_error_code(void);

/**
 * Text of the last call that failed on this thread: what is wrong, the value found, the way out. UTF-8,
 * NUL-terminated, empty when no call failed. A successful call does not clear it, so freeing things first is fine.
 *
 * - Threads: any; each thread has its own record.
 * - Owns: nothing; the text lives until the next call that fails on this thread, or the end of the thread.
 * - Codes: none, cannot fail, never NULL.
 * - After a failure: not applicable.
 */
ETG_API
const char *etg_last_error_message(void);

/**
 * Number of handles of all kinds that were created and not freed yet, for leak checks in tests.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: none, cannot fail.
 * - After a failure: not applicable.
 */
ETG_API
size_t etg_live_handle_count(void);

/**
 * Send the library's messages of `level` and more important ones to `receive`. Replaces the sink before it; NULL or
 * `ETG_LOG_OFF` makes the library silent again, which is how it starts. The library never writes to stdout or stderr.
 *
 * - Threads: any, at any time.
 * - Owns: `user_data` is the library's until it calls `destroy` (may be NULL) with it: after the sink was replaced,
 *   and the last message in flight has returned. On failure `destroy` is not called.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a level), `ETG_ERROR_INVALID_STATE` (the host is a Rust program that
 *   links this library statically and has its own logger).
 * - After a failure: the sink before is still in place.
 */
ETG_API
int32_t etg_set_log_sink(etg_log_fn receive,
                         void *user_data,
                         etg_destroy_fn destroy,
                         int32_t level);

/**
 * The bytes of a text buffer. A NUL follows them (not counted), so text without NUL inside is also a C string.
 *
 * - Threads: any, also several at once.
 * - Owns: `*text_out` is borrowed from the buffer and lives until `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, or not a live buffer), `ETG_ERROR_INVALID_STATE` (it holds ids).
 * - After a failure: the buffer is unchanged, `*text_out` is NULL and `*length_out` 0.
 */
ETG_API
ETG_MUST_USE
int32_t etg_buffer_text(const struct etg_buffer *buffer,
                        const char **text_out,
                        size_t *length_out);

/**
 * The token ids of an id buffer.
 *
 * - Threads: any, also several at once.
 * - Owns: `*ids_out` is borrowed from the buffer and lives until `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, or not a live buffer), `ETG_ERROR_INVALID_STATE` (it holds text).
 * - After a failure: the buffer is unchanged, `*ids_out` is NULL and `*count_out` 0.
 */
ETG_API
ETG_MUST_USE
int32_t etg_buffer_ids(const struct etg_buffer *buffer,
                       const uint32_t **ids_out,
                       size_t *count_out);

/**
 * Free a buffer. NULL is allowed and does nothing.
 *
 * - Threads: any, when no other thread reads the buffer any more.
 * - Owns: takes the buffer back; what was borrowed from it is gone.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live buffer: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_buffer_free(struct etg_buffer *buffer);

/**
 * Make options with the default values: at most 67,108,864 pixels and 256 MiB, transparency over white.
 *
 * - Threads: any.
 * - Owns: `*options_out` is the caller's; free it with `etg_image_options_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*options_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_options_create(struct etg_image_options **options_out);

/**
 * Free options. NULL is allowed and does nothing.
 *
 * - Threads: any; pictures made with them are not touched.
 * - Owns: takes the options back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_image_options_free(struct etg_image_options *options);

/**
 * Most pixels (width times height) a picture may have; 0, the default, is 67,108,864. It is checked on the header of a
 * file, before memory for pixels is taken. No side may be longer than 65,535 pixels.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_options_set_max_pixels(struct etg_image_options *options,
                                         uint64_t pixels);

/**
 * Most bytes an encoded file may have; 0, the default, is 256 MiB.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_options_set_max_bytes(struct etg_image_options *options,
                                        uint64_t bytes);

/**
 * The colour that shows through transparent pixels. White is the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_options_set_alpha_background(struct etg_image_options *options,
                                               uint8_t red,
                                               uint8_t green,
                                               uint8_t blue);

/**
 * Drop transparency and keep the colours under it. `etg_image_options_set_alpha_background` takes this back.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_options_set_alpha_ignored(struct etg_image_options *options);

/**
 * Set any of the options from one JSON object, e.g. `{"max_pixels": 4000000, "alpha": [0, 0, 0]}`. Keys: max_pixels,
 * max_bytes, alpha (a colour [red, green, blue] that shows through, or "ignore"); null takes the default.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
 *   key), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the options are unchanged, also by the keys that were right.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_options_set_json(struct etg_image_options *options,
                                   const char *json,
                                   size_t length);

/**
 * Decode a picture from the bytes of a JPEG, PNG, WebP, BMP or GIF file (the first frame of an animation). EXIF
 * orientation is applied; gray, palette, 16-bit, CMYK and YCCK pictures become RGB; colour profiles are not applied.
 * `options` may be NULL: the defaults.
 *
 * - Threads: any, several at once.
 * - Owns: the bytes are not kept. `*image_out` is the caller's; free it with `etg_image_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or a picture beyond the limits in the options),
 *   `ETG_ERROR_UNSUPPORTED` (another format), `ETG_ERROR_FORMAT` (empty, truncated or corrupt).
 * - After a failure: nothing was made, `*image_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_from_encoded(const uint8_t *bytes,
                               size_t length,
                               const struct etg_image_options *options,
                               struct etg_image **image_out);

/**
 * Decode a picture file; as `etg_image_from_encoded`.
 *
 * - Threads: any, several at once.
 * - Owns: `*image_out` is the caller's; free it with `etg_image_free`.
 * - Codes: as `etg_image_from_encoded`, and `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`; the message names the file.
 * - After a failure: nothing was made, `*image_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_from_file(const char *path,
                            size_t path_length,
                            const struct etg_image_options *options,
                            struct etg_image **image_out);

/**
 * Make a picture from raw pixels, rows from top to bottom. `format` is an `ETG_PIXELS_` constant; `row_stride` is the
 * number of bytes from the start of one row to that of the next, and the last row may end after its last pixel.
 * `options` may be NULL: the defaults.
 *
 * - Threads: any, several at once.
 * - Owns: the pixels are copied. `*image_out` is the caller's; free it with `etg_image_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a side of 0 or beyond the limits in the
 *   options, a stride shorter than a row, too few bytes; the message has the numbers).
 * - After a failure: nothing was made, `*image_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_from_pixels(int32_t format,
                              size_t width,
                              size_t height,
                              size_t row_stride,
                              const uint8_t *data,
                              size_t data_length,
                              const struct etg_image_options *options,
                              struct etg_image **image_out);

/**
 * Make a picture from a camera frame, by ITU-R BT.601. `options` may be NULL: the defaults.
 *
 * - Threads: any, several at once.
 * - Owns: the planes are copied. `*image_out` is the caller's; free it with `etg_image_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a struct that was not initialised, a side of 0 or beyond the
 *   limits in the options, strides that cannot be, too few bytes), `ETG_ERROR_UNSUPPORTED` (fields of a newer struct).
 * - After a failure: nothing was made, `*image_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_from_yuv420(const struct etg_yuv420 *frame,
                              const struct etg_image_options *options,
                              struct etg_image **image_out);

/**
 * Make a picture from a tensor [tiles, 3, height, width] that is already scaled and normalized; preprocessing passes
 * it on as it is. One tile is a picture that is not cut, several are crops in one row without an overview.
 *
 * - Threads: any, several at once.
 * - Owns: the values are copied. `*image_out` is the caller's; free it with `etg_image_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, a size of 0, or another number of values than the sizes say).
 * - After a failure: nothing was made, `*image_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_from_tensor(const float *values,
                              size_t value_count,
                              size_t tiles,
                              size_t height,
                              size_t width,
                              struct etg_image **image_out);

/**
 * As `etg_image_from_tensor`, for tiles that lie in `tile_rows` rows of `tile_cols` crops, with the overview of the whole
 * picture as the last tile if `overview` is 1. A picture that is not cut is 0, 0, 1.
 *
 * - Threads: any, several at once.
 * - Owns: the values are copied. `*image_out` is the caller's; free it with `etg_image_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, a size of 0, no tiles, a flag neither 0 nor 1, or another number of
 *   values than the sizes say).
 * - After a failure: nothing was made, `*image_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_from_tiles(const float *values,
                             size_t value_count,
                             size_t tile_rows,
                             size_t tile_cols,
                             int32_t overview,
                             size_t height,
                             size_t width,
                             struct etg_image **image_out);

/**
 * Free a picture. NULL is allowed and does nothing.
 *
 * - Threads: any; messages that hold the picture keep it.
 * - Owns: takes the picture back; what was borrowed from it is gone.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live picture: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_image_free(struct etg_image *image);

/**
 * Width and height in pixels, after EXIF orientation; of a tensor those of its tiles.
 *
 * - Threads: any, also several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: `*width_out` and `*height_out` are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_size(const struct etg_image *image,
                       size_t *width_out,
                       size_t *height_out);

/**
 * The decoded pixels: red, green, blue, one byte each, row after row without gaps.
 *
 * - Threads: any, also several at once.
 * - Owns: `*rgb_out` is borrowed from the picture and lives until `etg_image_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (it was made from a tensor).
 * - After a failure: `*rgb_out` is NULL and `*length_out` 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_rgb(const struct etg_image *image,
                      const uint8_t **rgb_out,
                      size_t *length_out);

/**
 * SHA-256 of the picture's content (size and all pixels or values): equal pictures have equal hashes, whatever file they
 * came from. `hash_out` is a place for `ETG_IMAGE_HASH_BYTES` bytes.
 *
 * - Threads: any, also several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the bytes at `hash_out` are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_content_hash(const struct etg_image *image,
                               uint8_t *hash_out);

/**
 * The values of all tiles, [tiles, 3, height, width], row-major; channels are red, green, blue.
 *
 * - Threads: any, also several at once.
 * - Owns: `*values_out` is borrowed from the pixels and lives until `etg_pixels_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: `*values_out` is NULL and `*count_out` 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_pixels_values(const struct etg_pixels *pixels,
                          const float **values_out,
                          size_t *count_out);

/**
 * Number of tiles, and height and width of each.
 *
 * - Threads: any, also several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the results are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_pixels_shape(const struct etg_pixels *pixels,
                         size_t *tiles_out,
                         size_t *height_out,
                         size_t *width_out);

/**
 * How the tiles lie: rows and columns of crops, in row-major order, and whether an overview of the whole picture comes
 * last (1) or not (0). A picture that is not cut is 0, 0, 1.
 *
 * - Threads: any, also several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the results are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_pixels_layout(const struct etg_pixels *pixels,
                          size_t *tile_rows_out,
                          size_t *tile_cols_out,
                          int32_t *overview_out);

/**
 * Free pixels. NULL is allowed and does nothing.
 *
 * - Threads: any, when no other thread reads values borrowed from them any more.
 * - Owns: takes the pixels back; what was borrowed from them is gone.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live pixels: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_pixels_free(struct etg_pixels *pixels);

/**
 * Make a processor from the texts of a checkpoint's `preprocessor_config.json` and `processor_config.json`, either of
 * which may be empty: what is not said there is as the family was published. `family` is an `ETG_IMAGE_FAMILY_`
 * constant, `tile_size` the side of the square that the encoder takes, in pixels.
 *
 * - Threads: any, several at once.
 * - Owns: the texts are not kept. `*processor_out` is the caller's; free it with `etg_image_processor_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not UTF-8, not such a constant, a value out of range),
 *   `ETG_ERROR_FORMAT` (not JSON, or a setting that is malformed or not supported; the message names it).
 * - After a failure: nothing was made, `*processor_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_processor_create(int32_t family,
                                   const char *preprocessor_json,
                                   size_t preprocessor_json_length,
                                   const char *processor_json,
                                   size_t processor_json_length,
                                   size_t tile_size,
                                   struct etg_image_processor **processor_out);

/**
 * Open the processor of a compiled model folder; no weights are read.
 *
 * - Threads: any, several at once.
 * - Owns: `*processor_out` is the caller's; free it with `etg_image_processor_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`,
 *   `ETG_ERROR_UNSUPPORTED` (the model takes no pictures).
 * - After a failure: nothing was opened, `*processor_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_processor_open(const char *path,
                                 size_t path_length,
                                 struct etg_image_processor **processor_out);

/**
 * Free a processor. NULL is allowed and does nothing.
 *
 * - Threads: any; a call that is using the processor goes on.
 * - Owns: takes the processor back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live processor: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_image_processor_free(struct etg_image_processor *processor);

/**
 * Side of a tile, in pixels.
 *
 * - Threads: any, also several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: `*pixels_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_processor_tile_size(const struct etg_image_processor *processor,
                                      size_t *pixels_out);

/**
 * How a picture of `width` by `height` pixels would be cut; as `etg_pixels_layout`. `tiling` is an `ETG_TILING_`
 * constant. No picture is needed.
 *
 * - Threads: any, also several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a side of 0).
 * - After a failure: the results are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_processor_layout(const struct etg_image_processor *processor,
                                   size_t width,
                                   size_t height,
                                   int32_t tiling,
                                   size_t *tile_rows_out,
                                   size_t *tile_cols_out,
                                   int32_t *overview_out);

/**
 * Scale, cut and normalize a picture. `tiling` is an `ETG_TILING_` constant. A picture made from a tensor is passed on
 * as it is.
 *
 * - Threads: any, also several at once.
 * - Owns: `*pixels_out` is the caller's; free it with `etg_pixels_free`. Picture and processor may be freed first.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a tensor whose tiles are not of the
 *   encoder's size).
 * - After a failure: nothing was made, `*pixels_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_image_processor_process(const struct etg_image_processor *processor,
                                    const struct etg_image *image,
                                    int32_t tiling,
                                    struct etg_pixels **pixels_out);

/**
 * Decode sound from the bytes of a WAV file: PCM of 8, 16, 24 or 32 bits, or 32-bit floating point, at any rate from
 * 1,000 to 768,000 Hz. Several channels become one, their average.
 *
 * - Threads: any, several at once.
 * - Owns: the bytes are not kept. `*audio_out` is the caller's; free it with `etg_audio_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, more than 256 MiB or 2^26 samples a channel, a sample that is not
 *   finite), `ETG_ERROR_UNSUPPORTED` (another format or encoding), `ETG_ERROR_FORMAT` (empty, truncated or corrupt).
 * - After a failure: nothing was made, `*audio_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_audio_from_encoded(const uint8_t *bytes,
                               size_t length,
                               struct etg_audio **audio_out);

/**
 * Decode a WAV file; as `etg_audio_from_encoded`.
 *
 * - Threads: any, several at once.
 * - Owns: `*audio_out` is the caller's; free it with `etg_audio_free`.
 * - Codes: as `etg_audio_from_encoded`, and `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`; the message names the file.
 * - After a failure: nothing was made, `*audio_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_audio_from_file(const char *path,
                            size_t path_length,
                            struct etg_audio **audio_out);

/**
 * Make sound of samples of one channel, full scale -1 to 1, at `sample_rate` Hz. Each model resamples it to its own rate.
 *
 * - Threads: any, several at once.
 * - Owns: the samples are copied. `*audio_out` is the caller's; free it with `etg_audio_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, no samples, a sample that is not finite, a rate outside of 1,000 to
 *   768,000 Hz; the message has the number).
 * - After a failure: nothing was made, `*audio_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_audio_from_samples(const float *samples,
                               size_t sample_count,
                               uint32_t sample_rate,
                               struct etg_audio **audio_out);

/**
 * Make sound of features that are ready for the encoder, in the order of its input; preprocessing passes them on as they
 * are. A model takes as many as `etg_runner_audio_geometry` says, which is checked when messages are used.
 *
 * - Threads: any, several at once.
 * - Owns: the features are copied. `*audio_out` is the caller's; free it with `etg_audio_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, no features, one that is not finite).
 * - After a failure: nothing was made, `*audio_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_audio_from_features(const float *features,
                                size_t feature_count,
                                struct etg_audio **audio_out);

/**
 * The samples of one channel, and how many of them are a second.
 *
 * - Threads: any, also several at once.
 * - Owns: `*samples_out` is borrowed from the sound and lives until `etg_audio_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (it was made from features).
 * - After a failure: `*samples_out` is NULL and the numbers are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_audio_samples(const struct etg_audio *audio,
                          const float **samples_out,
                          size_t *sample_count_out,
                          uint32_t *sample_rate_out);

/**
 * Free a piece of sound. NULL is allowed and does nothing.
 *
 * - Threads: any; messages that hold the sound keep it.
 * - Owns: takes the sound back; what was borrowed from it is gone.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_audio_free(struct etg_audio *audio);

/**
 * Make an embedding from rows that `etg_embedding_rows` gave before, or that another encoder made: `row_count` rows of
 * `width` floats, tile after tile, each tile with the same number of rows. The tiles lie in `tile_rows` rows of
 * `tile_cols` crops, with the overview of the whole picture as the last tile if `overview` is 1; a picture that is not
 * cut, and sound, is 0, 0, 1.
 *
 * - Threads: any, several at once.
 * - Owns: the rows are copied. `*embedding_out` is the caller's; free it with `etg_embedding_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, no rows, rows that do not divide into the tiles, a number that is not
 *   finite, a flag neither 0 nor 1; the message has the numbers).
 * - After a failure: nothing was made, `*embedding_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_embedding_create(const float *rows,
                             size_t row_count,
                             size_t width,
                             size_t tile_rows,
                             size_t tile_cols,
                             int32_t overview,
                             struct etg_embedding **embedding_out);

/**
 * The rows: `*row_count_out` rows of `*width_out` floats each, without gaps.
 *
 * - Threads: any, also several at once.
 * - Owns: `*rows_out` is borrowed from the embedding and lives until `etg_embedding_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: `*rows_out` is NULL and the numbers are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_embedding_rows(const struct etg_embedding *embedding,
                           const float **rows_out,
                           size_t *row_count_out,
                           size_t *width_out);

/**
 * How the tiles of the picture lie; as `etg_pixels_layout`.
 *
 * - Threads: any, also several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the results are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_embedding_layout(const struct etg_embedding *embedding,
                             size_t *tile_rows_out,
                             size_t *tile_cols_out,
                             int32_t *overview_out);

/**
 * Free an embedding. NULL is allowed and does nothing.
 *
 * - Threads: any; messages that hold the embedding keep it.
 * - Owns: takes the embedding back; what was borrowed from it is gone.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live embedding: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_embedding_free(struct etg_embedding *embedding);

/**
 * Make an empty list.
 *
 * - Threads: any.
 * - Owns: `*messages_out` is the caller's; free it with `etg_messages_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*messages_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_create(struct etg_messages **messages_out);

/**
 * Free a list. NULL is allowed and does nothing.
 *
 * - Threads: any; a call that is using the list goes on with the messages it has read.
 * - Owns: takes the list back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live list: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_messages_free(struct etg_messages *messages);

/**
 * Begin a message of `role` (an `ETG_ROLE_` constant) at the end of the list; parts are added to it next.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not a role).
 * - After a failure: the list is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_add(struct etg_messages *messages,
                         int32_t role);

/**
 * Add a part of text to the last message. Parts of text follow each other without a separator.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8), `ETG_ERROR_INVALID_STATE` (no message yet).
 * - After a failure: the list is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_add_text(struct etg_messages *messages,
                              const char *text,
                              size_t length);

/**
 * Add a picture to the last message, after the parts it has. The same picture may be added any number of times.
 *
 * - Threads: any.
 * - Owns: the list shares the picture's content; the picture may be freed at once.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no message yet).
 * - After a failure: the list is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_add_image(struct etg_messages *messages,
                               const struct etg_image *image);

/**
 * Add sound to the last message, after the parts it has. The same sound may be added any number of times.
 *
 * - Threads: any.
 * - Owns: the list shares the sound's content; the sound may be freed at once.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no message yet).
 * - After a failure: the list is unchanged. Whether a model takes sound, and of this length, is checked when the messages
 *   are used.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_add_audio(struct etg_messages *messages,
                               const struct etg_audio *audio);

/**
 * Add the rows of a picture or of sound that was encoded before to the last message, after the parts it has. Nothing is encoded then.
 *
 * - Threads: any.
 * - Owns: the list shares the rows; the embedding may be freed at once.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no message yet).
 * - After a failure: the list is unchanged. Whether the rows fit a model is checked when the messages are used.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_add_embedding(struct etg_messages *messages,
                                   const struct etg_embedding *embedding);

/**
 * Compatibility with prompt strings of upstream's runners: add a user message made of `prompt`, in which each word
 * `<image>` is the place of the next picture of `images`. Without the word all pictures stand in front of the text.
 * No other function looks for this word: do not use this one for text that a person typed.
 *
 * - Threads: any.
 * - Owns: the prompt is copied, the list shares the content of the pictures; both may be freed at once.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, or another number of pictures than placeholders; the
 *   message has both numbers).
 * - After a failure: the list is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_add_placeholder_prompt(struct etg_messages *messages,
                                            const char *prompt,
                                            size_t prompt_length,
                                            const struct etg_image *const *images,
                                            size_t image_count);

/**
 * As `etg_messages_add_placeholder_prompt`, for all turns of a conversation at once: one list of messages for each of
 * the prompts, with the pictures handed to the placeholders of all prompts in order. Without any placeholder all
 * pictures stand in front of the first prompt. `prompts` and `prompt_lengths` have `prompt_count` elements each, and so
 * has `messages_out`, the place for the lists.
 *
 * - Threads: any.
 * - Owns: each list in `messages_out` is the caller's; free it with `etg_messages_free`. Prompts and pictures may be
 *   freed at once.
 * - Codes: as `etg_messages_add_placeholder_prompt`.
 * - After a failure: nothing was made, the elements of `messages_out` are NULL if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_from_placeholder_prompts(const char *const *prompts,
                                              const size_t *prompt_lengths,
                                              size_t prompt_count,
                                              const struct etg_image *const *images,
                                              size_t image_count,
                                              struct etg_messages **messages_out);

/**
 * Remove all messages.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the list is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_clear(struct etg_messages *messages);

/**
 * Number of messages.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: `*count_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_messages_count(const struct etg_messages *messages,
                           size_t *count_out);

/**
 * Make options with the default values.
 *
 * - Threads: any.
 * - Owns: `*options_out` is the caller's; free it with `etg_generate_options_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*options_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_create(struct etg_generate_options **options_out);

/**
 * Free options. NULL is allowed and does nothing.
 *
 * - Threads: any; a call that is using the options goes on with the values it has read.
 * - Owns: takes the options back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_generate_options_free(struct etg_generate_options *options);

/**
 * Most tokens of one reply; 0 means no limit but the context, which is the default. This is a budget of the reply, not
 * the context capacity, which belongs to the compiled model.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_max_new_tokens(struct etg_generate_options *options,
                                                size_t tokens);

/**
 * Divides the logits before a token is drawn: 0 or more. 0, the default, is greedy: always the most likely token.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, negative or not finite).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_temperature(struct etg_generate_options *options,
                                             float temperature);

/**
 * Draw from the `top_k` most likely tokens only; 0, the default, turns it off.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_top_k(struct etg_generate_options *options,
                                       size_t top_k);

/**
 * Draw from the smallest set of most likely tokens whose probabilities sum to more than `top_p` only: above 0, at
 * most 1; 1, the default, turns it off.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or out of range).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_top_p(struct etg_generate_options *options,
                                       float top_p);

/**
 * Draw only from tokens at least `min_p` times as likely as the most likely one: 0 to 1; 0, the default, turns it off.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or out of range).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_min_p(struct etg_generate_options *options,
                                       float min_p);

/**
 * Make tokens that were seen less likely: positive logits are divided by `penalty` (above 0), negative ones
 * multiplied; 1, the default, turns it off. It looks at the latest `window` tokens, prompt included; 0 is all.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or out of range).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_repetition_penalty(struct etg_generate_options *options,
                                                    float penalty,
                                                    size_t window);

/**
 * Seed of the random numbers: the same seed, conversation and options give the same reply. Without one each reply
 * takes a seed from the clock. Only read when the temperature is above 0.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_seed(struct etg_generate_options *options,
                                      uint64_t seed);

/**
 * Add a stop string: the reply ends before its first appearance. Not empty.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, or empty).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_add_stop(struct etg_generate_options *options,
                                      const char *text,
                                      size_t length);

/**
 * 1: go on past end-of-sequence tokens (useful for measuring); 0: end there, the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_ignore_eos(struct etg_generate_options *options,
                                            int32_t ignore);

/**
 * 1: report the text of the new messages first, as an `ETG_EVENT_PROMPT`; 0: do not, the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_echo(struct etg_generate_options *options,
                                      int32_t echo);

/**
 * Set any of the options from one JSON object, e.g. `{"temperature": 0.7, "top_k": 40}`. Keys: max_new_tokens,
 * temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, seed, stop (replaces the list), ignore_eos,
 * echo. null unsets max_new_tokens, repetition_window and seed.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type or out of range; the
 *   message names the key), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the options are unchanged, also by the keys that were right.
 */
ETG_API
ETG_MUST_USE
int32_t etg_generate_options_set_json(struct etg_generate_options *options,
                                      const char *json,
                                      size_t length);

/**
 * Make options with the default values.
 *
 * - Threads: any.
 * - Owns: `*options_out` is the caller's; free it with `etg_runner_options_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*options_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_create(struct etg_runner_options **options_out);

/**
 * Free options. NULL is allowed and does nothing.
 *
 * - Threads: any; runners opened with them are not touched.
 * - Owns: takes the options back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_runner_options_free(struct etg_runner_options *options);

/**
 * Threads of the CPU engine; 0, the default, is one a physical core.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_threads(struct etg_runner_options *options,
                                       size_t threads);

/**
 * Chat template in place of the model's own: Jinja source, or "upstream:NAME" for one of the built-in compatibility
 * templates. The empty text takes the model's own again. It is compiled when a runner is opened.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_template(struct etg_runner_options *options,
                                        const char *text,
                                        size_t length);

/**
 * Further variables for the chat template as one JSON object, e.g. `{"enable_thinking": false}`. Replaces those before.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_template_variables(struct etg_runner_options *options,
                                                  const char *json,
                                                  size_t length);

/**
 * First message of every conversation, with the role "system". The empty text means none, the default.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_system_prompt(struct etg_runner_options *options,
                                             const char *text,
                                             size_t length);

/**
 * How pictures are cut, an `ETG_TILING_` constant; `ETG_TILING_CHECKPOINT` is the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_image_tiling(struct etg_runner_options *options,
                                            int32_t tiling);

/**
 * Most bytes of encoded pictures that are kept, so that one that comes again is not encoded again; 0 turns the cache
 * off. 64 MiB is the default. Pictures of the history are kept beside it.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_image_cache_bytes(struct etg_runner_options *options,
                                                 size_t bytes);

/**
 * Which graphs of the decoder run, an `ETG_DECODING_` constant; `ETG_DECODING_AUTO` is the default. For lookahead see
 * `etg_runner_options_set_lookahead`; the one set last counts.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_decoding(struct etg_runner_options *options,
                                        int32_t decoding);

/**
 * Lookahead decoding: several tokens guessed and verified a call; the text is that of the other modes. The sizes are those
 * the model was exported with: `ngram` (N, 2 or more), `window` (W) and `gcap` (G), 1 or more; a graph must take blocks of
 * (W + G) * (N - 1) tokens, which is checked when a runner is opened.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or a size out of range).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_lookahead(struct etg_runner_options *options,
                                         size_t ngram,
                                         size_t window,
                                         size_t gcap);

/**
 * How the KV cache is re-quantized between prefill and decode, an `ETG_REQUANT_` constant, in files that ask for it;
 * `ETG_REQUANT_NEAREST` is the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_requant_rounding(struct etg_runner_options *options,
                                                int32_t rounding);

/**
 * Whether to ask the engine for memory that the processor shares (1), for inputs, outputs and the KV cache; 0 is the
 * default. Engines without such memory use ordinary memory.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_shared_memory(struct etg_runner_options *options,
                                             int32_t shared);

/**
 * Set any of the options from one JSON object, e.g. `{"threads": 4}`. Keys: threads, template, template_variables,
 * system_prompt, image_tiling (checkpoint, split, whole or single), image_cache_bytes, decoding ("auto", "kv", "hybrid" or
 * {"lookahead": {"ngram": N, "window": W, "gcap": G}}), requant_rounding (nearest or truncate), shared_memory; null takes
 * the default.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
 *   key), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the options are unchanged, also by the keys that were right.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_options_set_json(struct etg_runner_options *options,
                                    const char *json,
                                    size_t length);

/**
 * Make an engine that is inside the library: the only name is "cpu". `options` is a JSON object, or empty; its only key is
 * threads (0: one a physical core).
 *
 * - Threads: any.
 * - Owns: the texts are not kept. `*engine_out` is the caller's; free it with `etg_engine_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not UTF-8, unknown key, wrong type), `ETG_ERROR_NOT_FOUND` (no such
 *   engine), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: nothing was made, `*engine_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_engine_builtin(const char *name,
                           size_t name_length,
                           const char *options,
                           size_t options_length,
                           struct etg_engine **engine_out);

/**
 * Take an engine of the host over; see `etgenai_engine.h`. The struct is copied. Its `destroy` is called when the handle
 * and everything that uses the engine is gone.
 *
 * - Threads: any. The engine's functions are called as `etgenai_engine.h` says.
 * - Owns: takes the engine over if it succeeds. `*engine_out` is the caller's; free it with `etg_engine_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, struct_size too small, a function is missing), `ETG_ERROR_UNSUPPORTED`
 *   (made for another major version of the engine ABI).
 * - After a failure: nothing was taken over (`destroy` is not called), `*engine_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_engine_from_functions(const etg_engine_functions *functions,
                                  struct etg_engine **engine_out);

/**
 * Open an engine library, e.g. libetgenai_executorch.so; a path without a folder is looked for by the system. `options` is
 * a JSON object for it, or empty.
 *
 * - Threads: any.
 * - Owns: the texts are not kept. `*engine_out` is the caller's; free it with `etg_engine_free`. The library stays loaded
 *   as long as the engine is used.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not UTF-8, and what the library refuses), `ETG_ERROR_NOT_FOUND`,
 *   `ETG_ERROR_ENGINE` (cannot be loaded, or is no engine library), `ETG_ERROR_UNSUPPORTED` (made for another major version
 *   of the engine ABI).
 * - After a failure: there is no engine, `*engine_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_engine_load_library(const char *path,
                                size_t path_length,
                                const char *options,
                                size_t options_length,
                                struct etg_engine **engine_out);

/**
 * Free an engine handle. NULL is allowed and does nothing.
 *
 * - Threads: any; runners that use the engine keep it.
 * - Owns: takes the handle back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live engine: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_engine_free(struct etg_engine *engine);

/**
 * The engine as functions of `etgenai_engine.h`, for programs that want to execute graphs themselves. Set
 * `functions_out->struct_size` first. Whoever has the functions calls their `destroy` when done; the handle may be freed
 * before.
 *
 * - Threads: any.
 * - Owns: the functions are the caller's until it calls their `destroy`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, struct_size too small).
 * - After a failure: `*functions_out` is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_engine_get_functions(const struct etg_engine *engine,
                                 etg_engine_functions *functions_out);

/**
 * What a program file holds, as one JSON object: description, weight_bytes, graphs (name, inputs and outputs with name,
 * dtype and shape), constants (name and values). The program is loaded and closed again. `component` is what it is for, e.g.
 * "text_decoder"; an engine that does not care takes any.
 *
 * - Threads: any.
 * - Owns: the texts are not kept. `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8), and what the engine reports: `ETG_ERROR_NOT_FOUND`,
 *   `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_ENGINE`.
 * - After a failure: `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_engine_inspect_json(const struct etg_engine *engine,
                                const char *component,
                                size_t component_length,
                                const char *path,
                                size_t path_length,
                                struct etg_buffer **buffer_out);

/**
 * Make an empty set of files.
 *
 * - Threads: any.
 * - Owns: `*files_out` is the caller's; free it with `etg_model_files_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*files_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_model_files_create(struct etg_model_files **files_out);

/**
 * Free a set of files. NULL is allowed and does nothing.
 *
 * - Threads: any; runners opened from it are not touched.
 * - Owns: takes the set back, and bytes that were copied into it.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_model_files_free(struct etg_model_files *files);

/**
 * Set the file of a component: "text_decoder", "tok_embedding", "vision_encoder", "audio_encoder" or
 * "attention_sink_evictor". It is looked at when a runner is opened.
 *
 * - Threads: any.
 * - Owns: the texts are copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, empty path), `ETG_ERROR_NOT_FOUND` (no such
 *   component; the message lists them).
 * - After a failure: the set is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_model_files_set_component(struct etg_model_files *files,
                                      const char *component,
                                      size_t component_length,
                                      const char *path,
                                      size_t path_length);

/**
 * Set a component's program from memory.
 *
 * - Threads: any.
 * - Owns: the bytes are copied; the copy lives until the set and all runners opened from it are gone.
 * - Codes: as `etg_model_files_set_component`.
 * - After a failure: the set is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_model_files_set_component_bytes(struct etg_model_files *files,
                                            const char *component,
                                            size_t component_length,
                                            const uint8_t *bytes,
                                            size_t bytes_length);

/**
 * Say that the engine holds a component's program already, under this name: for engines of the host.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: as `etg_model_files_set_component`.
 * - After a failure: the set is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_model_files_set_component_held(struct etg_model_files *files,
                                           const char *component,
                                           size_t component_length);

/**
 * Set the tokenizer: tokenizer.json, tokenizer.model (SentencePiece or tiktoken), tokenizer.bin (llama2.c), or a folder
 * with one of them. Special tokens, the chat template and the settings of pictures and sound are read from the files beside it
 * (tokenizer_config.json, chat_template.jinja, preprocessor_config.json …), as far as they are there.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, empty).
 * - After a failure: the set is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_model_files_set_tokenizer(struct etg_model_files *files,
                                      const char *path,
                                      size_t path_length);

/**
 * Set any of the files from one JSON object of paths. Keys: text_decoder, tok_embedding, vision_encoder,
 * audio_encoder, attention_sink_evictor, tokenizer; null takes a file out.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
 *   key), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the set is unchanged, also by the keys that were right.
 */
ETG_API
ETG_MUST_USE
int32_t etg_model_files_set_json(struct etg_model_files *files,
                                 const char *json,
                                 size_t length);

/**
 * Open a model from its files with an engine, and begin an empty conversation. `options` may be NULL: the defaults.
 *
 * - Threads: any.
 * - Owns: `*runner_out` is the caller's; free it with `etg_runner_free`. Files, engine handle and options may be freed at
 *   once; the runner keeps the engine.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a file is not set, files that do not belong together),
 *   `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_ENGINE`.
 * - After a failure: nothing was opened, `*runner_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_open_files(const struct etg_model_files *files,
                              const struct etg_engine *engine,
                              const struct etg_runner_options *options,
                              struct etg_runner **runner_out);

/**
 * Open a compiled model folder with an engine, and begin an empty conversation. `options` may be NULL: the defaults; their
 * threads are the engine's own matter.
 *
 * - Threads: any.
 * - Owns: as `etg_runner_open_files`.
 * - Codes: as `etg_runner_open`.
 * - After a failure: nothing was opened, `*runner_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_open_with_engine(const char *path,
                                    size_t path_length,
                                    const struct etg_engine *engine,
                                    const struct etg_runner_options *options,
                                    struct etg_runner **runner_out);

/**
 * Re-quantize levels of a KV cache in place, for runners that keep a cache of their own: what a prefill graph wrote with
 * one encoding (real = (level - zero_point) * scale) becomes what a decode graph reads with another, within the levels'
 * range. `level_bytes` is 1 (uint8_t) or 2 (uint16_t, aligned). `etg_runner` does this by itself.
 *
 * - Threads: any; `levels` is the caller's alone during the call.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, a level size other than 1 and 2, a scale that is not above 0, not such a
 *   constant).
 * - After a failure: the levels are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_kv_requantize(uint8_t *levels,
                          size_t level_count,
                          size_t level_bytes,
                          float from_scale,
                          int32_t from_zero_point,
                          float to_scale,
                          int32_t to_zero_point,
                          int32_t rounding);

/**
 * Open a compiled model folder, or that of a quantized model (see `etg_prepared_model_quantize`), which computes with the arithmetic
 * of its quantize-dequantize nodes, and begin an empty conversation. `options` may be NULL: the defaults.
 *
 * - Threads: any.
 * - Owns: `*runner_out` is the caller's; free it with `etg_runner_free`. The options may be freed at once.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_NOT_FOUND` (folder, file, or name of a template),
 *   `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (a malformed file or template), `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_ENGINE`.
 * - After a failure: nothing was opened, `*runner_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_open(const char *path,
                        size_t path_length,
                        const struct etg_runner_options *options,
                        struct etg_runner **runner_out);

/**
 * Free a runner. NULL is allowed and does nothing.
 *
 * - Threads: any. While a call runs (on another thread, or from its callback) it is refused: cancel, and free after
 *   the call has returned.
 * - Owns: takes the runner back; what was borrowed from it is gone. Tokenizer handles stay.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live runner: freed twice), `ETG_ERROR_BUSY`.
 * - After a failure: nothing was freed, the runner is as before.
 */
ETG_API
int32_t etg_runner_free(struct etg_runner *runner);

/**
 * Answer `messages`, which follow the history: at least one; the chat template decides which roles may follow.
 *
 * `options` may be NULL: what the checkpoint recommends. `on_event` may be NULL. `result_out` may be NULL; otherwise
 * initialise it with `etg_turn_result_init`. A run that begins ends with exactly one `ETG_EVENT_FINISHED`; one that is
 * refused at the door (bad handle, options, messages or struct, busy, poisoned by a panic) has no events.
 *
 * A reply that ended by a cancel, the callback or a limit joins the history as far as it came; one that ended
 * before its first token leaves the history as it was.
 *
 * - Threads: one call at a time per runner; events come on this thread.
 * - Owns: messages and options may be freed or changed at once. Text and tokens in `*result_out` are borrowed until the
 *   next generate, reset, rewind or free on this runner.
 * - Codes: `ETG_OK` (the model ended its reply), `ETG_STOP_CANCELLED`, `ETG_STOP_LENGTH`, `ETG_STOP_CONTEXT_FULL`,
 *   `ETG_STOP_STRING`, `ETG_STOP_CALLBACK`; `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_UNSUPPORTED` (fields of a newer
 *   struct), `ETG_ERROR_FORMAT` (the template fails), `ETG_ERROR_INVALID_STATE` (no chat template),
 *   `ETG_ERROR_CONTEXT_FULL`, `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`, `ETG_ERROR_ENGINE`, `ETG_ERROR_INTERNAL`. Also
 *   `ETG_ERROR_UNSUPPORTED` for pictures in a model that takes none.
 * - After a failure: the conversation is unchanged; after `ETG_ERROR_ENGINE` and `ETG_ERROR_INTERNAL` the runner is
 *   poisoned and needs `etg_runner_reset`. `*result_out` is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_generate(struct etg_runner *runner,
                            const struct etg_messages *messages,
                            const struct etg_generate_options *options,
                            etg_event_fn on_event,
                            void *user_data,
                            struct etg_turn_result *result_out);

/**
 * Ask for the end of the run that is going on, or, if none is, of the next one as soon as it begins. The request is
 * used up when that run has ended.
 *
 * - Threads: any, at any time, also from callbacks. Not from a signal handler.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: nothing changed.
 */
ETG_API
int32_t etg_runner_cancel(struct etg_runner *runner);

/**
 * Begin a new, empty conversation. Also the way out when the runner is poisoned.
 *
 * - Threads: one call at a time per runner.
 * - Owns: what was borrowed from the last reply is gone.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`.
 * - After a failure: the conversation is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_reset(struct etg_runner *runner);

/**
 * Forget all but the first `turns_to_keep` turns of the conversation. What a later prompt shares with them is not
 * computed again.
 *
 * - Threads: one call at a time per runner.
 * - Owns: what was borrowed from the last reply is gone.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or there are fewer turns), `ETG_ERROR_BUSY`,
 *   `ETG_ERROR_POISONED`.
 * - After a failure: the conversation is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_rewind(struct etg_runner *runner,
                          size_t turns_to_keep);

/**
 * Number of finished turns. During a run: before it.
 *
 * - Threads: any, at any time.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the runner is unchanged, `*turns_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_turn_count(const struct etg_runner *runner,
                              size_t *turns_out);

/**
 * Number of tokens of the history, the last sampled one included. During a run: before it.
 *
 * - Threads: any, at any time.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the runner is unchanged, `*tokens_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_position(const struct etg_runner *runner,
                            size_t *tokens_out);

/**
 * Most tokens of a conversation: history, prompt and reply together. It belongs to the compiled model.
 *
 * - Threads: any, at any time.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the runner is unchanged, `*tokens_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_context_capacity(const struct etg_runner *runner,
                                    size_t *tokens_out);

/**
 * Statistics as one JSON object: "turn" (the last turn that ended well, or null) and "total" (all runs since the
 * runner was opened). Times are milliseconds; a rate that is not defined is null. During a run: before it.
 *
 * - Threads: any, at any time.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_stats_json(const struct etg_runner *runner,
                              struct etg_buffer **buffer_out);

/**
 * The last turn's statistics as the line that upstream's runners print: "PyTorchObserver {...}" and a newline.
 *
 * - Threads: any, at any time.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no turn has ended well yet).
 * - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_stats_observer_line(const struct etg_runner *runner,
                                       struct etg_buffer **buffer_out);

/**
 * The last turn's statistics as the lines that upstream's runners log, without a platform's prefix, each with a
 * newline.
 *
 * - Threads: any, at any time.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no turn has ended well yet).
 * - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_stats_log_lines(const struct etg_runner *runner,
                                   struct etg_buffer **buffer_out);

/**
 * The last call on this runner that failed, on whichever thread: its code and its text. `ETG_OK` and empty text when
 * none did. Failures of getters and of handles that are not live are not recorded here.
 *
 * - Threads: any, at any time.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the runner is unchanged, `*code_out` is `ETG_OK` and `*buffer_out` NULL if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_last_error(const struct etg_runner *runner,
                              int32_t *code_out,
                              struct etg_buffer **buffer_out);

/**
 * The tokenizer of a runner.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*tokenizer_out` is the caller's; free it with `etg_tokenizer_free`. It may outlive the runner.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner is unchanged, `*tokenizer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_tokenizer(struct etg_runner *runner,
                             struct etg_tokenizer **tokenizer_out);

/**
 * Options as the checkpoint recommends them, to change and pass on. This is what NULL options mean.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*options_out` is the caller's; free it with `etg_generate_options_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner is unchanged, `*options_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_default_options(struct etg_runner *runner,
                                   struct etg_generate_options **options_out);

/**
 * The text that a run with these new messages would process: the whole history and the opening of the next reply, as
 * the chat template writes them.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_INVALID_STATE` (no chat template), `ETG_ERROR_FORMAT` (the template
 *   fails), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_render(struct etg_runner *runner,
                          const struct etg_messages *messages,
                          struct etg_buffer **buffer_out);

/**
 * The tokens that a run with these new messages would process, history included. What a user typed never becomes a
 * control token, and replies of the history are the tokens that were sampled. A picture has one picture token for each
 * of its rows; nothing is encoded for this.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*buffer_out` (ids) is the caller's; free it with `etg_buffer_free`.
 * - Codes: as `etg_runner_render`.
 * - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_encode_prompt(struct etg_runner *runner,
                                 const struct etg_messages *messages,
                                 struct etg_buffer **buffer_out);

/**
 * The tokens of the history, the last sampled one included.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*buffer_out` (ids) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_history_tokens(struct etg_runner *runner,
                                  struct etg_buffer **buffer_out);

/**
 * Append tokens to the history and process them; afterwards `etg_runner_logits` gives those of the last one. At least
 * one token.
 *
 * - Threads: one call at a time per runner. A cancel is noticed between blocks.
 * - Owns: the ids are copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, no tokens, an id outside of the vocabulary),
 *   `ETG_ERROR_CONTEXT_FULL`, `ETG_ERROR_CANCELLED`, `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`, `ETG_ERROR_ENGINE`,
 *   `ETG_ERROR_INTERNAL`.
 * - After a failure: the history is unchanged; after `ETG_ERROR_ENGINE` and `ETG_ERROR_INTERNAL` the runner is
 *   poisoned and needs `etg_runner_reset`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_prefill(struct etg_runner *runner,
                           const uint32_t *ids,
                           size_t id_count);

/**
 * Make the history exactly this prompt, as `etg_runner_encode_prompt` gives it, and process what the KV cache does not
 * have yet; afterwards `etg_runner_logits` gives the logits of the last token.
 *
 * - Threads: one call at a time per runner. A cancel is noticed between blocks.
 * - Owns: the ids are copied.
 * - Codes: as `etg_runner_prefill`.
 * - After a failure: as `etg_runner_prefill`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_prefill_prompt(struct etg_runner *runner,
                                  const uint32_t *ids,
                                  size_t id_count);

/**
 * Append one token to the history and process it; afterwards `etg_runner_logits` gives its logits.
 *
 * - Threads: one call at a time per runner.
 * - Owns: nothing.
 * - Codes: as `etg_runner_prefill`.
 * - After a failure: as `etg_runner_prefill`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_decode_one(struct etg_runner *runner,
                              uint32_t id);

/**
 * Logits of the newest processed token, one a vocabulary entry.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*logits_out` is borrowed until the next call on this runner that is not a getter.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (nothing was processed since
 *   the runner was opened, reset or rewound), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner is unchanged, `*logits_out` is NULL and `*count_out` 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_logits(struct etg_runner *runner,
                          const float **logits_out,
                          size_t *count_out);

/**
 * Choose a token from the logits, by the sampling options (temperature, filters, penalty, seed); the other options
 * are not read. NULL options: what the checkpoint recommends. The token is not appended: pass it to
 * `etg_runner_decode_one`. Random numbers start anew with each prefill and when the options change.
 *
 * - Threads: one call at a time per runner.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (there are no logits),
 *   `ETG_ERROR_ENGINE` (logits that are no numbers), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the history is unchanged, `*id_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_sample(struct etg_runner *runner,
                          const struct etg_generate_options *options,
                          uint32_t *id_out);

/**
 * Whether a token ends a reply (1) or not (0).
 *
 * - Threads: one call at a time per runner.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner is unchanged, `*eos_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_is_eos(struct etg_runner *runner,
                          uint32_t id,
                          int32_t *eos_out);

/**
 * Make a turn that was generated by single steps a part of the conversation: the new messages and the sampled tokens
 * of the reply, without the end-of-sequence token. Later prompts then contain it. Pictures of the messages that are
 * neither embeddings nor in the image cache are encoded.
 *
 * - Threads: one call at a time per runner.
 * - Owns: messages and ids are copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or no messages, an id outside of the
 *   vocabulary), `ETG_ERROR_INVALID_STATE` (no chat template), `ETG_ERROR_FORMAT` (the template fails),
 *   `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the conversation is unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_commit_turn(struct etg_runner *runner,
                               const struct etg_messages *messages,
                               const uint32_t *reply_ids,
                               size_t reply_id_count);

/**
 * Whether the model takes pictures (1) or not (0).
 *
 * - Threads: any, at any time.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the runner is unchanged, `*images_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_takes_images(const struct etg_runner *runner,
                                int32_t *images_out);

/**
 * What the model makes of a picture: the side of a tile in pixels, the rows (and prompt tokens) of one tile, and the
 * floats of a row.
 *
 * - Threads: any, at any time.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_UNSUPPORTED` (the model takes no pictures).
 * - After a failure: the runner is unchanged, the results are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_image_geometry(const struct etg_runner *runner,
                                  size_t *tile_size_out,
                                  size_t *rows_per_tile_out,
                                  size_t *width_out);

/**
 * Pictures and sounds in the image cache, and the bytes that their rows take. During a run: before it.
 *
 * - Threads: any, at any time.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the runner is unchanged, the results are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_image_cache_size(const struct etg_runner *runner,
                                    size_t *images_out,
                                    size_t *bytes_out);

/**
 * A picture's pixels as the vision encoder takes them, cut as the runner's options say.
 *
 * - Threads: one call at a time per runner. `etg_image_processor_process` does the same without a runner.
 * - Owns: `*pixels_out` is the caller's; free it with `etg_pixels_free`. Picture and runner may be freed first.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a tensor whose tiles are not of the encoder's size),
 *   `ETG_ERROR_UNSUPPORTED` (the model takes no pictures), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner is unchanged, `*pixels_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_preprocess_image(struct etg_runner *runner,
                                    const struct etg_image *image,
                                    struct etg_pixels **pixels_out);

/**
 * Run the vision encoder over preprocessed pixels, tile by tile. The image cache is not used.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*embedding_out` is the caller's; free it with `etg_embedding_free`. Pixels and runner may be freed first.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, tiles of another size), `ETG_ERROR_UNSUPPORTED` (the model
 *   takes no pictures), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`, `ETG_ERROR_ENGINE`, `ETG_ERROR_INTERNAL`.
 * - After a failure: the conversation is unchanged, `*embedding_out` is NULL if it could be written; after
 *   `ETG_ERROR_INTERNAL` the runner is poisoned and needs `etg_runner_reset`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_encode_pixels(struct etg_runner *runner,
                                 const struct etg_pixels *pixels,
                                 struct etg_embedding **embedding_out);

/**
 * The rows of a picture, from the image cache or, preprocessed and encoded, from the encoder. Add them to messages in
 * place of the picture, of this runner or of another one of the same model, and nothing is encoded there.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*embedding_out` is the caller's; free it with `etg_embedding_free`. Picture and runner may be freed first.
 * - Codes: as `etg_runner_preprocess_image` and `etg_runner_encode_pixels`.
 * - After a failure: as `etg_runner_encode_pixels`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_encode_image(struct etg_runner *runner,
                                const struct etg_image *image,
                                struct etg_embedding **embedding_out);

/**
 * The embedding rows of tokens, written to the caller's `rows`: `id_count` rows of as many floats as
 * `etg_runner_image_geometry` (`etg_runner_audio_geometry`) says, so `value_count` is their product.
 *
 * - Threads: one call at a time per runner.
 * - Owns: the ids are not kept, `rows` stays the caller's.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, an id outside of the vocabulary, another number of values;
 *   the message has both numbers), `ETG_ERROR_UNSUPPORTED` (a model whose decoder takes ids), `ETG_ERROR_BUSY`,
 *   `ETG_ERROR_POISONED`, `ETG_ERROR_ENGINE`, `ETG_ERROR_INTERNAL`.
 * - After a failure: the conversation and `rows` are unchanged; after `ETG_ERROR_INTERNAL` the runner is poisoned and
 *   needs `etg_runner_reset`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_embed_tokens(struct etg_runner *runner,
                                const uint32_t *ids,
                                size_t id_count,
                                float *rows,
                                size_t value_count);

/**
 * Put the rows of `embeddings`, in order, in the places of the picture or audio tokens of `ids`. `rows` is what
 * `etg_runner_embed_tokens` gave for `ids`, and is changed in place.
 *
 * - Threads: one call at a time per runner.
 * - Owns: nothing is kept; `rows` stays the caller's.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, another number of values than the ids need, more or fewer
 *   rows than such tokens; the message has both numbers), `ETG_ERROR_UNSUPPORTED` (the model has no encoder),
 *   `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner and `rows` are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_merge(struct etg_runner *runner,
                         const uint32_t *ids,
                         size_t id_count,
                         float *rows,
                         size_t value_count,
                         const struct etg_embedding *const *embeddings,
                         size_t embedding_count);

/**
 * Append positions to the history whose hidden states are given, and process them: `rows` holds one row for each of
 * `ids`, which are what the repetition penalty and `etg_runner_history_tokens` see. Otherwise as `etg_runner_prefill`.
 *
 * - Threads: one call at a time per runner. A cancel is noticed between blocks.
 * - Owns: ids and rows are copied.
 * - Codes: as `etg_runner_prefill`, and `ETG_ERROR_INVALID_ARGUMENT` (another number of values than the ids need, a
 *   number that is not finite), `ETG_ERROR_UNSUPPORTED` (a model whose decoder takes ids).
 * - After a failure: as `etg_runner_prefill`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_prefill_rows(struct etg_runner *runner,
                                const uint32_t *ids,
                                size_t id_count,
                                const float *rows,
                                size_t value_count);

/**
 * Make the history exactly this prompt, as `etg_runner_encode_prompt` gives it, with one row for each of its ids, and
 * process what the KV cache does not have yet; afterwards `etg_runner_logits` gives the logits of the last token. Rows
 * that an earlier call of this function processed at the same places are not computed again; tokens that were decoded
 * by their ids are. (`etg_runner_prefill_messages` spares both.)
 *
 * - Threads: one call at a time per runner. A cancel is noticed between blocks.
 * - Owns: ids and rows are copied.
 * - Codes: as `etg_runner_prefill_rows`.
 * - After a failure: as `etg_runner_prefill`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_prefill_prompt_rows(struct etg_runner *runner,
                                       const uint32_t *ids,
                                       size_t id_count,
                                       const float *rows,
                                       size_t value_count);

/**
 * Make the history exactly the prompt of these new messages, their pictures and sounds encoded (or taken from the image cache) and
 * in their places, and process what the KV cache does not have yet; afterwards `etg_runner_logits` gives the logits of
 * the last token.
 *
 * - Threads: one call at a time per runner. A cancel is noticed between tiles and between blocks.
 * - Owns: the messages may be freed or changed at once.
 * - Codes: as `etg_runner_render` and `etg_runner_prefill`, and `ETG_ERROR_UNSUPPORTED` (pictures or audio in a model that
 *   takes none).
 * - After a failure: as `etg_runner_prefill`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_prefill_messages(struct etg_runner *runner,
                                    const struct etg_messages *messages);

/**
 * Whether the model takes audio (1) or not (0).
 *
 * - Threads: any, at any time.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the runner is unchanged, `*audio_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_takes_audio(const struct etg_runner *runner,
                               int32_t *audio_out);

/**
 * What the model makes of a piece of sound: the features its encoder takes, the rows (and prompt tokens) it makes of
 * them, and the floats of a row.
 *
 * - Threads: any, at any time.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_UNSUPPORTED` (the model takes no audio).
 * - After a failure: the runner is unchanged, the results are 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_audio_geometry(const struct etg_runner *runner,
                                  size_t *feature_count_out,
                                  size_t *row_count_out,
                                  size_t *width_out);

/**
 * Features of sound as the encoder takes them, written to the caller's `features`: as many floats as
 * `etg_runner_audio_geometry` says.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `features` stays the caller's.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, sound that is too long or another number of features; the
 *   message has both numbers), `ETG_ERROR_UNSUPPORTED` (the model takes no audio, or features of another kind),
 *   `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`.
 * - After a failure: the runner and `features` are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_preprocess_audio(struct etg_runner *runner,
                                    const struct etg_audio *audio,
                                    float *features,
                                    size_t feature_count);

/**
 * Run the encoder once over one ready-made input: features of sound, or one tile [3, side, side] of a picture. The cache
 * is not used.
 *
 * - Threads: one call at a time per runner.
 * - Owns: the features are not kept. `*embedding_out` is the caller's; free it with `etg_embedding_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, another number of features than the encoder takes; the message
 *   has both), `ETG_ERROR_UNSUPPORTED` (the model has no encoder), `ETG_ERROR_BUSY`, `ETG_ERROR_POISONED`,
 *   `ETG_ERROR_ENGINE`, `ETG_ERROR_INTERNAL`.
 * - After a failure: the conversation is unchanged, `*embedding_out` is NULL if it could be written; after
 *   `ETG_ERROR_INTERNAL` the runner is poisoned and needs `etg_runner_reset`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_encode_features(struct etg_runner *runner,
                                   const float *features,
                                   size_t feature_count,
                                   struct etg_embedding **embedding_out);

/**
 * The rows of sound, from the cache or, preprocessed and encoded, from the encoder. Add them to messages in place of the
 * sound, of this runner or of another one of the same model, and nothing is encoded there.
 *
 * - Threads: one call at a time per runner.
 * - Owns: `*embedding_out` is the caller's; free it with `etg_embedding_free`. Sound and runner may be freed first.
 * - Codes: as `etg_runner_preprocess_audio` and `etg_runner_encode_features`.
 * - After a failure: as `etg_runner_encode_features`.
 */
ETG_API
ETG_MUST_USE
int32_t etg_runner_encode_audio(struct etg_runner *runner,
                                const struct etg_audio *audio,
                                struct etg_embedding **embedding_out);

/**
 * Open the tokenizer of a compiled model folder, without its weights; or a tokenizer file: `tokenizer.json`, tiktoken's or
 * SentencePiece's `tokenizer.model`, llama2.c's `tokenizer.bin`. What lies beside a file says which tokens are special.
 *
 * - Threads: any.
 * - Owns: `*tokenizer_out` is the caller's; free it with `etg_tokenizer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, path not UTF-8), `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`,
 *   `ETG_ERROR_FORMAT` (manifest or tokenizer malformed), `ETG_ERROR_UNSUPPORTED` (a kind of tokenizer we do not have).
 * - After a failure: nothing was opened, `*tokenizer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_tokenizer_open(const char *path,
                           size_t path_length,
                           struct etg_tokenizer **tokenizer_out);

/**
 * Free a tokenizer handle. NULL is allowed and does nothing.
 *
 * - Threads: any; calls that are using it, detokenizers and runners keep what they need.
 * - Owns: takes the handle back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live tokenizer: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_tokenizer_free(struct etg_tokenizer *tokenizer);

/**
 * Token ids of a text. `add_bos` 1 puts the begin-of-text token in front if this model uses one for plain text.
 * `parse_special` 1 turns the text of control tokens into control tokens: leave it 0 for any text from outside.
 *
 * - Threads: any, several at once.
 * - Owns: `*buffer_out` (ids) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, a flag neither 0 nor 1), `ETG_ERROR_FORMAT` (the
 *   tokenizer's own rules fail on this text).
 * - After a failure: the tokenizer is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_tokenizer_encode(const struct etg_tokenizer *tokenizer,
                             const char *text,
                             size_t text_length,
                             int32_t add_bos,
                             int32_t parse_special,
                             struct etg_buffer **buffer_out);

/**
 * Text of token ids. `skip_special` 1 leaves out special tokens. Ids outside of the vocabulary give nothing; bytes
 * that are not UTF-8 give U+FFFD. For ids that come one at a time, use an `etg_detokenizer`.
 *
 * - Threads: any, several at once.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a flag neither 0 nor 1).
 * - After a failure: the tokenizer is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_tokenizer_decode(const struct etg_tokenizer *tokenizer,
                             const uint32_t *ids,
                             size_t id_count,
                             int32_t skip_special,
                             struct etg_buffer **buffer_out);

/**
 * The bytes that one token adds to a text. They may begin or end within a character, and may hold NUL.
 *
 * - Threads: any, several at once.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_NOT_FOUND` (no token has this id).
 * - After a failure: the tokenizer is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_tokenizer_token_bytes(const struct etg_tokenizer *tokenizer,
                                  uint32_t id,
                                  struct etg_buffer **buffer_out);

/**
 * The id of a token, spelled as tokenizer.json spells it, e.g. "<|im_end|>".
 *
 * - Threads: any, several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8), `ETG_ERROR_NOT_FOUND` (no such token).
 * - After a failure: the tokenizer is unchanged, `*id_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_tokenizer_token_id(const struct etg_tokenizer *tokenizer,
                               const char *text,
                               size_t text_length,
                               uint32_t *id_out);

/**
 * Whether a token structures the conversation (1) or is text (0).
 *
 * - Threads: any, several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the tokenizer is unchanged, `*control_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_tokenizer_is_control(const struct etg_tokenizer *tokenizer,
                                 uint32_t id,
                                 int32_t *control_out);

/**
 * The ids that end a reply, sorted: the union of what every file of the checkpoint says.
 *
 * - Threads: any, several at once.
 * - Owns: `*buffer_out` (ids) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the tokenizer is unchanged, `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_tokenizer_eos_ids(const struct etg_tokenizer *tokenizer,
                              struct etg_buffer **buffer_out);

/**
 * Number of vocabulary entries, added tokens included.
 *
 * - Threads: any, several at once.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the tokenizer is unchanged, `*size_out` is 0 if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_tokenizer_vocab_size(const struct etg_tokenizer *tokenizer,
                                 size_t *size_out);

/**
 * Make a detokenizer. `skip_special` 1 leaves out special tokens.
 *
 * - Threads: any.
 * - Owns: `*detokenizer_out` is the caller's; free it with `etg_detokenizer_free`. The tokenizer may be freed first.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a flag neither 0 nor 1).
 * - After a failure: nothing was made, `*detokenizer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_detokenizer_create(const struct etg_tokenizer *tokenizer,
                               int32_t skip_special,
                               struct etg_detokenizer **detokenizer_out);

/**
 * Free a detokenizer. NULL is allowed and does nothing.
 *
 * - Threads: any, when no other thread reads text borrowed from it any more.
 * - Owns: takes the detokenizer back; what was borrowed from it is gone.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live detokenizer: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_detokenizer_free(struct etg_detokenizer *detokenizer);

/**
 * Take the next token and give the characters it completes, often none (length 0). Ids outside of the vocabulary
 * give nothing.
 *
 * - Threads: one at a time per detokenizer.
 * - Owns: `*text_out` is borrowed until the next call on this detokenizer; a NUL follows the text.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the detokenizer is unchanged, `*text_out` is NULL and `*length_out` 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_detokenizer_push(struct etg_detokenizer *detokenizer,
                             uint32_t id,
                             const char **text_out,
                             size_t *length_out);

/**
 * The text ends here: give what was held back (an incomplete character becomes U+FFFD). The detokenizer is then ready
 * for another text.
 *
 * - Threads: one at a time per detokenizer.
 * - Owns: `*text_out` is borrowed until the next call on this detokenizer; a NUL follows the text.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the detokenizer is unchanged, `*text_out` is NULL and `*length_out` 0 if they could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_detokenizer_finish(struct etg_detokenizer *detokenizer,
                               const char **text_out,
                               size_t *length_out);

/**
 * Make options with the default values: half-precision weights, everything else as the model suggests.
 *
 * - Threads: any.
 * - Owns: `*options_out` is the caller's; free it with `etg_compile_options_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*options_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_create(struct etg_compile_options **options_out);

/**
 * Free options. NULL is allowed and does nothing.
 *
 * - Threads: any; a call that is using the options goes on with the values it has read.
 * - Owns: takes the options back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_compile_options_free(struct etg_compile_options *options);

/**
 * Number format of the weight matrices, an `ETG_WEIGHTS_` constant. Norms and biases are always single precision.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_weights(struct etg_compile_options *options,
                                        int32_t format);

/**
 * Number format of the vision encoder's matrices: an `ETG_WEIGHTS_` constant, or `ETG_WEIGHTS_AUTO`, the default: as
 * `etg_compile_options_set_weights` says, but int8 beside an int4 decoder. Text models have no encoder and ignore it.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_vision_weights(struct etg_compile_options *options,
                                               int32_t format);

/**
 * Number format of the token embedding of a model that takes pictures: an `ETG_WEIGHTS_` constant, or
 * `ETG_WEIGHTS_AUTO`, the default: as `etg_compile_options_set_weights` says. Int4 is stored as int8.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_embedding_weights(struct etg_compile_options *options,
                                                  int32_t format);

/**
 * Which rows of the position table the patches of SmolVLM's encoder get, an `ETG_POSITIONS_` constant;
 * `ETG_POSITIONS_IDENTITY` is the default. For other models any other rule is refused when they are compiled.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_position_rule(struct etg_compile_options *options,
                                              int32_t rule);

/**
 * Context capacity of the compiled model, tokens; 0, the default, is 2048 or what the model was made for, whichever is
 * less. Whether the model allows it is checked when it is compiled.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_max_context(struct etg_compile_options *options,
                                            size_t tokens);

/**
 * Tokens that a prefill block processes at once; 0, the default, is 32, or less for a short context.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_prefill_ar(struct etg_compile_options *options,
                                           size_t tokens);

/**
 * Registry name that the checkpoint must be; the empty text, the default, takes the checkpoint as it is.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_model(struct etg_compile_options *options,
                                      const char *text,
                                      size_t length);

/**
 * Threads that pack weights; 0, the default, is one a physical core.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_threads(struct etg_compile_options *options,
                                        size_t threads);

/**
 * Set any of the options from one JSON object, e.g. `{"weights": "w4", "max_context": 4096}`. Keys: weights (f32, f16,
 * bf16, w8 or w4), vision_weights, embedding_weights (the same names), position_rule (identity or upstream_shifted),
 * max_context, prefill_ar, model, threads; null takes the default.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
 *   key), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the options are unchanged, also by the keys that were right.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile_options_set_json(struct etg_compile_options *options,
                                     const char *json,
                                     size_t length);

/**
 * Compile a checkpoint (a Hugging Face folder or a GGUF file) into the folder `out`, for the CPU engine. `options` may
 * be NULL: the defaults. `on_progress` may be NULL. The folder appears complete or not at all; a compiled model that
 * was there is replaced at the end.
 *
 * - Threads: any, several at once for different folders; progress comes on this thread.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (also options that do not fit the model), `ETG_ERROR_NOT_FOUND`,
 *   `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (a malformed or incomplete checkpoint; the message names file and tensor),
 *   `ETG_ERROR_UNSUPPORTED` (a kind of model we cannot compile), `ETG_ERROR_CANCELLED`, `ETG_ERROR_INTERNAL`.
 * - After a failure: `out` is as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_compile(const char *checkpoint,
                    size_t checkpoint_length,
                    const char *out,
                    size_t out_length,
                    const struct etg_compile_options *options,
                    etg_progress_fn on_progress,
                    void *user_data);

/**
 * Compile one component ("vision_encoder", "tok_embedding" or "text_decoder") of the compiled model in `folder` again,
 * from the checkpoint it was made from: to give it another precision. Its weight format and the position rule come from
 * `options` (NULL: the defaults); context and block size stay those of the folder. The other components' files stay byte
 * for byte what they are, and runners that are open go on with what they have.
 *
 * - Threads: any, several at once for different folders; progress comes on this thread.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (also a checkpoint of another model, or options that ask for another context or
 *   block size), `ETG_ERROR_NOT_FOUND` (also a component that the model does not have), otherwise as `etg_compile`.
 * - After a failure: the folder is as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_recompile_component(const char *checkpoint,
                                size_t checkpoint_length,
                                const char *folder,
                                size_t folder_length,
                                const char *component,
                                size_t component_length,
                                const struct etg_compile_options *options,
                                etg_progress_fn on_progress,
                                void *user_data);

/**
 * What a path holds, as one JSON object: its "kind" ("compiled", "huggingface" or "gguf") and what is known of it
 * without reading weights.
 *
 * - Threads: any.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`,
 *   `ETG_ERROR_UNSUPPORTED`.
 * - After a failure: `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_inspect_json(const char *path,
                         size_t path_length,
                         struct etg_buffer **buffer_out);

/**
 * The models that are known by name, as one JSON object with a list "models".
 *
 * - Threads: any.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made.
 */
ETG_API
ETG_MUST_USE
int32_t etg_models_json(struct etg_buffer **buffer_out);

/**
 * Make options with the default values: a context of 512 tokens, prefill blocks of 32, hybrid, the rest as the model's entry in
 * the registry says.
 *
 * - Threads: any.
 * - Owns: `*options_out` is the caller's; free it with `etg_preparation_options_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*options_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_create(struct etg_preparation_options **options_out);

/**
 * Free options. NULL is allowed and does nothing.
 *
 * - Threads: any; models prepared with them are not touched.
 * - Owns: takes the options back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_preparation_options_free(struct etg_preparation_options *options);

/**
 * Registry name that the checkpoint must be, e.g. "smollm2_135m"; it decides about recipe, R3 and masked softmax. The empty text,
 * the default, takes the checkpoint as it is.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not UTF-8).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_set_model(struct etg_preparation_options *options,
                                          const char *text,
                                          size_t length);

/**
 * Token slots of the deployed model: history, prompt and reply together; 0, the default, is 512.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_set_max_context(struct etg_preparation_options *options,
                                                size_t tokens);

/**
 * Tokens that a prefill block processes at once; 0, the default, is 32.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_set_prefill_ar(struct etg_preparation_options *options,
                                               size_t tokens);

/**
 * Which decoder graphs are deployed, an `ETG_MODE_` constant; `ETG_MODE_HYBRID` is the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_set_mode(struct etg_preparation_options *options,
                                         int32_t mode);

/**
 * Sizes of lookahead decoding, for `ETG_MODE_LOOKAHEAD`: n-gram size (at least 2), window and verification width (at least 1).
 * The default is 5, 8, 8. They are checked when a model is prepared.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_set_lookahead(struct etg_preparation_options *options,
                                              size_t ngram,
                                              size_t window,
                                              size_t gcap);

/**
 * Whether queries and keys are turned by R3 (a Hadamard matrix): 0, 1, or `ETG_AS_MODEL`, the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or another number).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_set_r3(struct etg_preparation_options *options,
                                       int32_t choice);

/**
 * Whether attention has the masked-softmax form: 0, 1, or `ETG_AS_MODEL`, the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or another number).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_set_masked_softmax(struct etg_preparation_options *options,
                                                   int32_t choice);

/**
 * Set any of the options from one JSON object, e.g. `{"model": "smollm2_135m", "max_context": 1024}`. Keys: model, max_context,
 * prefill_ar, mode (kv, hybrid or lookahead), lookahead (a list: ngram, window, gcap), r3, masked_softmax; null takes the default.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
 *   key), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the options are unchanged, also by the keys that were right.
 */
ETG_API
ETG_MUST_USE
int32_t etg_preparation_options_set_json(struct etg_preparation_options *options,
                                         const char *json,
                                         size_t length);

/**
 * Make options without any source.
 *
 * - Threads: any.
 * - Owns: `*options_out` is the caller's; free it with `etg_calibration_options_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*options_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_create(struct etg_calibration_options **options_out);

/**
 * Free options. NULL is allowed and does nothing.
 *
 * - Threads: any; a call that is using the options goes on with the values it has read.
 * - Owns: takes the options back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_calibration_options_free(struct etg_calibration_options *options);

/**
 * Add a JSON file with a list of conversations: each has "messages" and names the pictures or sounds it shows in "files", which
 * are looked for beside the file.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, empty). The file is read when it is used.
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_add_samples(struct etg_calibration_options *options,
                                            const char *path,
                                            size_t path_length);

/**
 * Add a plain UTF-8 text. Its tokens, without template and begin-of-text token, are cut into windows.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: as `etg_calibration_options_add_samples`.
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_add_text(struct etg_calibration_options *options,
                                         const char *path,
                                         size_t path_length);

/**
 * Add a chat set: a JSON object a line, with "messages". Rows that the template refuses or that are too long are left out.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: as `etg_calibration_options_add_samples`.
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_add_chat(struct etg_calibration_options *options,
                                         const char *path,
                                         size_t path_length);

/**
 * Add a JSON file with a list of lists of token ids.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: as `etg_calibration_options_add_samples`.
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_add_tokens(struct etg_calibration_options *options,
                                           const char *path,
                                           size_t path_length);

/**
 * Add random token ids: `samples` rows of `length` tokens; 0 samples takes them out again. Good for smoke tests only, and marked so
 * in every report.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live). The sizes are checked when the data is used.
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_set_random(struct etg_calibration_options *options,
                                           size_t samples,
                                           size_t length,
                                           uint64_t seed);

/**
 * The most windows of each text; 0, the default, takes all.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_set_text_limit(struct etg_calibration_options *options,
                                               size_t windows);

/**
 * Tokens of a window of a text; 0, the default, is as many as the longest sample has.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_set_text_window(struct etg_calibration_options *options,
                                                size_t tokens);

/**
 * Rows of each chat set that are looked at, from its beginning; 0, the default, looks at all.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_set_chat_limit(struct etg_calibration_options *options,
                                               size_t rows);

/**
 * Tokens of the longest sample; 0, the default, is 512. Never more than the context of the prepared model.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_set_max_context(struct etg_calibration_options *options,
                                                size_t tokens);

/**
 * How pictures are cut, an `ETG_TILING_` constant; should be what the runner will be told.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_set_image_tiling(struct etg_calibration_options *options,
                                                 int32_t tiling);

/**
 * Take only part `index` (from 1) of `count` equal parts of the samples, so that a big set is spread over many machines and joined
 * with `etg_observations_merge`. 0, 0, the default, takes all.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not 1 <= index <= count).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_set_shard(struct etg_calibration_options *options,
                                          size_t index,
                                          size_t count);

/**
 * Set any of the options from one JSON object, e.g. `{"texts": ["calib.txt"], "text_limit": 4, "shard": "1/2"}`. Keys: samples,
 * texts, chats, token_rows (lists of paths, in place of those that were added), random (an object with samples, length and seed),
 * text_limit, text_window, chat_limit, max_context, image_tiling (checkpoint, split, whole or single), shard ("I/N"); null takes
 * the default.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
 *   key), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the options are unchanged, also by the keys that were right.
 */
ETG_API
ETG_MUST_USE
int32_t etg_calibration_options_set_json(struct etg_calibration_options *options,
                                         const char *json,
                                         size_t length);

/**
 * Make options with the default values: every component as the model's own recipe says.
 *
 * - Threads: any.
 * - Owns: `*options_out` is the caller's; free it with `etg_quantize_options_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL).
 * - After a failure: nothing was made, `*options_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_create(struct etg_quantize_options **options_out);

/**
 * Free options. NULL is allowed and does nothing.
 *
 * - Threads: any; a call that is using the options goes on with the values it has read.
 * - Owns: takes the options back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not live options: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_quantize_options_free(struct etg_quantize_options *options);

/**
 * Give all layers of a component ("text_decoder", "tok_embedding", "vision_encoder") the same integers, an `ETG_QUANT_` constant,
 * with weights per channel; the head stays at 8 bits where the others get 4. `block` is how many neighbours share a scale in
 * `ETG_QUANT_16A4W_BLOCK`, 0 is 32; it must divide every layer. Takes the place of the component's recipe.
 *
 * - Threads: any.
 * - Owns: the text is not kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a component or constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_dtype(struct etg_quantize_options *options,
                                       const char *component,
                                       size_t component_length,
                                       int32_t dtype,
                                       size_t block);

/**
 * Give a component a recipe of its own: a JSON object with "default" (e.g. "16a4w"), "kv8", "observer" and "rules" (each with
 * "match", a regular expression, or "kind", and "dtype", "granularity", "observer", "priority"). The empty text takes the model's
 * own recipe again.
 *
 * - Threads: any.
 * - Owns: the texts are not kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a component), `ETG_ERROR_FORMAT` (not JSON, unknown key, a
 *   regular expression or block size that is none; the message names line and rule), `ETG_ERROR_UNSUPPORTED` (R1, R2).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_recipe_json(struct etg_quantize_options *options,
                                             const char *component,
                                             size_t component_length,
                                             const char *json,
                                             size_t json_length);

/**
 * How ranges of activations are found, in all components: an `ETG_OBSERVER_` constant with its setting (ignored where it has none).
 * `ETG_OBSERVER_RECIPE` is the default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a setting out of range).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_observer(struct etg_quantize_options *options,
                                          int32_t observer,
                                          double setting);

/**
 * Whether the KV cache is kept in 8 bits: 0, 1, or -1, the default: as the decoder's recipe says.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or another number).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_kv8(struct etg_quantize_options *options,
                                     int32_t choice);

/**
 * Precision of the encoder, an `ETG_ENCODER_` constant; `ETG_ENCODER_AUTO` is the default. Text models have no encoder and ignore
 * it.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_encoder(struct etg_quantize_options *options,
                                         int32_t precision);

/**
 * Whether conversations will have several pictures: 0 (the default) or 1. With `ETG_ENCODER_AUTO` the encoder stays float then.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_several_images(struct etg_quantize_options *options,
                                                int32_t several);

/**
 * Which rows of the encoder the decoder is calibrated on, an `ETG_ENCODER_ROWS_` constant; `ETG_ENCODER_ROWS_DELIVERED` is the
 * default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_encoder_rows(struct etg_quantize_options *options,
                                              int32_t rows);

/**
 * Whether channels of the residual stream that stand out are scaled, an `ETG_RESIDUAL_` constant; `ETG_RESIDUAL_AUTO` is the
 * default.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_residual(struct etg_quantize_options *options,
                                          int32_t residual);

/**
 * How scales of weights are chosen, an `ETG_SCALES_` constant, and of how many candidates where they are searched (0: 100).
 * `ETG_SCALES_MIN_MAX` is the default; a search needs calibration data.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or not such a constant).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_scales(struct etg_quantize_options *options,
                                        int32_t scales,
                                        size_t candidates);

/**
 * How weights are rounded, an `ETG_ROUNDING_` constant. `damping` is for `ETG_ROUNDING_GPTQ`: what is added to the square of each
 * input, as a part of the mean square, from 0 to 1; 0.01 is usual. `ETG_ROUNDING_NEAREST` is the default; GPTQ needs calibration
 * data.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a damping out of range).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_rounding(struct etg_quantize_options *options,
                                          int32_t rounding,
                                          float damping);

/**
 * Whether samples are padded to the whole context and the padding is observed too, as upstream does: 0 (the default) or 1.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, or neither 0 nor 1).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_observe_padding(struct etg_quantize_options *options,
                                                 int32_t observe);

/**
 * Tokens that go through the model together: more is faster and takes more memory; 0, the default, is 8192.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_tokens_at_once(struct etg_quantize_options *options,
                                                size_t tokens);

/**
 * Samples that the float and the quantized model run side by side for the report; 1 is the default, 0: none.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_report_samples(struct etg_quantize_options *options,
                                                size_t samples);

/**
 * Threads of the work; 0, the default, is one a physical core.
 *
 * - Threads: any.
 * - Owns: nothing.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
 * - After a failure: the options are unchanged.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_threads(struct etg_quantize_options *options,
                                         size_t threads);

/**
 * Set any of the options from one JSON object, e.g. `{"dtypes": {"text_decoder": "16a4w_block"}, "observer": "histogram"}`. Keys:
 * recipes (recipes by component), dtypes (by component: a name, or an object with dtype and block), observer (min_max, histogram,
 * {"moving_average": W} or {"percentile": P}), kv8, encoder (auto, float or quantized), several_images, encoder_rows (delivered or
 * float), residual (auto or as_they_are), scales ("min_max" or
 * {"seq_mse": {"candidates": N, "granularity": G}} with layer, channel or block), rounding ("nearest" or {"gptq": {"damping": D}}),
 * observe_padding, tokens_at_once, report_samples, threads; null takes the default. Recipes
 * of components that are not named stay as they are.
 *
 * - Threads: any.
 * - Owns: the text is copied.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, unknown key, wrong type; the message names the
 *   key), `ETG_ERROR_FORMAT` (not a JSON object).
 * - After a failure: the options are unchanged, also by the keys that were right.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantize_options_set_json(struct etg_quantize_options *options,
                                      const char *json,
                                      size_t length);

/**
 * Prepare a checkpoint (a Hugging Face folder or a GGUF file) for quantization: look the model up, build its graphs, find its
 * weights. `options` may be NULL: the defaults. `on_progress` may be NULL.
 *
 * - Threads: any, several at once; progress comes on this thread.
 * - Owns: `*model_out` is the caller's; free it with `etg_prepared_model_free`. The options may be freed at once; the checkpoint must
 *   stay where it is as long as the handle lives.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (also options that do not fit the model, or a checkpoint of another model),
 *   `ETG_ERROR_NOT_FOUND` (the checkpoint, or the model: the message lists those there are), `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (a
 *   malformed or incomplete checkpoint; the message names file and tensor), `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_CANCELLED`. The
 *   message begins with `[model_preparation]`.
 * - After a failure: nothing was made, `*model_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_prepared_model_create(const char *checkpoint,
                                  size_t checkpoint_length,
                                  const struct etg_preparation_options *options,
                                  etg_stage_progress_fn on_progress,
                                  void *user_data,
                                  struct etg_prepared_model **model_out);

/**
 * Prepare again what `etg_prepared_model_save` saved in `folder`: from the checkpoint it was made from or, if that moved, from
 * `checkpoint` (empty: as it was).
 *
 * - Threads: any, several at once.
 * - Owns: as `etg_prepared_model_create`.
 * - Codes: as `etg_prepared_model_create`; `ETG_ERROR_FORMAT` also if the file is malformed or of another version, or if the
 *   checkpoint is another model by now.
 * - After a failure: nothing was made, `*model_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_prepared_model_load(const char *folder,
                                size_t folder_length,
                                const char *checkpoint,
                                size_t checkpoint_length,
                                struct etg_prepared_model **model_out);

/**
 * Save the preparation in `folder` (as prepared.json, made if it is missing), for `etg_prepared_model_load` and for the pipeline. The
 * weights stay in the checkpoint.
 *
 * - Threads: any.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not a path), `ETG_ERROR_IO`.
 * - After a failure: a file of that name is as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_prepared_model_save(const struct etg_prepared_model *model,
                                const char *folder,
                                size_t folder_length);

/**
 * Free a prepared model. NULL is allowed and does nothing.
 *
 * - Threads: any; a call that is using the model goes on.
 * - Owns: takes the model back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live model: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_prepared_model_free(struct etg_prepared_model *model);

/**
 * What was prepared, as one JSON object: "model" (its name), "checkpoint", "components" (names, in the order in which they run),
 * "options", "graphs" and "cost".
 *
 * - Threads: any.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live).
 * - After a failure: `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_prepared_model_info_json(const struct etg_prepared_model *model,
                                     struct etg_buffer **buffer_out);

/**
 * What calibration data is for this model, as one JSON object: "samples", "tokens", "media", "smoke_only", "fingerprint", "shard"
 * and "sources". Everything is read, and pictures are decoded, so it finds what is wrong before a long calibration begins.
 *
 * - Threads: any.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, no source at all, a shard without samples, options out of range),
 *   `ETG_ERROR_NOT_FOUND` (a file, or one that it names), `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (the message names file, sample and
 *   field), `ETG_ERROR_UNSUPPORTED`. The message begins with `[quantization]`.
 * - After a failure: `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_prepared_model_calibration_json(const struct etg_prepared_model *model,
                                            const struct etg_calibration_options *calibration,
                                            struct etg_buffer **buffer_out);

/**
 * Find the ranges of activations for calibration data and write them to the file `out`, for `etg_observations_merge` and
 * `etg_prepared_model_quantize`. `options` may be NULL: the defaults; they must be those of the quantization. `on_progress` may be
 * NULL.
 *
 * What was seen is written every now and then, each time as a whole file; a call that finds such a file of the same data goes on
 * where it ended. A file that does not hold all samples yet is refused by merge and quantize.
 *
 * - Threads: any, several at once for different files; progress comes on this thread.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, no source at all, options that do not fit the model, an `out` that is of
 *   other data), `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_CANCELLED`. The
 *   message begins with `[quantization]`.
 * - After a failure: `out` is missing, as it was, or holds what was seen until then.
 */
ETG_API
ETG_MUST_USE
int32_t etg_prepared_model_observe(const struct etg_prepared_model *model,
                                   const struct etg_calibration_options *calibration,
                                   const struct etg_quantize_options *options,
                                   const char *out,
                                   size_t out_length,
                                   etg_stage_progress_fn on_progress,
                                   void *user_data);

/**
 * Quantize the model into the folder `out`, which appears complete or not at all, and open it. `observations` is a file of
 * `etg_prepared_model_observe` or `etg_observations_merge`; without one (empty) the ranges are found here. `calibration` may be NULL
 * or without a source if there are observations: nothing is compared for the report then. `options` may be NULL: the defaults.
 * `on_progress` and `model_out` may be NULL.
 *
 * - Threads: any, several at once for different folders; progress comes on this thread.
 * - Owns: `*model_out` is the caller's; free it with `etg_quantized_model_free`. The prepared model is not needed by it.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, no calibration data, a recipe that does not fit: the message names layer
 *   and sizes, an `out` that holds something else), `ETG_ERROR_INVALID_STATE` (observations of a part of the samples),
 *   `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_CANCELLED`. The message begins
 *   with `[quantization]`.
 * - After a failure: `out` is as it was, `*model_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_prepared_model_quantize(const struct etg_prepared_model *model,
                                    const struct etg_calibration_options *calibration,
                                    const struct etg_quantize_options *options,
                                    const char *observations,
                                    size_t observations_length,
                                    const char *out,
                                    size_t out_length,
                                    etg_stage_progress_fn on_progress,
                                    void *user_data,
                                    struct etg_quantized_model **model_out);

/**
 * Join files of `etg_prepared_model_observe`, one a shard of the same calibration set, into the file `out`. The order does not
 * matter: minima, maxima and histograms are joined exactly. `paths` and `path_lengths` have `path_count` elements each.
 *
 * - Threads: any.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, no path, files of different models, recipes or sets, the same shard twice, moving
 *   averages), `ETG_ERROR_INVALID_STATE` (a file of a part of its samples), `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`,
 *   `ETG_ERROR_FORMAT`. The message begins with `[quantization]`.
 * - After a failure: `out` is as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_observations_merge(const char *const *paths,
                               const size_t *path_lengths,
                               size_t path_count,
                               const char *out,
                               size_t out_length);

/**
 * Open a folder that `etg_prepared_model_quantize` wrote.
 *
 * - Threads: any, several at once.
 * - Owns: `*model_out` is the caller's; free it with `etg_quantized_model_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (also a compiled model), `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`.
 * - After a failure: nothing was opened, `*model_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantized_model_open(const char *path,
                                 size_t path_length,
                                 struct etg_quantized_model **model_out);

/**
 * Free a quantized model; its folder stays. NULL is allowed and does nothing.
 *
 * - Threads: any; a call that is using the model goes on.
 * - Owns: takes the model back.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live model: freed twice).
 * - After a failure: nothing was freed.
 */
ETG_API
int32_t etg_quantized_model_free(struct etg_quantized_model *model);

/**
 * The report of the quantization, as one JSON object: "model", "options", "calibration", "components" (precision, sizes, weights as
 * read back, grids of activations, clipped shares, errors of layers beside the float model), "warnings" and "stages" (time and peak
 * memory).
 *
 * - Threads: any.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live).
 * - After a failure: `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantized_model_report_json(const struct etg_quantized_model *model,
                                        struct etg_buffer **buffer_out);

/**
 * Write the grids of a component ("text_decoder", ...) to the file `path` as AIMET does, for Qualcomm's converters. `version` is
 * "1.0.0" (also the empty text) or "0.6.1", which knows no blocks.
 *
 * - Threads: any, several at once for different files.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8, an unknown version), `ETG_ERROR_NOT_FOUND` (no such component, a
 *   missing file), `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED` (what the version cannot say).
 * - After a failure: a file of that name is as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantized_model_save_aimet(const struct etg_quantized_model *model,
                                       const char *component,
                                       size_t component_length,
                                       const char *version,
                                       size_t version_length,
                                       const char *path,
                                       size_t path_length);

/**
 * Write recipes with more bits where a component's layers lose most beside the float model, and a table of what they lose (CSV),
 * into `folder`. The model must have been quantized with one or more report samples.
 *
 * - Threads: any, several at once for different folders.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not UTF-8), `ETG_ERROR_INVALID_STATE` (nothing was compared),
 *   `ETG_ERROR_NOT_FOUND` (no such component, a missing file), `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`.
 * - After a failure: each file is complete, missing or as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantized_model_save_suggestion(const struct etg_quantized_model *model,
                                            const char *component,
                                            size_t component_length,
                                            const char *folder,
                                            size_t folder_length);

/**
 * Compile the model into the folder `out`, for the CPU engine: matrices keep the width of their integers, activations are floats.
 * The folder appears complete or not at all; a compiled model that was there is replaced at the end. `prefill_ar` is the number of
 * tokens a prefill block processes at once (0: as the model was quantized for), `threads` is 0 for one a physical core. `on_progress`
 * may be NULL.
 *
 * - Threads: any, several at once for different folders; progress comes on this thread.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a block size that does not fit, an `out` that holds something else),
 *   `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`, `ETG_ERROR_UNSUPPORTED`, `ETG_ERROR_CANCELLED`. The message begins
 *   with `[compilation]`.
 * - After a failure: `out` is as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantized_model_compile(const struct etg_quantized_model *model,
                                    const char *out,
                                    size_t out_length,
                                    size_t prefill_ar,
                                    size_t threads,
                                    etg_stage_progress_fn on_progress,
                                    void *user_data);

/**
 * Perplexity of the UTF-8 text file `path`: its tokens, without begin-of-text token, are cut into windows of `window` tokens (0: 512,
 * or the context if that is less), each starts cold, and every token but the first of a window is scored. `full_windows_only` is 0
 * or 1: whether a last window that is shorter is left out. `threads` is 0 for one a physical core. `on_progress` may be NULL; its
 * stage is "evaluation".
 *
 * - Threads: any, several at once; progress comes on this thread.
 * - Owns: nothing is kept.
 * - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, a window beyond the context, nothing to score, a model that takes pictures),
 *   `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT` (not UTF-8, a damaged model), `ETG_ERROR_UNSUPPORTED` (a newer struct),
 *   `ETG_ERROR_CANCELLED`.
 * - After a failure: `*result_out` is as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantized_model_perplexity_of_file(const struct etg_quantized_model *model,
                                               const char *path,
                                               size_t path_length,
                                               size_t window,
                                               int32_t full_windows_only,
                                               size_t threads,
                                               etg_stage_progress_fn on_progress,
                                               void *user_data,
                                               struct etg_perplexity *result_out);

/**
 * Perplexity of token ids, as `etg_quantized_model_perplexity_of_file` measures it.
 *
 * - Threads: any, several at once; progress comes on this thread.
 * - Owns: nothing is kept.
 * - Codes: as `etg_quantized_model_perplexity_of_file`; `ETG_ERROR_INVALID_ARGUMENT` also for an id that is outside the vocabulary.
 * - After a failure: `*result_out` is as it was.
 */
ETG_API
ETG_MUST_USE
int32_t etg_quantized_model_perplexity_of_tokens(const struct etg_quantized_model *model,
                                                 const uint32_t *ids,
                                                 size_t id_count,
                                                 size_t window,
                                                 int32_t full_windows_only,
                                                 size_t threads,
                                                 etg_stage_progress_fn on_progress,
                                                 void *user_data,
                                                 struct etg_perplexity *result_out);

/**
 * Run a pipeline: up to four stages (model_preparation, quantization, compilation, inference), each of which saves its output in a
 * folder of its name, and is loaded from there if it was made from the same inputs. What to do is one JSON object:
 *
 * - "model_name" (of `etg_models_json`), "soc_model" (e.g. "SM8750"), "prompt" (a text or a list): needed;
 * - "artifact_dir": folder of the results, by default ./genai_artifacts;
 * - "extra_options": an object with any of checkpoint, params, tokenizer, backend (htp, gpu or cpu), preparation and calibration (as
 *   the JSON setters of `etg_preparation_options` and `etg_calibration_options` take them), observations, quantization (recipes,
 *   encoder, several_images, encoder_rows, residual, weights with scales and rounding, observe_padding, tokens_at_once,
 *   report_samples), embedding_quantize, suggest_recipe, use_fp16, batch_size, compile_only, pre_generated, system_prompt, generate,
 *   images, audio, skip (names of stages), redo, threads.
 *
 * `on_progress` may be NULL. The result is one JSON object: "stages" (stage, state, output, seconds, peak_memory_bytes), "warnings"
 * and "replies".
 *
 * - Threads: any, several at once for different folders; progress comes on this thread.
 * - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
 * - Codes: those of the stage that failed, whose name in brackets the message begins with. Before any stage runs:
 *   `ETG_ERROR_FORMAT` (not a JSON object, an unknown option), `ETG_ERROR_INVALID_ARGUMENT` (an unknown key, fields that are missing:
 *   the message names all of them, options that exclude each other), `ETG_ERROR_NOT_FOUND` (an unknown model),
 *   `ETG_ERROR_UNSUPPORTED` (a backend or option that this build does not have). `ETG_ERROR_CANCELLED` if the callback ended it.
 * - After a failure: what earlier stages saved is there and is taken by the next run; `*buffer_out` is NULL if it could be written.
 */
ETG_API
ETG_MUST_USE
int32_t etg_pipeline_run(const char *json,
                         size_t length,
                         etg_stage_progress_fn on_progress,
                         void *user_data,
                         struct etg_buffer **buffer_out);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef __cplusplus
extern "C" {
#endif

/** Whether the loaded library can serve a program that was compiled with this header: ETG_OK, or
 *  ETG_ERROR_UNSUPPORTED when it is of another major version or older than the header. */
static inline int32_t etg_check_abi(void)
{
    const uint32_t loaded = etg_version_number();
    if (loaded / 1000000u != (uint32_t)ETG_VERSION_MAJOR || loaded < (uint32_t)ETG_VERSION_NUMBER) {
        return ETG_ERROR_UNSUPPORTED;
    }
    return ETG_OK;
}

/** An empty frame to fill in, ready to pass to etg_image_from_yuv420: planar, of full range. */
static inline etg_yuv420 etg_yuv420_init(void)
{
    etg_yuv420 frame;
    memset(&frame, 0, sizeof frame);
    frame.struct_size = (uint32_t)sizeof frame;
    frame.range = ETG_YUV_FULL;
    frame.uv_pixel_stride = 1;
    return frame;
}

/** An empty result, ready to pass to etg_runner_generate. */
static inline etg_turn_result etg_turn_result_init(void)
{
    etg_turn_result result;
    memset(&result, 0, sizeof result);
    result.struct_size = (uint32_t)sizeof result;
    return result;
}

/** An empty result, ready to pass to etg_quantized_model_perplexity_of_file and ..._of_tokens. */
static inline etg_perplexity etg_perplexity_init(void)
{
    etg_perplexity result;
    memset(&result, 0, sizeof result);
    result.struct_size = (uint32_t)sizeof result;
    return result;
}

#ifdef __cplusplus
}
#endif

#endif /* ETGENAI_H */
