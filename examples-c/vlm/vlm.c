/*
 * A conversation about pictures: two in one turn, a question about the first of them, a third one.
 *
 *     vlm [--max-new-tokens N] [--tokens] FOLDER PICTURE PICTURE PICTURE
 *
 * FOLDER is a compiled model that takes pictures, each PICTURE a JPEG, PNG, WebP, BMP or GIF file. The replies are
 * streamed to standard output, counts and times of each turn go to standard error. --tokens prints the token ids of every
 * reply after it.
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

/* Prints the reply as it comes. */
static int32_t on_event(void *user_data, const etg_event *event)
{
    (void)user_data;
    if (event->kind == ETG_EVENT_TEXT) {
        fwrite(event->text, 1, event->text_length, stdout);
        fflush(stdout);
    } else if (event->kind == ETG_EVENT_IMAGES && event->done == event->total) {
        fprintf(stderr, "[looked at %lu tiles]\n", (unsigned long)event->total);
    }
    return 0;
}

static int failed(const char *what)
{
    fprintf(stderr, "vlm: %s: %s\n", what, etg_last_error_message());
    return 1;
}

/* All bytes of a file, to be freed by the caller; NULL if it cannot be read. */
static unsigned char *read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = NULL;
    long size = -1;

    if (file && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        bytes = malloc((size_t)size + 1);
    }
    if (bytes) {
        *length = fread(bytes, 1, (size_t)size, file);
        if (*length != (size_t)size) {
            free(bytes);
            bytes = NULL;
        }
    }
    if (file) {
        fclose(file);
    }
    return bytes;
}

/* The picture in a file, from its bytes: they may just as well come from a network or an archive. */
static etg_image *open_picture(const char *path)
{
    size_t length = 0;
    unsigned char *bytes = read_file(path, &length);
    etg_image *image = NULL;

    if (!bytes) {
        perror(path);
        return NULL;
    }
    if (etg_image_from_encoded(bytes, length, NULL, &image) < 0) {
        failed(path);
    }
    free(bytes);
    return image;
}

static void print_stats(const etg_turn_result *result)
{
    fprintf(stderr,
            "[%s: %lu pictures, %lu of them encoded (%.1f + %.1f ms); %lu prompt tokens, %lu of them known; "
            "first token after %.1f ms, %.1f tokens/s]\n",
            etg_status_name(result->status), (unsigned long)result->images, (unsigned long)result->encoded_images,
            result->image_preprocess_ms, result->image_encode_ms, (unsigned long)result->prompt_tokens,
            (unsigned long)result->reused_tokens, result->first_token_ms, result->decode_tokens_per_second);
}

/* One turn: pictures and a question in, the reply on standard output. Gives 0 when the conversation can go on. */
static int answer(etg_runner *runner, const etg_generate_options *options, etg_image *const *pictures, size_t turn,
                  int show_tokens)
{
    const char *text = turns[turn].text;
    etg_messages *messages = NULL;
    etg_turn_result result = etg_turn_result_init();
    int32_t status = etg_messages_create(&messages);

    if (status >= 0) {
        status = etg_messages_add(messages, ETG_ROLE_USER);
    }
    for (size_t i = 0; status >= 0 && i < turns[turn].picture_count; ++i) {
        status = etg_messages_add_image(messages, pictures[turns[turn].first_picture + i]);
    }
    if (status >= 0) {
        status = etg_messages_add_text(messages, text, strlen(text));
    }
    if (status >= 0) {
        printf("> %s\n", text);
        status = etg_runner_generate(runner, messages, options, on_event, NULL, &result);
    }
    etg_messages_free(messages);
    if (status < 0) {
        return failed("no reply");
    }

    putchar('\n');
    if (show_tokens) {
        printf("tokens:");
        for (size_t i = 0; i < result.token_count; ++i) {
            printf(" %lu", (unsigned long)result.tokens[i]);
        }
        putchar('\n');
    }
    fflush(stdout);
    print_stats(&result);
    return 0;
}

static int usage(void)
{
    fputs("usage: vlm [--max-new-tokens N] [--tokens] FOLDER PICTURE PICTURE PICTURE\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    etg_runner *runner = NULL;
    etg_generate_options *options = NULL;
    etg_image *pictures[PICTURES] = {NULL, NULL, NULL};
    unsigned long max_new_tokens = 0;
    int show_tokens = 0;
    int next = 1;
    int code = 0;

    for (; next < argc && strncmp(argv[next], "--", 2) == 0; ++next) {
        if (strcmp(argv[next], "--tokens") == 0) {
            show_tokens = 1;
        } else if (strcmp(argv[next], "--max-new-tokens") == 0 && next + 1 < argc) {
            max_new_tokens = strtoul(argv[++next], NULL, 10);
        } else {
            return usage();
        }
    }
    if (argc - next != 1 + PICTURES) {
        return usage();
    }
    if (etg_check_abi() != ETG_OK) {
        fprintf(stderr, "vlm: library %s does not fit this program\n", etg_version_string());
        return 1;
    }

    if (etg_runner_open(argv[next], strlen(argv[next]), NULL, &runner) < 0) {
        return failed("cannot open the model");
    }
    if (etg_runner_default_options(runner, &options) < 0 ||
        etg_generate_options_set_max_new_tokens(options, max_new_tokens) < 0) {
        code = failed("options");
    }
    for (size_t i = 0; code == 0 && i < PICTURES; ++i) {
        pictures[i] = open_picture(argv[next + 1 + (int)i]);
        code = pictures[i] ? 0 : 1;
    }
    for (size_t turn = 0; code == 0 && turn < TURNS; ++turn) {
        code = answer(runner, options, pictures, turn, show_tokens);
    }

    for (size_t i = 0; i < PICTURES; ++i) {
        etg_image_free(pictures[i]);
    }
    etg_generate_options_free(options);
    etg_runner_free(runner);
    return code;
}
