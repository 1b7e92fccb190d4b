//! Checkpoints of real size with random weights, written on the spot: published configurations, any number of layers,
//! bf16, streamed, so that memory stays at one buffer. The tokenizer, the template and the special tokens are those of
//! the tiny checkpoint of the same family.
#![allow(dead_code, reason = "each user needs a part of it")]

use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Values in the write buffer.
const BUFFER: usize = 1 << 19;

/// A checkpoint that can be written.
pub struct RandomCheckpoint {
    /// Tiny checkpoint whose tokenizer and template it borrows.
    family: &'static str,
    config: Value,
    preprocessor: Value,
    tensors: Vec<RandomTensor>,
}

struct RandomTensor {
    name: String,
    shape: Vec<usize>,
    /// Values are uniform in `centre ± spread`.
    centre: f32,
    spread: f32,
}

/// SmolVLM-500M with that many layers in tower and decoder (12 and 32 in the published one).
pub fn smolvlm_500m(vision_layers: usize, text_layers: usize) -> RandomCheckpoint {
    let family = "smolvlm";
    let config = json!({
        "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "scale_factor": 4,
        "image_token_id": tiny(family, "config.json")["image_token_id"], "tie_word_embeddings": false,
        "text_config": {
            "model_type": "llama", "head_dim": 64, "hidden_size": 960, "intermediate_size": 2560,
            "max_position_embeddings": 8192, "num_attention_heads": 15, "num_hidden_layers": text_layers,
            "num_key_value_heads": 5, "rms_norm_eps": 1e-5, "rope_theta": 100000, "vocab_size": 49280
        },
        "vision_config": {
            "model_type": "idefics3", "hidden_size": 768, "image_size": 512, "num_attention_heads": 12,
            "num_hidden_layers": vision_layers, "patch_size": 16
        }
    });
    let mut preprocessor = tiny(family, "preprocessor_config.json");
    preprocessor["size"] = json!({"longest_edge": 2048});
    preprocessor["max_image_size"] = json!({"longest_edge": 512});

    let mut tensors = Tensors::default();
    let tower = "model.vision_model";
    tensors.linear(&format!("{tower}.embeddings.patch_embedding"), &[768, 3, 16, 16], true);
    tensors.matrix(format!("{tower}.embeddings.position_embedding.weight"), &[1024, 768], 0.5);
    for layer in 0..vision_layers {
        let at = format!("{tower}.encoder.layers.{layer}");
        for projection in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            tensors.linear(&format!("{at}.self_attn.{projection}"), &[768, 768], true);
        }
        tensors.linear(&format!("{at}.mlp.fc1"), &[3072, 768], true);
        tensors.linear(&format!("{at}.mlp.fc2"), &[768, 3072], true);
        tensors.layer_norm(&format!("{at}.layer_norm1"), 768);
        tensors.layer_norm(&format!("{at}.layer_norm2"), 768);
    }
    tensors.layer_norm(&format!("{tower}.post_layernorm"), 768);
    tensors.linear("model.connector.modality_projection.proj", &[960, 12_288], false);
    tensors.decoder("model.text_model.", "lm_head", text_layers, [960, 320, 2560, 49_280], false);
    RandomCheckpoint { family, config, preprocessor, tensors: tensors.0 }
}

/// stories260k, whole: small enough to be quantized in a moment, and a model that the registry knows.
pub fn stories260k() -> RandomCheckpoint {
    let family = "smollm2";
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 172,
        "max_position_embeddings": 512, "num_attention_heads": 8, "num_hidden_layers": 5, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 512,
        "bos_token_id": 1, "eos_token_id": 2
    });
    let mut tensors = Tensors::default();
    tensors.decoder("model.", "lm_head", 5, [64, 32, 172, 512], false);
    RandomCheckpoint { family, config, preprocessor: Value::Null, tensors: tensors.0 }
}

/// InternVL3-1B with that many layers in tower and decoder (24 and 24 in the published one).
pub fn internvl3_1b(vision_layers: usize, text_layers: usize) -> RandomCheckpoint {
    let family = "internvl3";
    let config = json!({
        "architectures": ["InternVLForConditionalGeneration"], "model_type": "internvl", "downsample_ratio": 0.5,
        "image_seq_length": 256, "image_token_id": tiny(family, "config.json")["image_token_id"],
        "projector_hidden_act": "gelu", "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
        "text_config": {
            "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
            "num_attention_heads": 14, "num_hidden_layers": text_layers, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
            "rope_theta": 1000000.0, "tie_word_embeddings": false, "vocab_size": 151674
        },
        "vision_config": {
            "model_type": "internvl_vision", "attention_bias": true, "hidden_size": 1024, "image_size": [448, 448],
            "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": vision_layers,
            "patch_size": [14, 14]
        }
    });
    let mut preprocessor = tiny(family, "preprocessor_config.json");
    preprocessor["size"] = json!({"height": 448, "width": 448});

    let mut tensors = Tensors::default();
    let tower = "vision_tower";
    tensors.linear(&format!("{tower}.embeddings.patch_embeddings.projection"), &[1024, 3, 14, 14], true);
    tensors.matrix(format!("{tower}.embeddings.cls_token"), &[1, 1, 1024], 0.5);
    tensors.matrix(format!("{tower}.embeddings.position_embeddings"), &[1, 1025, 1024], 0.5);
    for layer in 0..vision_layers {
        let at = format!("{tower}.encoder.layer.{layer}");
        for projection in ["q_proj", "k_proj", "v_proj", "projection_layer"] {
            tensors.linear(&format!("{at}.attention.{projection}"), &[1024, 1024], true);
        }
        tensors.linear(&format!("{at}.mlp.fc1"), &[4096, 1024], true);
        tensors.linear(&format!("{at}.mlp.fc2"), &[1024, 4096], true);
        tensors.layer_norm(&format!("{at}.layernorm_before"), 1024);
        tensors.layer_norm(&format!("{at}.layernorm_after"), 1024);
        for scale in ["lambda_1", "lambda_2"] {
            tensors.around(format!("{at}.{scale}"), &[1024], 0.5, 0.3);
        }
    }
    tensors.layer_norm("multi_modal_projector.layer_norm", 4096);
    tensors.linear("multi_modal_projector.linear_1", &[896, 4096], true);
    tensors.linear("multi_modal_projector.linear_2", &[896, 896], true);
    tensors.decoder("language_model.model.", "language_model.lm_head", text_layers, [896, 128, 4864, 151_674], true);
    RandomCheckpoint { family, config, preprocessor, tensors: tensors.0 }
}

impl RandomCheckpoint {
    /// Write the checkpoint into an existing folder; the same seed gives the same bytes.
    pub fn write(&self, folder: &Path, seed: u64) {
        let save = |name: &str, value: &Value| fs::write(folder.join(name), value.to_string()).unwrap();
        save("config.json", &self.config);
        if !self.preprocessor.is_null() {
            save("preprocessor_config.json", &self.preprocessor);
        }
        let borrowed = ["processor_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.json"];
        for name in borrowed.into_iter().chain(["generation_config.json"]) {
            let original = tiny_folder(self.family).join(name);
            // Models of text have fewer of them.
            if original.is_file() || !self.preprocessor.is_null() {
                fs::copy(original, folder.join(name)).unwrap();
            }
        }
        self.write_weights(&folder.join("model.safetensors"), seed);
    }

    /// Parameters of the model.
    pub fn parameters(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
    }

    fn write_weights(&self, path: &Path, seed: u64) {
        let mut header = Map::new();
        let mut offset = 0;
        for tensor in &self.tensors {
            let end = offset + 2 * tensor.shape.iter().product::<usize>();
            let entry = json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [offset, end]});
            assert!(header.insert(tensor.name.clone(), entry).is_none(), "{} twice", tensor.name);
            offset = end;
        }
        let header = Value::Object(header).to_string();
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        let mut random = Random(seed);
        let mut buffer = Vec::with_capacity(2 * BUFFER);
        for tensor in &self.tensors {
            let mut left = tensor.shape.iter().product::<usize>();
            while left > 0 {
                let count = left.min(BUFFER);
                buffer.clear();
                for _ in 0..count {
                    let value = tensor.centre + tensor.spread * random.uniform();
                    // bf16 is the upper half of an f32.
                    buffer.extend_from_slice(&value.to_le_bytes()[2..]);
                }
                file.write_all(&buffer).unwrap();
                left -= count;
            }
        }
        file.flush().unwrap();
    }
}

#[derive(Default)]
struct Tensors(Vec<RandomTensor>);

impl Tensors {
    fn around(&mut self, name: String, shape: &[usize], centre: f32, spread: f32) {
        self.0.push(RandomTensor { name, shape: shape.to_vec(), centre, spread });
    }

    fn matrix(&mut self, name: String, shape: &[usize], spread: f32) {
        self.around(name, shape, 0.0, spread);
    }

    /// Weights that keep the size of what they multiply; a bias that is small beside it.
    fn linear(&mut self, name: &str, shape: &[usize], bias: bool) {
        let inputs = shape[1..].iter().product::<usize>() as f32;
        self.matrix(format!("{name}.weight"), shape, (3.0 / inputs).sqrt());
        if bias {
            self.matrix(format!("{name}.bias"), &shape[..1], 0.05);
        }
    }

    fn layer_norm(&mut self, name: &str, width: usize) {
        self.around(format!("{name}.weight"), &[width], 1.0, 0.2);
        self.matrix(format!("{name}.bias"), &[width], 0.05);
    }

    /// A Llama or Qwen2 decoder: residual width, width of k and v, hidden width of the MLP, vocabulary.
    fn decoder(&mut self, prefix: &str, head: &str, layers: usize, [dim, kv, ffn, vocab]: [usize; 4], bias: bool) {
        self.matrix(format!("{prefix}embed_tokens.weight"), &[vocab, dim], 1.0);
        for layer in 0..layers {
            let at = format!("{prefix}layers.{layer}");
            for (projection, rows) in [("q_proj", dim), ("k_proj", kv), ("v_proj", kv)] {
                self.linear(&format!("{at}.self_attn.{projection}"), &[rows, dim], bias);
            }
            self.linear(&format!("{at}.self_attn.o_proj"), &[dim, dim], false);
            self.linear(&format!("{at}.mlp.gate_proj"), &[ffn, dim], false);
            self.linear(&format!("{at}.mlp.up_proj"), &[ffn, dim], false);
            self.linear(&format!("{at}.mlp.down_proj"), &[dim, ffn], false);
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                self.around(format!("{at}.{norm}.weight"), &[dim], 1.0, 0.2);
            }
        }
        self.around(format!("{prefix}norm.weight"), &[dim], 1.0, 0.2);
        self.linear(head, &[vocab, dim], false);
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// Uniform in -1 … 1.
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z >> 40) as i32 - (1 << 23)) as f32 / (1 << 23) as f32
    }
}

fn tiny_folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny").join(family)
}

fn tiny(family: &str, file: &str) -> Value {
    let path = tiny_folder(family).join(file);
    let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap()
}
