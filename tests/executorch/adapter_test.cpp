/*
 * Tests of etgenai_executorch.hpp in a program that owns its Modules, and of the engine compiled into that program: it uses
 * the kernels that are linked, and the process has one ExecuTorch.
 *
 *     adapter_test             all tests
 *     adapter_test NAME...     these
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "driver.hpp"

#include "etgenai_executorch.hpp"

#include <executorch/extension/tensor/tensor.h>

namespace {

using namespace driver;
using ::executorch::extension::Module;
using etgenai::executorch::ModuleEngine;

std::vector<std::int32_t> golden(const std::string &name)
{
    return read_tensor<std::int32_t>(FIXTURES "/tiny/smollm2/golden.safetensors", name);
}

void modules_of_the_host()
{
    Module decoder(PROGRAMS "decoder_xnnpack.pte", Module::LoadMode::Mmap);
    ModuleEngine modules;
    modules.add("text_decoder", decoder);
    modules.add("tok_embedding", std::make_shared<Module>(PROGRAMS "embedding.pte"));
    const Engine engine(modules.functions());
    {
        const Component component(engine, "", "text_decoder");
        check(component.constant("get_n_layers")->values[0].integer == 3, "get_n_layers");
        check_equal(Decoder(component, false).generate(golden("prompt_ids"), 16), golden("greedy_ids"), "kv");
        check_equal(Decoder(component, true).generate(golden("prompt_ids"), 16), golden("greedy_ids"), "hybrid");
        std::string message;
        check(status_of([&] { Component(engine, "", "text_decoder"); }, message) == ETG_ENGINE_ERROR_FAILED, "used twice");
        check(status_of([&] { Component(engine, "", "vision_encoder"); }, message) == ETG_ENGINE_ERROR_NOT_FOUND, "no such role");
        check(message.find("text_decoder, tok_embedding") != std::string::npos, "what there is: " + message);
        const Component embedding(engine, "", "tok_embedding");
        check(embedding.has_graph("tok_embedding_prefill_forward"), "the other module");
    }
    // Closed: the next runner may have it, and the host may use it again.
    const Component again(engine, "", "text_decoder");
    check_equal(Decoder(again, true).generate(golden("prompt_ids"), 16), golden("greedy_ids"), "loaded again");
}

/** What the host binds between two components is bound anew. */
void host_uses_it_in_between()
{
    Module module(PROGRAMS "embedding.pte");
    ModuleEngine modules;
    modules.add("tok_embedding", module);
    const Engine engine(modules.functions());
    const auto first_number = [&] {
        const Component component(engine, "", "tok_embedding");
        Graph graph = component.graph("tok_embedding_kv_forward");
        graph.inputs[0].data<std::int32_t>()[0] = 9;
        graph.execute();
        return graph.outputs[0].data<float>()[0];
    };
    const float expected = first_number();
    std::int32_t id = 10;
    std::vector<float> row(64);
    const auto ids = ::executorch::extension::from_blob(&id, {1, 1}, ::executorch::aten::ScalarType::Int);
    const auto rows = ::executorch::extension::from_blob(row.data(), {1, 1, 64});
    check(module.set_output("tok_embedding_kv_forward", *rows) == ::executorch::runtime::Error::Ok, "set_output");
    check(module.execute("tok_embedding_kv_forward", *ids).ok(), "the host's own call");
    check(row[0] < expected || row[0] > expected, "another row");
    check_equal({first_number()}, std::vector<float>{expected}, "after the host's own call");
}

void broken_modules()
{
    ModuleEngine modules;
    modules.add("text_decoder", std::make_shared<Module>(PROGRAMS "absent.pte"));
    modules.add("vision_encoder", std::make_shared<Module>(FIXTURES "/tiny/smollm2/tokenizer.json"));
    const Engine engine(modules.functions());
    std::string message;
    for (int i = 0; i < 2; ++i) {
        check(status_of([&] { Component(engine, "", "text_decoder"); }, message) < 0, "no file");
        check(message.find("in use") == std::string::npos, "a module that failed to load is not in use");
        check(status_of([&] { Component(engine, "", "vision_encoder"); }, message) < 0, "no program");
    }
}

void aborts()
{
    etgenai::executorch::hook_runtime();
    Module module(PROGRAMS "abort.pte");
    ModuleEngine modules;
    modules.add("vision_encoder", module);
    const Engine engine(modules.functions());
    const Component component(engine, "", "vision_encoder");
    Graph broken = component.graph("forward");
    Graph fine = component.graph("double");
    for (int i = 0; i < 2; ++i) {
        std::string message;
        check(status_of([&] { broken.execute(); }, message) == ETG_ENGINE_ERROR_FAILED, message);
        check(message.find("check inside ExecuTorch failed: ") != std::string::npos, "not by an abort: " + message);
        fine.execute();
    }
}

/** The engine's own loading, compiled in: kernels are registered already, so no library is opened for them. */
void engine_compiled_in()
{
    const Engine engine(etg_engine_open, "{\"library_dir\": \"/nowhere\"}");
    const Component component(engine, PROGRAMS "decoder_xnnpack.pte");
    check_equal(Decoder(component, true).generate(golden("prompt_ids"), 16), golden("greedy_ids"), "hybrid");
    std::string message;
    const auto status = status_of([&] { Component(engine, FIXTURES "/pte/smollm2_kv_16a8w/kv_llama_qnn.pte"); }, message);
    check(status == ETG_ENGINE_ERROR_UNSUPPORTED, "a backend from nowhere: " + message);
}

constexpr Test kTests[] = {
    {"modules_of_the_host", modules_of_the_host},
    {"host_uses_it_in_between", host_uses_it_in_between},
    {"broken_modules", broken_modules},
    {"aborts", aborts},
    {"engine_compiled_in", engine_compiled_in},
};

} // namespace

int main(int argc, char **argv)
{
    return run_tests(kTests, argc, argv);
}
