//! Opening and inspecting artefact directories.

use super::component::Component;
use super::manifest::{ComponentEntry, GenerationDefaults, MANIFEST_FILE, Manifest};
use super::writer::hex;
use crate::error::{Error, Result};
use crate::registry::ModelSpec;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest manifest, tokenizer or template that is read, in bytes: real ones stay far below.
const MAX_SIDE_FILE: u64 = 256 << 20;
/// Bytes hashed at a time.
const HASH_BLOCK: usize = 1 << 20;

/// A compiled model on disk.
#[derive(Debug, Clone)]
pub struct Artefact {
    directory: PathBuf,
    manifest: Manifest,
}

/// What `etgenai inspect` shows of an artefact.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArtefactSummary {
    /// Layout of the manifest.
    pub schema_version: u32,
    /// Program and version that wrote it.
    pub generator: String,
    /// Name and hyper-parameters of the model.
    pub model: ModelSpec,
    /// Token slots of the compiled graphs.
    pub context_capacity: usize,
    /// Rows of one prefill block.
    pub prefill_ar: usize,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Components as the manifest describes them.
    pub components: BTreeMap<String, ComponentEntry>,
    /// The artefact has a chat template.
    pub has_chat_template: bool,
    /// Ids that end a reply.
    pub eos_ids: Vec<u32>,
    /// Sampling settings the checkpoint recommends.
    pub generation: GenerationDefaults,
}

impl Artefact {
    /// Open a directory: read its manifest and check that each component file is there with its size.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the directory, its manifest or a file is missing; [`Error::Format`] if the manifest is
    /// malformed or a component has another size than it says.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST_FILE);
        if !path.is_file() {
            let name = directory.display();
            return Err(Error::NotFound(format!("{name}: not a compiled model (there is no {MANIFEST_FILE} in it)")));
        }
        let manifest = Manifest::from_json(&read_side_file(&path)?, &path)?;
        let artefact = Self { directory: directory.into(), manifest };
        for (name, entry) in &artefact.manifest.components {
            artefact.check_size(&path, name, entry)?;
        }
        Ok(artefact)
    }

    /// Is there a manifest of ours in `directory`? Says nothing about whether it can be opened.
    pub fn is_artefact(directory: &Path) -> bool {
        directory.join(MANIFEST_FILE).is_file()
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Path of a component file, for an engine to load.
    ///
    /// # Errors
    /// [`Error::NotFound`] that lists the components there are.
    pub fn component_path(&self, name: &str) -> Result<PathBuf> {
        Ok(self.directory.join(&self.manifest.component(name)?.file))
    }

    /// Bytes of the tokenizer file.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>> {
        read_side_file(&self.directory.join(&self.manifest.tokenizer))
    }

    /// Source of the chat template, if there is one.
    ///
    /// # Errors
    /// A missing file, or [`Error::Format`] if it is not UTF-8.
    pub fn chat_template(&self) -> Result<Option<String>> {
        let Some(name) = &self.manifest.chat_template else { return Ok(None) };
        let path = self.directory.join(name);
        let text = String::from_utf8(read_side_file(&path)?);
        text.map(Some).map_err(|e| Error::format(&path, "text", e.to_string()))
    }

    /// Everything about the artefact that a person wants to know.
    pub fn summary(&self) -> Result<ArtefactSummary> {
        let mut total_bytes = 0;
        for file in self.manifest.files() {
            let path = self.directory.join(file);
            total_bytes += fs::metadata(&path).map_err(|e| Error::io(&path, e))?.len();
        }
        let m = &self.manifest;
        Ok(ArtefactSummary {
            schema_version: m.schema_version,
            generator: m.generator.clone(),
            model: m.model.clone(),
            context_capacity: m.context_capacity,
            prefill_ar: m.prefill_ar,
            total_bytes,
            components: m.components.clone(),
            has_chat_template: m.chat_template.is_some(),
            eos_ids: m.special_tokens.eos_ids.clone(),
            generation: m.generation,
        })
    }

    /// Read every component and compare its hash and what its header says with the manifest.
    ///
    /// # Errors
    /// [`Error::Format`] naming the component and the difference.
    pub fn verify_hashes(&self) -> Result<()> {
        let manifest = self.directory.join(MANIFEST_FILE);
        for (name, entry) in &self.manifest.components {
            let path = self.directory.join(&entry.file);
            let found = hash_file(&path)?;
            let wrong =
                |what: &str, reason: String| Error::format(&manifest, format!("components.{name}.{what}"), reason);
            if found != entry.sha256 {
                let reason = format!("is {}, but {} hashes to {found}", entry.sha256, path.display());
                return Err(wrong("sha256", reason));
            }
            if let Some(data) = &entry.data {
                let path = self.directory.join(&data.file);
                let found = hash_file(&path)?;
                if found != data.sha256 {
                    let reason = format!("is {}, but {} hashes to {found}", data.sha256, path.display());
                    return Err(wrong("data.sha256", reason));
                }
                continue;
            }
            let component = Component::open(&path)?;
            if component.signatures() != entry.graphs {
                return Err(wrong("graphs", format!("differ from those in {}", path.display())));
            }
            if component.format_summaries() != entry.weights {
                return Err(wrong("weights", format!("differ from those in {}", path.display())));
            }
        }
        Ok(())
    }

    fn check_size(&self, manifest: &Path, name: &str, entry: &ComponentEntry) -> Result<()> {
        let files = [("bytes", &entry.file, entry.bytes)].into_iter();
        let data = entry.data.as_ref().map(|data| ("data.bytes", &data.file, data.bytes));
        for (field, file, bytes) in files.chain(data) {
            let path = self.directory.join(file);
            let found = fs::metadata(&path).map_err(|e| Error::io(&path, e))?.len();
            if found != bytes {
                let path = path.display();
                let reason = format!("is {bytes}, but {path} has {found} bytes: it is truncated or was changed");
                return Err(Error::format(manifest, format!("components.{name}.{field}"), reason));
            }
        }
        Ok(())
    }
}

/// The first file in `directory` that is not part of the artefact.
pub(super) fn foreign_file(directory: &Path, manifest: &Manifest) -> Result<Option<String>> {
    let own = manifest.files();
    for entry in fs::read_dir(directory).map_err(|e| Error::io(directory, e))? {
        let name = entry.map_err(|e| Error::io(directory, e))?.file_name().to_string_lossy().into_owned();
        if !own.contains(&name.as_str()) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Read a manifest, tokenizer or template.
fn read_side_file(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_SIDE_FILE + 1).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if read as u64 > MAX_SIDE_FILE {
        return Err(Error::format(path, "size", format!("is over {MAX_SIDE_FILE} bytes")));
    }
    Ok(bytes)
}

fn hash_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|e| Error::io(path, e))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; HASH_BLOCK];
    loop {
        match file.read(&mut block).map_err(|e| Error::io(path, e))? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&block[..n]),
        }
    }
}
