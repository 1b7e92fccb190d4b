// A streaming chat of several turns, in C++17.
//
//     chat_cpp [--max-new-tokens N] [--tokens] FOLDER [PROMPT]...
//
// FOLDER is a compiled model. Each PROMPT is one turn; without any, each line of standard input is one. --tokens prints
// the token ids of every reply after it.
#include <etgenai.hpp>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Arguments {
    std::size_t max_new_tokens = 0;
    bool show_tokens = false;
    std::string folder;
    std::vector<std::string> prompts;
};

// False when the arguments make no sense.
bool parse(const std::vector<std::string> &words, Arguments &arguments)
{
    std::size_t next = 0;
    for (; next < words.size() && words[next].rfind("--", 0) == 0; ++next) {
        if (words[next] == "--tokens") {
            arguments.show_tokens = true;
        } else if (words[next] == "--max-new-tokens" && next + 1 < words.size()) {
            arguments.max_new_tokens = std::strtoul(words[++next].c_str(), nullptr, 10);
        } else {
            return false;
        }
    }
    if (next == words.size()) {
        return false;
    }
    arguments.folder = words[next++];
    for (; next < words.size(); ++next) {
        arguments.prompts.push_back(words[next]);
    }
    return true;
}

void answer(etg::Runner &runner, const etg::GenerateOptions &options, std::string_view prompt, bool show_tokens)
{
    etg::Messages messages;
    messages.add(etg::Role::user, prompt);
    const etg::Turn turn =
        runner.generate(messages, options, [](std::string_view text) { std::cout << text << std::flush; });
    std::cout << '\n';
    if (show_tokens) {
        std::cout << "tokens:";
        for (const std::uint32_t id : turn.tokens) {
            std::cout << ' ' << id;
        }
        std::cout << '\n';
    }
    if (turn.status != ETG_OK) {
        std::cerr << '[' << etg_status_name(turn.status) << "]\n";
    }
}

} // namespace

int main(int argc, char **argv)
{
    Arguments arguments;
    if (!parse(std::vector<std::string>(argv + 1, argv + argc), arguments)) {
        std::cerr << "usage: chat_cpp [--max-new-tokens N] [--tokens] FOLDER [PROMPT]...\n";
        return 2;
    }
    if (etg_check_abi() != ETG_OK) {
        std::cerr << "chat_cpp: library " << etg_version_string() << " does not fit this program\n";
        return 1;
    }
    try {
        etg::Runner runner(arguments.folder);
        etg::GenerateOptions options = runner.default_options();
        options.max_new_tokens(arguments.max_new_tokens);
        for (const std::string &prompt : arguments.prompts) {
            answer(runner, options, prompt, arguments.show_tokens);
        }
        std::string line;
        while (arguments.prompts.empty() && std::getline(std::cin, line)) {
            answer(runner, options, line, arguments.show_tokens);
        }
    } catch (const std::exception &error) {
        std::cerr << "chat_cpp: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
