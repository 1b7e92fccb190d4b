/*
 * The conversation of vlm.c made of single steps: what a program does that wants to do some of them itself.
 *
 *     vlm_stages [--max-new-tokens N] FOLDER PICTURE PICTURE PICTURE
 *
 * Per turn: preprocess and encode the new pictures, the conversation to token ids, embed the ids, merge the rows of all
 * pictures so far into them, prefill; then sample, show, decode until the reply ends, and commit the turn. It prints the
 * same text and the same ids as `vlm --tokens`, and checks that by generating each reply with a second runner.
 */
#include <etgenai.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PICTURES = 3, TURNS = 3 };

/* What is asked, and which of the pictures are shown with it. */
static const struct {
    const char *text;
    size_t first_picture;
    size_t picture_count;
} turns[TURNS] = {
    {"Which image has the red shape?", 0, 2},
    {"What shape was in the first image?", 0, 0},
    {"Which image has the rectangle?", 2, 1},
};

/* The sampled ids of one reply. */
typedef struct {
    uint32_t *ids;
    size_t count;
    size_t room;
} id_list;

/* What lives as long as the conversation. */
typedef struct {
    etg_runner *runner;
    etg_runner *reference;
    etg_generate_options *options;
    etg_detokenizer *detokenizer;
    etg_image *pictures[PICTURES];
    /* What the encoder made of the pictures that were shown so far. */
    etg_embedding *embeddings[PICTURES];
    size_t shown;
    size_t max_new_tokens;
    size_t row_width;
} conversation;

static int32_t failed(int32_t status)
{
    fprintf(stderr, "vlm_stages: %s: %s\n", etg_status_name(status), etg_last_error_message());
    return status;
}

static void *need(void *memory)
{
    if (!memory) {
        fputs("vlm_stages: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

static void append(id_list *list, uint32_t id)
{
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 64;
        list->ids = need(realloc(list->ids, list->room * sizeof *list->ids));
    }
    list->ids[list->count++] = id;
}

/* A picture to the rows that stand in the prompt in its place. */
static int32_t encode_picture(etg_runner *runner, const etg_image *picture, etg_embedding **embedding)
{
    etg_pixels *pixels = NULL;
    int32_t status = etg_runner_preprocess_image(runner, picture, &pixels);

    if (status >= 0) {
        status = etg_runner_encode_pixels(runner, pixels, embedding);
    }
    etg_pixels_free(pixels);
    return status;
}

/* Brings the prompt into the KV cache, the rows of the pictures in their places. */
static int32_t prefill(conversation *talk, const etg_messages *messages)
{
    etg_buffer *prompt = NULL;
    const uint32_t *ids = NULL;
    size_t count = 0;
    float *rows = NULL;
    size_t values = 0;
    int32_t status = etg_runner_encode_prompt(talk->runner, messages, &prompt);

    if (status >= 0) {
        status = etg_buffer_ids(prompt, &ids, &count);
    }
    if (status >= 0) {
        values = count * talk->row_width;
        rows = need(malloc(values * sizeof *rows));
        status = etg_runner_embed_tokens(talk->runner, ids, count, rows, values);
    }
    if (status >= 0) {
        status = etg_runner_merge(talk->runner, ids, count, rows, values,
                                  (const etg_embedding *const *)talk->embeddings, talk->shown);
    }
    if (status >= 0) {
        status = etg_runner_prefill_prompt_rows(talk->runner, ids, count, rows, values);
    }
    free(rows);
    etg_buffer_free(prompt);
    return status;
}

/* Samples and decodes until the reply ends; its text goes to standard output, its ids to `reply`. */
static int32_t write_reply(conversation *talk, id_list *reply)
{
    const char *text = NULL;
    size_t length = 0;
    int32_t status = ETG_OK;

    while (status == ETG_OK) {
        uint32_t id = 0;
        int32_t is_end = 0;
        size_t position = 0;
        size_t capacity = 0;

        if ((status = etg_runner_sample(talk->runner, talk->options, &id)) < 0 ||
            (status = etg_runner_is_eos(talk->runner, id, &is_end)) < 0 || is_end) {
            break;
        }
        append(reply, id);
        if ((status = etg_detokenizer_push(talk->detokenizer, id, &text, &length)) < 0) {
            break;
        }
        fwrite(text, 1, length, stdout);
        fflush(stdout);

        if (talk->max_new_tokens > 0 && reply->count == talk->max_new_tokens) {
            status = ETG_STOP_LENGTH;
        } else if ((status = etg_runner_position(talk->runner, &position)) >= 0 &&
                   (status = etg_runner_context_capacity(talk->runner, &capacity)) >= 0) {
            /* The token needs a slot, and the next one after it. */
            status = position + 2 > capacity ? ETG_STOP_CONTEXT_FULL : etg_runner_decode_one(talk->runner, id);
        }
    }
    if (status >= 0) {
        const int32_t finished = etg_detokenizer_finish(talk->detokenizer, &text, &length);
        if (finished < 0) {
            return finished;
        }
        fwrite(text, 1, length, stdout);
        printf("\ntokens:");
        for (size_t i = 0; i < reply->count; ++i) {
            printf(" %lu", (unsigned long)reply->ids[i]);
        }
        putchar('\n');
        fflush(stdout);
    }
    return status;
}

/* One turn by single steps. */
static int32_t answer(conversation *talk, size_t turn, id_list *reply)
{
    const char *text = turns[turn].text;
    etg_messages *messages = NULL;
    int32_t status = etg_messages_create(&messages);

    if (status >= 0) {
        status = etg_messages_add(messages, ETG_ROLE_USER);
    }
    for (size_t i = 0; status >= 0 && i < turns[turn].picture_count; ++i) {
        etg_embedding **embedding = &talk->embeddings[talk->shown++];
        status = encode_picture(talk->runner, talk->pictures[turns[turn].first_picture + i], embedding);
        if (status >= 0) {
            status = etg_messages_add_embedding(messages, *embedding);
        }
    }
    if (status >= 0) {
        status = etg_messages_add_text(messages, text, strlen(text));
    }
    if (status >= 0) {
        status = prefill(talk, messages);
    }
    if (status >= 0) {
        status = write_reply(talk, reply);
    }
    if (status >= 0) {
        status = etg_runner_commit_turn(talk->runner, messages, reply->ids, reply->count);
    }
    etg_messages_free(messages);
    return status < 0 ? failed(status) : ETG_OK;
}

/* The same turn in one call. Gives 0 if the tokens are those of the single steps. */
static int compare(conversation *talk, size_t turn, const id_list *reply)
{
    const char *text = turns[turn].text;
    etg_messages *messages = NULL;
    etg_turn_result result = etg_turn_result_init();
    int32_t status = etg_messages_create(&messages);

    if (status >= 0) {
        status = etg_messages_add(messages, ETG_ROLE_USER);
    }
    for (size_t i = 0; status >= 0 && i < turns[turn].picture_count; ++i) {
        status = etg_messages_add_image(messages, talk->pictures[turns[turn].first_picture + i]);
    }
    if (status >= 0) {
        status = etg_messages_add_text(messages, text, strlen(text));
    }
    if (status >= 0) {
        status = etg_runner_generate(talk->reference, messages, talk->options, NULL, NULL, &result);
    }
    etg_messages_free(messages);
    if (status < 0) {
        failed(status);
        return 1;
    }
    if (result.token_count != reply->count ||
        (reply->count > 0 && memcmp(result.tokens, reply->ids, reply->count * sizeof *reply->ids) != 0)) {
        fprintf(stderr, "vlm_stages: turn %lu: etg_runner_generate gives other tokens\n", (unsigned long)(turn + 1));
        return 1;
    }
    fprintf(stderr, "[turn %lu: the %lu tokens of etg_runner_generate]\n", (unsigned long)(turn + 1),
            (unsigned long)reply->count);
    return 0;
}

/* Opens everything; what was opened is closed by `close_all` also after a failure. */
static int32_t open_all(conversation *talk, char *const *arguments)
{
    const char *folder = arguments[0];
    etg_tokenizer *tokenizer = NULL;
    size_t tile_size = 0;
    size_t rows_per_tile = 0;
    int32_t status = etg_runner_open(folder, strlen(folder), NULL, &talk->runner);

    if (status >= 0) {
        status = etg_runner_open(folder, strlen(folder), NULL, &talk->reference);
    }
    if (status >= 0) {
        status = etg_runner_image_geometry(talk->runner, &tile_size, &rows_per_tile, &talk->row_width);
    }
    if (status >= 0) {
        status = etg_runner_default_options(talk->runner, &talk->options);
    }
    if (status >= 0) {
        status = etg_generate_options_set_max_new_tokens(talk->options, talk->max_new_tokens);
    }
    if (status >= 0) {
        status = etg_runner_tokenizer(talk->runner, &tokenizer);
    }
    if (status >= 0) {
        status = etg_detokenizer_create(tokenizer, 1, &talk->detokenizer);
    }
    for (size_t i = 0; status >= 0 && i < PICTURES; ++i) {
        const char *path = arguments[1 + i];
        status = etg_image_from_file(path, strlen(path), NULL, &talk->pictures[i]);
    }
    etg_tokenizer_free(tokenizer);
    return status < 0 ? failed(status) : ETG_OK;
}

static void close_all(conversation *talk)
{
    for (size_t i = 0; i < PICTURES; ++i) {
        etg_embedding_free(talk->embeddings[i]);
        etg_image_free(talk->pictures[i]);
    }
    etg_detokenizer_free(talk->detokenizer);
    etg_generate_options_free(talk->options);
    etg_runner_free(talk->reference);
    etg_runner_free(talk->runner);
}

int main(int argc, char **argv)
{
    conversation talk = {0};
    int next = 1;
    int code;

    if (argc > 2 && strcmp(argv[1], "--max-new-tokens") == 0) {
        talk.max_new_tokens = strtoul(argv[2], NULL, 10);
        next = 3;
    }
    if (argc - next != 1 + PICTURES) {
        fputs("usage: vlm_stages [--max-new-tokens N] FOLDER PICTURE PICTURE PICTURE\n", stderr);
        return 2;
    }
    if (etg_check_abi() != ETG_OK) {
        fprintf(stderr, "vlm_stages: library %s does not fit this program\n", etg_version_string());
        return 1;
    }

    code = open_all(&talk, argv + next) < 0;
    for (size_t turn = 0; code == 0 && turn < TURNS; ++turn) {
        id_list reply = {NULL, 0, 0};
        printf("> %s\n", turns[turn].text);
        code = answer(&talk, turn, &reply) < 0 || compare(&talk, turn, &reply) != 0;
        free(reply.ids);
    }
    close_all(&talk);
    return code;
}
