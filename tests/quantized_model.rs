//! The promise: the graphs that are deployed compute with one set of integers, a cache comes back on the grid it went out on, and
//! what is written is what was quantized; other programs can read it, and what was damaged is noticed.

mod quantized;
mod support;

use etgenai::engine::{ComponentSource, Engine, ExecuteOptions, LoadedComponent};
use etgenai::graph::{DType, Graph, Interpreter, Op, Tensor, TensorView};
use etgenai::pipeline::{QuantizationReport, QuantizedModel, open_runner};
use etgenai::quantize::{
    ComponentFile, DecoderInputs, GraphPlan, QdqEngine, QuantDtype, Recipe, Rows, qdq::StoredForm, qdq::insert,
};
use etgenai::runner::{DecodingMode, Flow, GenerateOptions, RunnerOptions};
use quantized::{
    BLOCK, Case, FAMILIES, blocks, copy_of, graph, grid_of, grid_of_input, json_path, open_component, prepare,
    quantized, sees, tokens, wide,
};
use std::collections::{BTreeMap, BTreeSet};
use support::{Session, execute, sqnr};

fn decoder(model: &QuantizedModel) -> ComponentFile {
    open_component(model, "text_decoder").0
}

/// Appendix B, 1.
#[test]
fn deployed_graphs_share_one_set_of_integers_and_grids() {
    for family in FAMILIES {
        let model = quantized(wide(family));
        for component in model.graphs().components() {
            let (file, weights) = open_component(&model, component);
            let stored = file.weights.keys().cloned().collect::<BTreeSet<_>>();
            assert!(stored.iter().all(|name| weights.stored(name).is_some()));
            let mut grids = BTreeMap::new();
            for bundle in &file.graphs {
                let used = bundle.graph.weights().map(|info| info.name.clone()).collect::<BTreeSet<_>>();
                // The factors of a scaled residual stream are kept for whoever undoes them; no graph multiplies with them.
                let kept = stored.iter().filter(|name| *name != "residual.scale").cloned().collect::<BTreeSet<_>>();
                assert_eq!(used, kept, "{family} {component} {}", bundle.graph.name);
                for node in &bundle.graph.nodes {
                    if let Op::QuantizeDequantize { .. } = node.op {
                        let known = grids.entry(node.name.clone()).or_insert_with(|| node.op.clone());
                        assert_eq!(*known, node.op, "{family} {component} {}", node.name);
                    }
                }
            }
        }
        let file = decoder(&model);
        let names = file.graphs.iter().map(|bundle| bundle.graph.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names, ["kv_forward", "prefill_forward"]);
    }
}

/// Appendix B, 2, and what a runner is told about it.
#[test]
fn a_cache_goes_in_on_the_grid_it_came_out_on() {
    for family in FAMILIES {
        for kv8 in [false, true] {
            let model = quantized(Case { kv8, ..wide(family) });
            let (layers, file) = (model.graphs().model.decoder.layers, decoder(&model));
            for bundle in &file.graphs {
                let outputs = bundle.graph.outputs.iter().map(|&id| (bundle.graph.value(id).info.name.clone(), id));
                let mut number = 0;
                for (name, id) in outputs.filter(|(name, _)| name != "logits") {
                    let out = grid_of(&bundle.graph, id).expect("an output on a grid");
                    let input = name.replace("_out_", "_cache_");
                    assert_eq!(out, grid_of_input(&bundle.graph, &input), "{family} {} {name}", bundle.graph.name);
                    let limits = if kv8 { (128, 0, 255) } else { (out.zero_point, 0, 65535) };
                    assert_eq!((out.zero_point, out.qmin, out.qmax), limits);
                    let told = &bundle.meta[&format!("get_kv_output_{number}_quant_attr")];
                    assert_eq!(told[0].as_f64().unwrap() as f32, out.scale);
                    assert_eq!(told[1], out.zero_point);
                    assert_eq!(told[4], if kv8 { "uint8" } else { "uint16" });
                    number += 1;
                }
                assert_eq!(number, 2 * layers);
                assert_eq!(bundle.meta["get_kv_io_bit_width"], if kv8 { 8 } else { 16 });
                let cache = bundle.graph.inputs.iter().zip(&bundle.input_types);
                let cache = cache.filter(|(id, _)| bundle.graph.value(**id).info.name.contains("_cache_"));
                assert!(cache.map(|(_, dtype)| *dtype).all(|dtype| dtype == if kv8 { DType::U8 } else { DType::U16 }));
            }
            let first = |name: &str| grid_of_input(graph(&file, name), "k_cache_0");
            assert_eq!(first("kv_forward"), first("prefill_forward"));
        }
    }
}

/// An 8-bit cache is multiplied as it is; a 16-bit one is stored once more, in signed integers.
#[test]
fn only_a_wide_cache_is_stored_again_for_the_product() {
    for (kv8, expected) in [(false, true), (true, false)] {
        let model = quantized(Case { kv8, ..wide("smollm2") });
        let file = decoder(&model);
        let again = graph(&file, "kv_forward").nodes.iter().filter(|node| node.name.ends_with(".operand1.qdq"));
        let again = again.map(|node| node.op.clone()).collect::<Vec<_>>();
        let signed = |op: &Op| matches!(op, Op::QuantizeDequantize { zero_point: 0, qmin: -32767, qmax: 32767, .. });
        assert_eq!(!again.is_empty(), expected);
        assert!(again.iter().all(signed), "{again:?}");
    }
}

/// Appendix B, 4.
#[test]
fn what_is_said_of_the_logits_is_the_grid_they_are_on() {
    for family in FAMILIES {
        let file = decoder(&quantized(wide(family)));
        for bundle in &file.graphs {
            assert_eq!(bundle.graph.value(bundle.graph.outputs[0]).info.name, "logits");
            let grid = grid_of(&bundle.graph, bundle.graph.outputs[0]).expect("logits on a grid");
            assert_eq!(bundle.meta["get_logits_scale"].as_f64().unwrap() as f32, grid.scale);
            assert_eq!(bundle.meta["get_logits_zero_point"], grid.zero_point);
            assert_eq!(bundle.output_types[0], DType::U16);
        }
    }
}

/// Appendix B, 5.
#[test]
fn a_recipe_decides_alike_whenever_it_is_asked() {
    let model = quantized(blocks("smollm2"));
    let recipe = decoder(&model).recipe.expect("a recipe");
    let again = Recipe::from_json(&recipe.to_json().unwrap(), "again").unwrap();
    let text = |recipe: &Recipe, graph: &Graph| {
        let plan = GraphPlan::new(graph, recipe).expect("a plan");
        let line =
            |layer: &etgenai::quantize::PlannedLayer| format!("{:?} {:?} {:?}", layer.names, layer.kind, layer.plan);
        plan.layers.iter().map(line).collect::<Vec<_>>()
    };
    let graphs = model.graphs().deployed("text_decoder").unwrap();
    let first = text(&recipe, &graphs[0]);
    assert_eq!(first.iter().filter(|line| line.contains("PerBlock(16)")).count(), 3 * 7, "{first:?}");
    for graph in &graphs {
        assert_eq!((text(&recipe, graph), text(&again, graph)), (first.clone(), first.clone()));
    }
}

fn load(model: &QuantizedModel, component: &str) -> Box<dyn LoadedComponent> {
    let source = ComponentSource::file(component, json_path(model, component));
    QdqEngine::new(Some(2)).load(&source).expect("a loaded component")
}

/// Appendix B, 3: blocks, then token by token, against one pass over everything.
#[test]
fn blocks_then_single_tokens_give_the_logits_of_one_pass() {
    for family in ["smollm2", "qwen2", "gemma3"] {
        for case in [wide(family), blocks(family), Case { kv8: true, ..wide(family) }] {
            let model = quantized(case);
            let (spec, tokens) = (&model.graphs().model.decoder, tokens(21));
            let mut component = load(&model, "text_decoder");
            let mut session = Session::new(spec, component.as_mut(), model.graphs().context_capacity);
            let mut found = session.feed(1, &tokens[..17]);
            found.extend(session.feed(0, &tokens[17..]));
            let whole = one_pass(&model, &tokens);
            // Other orders of summation flip single roundings, no more.
            let db = sqnr(&found, &whole);
            assert!(db > 50.0, "{case:?}: {db:.1} dB");
        }
    }
}

fn one_pass(model: &QuantizedModel, tokens: &[i32]) -> Vec<f32> {
    let (file, weights) = open_component(model, "text_decoder");
    let graph = file.whole(model.graphs(), tokens.len()).expect("a graph");
    let ids = tokens.iter().map(|&token| token as u32).collect::<Vec<_>>();
    let window = model.graphs().model.decoder.sliding_window;
    let inputs = DecoderInputs::default().of(&graph, Rows::Tokens(&ids), ids.len(), window).expect("inputs");
    let views = inputs.iter().map(|input| input.view()).collect::<Vec<TensorView<'_>>>();
    let outputs = Interpreter::new(graph, &weights).expect("an interpreter").run(&views).expect("outputs");
    outputs[0].as_slice::<f32>().expect("logits").to_vec()
}

/// The reference interpreter and the fast path, on every deployed graph, with values in the cache.
#[test]
fn the_engine_computes_what_the_reference_interpreter_does() {
    for family in FAMILIES {
        for case in [wide(family), blocks(family), Case { kv8: true, ..blocks(family) }] {
            let model = quantized(case);
            for name in model.graphs().components() {
                let (file, weights) = open_component(&model, name);
                let mut component = load(&model, name);
                for (number, bundle) in file.graphs.iter().enumerate() {
                    let interpreter = Interpreter::new(bundle.graph.clone(), &weights).expect("an interpreter");
                    let inputs = inputs_of(&bundle.graph);
                    let views = inputs.iter().map(Tensor::view).collect::<Vec<_>>();
                    let expected = interpreter.run(&views).expect("outputs");
                    let found = execute(component.as_mut(), number, &inputs, &ExecuteOptions::default()).unwrap();
                    for (found, expected) in found.iter().zip(&expected) {
                        let what = format!("{case:?} {name} {} {}", bundle.graph.name, found.info().name);
                        check_close(found.as_slice().unwrap(), expected.as_slice().unwrap(), case.kv8, &what);
                    }
                }
            }
        }
    }
}

/// Sums in another order flip single roundings, which is far less than the integers themselves cost: with a 16-bit cache a step
/// here and there, with an 8-bit cache now and then one of its wide steps.
fn check_close(found: &[f32], expected: &[f32], kv8: bool, what: &str) {
    assert!(found.iter().all(|value| value.is_finite()), "{what}");
    let db = sqnr(found, expected);
    assert!(db > if kv8 { 35.0 } else { 60.0 }, "{what}: {db:.1} dB");
}

/// Something in every input: tokens, positions that follow each other, a mask that lets half of the past through, waves elsewhere.
fn inputs_of(graph: &Graph) -> Vec<Tensor> {
    let infos = graph.input_infos();
    let tensor = |info: &etgenai::graph::TensorInfo| {
        let count = info.shape.iter().product::<usize>();
        let (name, shape) = (info.name.as_str(), info.shape.as_slice());
        match name {
            "tokens" => Tensor::from_i32(name, shape, &tokens(count)),
            "input_pos" => Tensor::from_i32(name, shape, &(0..count).map(|i| 20 + i as i32).collect::<Vec<_>>()),
            _ if name.ends_with("_mask") => {
                let columns = *shape.last().expect("columns");
                let ar = shape[shape.len() - 2];
                let open = |i: usize| {
                    let (row, column) = (i / columns % ar, i % columns);
                    column < 20 || (column >= columns - ar && column - (columns - ar) <= row)
                };
                Tensor::from_f32(
                    name,
                    shape,
                    &(0..count).map(|i| if open(i) { 0.0 } else { -255.0 }).collect::<Vec<_>>(),
                )
            }
            _ => Tensor::from_f32(name, shape, &(0..count).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>()),
        }
        .expect("a tensor")
    };
    infos.iter().map(tensor).collect()
}

/// However prompts go in, the same text comes out.
#[test]
fn kv_and_hybrid_runners_say_the_same() {
    for family in FAMILIES {
        let model = quantized(wide(family));
        let directory = json_path(&model, "text_decoder").parent().expect("a folder").to_path_buf();
        let say = |decoding: DecodingMode| {
            let options = RunnerOptions { threads: Some(2), decoding, ..RunnerOptions::default() };
            let mut runner = open_runner(&directory, &options).expect("a runner");
            let options = GenerateOptions { max_new_tokens: Some(12), ignore_eos: true, ..Default::default() };
            let messages = [etgenai::chat::Message::user("What is seen from the harbour?")];
            runner.generate(&messages, &options, &mut |_| Flow::Continue).expect("a reply").text
        };
        let (hybrid, kv) = (say(DecodingMode::default()), say(DecodingMode::Kv));
        assert!(!hybrid.is_empty());
        assert_eq!(hybrid, kv, "{family}");
    }
}

/// Appendix B, 11.
#[test]
fn integers_at_the_boundary_are_said_of_decoders_only_and_whole() {
    let model = quantized(wide("smolvlm"));
    for component in model.graphs().components() {
        let path = json_path(&model, component);
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let io = json["quant_io_dtypes"].clone();
        if component != "text_decoder" {
            assert!(io.is_null(), "{component}: {io}");
            continue;
        }
        assert_eq!(io.as_object().unwrap().keys().collect::<Vec<_>>(), ["kv_type", "io_type"]);
        let other = tempfile::tempdir().unwrap();
        for key in ["io_type", "kv_type"] {
            let taken = json["quant_io_dtypes"].as_object_mut().unwrap().remove(key).unwrap();
            let path = other.path().join("text_decoder.json");
            std::fs::write(&path, json.to_string()).unwrap();
            let error = ComponentFile::open(&path).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
            json["quant_io_dtypes"][key] = taken;
        }
    }
}

/// Appendix B, 12: read straight from the arrays of the file.
#[test]
fn weights_in_blocks_are_evaluated_with_the_scales_that_they_were_rounded_with() {
    let model = quantized(blocks("smollm2"));
    let (file, weights) = open_component(&model, "text_decoder");
    let bytes = std::fs::read(json_path(&model, "text_decoder").with_extension("safetensors")).unwrap();
    let arrays = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let float = prepare("smollm2");
    let bound = float.weights().unwrap();
    let mut checked = 0;
    for (name, stored) in &file.weights {
        let StoredForm::Blocks { size, qmin, qmax } = stored.form else { continue };
        let (rows, cols) = stored.rows().unwrap();
        assert_eq!((size, qmin, qmax), (BLOCK, -7, 7));
        let levels = arrays.tensor(name).unwrap().data().to_vec();
        let multipliers = arrays.tensor(&format!("{name}.multiplier")).unwrap().data().to_vec();
        let scales = arrays.tensor(&format!("{name}.scale")).unwrap().data().to_vec();
        let (mut found, mut original) = (vec![0.0; rows * cols], vec![0.0; rows * cols]);
        use etgenai::graph::WeightProvider;
        weights.read_rows(name, 0..rows, &mut found).unwrap();
        bound.text_decoder.read_rows(name, 0..rows, &mut original).unwrap();
        for (at, (&found, &original)) in found.iter().zip(&original).enumerate() {
            let (row, block) = (at / cols, at % cols / size);
            let scale = f32::from_le_bytes(scales[row * 4..row * 4 + 4].try_into().unwrap());
            let effective = scale * f32::from(multipliers[row * (cols / size) + block]);
            assert_eq!(found, f32::from(levels[at].cast_signed()) * effective, "{name} {at}");
            // Rounded with the very same scale: no integer within the grid is nearer.
            let reach = original.clamp(-7.0 * effective, 7.0 * effective);
            assert!((found - reach).abs() <= effective * 0.5001, "{name} {at}: {original} became {found}");
        }
        checked += 1;
    }
    assert_eq!(checked, 3 * 7);
}

#[test]
fn what_was_saved_is_what_was_quantized() {
    let out = tempfile::tempdir().unwrap();
    let written = quantized::quantize_into(wide("qwen2"), &out.path().join("model"));
    let opened = QuantizedModel::open(&out.path().join("model")).unwrap();
    assert_eq!(opened.graphs(), written.graphs());
    // Both read once, so that the last digits of decimal fractions are the same.
    let written_report: QuantizationReport = serde_json::from_slice(&written.report().to_json().unwrap()).unwrap();
    assert_eq!(opened.report().to_json().unwrap(), written_report.to_json().unwrap());
    opened.artefact().verify_hashes().unwrap();
    let file = decoder(&opened);
    for activation in &written.report().components["text_decoder"].activations {
        assert_eq!(file.encodings.get(&activation.name).unwrap(), activation.encoding, "{}", activation.name);
    }
    // The deployed graphs are what the recipe and the grids make of the float graphs.
    for (float, bundle) in opened.graphs().deployed("text_decoder").unwrap().iter().zip(&file.graphs) {
        let plan = GraphPlan::new(float, file.recipe.as_ref().unwrap()).unwrap();
        assert_eq!(insert(float, &plan, &file.encodings).unwrap(), bundle.graph);
    }
    // The same data once more gives the same integers.
    let again = quantized(wide("qwen2"));
    let bytes = |model: &QuantizedModel| std::fs::read(json_path(model, "text_decoder").with_extension("safetensors"));
    assert_eq!(bytes(&again).unwrap(), bytes(&opened).unwrap());
}

#[test]
fn the_report_reads_back_what_was_written() {
    for family in FAMILIES {
        let model = quantized(blocks(family));
        let report = &model.report().components["text_decoder"];
        assert_eq!(report.precision, "16a4w_block");
        assert!(report.formats.contains_key("int4") && report.formats.contains_key("int8"), "{:?}", report.formats);
        let kv = decoder(&model);
        assert_eq!(report.activations.len(), kv.encodings.iter().count());
        assert!(report.layers.iter().any(|layer| layer.layer == "output logits"));
        let page = std::fs::read_to_string(copy_of(&model).path().join("report.html")).unwrap();
        assert!(page.contains("<svg") && page.contains("16a4w_block") && page.contains("layers.0.attention.wq"));
        assert!(model.artefact().manifest().files().contains(&"report.html"));
    }
    assert!(sees("smolvlm") && quantized(wide("smolvlm")).report().components.len() == 3);
    let dtype = quantized(wide("smolvlm")).report().components["vision_encoder"].precision.clone();
    assert_eq!(dtype, QuantDtype::A16W8.name());
}
