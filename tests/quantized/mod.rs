//! Tiny models, quantized once for all tests of a binary.

pub mod damage;
pub mod exports;

use crate::support::{checkpoint, folder};
use etgenai::dataset::DatasetOptions;
use etgenai::graph::{Graph, Op, ValueId};
use etgenai::pipeline::{
    PreparationOptions, PreparedModel, QuantizationInput, QuantizedModel, load_calibration, quantize,
};
use etgenai::quantize::{ComponentFile, Encoding, QuantDtype, QuantizeOptions, Recipe, qdq::QdqWeights};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use tempfile::TempDir;

/// Inputs of a block in the models below; divides the inputs of every decoder layer of the tiny checkpoints.
pub const BLOCK: usize = 16;
/// Token slots of the text models.
pub const CONTEXT: usize = 128;
/// Token slots of those that see.
pub const CONTEXT_WITH_PICTURES: usize = 256;
/// Tokens of a prefill block.
pub const PREFILL: usize = 8;

static MODELS: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a temporary directory"));

/// What is quantized.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub family: &'static str,
    pub dtype: QuantDtype,
    pub kv8: bool,
}

/// A family with 8-bit weights and a 16-bit cache.
pub fn wide(family: &'static str) -> Case {
    Case { family, dtype: QuantDtype::A16W8, kv8: false }
}

/// A family with 4-bit weights in blocks.
pub fn blocks(family: &'static str) -> Case {
    Case { family, dtype: QuantDtype::A16W4Block, kv8: false }
}

/// A text model without and one with biases, one that sees, one with a sliding window.
pub const FAMILIES: [&str; 4] = ["smollm2", "qwen2", "smolvlm", "gemma3"];

pub fn sees(family: &str) -> bool {
    family == "smolvlm"
}

/// Quantize a model, or open it if that was done already.
pub fn quantized(case: Case) -> QuantizedModel {
    static LOCK: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{}-{}-{}", case.family, case.dtype, case.kv8);
    let out = MODELS.path().join(&name);
    if out.exists() {
        return QuantizedModel::open(&out).expect("a quantized model");
    }
    quantize_into(case, &out)
}

pub fn options(case: Case) -> QuantizeOptions {
    let mut recipe = Recipe::uniform(case.dtype, BLOCK).expect("a recipe");
    recipe.set_kv8(case.kv8);
    let mut options = QuantizeOptions::default();
    options.recipes.insert("text_decoder".into(), recipe);
    options
}

/// Quantize a model into `out`.
pub fn quantize_into(case: Case, out: &Path) -> QuantizedModel {
    quantize_with(case.family, &options(case), out)
}

pub fn quantize_with(family: &str, options: &QuantizeOptions, out: &Path) -> QuantizedModel {
    let prepared = prepare(family);
    let set = load_calibration(&prepared, &calibration(family)).expect("calibration data");
    let input = QuantizationInput {
        prepared: &prepared,
        set: &set,
        options,
        observations: None,
        threads: Some(2),
        unfinished: None,
        stages: Vec::new(),
    };
    quantize(input, out, &mut |_| Ok(())).expect("a quantized model")
}

pub fn prepare(family: &str) -> PreparedModel {
    let max_context = if sees(family) { CONTEXT_WITH_PICTURES } else { CONTEXT };
    let options = PreparationOptions { max_context, prefill_ar: PREFILL, ..PreparationOptions::default() };
    PreparedModel::new(checkpoint(family), &options).expect("a prepared model")
}

fn calibration(family: &str) -> DatasetOptions {
    if !sees(family) {
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/smollm2/text.txt");
        return DatasetOptions {
            texts: vec![text],
            text_limit: Some(2),
            max_context: CONTEXT,
            ..DatasetOptions::default()
        };
    }
    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media/rgb_97x61.png");
    let samples = serde_json::json!([{
        "files": [picture],
        "messages": [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is to be seen?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "A small picture."}]},
        ],
    }]);
    let path = MODELS.path().join(format!("{family}-samples-{:?}.json", std::thread::current().id()));
    std::fs::write(&path, samples.to_string()).expect("a file of samples");
    DatasetOptions { samples: vec![path], max_context: CONTEXT_WITH_PICTURES, ..DatasetOptions::default() }
}

/// A component and its weights.
pub fn open_component(model: &QuantizedModel, name: &str) -> (ComponentFile, QdqWeights) {
    let path = json_path(model, name);
    let file = ComponentFile::open(&path).expect("a component");
    let weights = file.open_weights(&path.with_extension("safetensors")).expect("weights");
    (file, weights)
}

pub fn json_path(model: &QuantizedModel, name: &str) -> PathBuf {
    model.artefact().component_path(name).expect("a component")
}

/// The graph of that name.
pub fn graph<'f>(file: &'f ComponentFile, name: &str) -> &'f Graph {
    &file.graphs.iter().find(|bundle| bundle.graph.name == name).unwrap_or_else(|| panic!("no graph {name}")).graph
}

/// The grid that a value is on: that of the quantize-dequantize node it comes from through nodes that only move values.
pub fn grid_of(graph: &Graph, value: ValueId) -> Option<Encoding> {
    let node = graph.nodes.iter().find(|node| node.output == value)?;
    match node.op {
        Op::QuantizeDequantize { scale, zero_point, qmin, qmax } => Some(Encoding { scale, zero_point, qmin, qmax }),
        Op::Reshape | Op::Transpose { .. } | Op::Concat { .. } => {
            node.inputs.iter().find_map(|&input| grid_of(graph, input))
        }
        _ => None,
    }
}

/// The grid on which a graph input is read.
pub fn grid_of_input(graph: &Graph, name: &str) -> Encoding {
    let id = *graph.inputs.iter().find(|&&id| graph.value(id).info.name == name).expect("an input");
    let readers = graph.nodes.iter().filter(|node| node.inputs.contains(&id)).collect::<Vec<_>>();
    assert_eq!(readers.len(), 1, "{name} is rounded before anything reads it");
    grid_of(graph, readers[0].output).expect("an input on a grid")
}

/// A copy of a directory without folders in it.
pub fn copy_of(model: &QuantizedModel) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary directory");
    let directory = json_path(model, "text_decoder").parent().expect("a folder").to_path_buf();
    for entry in std::fs::read_dir(directory).expect("a folder").map(|entry| entry.expect("an entry")) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("a copy");
    }
    copy
}

/// Tokens within the vocabulary of a tiny model.
pub fn tokens(count: usize) -> Vec<i32> {
    assert!(folder("smollm2").is_dir());
    (0..count).map(|i| (i * 37 % 251 + 3) as i32).collect()
}
