// A program that owns executorch::extension::Modules already, and moves to etgenai's runner.
//
//     executorch_module [--max-new-tokens N] [--tokens] DECODER TOKENIZER PROMPT...
//
// DECODER is a .pte text decoder, TOKENIZER its tokenizer.json (or a folder with it). Each PROMPT is one turn of one
// conversation. --tokens prints the token ids of every reply after it. Programs for QNN need libQnnHtp.so and libQnnSystem.so
// where the system finds libraries (LD_LIBRARY_PATH).
#include <etgenai.hpp>
#include <etgenai_executorch.hpp>

#include <executorch/extension/module/module.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

using executorch::extension::Module;

struct Arguments {
    std::size_t max_new_tokens = 0;
    bool show_tokens = false;
    std::string decoder;
    std::string tokenizer;
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
    if (words.size() < next + 3) {
        return false;
    }
    arguments.decoder = words[next];
    arguments.tokenizer = words[next + 1];
    arguments.prompts.assign(words.begin() + static_cast<std::ptrdiff_t>(next) + 2, words.end());
    return true;
}

void talk(Module &decoder, const Arguments &arguments)
{
    // Everything that moving takes: the Module stays the program's own, and is used by the runner until that is gone.
    etgenai::executorch::hook_runtime(); // failed checks of ExecuTorch become errors instead of the end of the process
    etgenai::executorch::ModuleEngine modules;
    modules.add("text_decoder", decoder);
    const etg::Engine engine = etg::Engine::from_functions(modules.functions());
    etg::ModelFiles files;
    files.component_held("text_decoder");
    files.tokenizer(arguments.tokenizer);
    etg::Runner runner = etg::Runner::open(files, engine);

    etg::GenerateOptions options = runner.default_options();
    if (arguments.max_new_tokens > 0) {
        options.max_new_tokens(arguments.max_new_tokens);
    }
    for (const std::string &prompt : arguments.prompts) {
        etg::Messages messages;
        messages.add(etg::Role::user, prompt);
        const etg::Turn turn =
            runner.generate(messages, options, [](std::string_view text) { std::cout << text << std::flush; });
        std::cout << '\n';
        if (arguments.show_tokens) {
            std::cout << "tokens:";
            for (const std::uint32_t id : turn.tokens) {
                std::cout << ' ' << id;
            }
            std::cout << '\n';
        }
    }
}

} // namespace

int main(int argc, char **argv)
{
    Arguments arguments;
    if (!parse(std::vector<std::string>(argv + 1, argv + argc), arguments)) {
        std::cerr << "usage: executorch_module [--max-new-tokens N] [--tokens] DECODER TOKENIZER PROMPT...\n";
        return 2;
    }
    try {
        // What such a program has had all along.
        Module decoder(arguments.decoder, Module::LoadMode::Mmap);
        talk(decoder, arguments);
    } catch (const std::exception &error) {
        std::cerr << "executorch_module: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
