//! `manifest.json`: what an artefact directory holds.

use crate::chat::{ImageMarkup, SpecialTokens};
use crate::engine::GraphSignature;
use crate::error::{Error, Result};
use crate::media::{ImageFamily, ImageProcessor};
use crate::registry::{ModelSpec, VisionSpec, VisionTower};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// File name of the manifest inside an artefact directory.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The manifest layout this build writes, and the only one it reads.
pub const SCHEMA_VERSION: u32 = 1;
/// Value of [`Manifest::format`]: tells an artefact from any other directory with a `manifest.json`.
const MANIFEST_FORMAT: &str = "etgenai-artefact";
/// Value of [`Manifest::format`] of a quantized model that is not compiled yet.
const QDQ_FORMAT: &str = "etgenai-qdq";

/// Contents of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// `etgenai-artefact`, or `etgenai-qdq`: see [`Manifest::is_quantized_model`].
    pub format: String,
    /// Layout of this file, see [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Program and version that wrote the artefact, e.g. `etgenai 0.1.0`.
    pub generator: String,
    /// Name and hyper-parameters of the model.
    pub model: ModelSpec,
    /// Token slots of the compiled graphs (CL): history, prompt and reply together.
    pub context_capacity: usize,
    /// Rows of one `prefill_forward` block (AR).
    pub prefill_ar: usize,
    /// Components by name, e.g. `text_decoder`.
    pub components: BTreeMap<String, ComponentEntry>,
    /// File name of the tokenizer.
    pub tokenizer: String,
    /// File name of the chat template, if there is one.
    pub chat_template: Option<String>,
    /// Control tokens and end-of-sequence ids.
    pub special_tokens: SpecialTokens,
    /// Sampling settings the checkpoint recommends.
    pub generation: GenerationDefaults,
    /// How pictures become tiles and where they stand in a prompt, in models that take pictures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSection>,
    /// Names of other files that belong to the directory, e.g. a report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_files: Vec<String>,
}

/// What a runner needs to know about pictures beside the vision encoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageSection {
    /// Pictures to tiles.
    pub processor: ImageProcessor,
    /// The tokens around a picture in a prompt.
    pub markup: ImageMarkup,
}

impl ImageSection {
    /// How a checkpoint wants pictures prepared and written: `preprocessor` and `processor` are its
    /// `preprocessor_config.json` and `processor_config.json`, as far as it has them.
    ///
    /// # Errors
    /// As [`ImageProcessor::from_config`].
    pub fn from_config(
        vision: &VisionSpec,
        preprocessor: Option<&Map<String, Value>>,
        processor: Option<&Map<String, Value>>,
    ) -> Result<Self> {
        let (family, markup) = match vision.tower {
            VisionTower::Siglip => (ImageFamily::SmolVlm, ImageMarkup::smol_vlm()),
            VisionTower::InternVit => (ImageFamily::InternVl, ImageMarkup::intern_vl()),
        };
        let processor = ImageProcessor::from_config(family, preprocessor, processor, vision.image_size)?;
        Ok(Self { processor, markup })
    }
}

/// One component of an artefact, as read back from the file that was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComponentEntry {
    /// File name inside the directory.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
    /// The file with the weights, where they are not in [`file`](Self::file).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<FileEntry>,
    /// Stored weights by format name (`w4`, `f32`, …).
    pub weights: BTreeMap<String, FormatSummary>,
    /// Signatures of the graphs, in file order.
    pub graphs: Vec<GraphSignature>,
}

/// A file as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// File name inside the directory.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
}

/// How much of a component one weight format takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FormatSummary {
    /// Number of weights.
    pub tensors: u64,
    /// Number of their elements (without padding).
    pub elements: u64,
    /// Bytes in the file, scales and padding included.
    pub bytes: u64,
    /// `bytes · 8 / elements`; 0 if there are no elements.
    pub bits_per_weight: f64,
}

impl FormatSummary {
    /// Count one more weight.
    pub fn add(&mut self, elements: u64, bytes: u64) {
        self.merge(&Self { tensors: 1, elements, bytes, bits_per_weight: 0.0 });
    }

    /// Count the weights of another summary.
    pub fn merge(&mut self, other: &Self) {
        self.tensors += other.tensors;
        self.elements += other.elements;
        self.bytes += other.bytes;
        self.bits_per_weight = if self.elements == 0 { 0.0 } else { self.bytes as f64 * 8.0 / self.elements as f64 };
    }
}

/// Sampling settings from the checkpoint's `generation_config.json`; `None` where it says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationDefaults {
    /// Sample (`true`) or take the most likely token.
    pub do_sample: Option<bool>,
    /// Divides the logits before sampling.
    pub temperature: Option<f32>,
    /// Keep the k most likely tokens.
    pub top_k: Option<u32>,
    /// Keep the most likely tokens up to this total probability.
    pub top_p: Option<f32>,
    /// Keep tokens at least this likely relative to the most likely one.
    pub min_p: Option<f32>,
    /// Divides (or multiplies, if negative) the logits of tokens already seen.
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Read the fields of a `generation_config.json` object; fields of another type count as absent.
    pub fn from_config(config: &serde_json::Map<String, serde_json::Value>) -> Self {
        let number = |key: &str| config.get(key).and_then(|v| v.as_f64()).map(|v| v as f32);
        Self {
            do_sample: config.get("do_sample").and_then(|v| v.as_bool()),
            temperature: number("temperature"),
            top_k: config.get("top_k").and_then(|v| v.as_u64()).and_then(|v| u32::try_from(v).ok()),
            top_p: number("top_p"),
            min_p: number("min_p"),
            repetition_penalty: number("repetition_penalty"),
        }
    }
}

/// The part of a manifest that every schema version keeps.
#[derive(Deserialize)]
struct Prologue {
    #[serde(default)]
    format: String,
    schema_version: Option<u32>,
}

impl Manifest {
    /// The `format` and `generator` fields of a manifest written by this build.
    pub fn identity() -> (String, String) {
        (MANIFEST_FORMAT.into(), format!("etgenai {}", env!("CARGO_PKG_VERSION")))
    }

    /// The same of a quantized model that is not compiled yet.
    pub fn quantized_identity() -> (String, String) {
        (QDQ_FORMAT.into(), Self::identity().1)
    }

    /// Whether the directory holds a quantized model: graphs with quantize-dequantize nodes and integer weights, which
    /// [`crate::quantize`] reads, and not what an engine runs from.
    pub fn is_quantized_model(&self) -> bool {
        self.format == QDQ_FORMAT
    }

    /// Parse and check the bytes of a `manifest.json`; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Format`] for text that is not JSON, another kind of manifest, another schema version, missing or
    /// misshapen fields, file names that are not plain names, and impossible sizes.
    pub fn from_json(bytes: &[u8], path: &Path) -> Result<Self> {
        let malformed = |e: serde_json::Error| Error::format(path, format!("line {}", e.line()), e.to_string());
        let prologue: Prologue = serde_json::from_slice(bytes).map_err(malformed)?;
        if prologue.format != MANIFEST_FORMAT && prologue.format != QDQ_FORMAT {
            let reason = format!("is {:?}, not {MANIFEST_FORMAT:?}: this is not a compiled model", prologue.format);
            return Err(Error::format(path, "format", reason));
        }
        match prologue.schema_version {
            Some(SCHEMA_VERSION) => {}
            Some(other) => {
                let reason = format!(
                    "is {other}, this build ({}) reads {SCHEMA_VERSION} only: compile the checkpoint again or use the \
                     version that wrote it",
                    env!("CARGO_PKG_VERSION")
                );
                return Err(Error::format(path, "schema_version", reason));
            }
            None => return Err(Error::format(path, "schema_version", "is missing")),
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(malformed)?;
        manifest.check(path)?;
        Ok(manifest)
    }

    /// Pretty-printed JSON with a final line end.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let mut json = serde_json::to_vec_pretty(self).map_err(|e| Error::internal(format!("manifest: {e}")))?;
        json.push(b'\n');
        Ok(json)
    }

    /// The component called `name`.
    ///
    /// # Errors
    /// [`Error::NotFound`] that lists the components there are.
    pub fn component(&self, name: &str) -> Result<&ComponentEntry> {
        self.components.get(name).ok_or_else(|| {
            let have = self.components.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            Error::NotFound(format!("artefact has no component {name}; it has: {have}"))
        })
    }

    /// Names of all files the artefact consists of, the manifest included.
    pub fn files(&self) -> Vec<&str> {
        let mut files = vec![MANIFEST_FILE, &self.tokenizer];
        files.extend(self.chat_template.as_deref());
        files.extend(self.components.values().map(|c| c.file.as_str()));
        files.extend(self.components.values().filter_map(|c| c.data.as_ref()).map(|data| data.file.as_str()));
        files.extend(self.extra_files.iter().map(String::as_str));
        files
    }

    fn check(&self, path: &Path) -> Result<()> {
        check_file_name(&self.tokenizer, path, "tokenizer")?;
        if let Some(template) = &self.chat_template {
            check_file_name(template, path, "chat_template")?;
        }
        for (name, component) in &self.components {
            let field = format!("components.{name}.file");
            check_file_name(&component.file, path, &field)?;
            if let Some(data) = &component.data {
                check_file_name(&data.file, path, &format!("components.{name}.data.file"))?;
            }
        }
        self.extra_files.iter().try_for_each(|file| check_file_name(file, path, "extra_files"))?;
        if let Some(vision) = &self.model.vision {
            vision.validate().map_err(|e| Error::format(path, "model.vision", e.to_string()))?;
        }
        if self.prefill_ar == 0 || self.prefill_ar >= self.context_capacity {
            let reason =
                format!("{} must be at least 1 and below context_capacity {}", self.prefill_ar, self.context_capacity);
            return Err(Error::format(path, "prefill_ar", reason));
        }
        Ok(())
    }
}

/// Check that a file name taken from a manifest stays inside the artefact directory: one plain name, no separators,
/// no `..`, not empty, not hidden.
///
/// # Errors
/// [`Error::Format`] naming the manifest, the field and the name.
pub fn check_file_name(name: &str, manifest: &Path, field: &str) -> Result<()> {
    let forbidden = |c: char| matches!(c, '/' | '\\' | ':' | '\0') || c.is_control();
    if name.is_empty() || name.starts_with('.') || name.contains(forbidden) {
        return Err(Error::format(manifest, field, format!("{name:?} is not a plain file name")));
    }
    Ok(())
}
