//! `etgenai inspect`: what a checkpoint, a GGUF file or a compiled directory holds.

use super::output::{self, Align, Table, merge, print_fields, print_json, print_line};
use super::{Outcome, inspect_stages};
use etgenai::artefact::{Artefact, ArtefactSummary};
use etgenai::checkpoint::{Checkpoint, CheckpointKind, TensorEntry};
use etgenai::engine::GraphSignature;
use etgenai::registry::{DecoderSpec, ModelSpec};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arguments of `inspect`.
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder, GGUF file, directory written by `etgenai compile` or `etgenai quantize`, a saved preparation, or
    /// observations of `etgenai quantize --shard`
    path: PathBuf,
    /// List every tensor of a checkpoint, every graph input and output of a compiled directory, every layer of a quantized one
    #[arg(long)]
    tensors: bool,
    /// Read a compiled directory to the end and compare it with its manifest
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    exports: super::inspect_exports::Args,
}

/// Run `etgenai inspect`.
pub fn run(args: &Args, json: bool) -> Outcome {
    if args.exports.any() {
        return super::inspect_exports::run(&args.path, &args.exports, json);
    }
    if inspect_stages::is_saved_stage(&args.path) {
        return inspect_stages::show_file(&args.path, json);
    }
    if Artefact::is_artefact(&args.path) {
        let artefact = Artefact::open(&args.path)?;
        if args.verify {
            artefact.verify_hashes()?;
        }
        if artefact.manifest().is_quantized_model() {
            return inspect_stages::show_quantized(&args.path, (args.tensors, args.verify), json);
        }
        show_artefact(args, &artefact.summary()?, json)
    } else {
        show_checkpoint(args, &Checkpoint::open(&args.path)?, json)
    }
}

fn show_artefact(args: &Args, summary: &ArtefactSummary, json: bool) -> Outcome {
    if json {
        let mut document = json!({ "kind": "compiled", "path": args.path });
        merge(&mut document, json!(summary));
        if args.verify {
            merge(&mut document, json!({ "verified": true }));
        }
        return Ok(print_json(&document)?);
    }
    let ids = summary.eos_ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let mut fields = vec![("kind", format!("compiled directory, written by {}", summary.generator))];
    fields.extend(model_fields(&summary.model));
    fields.extend([
        ("capacity", format!("{} tokens, prefill in blocks of {}", summary.context_capacity, summary.prefill_ar)),
        ("size", output::bytes(summary.total_bytes)),
        ("chat template", yes_or_no(summary.has_chat_template)),
        ("ends with ids", ids),
    ]);
    if args.verify {
        fields.push(("verified", "every component equals its hash and its graphs in the manifest".into()));
    }
    print_fields(&fields)?;
    for (name, component) in &summary.components {
        print_line(&format!("\n{name}: {}, {}", component.file, output::bytes(component.bytes)))?;
        let mut table = Table::new(&[
            ("weights", Align::Left),
            ("tensors", Align::Right),
            ("elements", Align::Right),
            ("size", Align::Right),
            ("bits/weight", Align::Right),
        ]);
        for (format, sum) in &component.weights {
            table.row(vec![
                format.clone(),
                sum.tensors.to_string(),
                sum.elements.to_string(),
                output::bytes(sum.bytes),
                format!("{:.2}", sum.bits_per_weight),
            ]);
        }
        table.print()?;
        print_line("")?;
        component.graphs.iter().try_for_each(|graph| show_graph(graph, args.tensors))?;
    }
    Ok(())
}

fn show_graph(graph: &GraphSignature, tensors: bool) -> Outcome {
    print_line(&format!("graph {}: {} inputs, {} outputs", graph.name, graph.inputs.len(), graph.outputs.len()))?;
    if !tensors {
        return Ok(());
    }
    print_line("")?;
    let mut table =
        Table::new(&[("role", Align::Left), ("tensor", Align::Left), ("type", Align::Left), ("shape", Align::Left)]);
    for (role, infos) in [("input", &graph.inputs), ("output", &graph.outputs)] {
        for info in infos {
            let cells = [role, &info.name, info.dtype.name()].map(str::to_owned);
            table.row([cells.to_vec(), vec![output::shape(&info.shape)]].concat());
        }
    }
    table.print()?;
    Ok(print_line("")?)
}

fn show_checkpoint(args: &Args, checkpoint: &Checkpoint, json: bool) -> Outcome {
    let kind = match checkpoint.kind() {
        CheckpointKind::HuggingFace => "huggingface",
        CheckpointKind::Gguf => "gguf",
        CheckpointKind::Meta => "meta",
    };
    let storage = storage_summary(checkpoint);
    let special = checkpoint.special_tokens();
    // A checkpoint of a family this build does not know can still be looked at.
    let spec = ModelSpec::from_config(checkpoint.config());
    if json {
        let mut document = json!({
            "kind": kind,
            "path": args.path,
            "model": spec.as_ref().ok(),
            "unsupported": spec.as_ref().err().map(ToString::to_string),
            "config": checkpoint.config(),
            "generation_config": checkpoint.generation_config(),
            "storage": storage.iter().map(StorageSum::json).collect::<Vec<_>>(),
            "special_tokens": special,
            "has_chat_template": checkpoint.chat_template().is_some(),
        });
        if args.tensors {
            merge(&mut document, json!({ "tensors": checkpoint.tensors().map(tensor_json).collect::<Vec<_>>() }));
        }
        return Ok(print_json(&document)?);
    }
    let mut fields = vec![("kind", kind_for_people(checkpoint.kind(), &args.path))];
    match &spec {
        Ok(spec) => fields.extend(model_fields(spec)),
        Err(error) => fields.push(("not runnable", error.to_string())),
    }
    let ids = special.eos_ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    fields.push(("chat template", yes_or_no(checkpoint.chat_template().is_some())));
    fields.push(("ends with ids", ids));
    print_fields(&fields)?;
    print_line("")?;
    let mut table = Table::new(&[
        ("storage", Align::Left),
        ("tensors", Align::Right),
        ("elements", Align::Right),
        ("size", Align::Right),
    ]);
    for sum in &storage {
        let count = |number: u64| number.to_string();
        table.row(vec![sum.name.into(), count(sum.tensors), count(sum.elements), output::bytes(sum.bytes)]);
    }
    table.print()?;
    if args.tensors {
        print_line("")?;
        show_tensors(checkpoint)?;
    }
    Ok(())
}

fn show_tensors(checkpoint: &Checkpoint) -> Outcome {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("storage", Align::Left),
        ("shape", Align::Left),
        ("size", Align::Right),
    ]);
    for tensor in checkpoint.tensors() {
        table.row(vec![
            tensor.name.clone(),
            tensor.storage.name().into(),
            output::shape(&tensor.shape),
            output::bytes(tensor.bytes),
        ]);
    }
    Ok(table.print()?)
}

fn tensor_json(tensor: &TensorEntry) -> Value {
    json!({
        "name": tensor.name,
        "storage": tensor.storage.name(),
        "shape": tensor.shape,
        "bytes": tensor.bytes,
    })
}

/// What is stored with one encoding.
struct StorageSum {
    name: &'static str,
    tensors: u64,
    elements: u64,
    bytes: u64,
}

impl StorageSum {
    fn json(&self) -> Value {
        json!({ "storage": self.name, "tensors": self.tensors, "elements": self.elements, "bytes": self.bytes })
    }
}

fn storage_summary(checkpoint: &Checkpoint) -> Vec<StorageSum> {
    let mut sums = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let name = tensor.storage.name();
        let sum = sums.entry(name).or_insert(StorageSum { name, tensors: 0, elements: 0, bytes: 0 });
        sum.tensors += 1;
        sum.elements += tensor.shape.iter().fold(1u64, |n, &dim| n.saturating_mul(dim as u64));
        sum.bytes += tensor.bytes;
    }
    sums.into_values().collect()
}

/// The lines that describe a model, wherever it comes from.
pub(super) fn model_fields(model: &ModelSpec) -> Vec<(&'static str, String)> {
    let d: &DecoderSpec = &model.decoder;
    let heads = format!("{} of width {}, {} for keys and values", d.heads, d.head_dim, d.kv_heads);
    let mut fields = vec![
        ("model", format!("{} ({})", model.name, model.family)),
        ("decoder", format!("{} layers, hidden {}, feed-forward {}", d.layers, d.hidden_size, d.ffn_size)),
        ("heads", heads),
        ("vocabulary", format!("{} tokens", d.vocab_size)),
        ("made for", format!("{} tokens of context", d.max_position)),
    ];
    if let Some(window) = d.sliding_window {
        fields.push(("window", format!("{window} tokens in sliding layers")));
    }
    if let Some(v) = &model.vision {
        fields.push(("encoder", format!("{} layers, hidden {}, feed-forward {}", v.layers, v.hidden_size, v.ffn_size)));
        let tile = format!("{0} x {0} pixels in patches of {1}", v.image_size, v.patch_size);
        fields.push(("tile", format!("{tile}, {} tokens", v.tokens_per_tile())));
    }
    fields
}

fn kind_for_people(kind: CheckpointKind, path: &Path) -> String {
    match kind {
        CheckpointKind::HuggingFace => format!("Hugging Face folder {}", path.display()),
        CheckpointKind::Gguf => format!("GGUF file {}", path.display()),
        CheckpointKind::Meta => format!("file {} in Meta's layout", path.display()),
    }
}

fn yes_or_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}
