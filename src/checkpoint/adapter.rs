//! LoRA adapters that lie beside the weights: `W + s · B A`, computed while rows of `W` are read.
//!
//! The format is that of PEFT: `adapter_config.json` and `adapter_model.safetensors`, whose tensors are called
//! `base_model.model.<module>.lora_A.weight`, `[r, in]`, and `….lora_B.weight`, `[out, r]`; `s` is `lora_alpha / r`, or
//! `lora_alpha / √r` for a rank-stabilised adapter.

use super::safetensors;
use super::tensors::{TensorEntry, TensorTable};
use crate::chat::tokenizer_files::read_json_object;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

pub(super) const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";

/// What is done with the adapter that a checkpoint carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Adapter {
    /// Weights are those of the adapted model.
    #[default]
    Merge,
    /// Weights are those of the base model.
    Ignore,
}

/// Settings that say how an adapter was made or is to be trained further, or that its tensors say too.
const WITHOUT_EFFECT: [&str; 16] = [
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// Ways to begin an adapter that change the base weights as well, so that it does not fit those of the checkpoint.
const CHANGES_BASE: [&str; 4] = ["pissa", "olora", "corda", "loftq"];

/// An adapter whose every tensor fits one of the checkpoint's.
#[derive(Debug)]
pub(super) struct Lora {
    tensors: TensorTable,
    scale: f32,
    /// By the base tensor's name.
    updates: BTreeMap<String, Update>,
}

#[derive(Debug)]
struct Update {
    /// `[r, in]`.
    a: TensorEntry,
    /// `[out, r]`.
    b: TensorEntry,
}

impl Lora {
    /// The adapter in a folder, checked against the tensors it adapts; `None` if there is none.
    pub(super) fn open(folder: &Path, base: &TensorTable) -> Result<Option<Self>> {
        let config = folder.join(CONFIG);
        let Some(object) = read_json_object(&config)? else { return Ok(None) };
        let settings = Settings::read(&config, &object)?;
        let weights = folder.join(WEIGHTS);
        if !weights.exists() {
            return Err(Error::NotFound(format!(
                "{}: missing, though there is an {CONFIG}; adapters are read from safetensors only",
                weights.display()
            )));
        }
        let mut tensors = TensorTable::default();
        safetensors::add_file(&weights, &mut tensors)?;
        let updates = Pairs { file: &weights, settings: &settings, base }.collect(&tensors)?;
        log::info!("{}: merged into {} weights, rank {}", weights.display(), updates.len(), settings.rank);
        Ok(Some(Self { tensors, scale: settings.scale, updates }))
    }

    /// Add the update of rows `rows` of a base tensor, if it is adapted, to `out`.
    pub(super) fn add(&self, tensor: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let Some(Update { a, b }) = self.updates.get(tensor) else { return Ok(()) };
        let (rank, width) = (a.rows(), a.row_len());
        if rank == 0 || width == 0 || rows.is_empty() {
            return Ok(());
        }
        let mut down = vec![0.0; rank * width];
        self.tensors.read_rows(a, 0..rank, &mut down)?;
        let mut up = vec![0.0; rows.len() * rank];
        self.tensors.read_rows(b, rows, &mut up)?;
        let mut update = vec![0.0; width];
        for (up, out) in up.chunks_exact(rank).zip(out.chunks_exact_mut(width)) {
            update.fill(0.0);
            for (factor, down) in up.iter().zip(down.chunks_exact(width)) {
                update.iter_mut().zip(down).for_each(|(sum, down)| *sum += factor * down);
            }
            out.iter_mut().zip(&update).for_each(|(out, update)| *out += self.scale * update);
        }
        Ok(())
    }
}

/// What `adapter_config.json` says.
#[derive(Debug)]
struct Settings {
    rank: usize,
    scale: f32,
    targets: Targets,
}

/// Modules that are adapted.
#[derive(Debug)]
enum Targets {
    /// Paths end in one of these.
    Names(Vec<String>),
    /// A regular expression or a word for all linear layers; the tensors tell.
    Unlisted,
}

impl Settings {
    fn read(file: &Path, object: &Map<String, Value>) -> Result<Self> {
        let get = |field: &str| object.get(field).filter(|value| !value.is_null());
        let wrong = |field: &str, found: Option<&Value>, expected: &str| {
            let found = found.map_or("missing".into(), Value::to_string);
            Error::format(file, field, format!("{found}; {expected} is needed"))
        };
        if get("peft_type").and_then(Value::as_str) != Some("LORA") {
            return Err(unsupported(file, "peft_type", get("peft_type")));
        }
        let rank = get("r").and_then(Value::as_u64).filter(|rank| (1..=65_536).contains(rank));
        let rank = rank.ok_or_else(|| wrong("r", get("r"), "a whole number from 1 to 65536"))?;
        let alpha = get("lora_alpha").and_then(Value::as_f64).filter(|alpha| alpha.is_finite());
        let alpha = alpha.ok_or_else(|| wrong("lora_alpha", get("lora_alpha"), "a number"))?;
        let stabilised = match get("use_rslora") {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            other => return Err(wrong("use_rslora", other, "true or false")),
        };
        refuse_what_is_not_plain(file, object)?;
        let divisor = if stabilised { (rank as f64).sqrt() } else { rank as f64 };
        let rank = usize::try_from(rank).map_err(|_| wrong("r", get("r"), "a smaller number"))?;
        Ok(Self { rank, scale: (alpha / divisor) as f32, targets: Targets::read(get("target_modules")) })
    }
}

impl Targets {
    fn read(value: Option<&Value>) -> Self {
        let names = value.and_then(Value::as_array);
        names.map_or(Targets::Unlisted, |names| {
            Targets::Names(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        })
    }

    fn name(&self, module: &str) -> bool {
        let ends_in = |name: &String| {
            module.strip_suffix(name.as_str()).is_some_and(|front| front.is_empty() || front.ends_with('.'))
        };
        match self {
            Targets::Names(names) => names.iter().any(ends_in),
            Targets::Unlisted => true,
        }
    }
}

/// Everything but a plain low-rank update is an error: DoRA, biases, modules saved whole, patterns of ranks, and settings of
/// later releases.
fn refuse_what_is_not_plain(file: &Path, object: &Map<String, Value>) -> Result<()> {
    const READ: [&str; 4] = ["peft_type", "r", "lora_alpha", "use_rslora"];
    let start = object.get("init_lora_weights").and_then(Value::as_str).map(str::to_ascii_lowercase);
    if start.is_some_and(|start| CHANGES_BASE.iter().any(|way| start.starts_with(way))) {
        return Err(unsupported(file, "init_lora_weights", object.get("init_lora_weights")));
    }
    let changes = |(field, value): &(&String, &Value)| {
        let is_known = READ.contains(&field.as_str()) || WITHOUT_EFFECT.contains(&field.as_str());
        !(is_known || is_off(value) || (*field == "bias" && *value == "none"))
    };
    match object.iter().find(changes) {
        Some((field, value)) => Err(unsupported(file, field, Some(value))),
        None => Ok(()),
    }
}

/// A setting that asks for nothing.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    }
}

fn unsupported(file: &Path, field: &str, value: Option<&Value>) -> Error {
    let value = value.map_or("missing".into(), Value::to_string);
    Error::Unsupported(format!(
        "{}: {field}: {value}: only plain LoRA adapters are merged (peft_type LORA, bias none, no DoRA, no modules_to_save); \
         merge this one with PEFT first, or ignore it",
        file.display()
    ))
}

/// Finds the two tensors of each update.
struct Pairs<'a> {
    file: &'a Path,
    settings: &'a Settings,
    base: &'a TensorTable,
}

impl Pairs<'_> {
    fn collect(&self, tensors: &TensorTable) -> Result<BTreeMap<String, Update>> {
        let mut halves: BTreeMap<&str, [Option<&TensorEntry>; 2]> = BTreeMap::new();
        for entry in tensors.iter() {
            let path = entry.name.strip_prefix(PREFIX).unwrap_or(&entry.name);
            let half = [".lora_A.weight", ".lora_B.weight"].iter().position(|end| path.ends_with(end));
            let Some(half) = half else {
                return Err(self.error(&entry.name, "neither a lora_A.weight nor a lora_B.weight of a linear layer"));
            };
            let module = &path[..path.len() - ".lora_A.weight".len()];
            if let Some(place) = halves.entry(module).or_default().get_mut(half) {
                *place = Some(entry);
            }
        }
        if halves.is_empty() {
            return Err(self.error("lora_A.weight", "there is no such tensor"));
        }
        let mut updates = BTreeMap::new();
        for (module, halves) in halves {
            let (name, update) = self.pair(module, halves)?;
            let adapter = update.a.name.clone();
            if updates.insert(name.clone(), update).is_some() {
                return Err(self.error(&adapter, &format!("{name} is adapted twice")));
            }
        }
        Ok(updates)
    }

    /// The matrix of a module. Releases of transformers put different prefixes in front of a decoder's layers; a path that
    /// is right from there on, and fits one tensor only, is understood.
    fn base(&self, module: &str) -> Option<&TensorEntry> {
        if let Some(exact) = self.base.get(&format!("{module}.weight")) {
            return Some(exact);
        }
        let tail = format!(".{}.weight", &module[module.find("layers.")?..]);
        let mut fitting = self.base.iter().filter(|entry| entry.name.ends_with(&tail));
        let only = fitting.next();
        only.filter(|_| fitting.next().is_none())
    }

    fn pair(&self, module: &str, halves: [Option<&TensorEntry>; 2]) -> Result<(String, Update)> {
        let [Some(a), Some(b)] = halves else {
            let missing = if halves[0].is_none() { "lora_A" } else { "lora_B" };
            return Err(
                self.error(&format!("{PREFIX}{module}.{missing}.weight"), "missing, though its other half is there")
            );
        };
        if !self.settings.targets.name(module) {
            return Err(self.error(&a.name, "target_modules does not name this module"));
        }
        let Some(base) = self.base(module) else {
            let reason = format!("it adapts {module}.weight, which the checkpoint does not have");
            return Err(self.error(&a.name, &reason));
        };
        let name = base.name.clone();
        let rank = self.settings.rank;
        let fits = match base.shape[..] {
            [rows, width] => a.shape == [rank, width] && b.shape == [rows, rank],
            _ => false,
        };
        if !fits {
            let reason = format!(
                "lora_A {:?} and lora_B {:?} of rank {rank} do not fit {name} {:?}: [{rank}, in] and [out, {rank}] are needed",
                a.shape, b.shape, base.shape
            );
            return Err(self.error(&a.name, &reason));
        }
        Ok((name, Update { a: a.clone(), b: b.clone() }))
    }

    fn error(&self, tensor: &str, reason: &str) -> Error {
        Error::format(self.file, tensor, reason)
    }
}
