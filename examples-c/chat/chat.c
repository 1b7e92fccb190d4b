/*
 * A streaming chat of several turns.
 *
 *     chat [--max-new-tokens N] [--tokens] FOLDER [PROMPT]...
 *
 * FOLDER is a compiled model. Each PROMPT is one turn; without any, each line of standard input is one. --tokens prints
 * the token ids of every reply after it. Ctrl-C ends the reply that is being written; a second one ends the program.
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

/* Prints the reply as it comes. A non-zero answer ends the reply. */
static int32_t on_event(void *user_data, const etg_event *event)
{
    (void)user_data;
    if (event->kind == ETG_EVENT_TEXT) {
        fwrite(event->text, 1, event->text_length, stdout);
        fflush(stdout);
    }
    return interrupted;
}

static int failed(const char *what)
{
    fprintf(stderr, "chat: %s: %s\n", what, etg_last_error_message());
    return 1;
}

/* One turn: `prompt` in, the reply on standard output. Gives 0 when the chat can go on. */
static int answer(etg_runner *runner, const etg_generate_options *options, const char *prompt, int show_tokens)
{
    etg_messages *messages = NULL;
    etg_turn_result result = etg_turn_result_init();
    int32_t status;

    interrupted = 0;
    signal(SIGINT, on_interrupt);

    status = etg_messages_create(&messages);
    if (status >= 0) {
        status = etg_messages_add(messages, ETG_ROLE_USER);
    }
    if (status >= 0) {
        status = etg_messages_add_text(messages, prompt, strlen(prompt));
    }
    if (status >= 0) {
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
    if (status != ETG_OK) {
        fprintf(stderr, "[%s]\n", etg_status_name(status));
    }
    fflush(stdout);
    return 0;
}

/* Reads one line without its newline into `line`. Gives 0 at the end of the input. */
static int read_line(char *line, int size)
{
    fputs("> ", stderr);
    if (!fgets(line, size, stdin)) {
        return 0;
    }
    line[strcspn(line, "\n")] = '\0';
    return 1;
}

static int usage(void)
{
    fputs("usage: chat [--max-new-tokens N] [--tokens] FOLDER [PROMPT]...\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    etg_runner *runner = NULL;
    etg_generate_options *options = NULL;
    const char *folder;
    char line[4096];
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
    if (next == argc) {
        return usage();
    }
    folder = argv[next++];

    if (etg_check_abi() != ETG_OK) {
        fprintf(stderr, "chat: library %s does not fit this program\n", etg_version_string());
        return 1;
    }
    if (etg_runner_open(folder, strlen(folder), NULL, &runner) < 0) {
        return failed("cannot open the model");
    }
    if (etg_runner_default_options(runner, &options) < 0 ||
        etg_generate_options_set_max_new_tokens(options, max_new_tokens) < 0) {
        code = failed("options");
    } else if (next < argc) {
        for (; code == 0 && next < argc; ++next) {
            code = answer(runner, options, argv[next], show_tokens);
        }
    } else {
        while (code == 0 && read_line(line, (int)sizeof line)) {
            code = answer(runner, options, line, show_tokens);
        }
    }

    etg_generate_options_free(options);
    etg_runner_free(runner);
    return code;
}
