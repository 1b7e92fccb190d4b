/*
 * An engine library for tests of the command line: a decoder that counts.
 *
 * The token behind `id` is `id + 1`, and the end token 2 behind each id that ends in 9. The first byte of a program file
 * says what it is: `t` a decoder that takes tokens, `h` one that takes hidden states, `k` one that has kv_forward alone,
 * `e` a token embedding (a row is the id and a zero), `v` a vision encoder, `a` an audio encoder; `n` a decoder that never
 * ends (behind 9 comes 0), `s` its attention sink's evictor; `x` a decoder whose third call fails.
 */
#include "etgenai_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONTEXT = 256,
    PREFILL = 4,
    VOCABULARY = 600,
    WIDTH = 2,
    SIDE = 64,
    ROWS = 4,
    FRAMES = 75,
    BINS = 160,
    END = 2,
    SINK = 4,
    BATCH = 16
};

static const uint64_t ONE_TOKEN[] = {1, 1}, TOKENS[] = {1, PREFILL};
static const uint64_t ONE_STATE[] = {1, 1, WIDTH}, STATES[] = {1, PREFILL, WIDTH};
static const uint64_t ONE_MASK[] = {1, 1, 1, CONTEXT}, MASKS[] = {1, 1, PREFILL, CONTEXT};
static const uint64_t ONE_K[] = {1, 1, 1, CONTEXT - 1}, KS[] = {1, 1, 1, CONTEXT - PREFILL};
static const uint64_t ONE_V[] = {1, 1, CONTEXT - 1, 1}, VS[] = {1, 1, CONTEXT - PREFILL, 1};
static const uint64_t ONE_NEW_K[] = {1, 1, 1, 1}, NEW_KS[] = {1, 1, 1, PREFILL}, NEW_VS[] = {1, 1, PREFILL, 1};
static const uint64_t ONE_LOGITS[] = {1, 1, VOCABULARY}, LOGITS[] = {1, PREFILL, VOCABULARY};
static const uint64_t PIXELS[] = {1, 3, SIDE, SIDE}, PICTURE[] = {1, ROWS, WIDTH};
static const uint64_t FEATURES[] = {1, FRAMES, BINS};

#define TENSOR(name, dtype, dims) {name, sizeof(name) - 1, dtype, (uint32_t)(sizeof(dims) / sizeof((dims)[0])), dims}

static const etg_engine_tensor_info KV_IN[] = {TENSOR("tokens", ETG_DTYPE_I32, ONE_TOKEN),
                                               TENSOR("mask", ETG_DTYPE_U16, ONE_MASK),
                                               TENSOR("pos", ETG_DTYPE_I32, ONE_TOKEN), TENSOR("k", ETG_DTYPE_U8, ONE_K),
                                               TENSOR("v", ETG_DTYPE_U8, ONE_V)};
static const etg_engine_tensor_info KV_OUT[] = {TENSOR("logits", ETG_DTYPE_U16, ONE_LOGITS),
                                                TENSOR("new_k", ETG_DTYPE_U8, ONE_NEW_K),
                                                TENSOR("new_v", ETG_DTYPE_U8, ONE_NEW_K)};
static const etg_engine_tensor_info PREFILL_IN[] = {TENSOR("tokens", ETG_DTYPE_I32, TOKENS),
                                                    TENSOR("mask", ETG_DTYPE_U16, MASKS),
                                                    TENSOR("pos", ETG_DTYPE_I32, TOKENS), TENSOR("k", ETG_DTYPE_U8, KS),
                                                    TENSOR("v", ETG_DTYPE_U8, VS)};
static const etg_engine_tensor_info PREFILL_OUT[] = {TENSOR("logits", ETG_DTYPE_U16, LOGITS),
                                                     TENSOR("new_k", ETG_DTYPE_U8, NEW_KS),
                                                     TENSOR("new_v", ETG_DTYPE_U8, NEW_VS)};
static const etg_engine_tensor_info STATE_KV_IN[] = {TENSOR("states", ETG_DTYPE_F32, ONE_STATE),
                                                     TENSOR("mask", ETG_DTYPE_U16, ONE_MASK),
                                                     TENSOR("pos", ETG_DTYPE_I32, ONE_TOKEN),
                                                     TENSOR("k", ETG_DTYPE_U8, ONE_K), TENSOR("v", ETG_DTYPE_U8, ONE_V)};
static const etg_engine_tensor_info STATE_PREFILL_IN[] = {TENSOR("states", ETG_DTYPE_F32, STATES),
                                                          TENSOR("mask", ETG_DTYPE_U16, MASKS),
                                                          TENSOR("pos", ETG_DTYPE_I32, TOKENS),
                                                          TENSOR("k", ETG_DTYPE_U8, KS), TENSOR("v", ETG_DTYPE_U8, VS)};
static const etg_engine_tensor_info EMBED_ONE_OUT[] = {TENSOR("rows", ETG_DTYPE_F32, ONE_STATE)};
static const etg_engine_tensor_info EMBED_OUT[] = {TENSOR("rows", ETG_DTYPE_F32, STATES)};
static const etg_engine_tensor_info VISION_IN[] = {TENSOR("pixels", ETG_DTYPE_F32, PIXELS)};
static const etg_engine_tensor_info AUDIO_IN[] = {TENSOR("features", ETG_DTYPE_F32, FEATURES)};
static const etg_engine_tensor_info VISION_OUT[] = {TENSOR("rows", ETG_DTYPE_F32, PICTURE)};

static const etg_engine_tensor_info CACHE[] = {TENSOR("k", ETG_DTYPE_U8, ONE_K), TENSOR("v", ETG_DTYPE_U8, ONE_V)};
static const etg_engine_tensor_info PREFILL_CACHE[] = {TENSOR("k", ETG_DTYPE_U8, KS), TENSOR("v", ETG_DTYPE_U8, VS)};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define GRAPH(name, in, in_count, out) {name, sizeof(name) - 1, in, in_count, out, COUNT(out)}

static const etg_engine_graph TOKEN_DECODER[] = {GRAPH("kv_forward", KV_IN, COUNT(KV_IN), KV_OUT),
                                                 GRAPH("prefill_forward", PREFILL_IN, COUNT(PREFILL_IN), PREFILL_OUT)};
static const etg_engine_graph STATE_DECODER[] = {
    GRAPH("kv_forward", STATE_KV_IN, COUNT(STATE_KV_IN), KV_OUT),
    GRAPH("prefill_forward", STATE_PREFILL_IN, COUNT(STATE_PREFILL_IN), PREFILL_OUT)};
static const etg_engine_graph EMBEDDING[] = {GRAPH("tok_embedding_kv_forward", KV_IN, 1, EMBED_ONE_OUT),
                                             GRAPH("tok_embedding_prefill_forward", PREFILL_IN, 1, EMBED_OUT)};
static const etg_engine_graph VISION[] = {GRAPH("forward", VISION_IN, COUNT(VISION_IN), VISION_OUT)};
static const etg_engine_graph AUDIO[] = {GRAPH("forward", AUDIO_IN, COUNT(AUDIO_IN), VISION_OUT)};

static const etg_engine_graph EVICTOR[] = {
    GRAPH("kv_forward", CACHE, COUNT(CACHE), CACHE),
    GRAPH("prefill_forward", PREFILL_CACHE, COUNT(PREFILL_CACHE), PREFILL_CACHE)};

typedef struct program {
    char kind;
    int calls;
} program;

static int32_t fail(etg_engine_error *error, int32_t status, const char *reason)
{
    snprintf(error->message, error->capacity, "%s", reason);
    return status;
}

/* Programs with quantized logits say how: sampling needs it. */
static const etg_engine_value SCALE = {ETG_VALUE_REAL, 0, 0.001, NULL, 0};
static const etg_engine_value ZERO_POINT = {ETG_VALUE_INTEGER, 1000, 0.0, NULL, 0};
static const etg_engine_constant CONSTANTS[] = {{"get_logits_scale", 16, &SCALE, 1},
                                                {"get_logits_zero_point", 21, &ZERO_POINT, 1}};
static const etg_engine_value SINK_SIZE = {ETG_VALUE_INTEGER, SINK, 0.0, NULL, 0};
static const etg_engine_value BATCH_SIZE = {ETG_VALUE_INTEGER, BATCH, 0.0, NULL, 0};
static const etg_engine_constant SINK_CONSTANTS[] = {{"get_sink_size", 13, &SINK_SIZE, 1},
                                                     {"get_eviction_batch_size", 23, &BATCH_SIZE, 1}};

static int32_t load(void *user_data, const etg_engine_source *source, etg_engine_component *out, etg_engine_error *error)
{
    (void)user_data;
    char path[4096];
    if (source->path_length == 0 || source->path_length >= sizeof(path)) {
        return fail(error, ETG_ENGINE_ERROR_INVALID_ARGUMENT, "a path is needed");
    }
    memcpy(path, source->path, source->path_length);
    path[source->path_length] = '\0';
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return fail(error, ETG_ENGINE_ERROR_NOT_FOUND, "there is no such program");
    }
    const int kind = fgetc(file);
    fclose(file);
    program *loaded = calloc(1, sizeof(*loaded));
    if (loaded == NULL) {
        return fail(error, ETG_ENGINE_ERROR_FAILED, "no memory");
    }
    loaded->kind = (char)kind;
    out->handle = loaded;
    out->description = "toy";
    out->description_length = 3;
    switch (kind) {
    case 't':
    case 'x':
    case 'k':
    case 'n':
        out->graphs = TOKEN_DECODER;
        out->graph_count = kind == 'k' ? 1 : 2;
        out->constants = CONSTANTS;
        out->constant_count = COUNT(CONSTANTS);
        return ETG_ENGINE_OK;
    case 'h':
        out->graphs = STATE_DECODER;
        out->graph_count = 2;
        out->constants = CONSTANTS;
        out->constant_count = COUNT(CONSTANTS);
        return ETG_ENGINE_OK;
    case 'e':
        out->graphs = EMBEDDING;
        out->graph_count = 2;
        return ETG_ENGINE_OK;
    case 'v':
    case 'a':
        out->graphs = kind == 'v' ? VISION : AUDIO;
        out->graph_count = 1;
        return ETG_ENGINE_OK;
    case 's':
        out->graphs = EVICTOR;
        out->graph_count = 2;
        out->constants = SINK_CONSTANTS;
        out->constant_count = COUNT(SINK_CONSTANTS);
        return ETG_ENGINE_OK;
    default:
        free(loaded);
        return fail(error, ETG_ENGINE_ERROR_FORMAT, "no program of this engine");
    }
}

static int next_token(const program *loaded, int id)
{
    if (id % 10 == 9) {
        return loaded->kind == 'n' ? id - 9 : END;
    }
    return id + 1;
}

/* The first SINK slots stay, the next BATCH go, the rest moves down. */
static void evict(const etg_engine_call *call)
{
    const size_t slots = (size_t)(CONTEXT - (call->graph == 0 ? 1 : PREFILL));
    for (size_t cache = 0; cache < 2; cache++) {
        const uint8_t *from = call->inputs[cache].data;
        uint8_t *to = call->outputs[cache].data;
        memmove(to, from, SINK);
        memmove(to + SINK, from + SINK + BATCH, slots - SINK - BATCH);
        memset(to + slots - BATCH, 0, BATCH);
    }
}

static void decode(const program *loaded, const etg_engine_call *call)
{
    const size_t rows = call->graph == 0 ? 1 : PREFILL;
    const int32_t *ids = call->inputs[0].data;
    const float *states = call->inputs[0].data;
    uint16_t *logits = call->outputs[0].data;
    for (size_t row = 0; row < rows; row++) {
        const int id = loaded->kind == 'h' ? (int)states[row * WIDTH] : (int)ids[row];
        for (size_t token = 0; token < VOCABULARY; token++) {
            logits[row * VOCABULARY + token] = (uint16_t)(token == (size_t)next_token(loaded, id) ? 60000 : 1000);
        }
        ((uint8_t *)call->outputs[1].data)[row] = (uint8_t)id;
        ((uint8_t *)call->outputs[2].data)[row] = (uint8_t)id;
    }
}

static int32_t execute(void *user_data, void *component, const etg_engine_call *call, etg_engine_error *error)
{
    (void)user_data;
    program *loaded = component;
    loaded->calls++;
    if (loaded->kind == 'x' && loaded->calls == 3) {
        return fail(error, ETG_ENGINE_ERROR_FAILED, "the third call fails");
    }
    float *rows = call->outputs[0].data;
    switch (loaded->kind) {
    case 'e':
        for (size_t row = 0; row < (call->graph == 0 ? 1 : PREFILL); row++) {
            rows[row * WIDTH] = (float)((const int32_t *)call->inputs[0].data)[row];
            rows[row * WIDTH + 1] = 0.0F;
        }
        break;
    case 'v':
    case 'a':
        for (size_t row = 0; row < ROWS; row++) {
            rows[row * WIDTH] = 0.0F;
            rows[row * WIDTH + 1] = ((const float *)call->inputs[0].data)[0];
        }
        break;
    case 's':
        evict(call);
        break;
    default:
        decode(loaded, call);
    }
    return ETG_ENGINE_OK;
}

static void close_program(void *user_data, void *component)
{
    (void)user_data;
    free(component);
}

int32_t etg_engine_open(const etg_engine_host *host, const char *options, size_t options_length,
                        etg_engine_functions *functions_out, etg_engine_error *error);

int32_t etg_engine_open(const etg_engine_host *host, const char *options, size_t options_length,
                        etg_engine_functions *functions_out, etg_engine_error *error)
{
    (void)host;
    if (options_length > 0 && options[0] != '{') {
        return fail(error, ETG_ENGINE_ERROR_INVALID_ARGUMENT, "options are no JSON object");
    }
    memset(functions_out, 0, sizeof(*functions_out));
    functions_out->struct_size = sizeof(*functions_out);
    functions_out->abi_version = ETG_ENGINE_ABI_VERSION;
    functions_out->name = "toy";
    functions_out->name_length = 3;
    functions_out->load = load;
    functions_out->execute = execute;
    functions_out->close = close_program;
    return ETG_ENGINE_OK;
}
