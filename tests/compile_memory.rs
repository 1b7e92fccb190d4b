//! Promise: compiling takes little memory, however large the model is. (Alone in its file: it counts every allocation
//! of the process.)

use etgenai::checkpoint::Checkpoint;
use etgenai::compile::{CompileOptions, Flow, compile_checkpoint};
use etgenai::formats::WeightFormat;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes in use and the most there ever were.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const VOCAB: usize = 40_000;
const WIDTH: usize = 512;
const FFN: usize = 2_048;
const LAYERS: usize = 4;

/// A bf16 checkpoint of 75 MB in Hugging Face layout, written tensor by tensor.
fn write_checkpoint(folder: &Path) -> usize {
    let mut tensors = vec![("model.embed_tokens.weight".to_string(), vec![VOCAB, WIDTH])];
    tensors.push(("model.norm.weight".into(), vec![WIDTH]));
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            tensors.push((name(&format!("self_attn.{part}")), vec![WIDTH, WIDTH]));
        }
        tensors.push((name("mlp.gate_proj"), vec![FFN, WIDTH]));
        tensors.push((name("mlp.up_proj"), vec![FFN, WIDTH]));
        tensors.push((name("mlp.down_proj"), vec![WIDTH, FFN]));
        tensors.push((name("input_layernorm"), vec![WIDTH]));
        tensors.push((name("post_attention_layernorm"), vec![WIDTH]));
    }
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, shape) in &tensors {
        let end = offset + shape.iter().product::<usize>() * 2;
        header
            .insert(name.clone(), serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}));
        offset = end;
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    for i in 0..offset / 2 {
        let value = ((i * 2_654_435_761) % 1021) as f32 / 1021.0 - 0.5;
        file.write_all(&half::bf16::from_f32(value).to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny/llama");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tiny.join(file), folder.join(file)).unwrap();
    }
    offset
}

#[test]
fn peak_memory_does_not_follow_the_model() {
    let source = tempfile::tempdir().unwrap();
    let model_bytes = write_checkpoint(source.path());
    let checkpoint = Checkpoint::open(source.path()).unwrap();
    for format in [WeightFormat::F32, WeightFormat::W4] {
        let out = tempfile::tempdir().unwrap();
        let options = CompileOptions { threads: Some(2), ..CompileOptions::new(format) };
        PEAK.store(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed);
        let before = PEAK.load(Ordering::Relaxed);
        compile_checkpoint(&checkpoint, out.path(), &options, &mut |_| Flow::Continue).unwrap();
        let peak = PEAK.load(Ordering::Relaxed) - before;
        assert!(peak < 24 << 20, "{}: {} MB for a model of {} MB", format.name(), peak >> 20, model_bytes >> 20);
    }
}
