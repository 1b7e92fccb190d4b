use super::super::weights::WeightTable;
use super::*;
use crate::artefact::Component;
use crate::compile::{Flow, plan_storage, write_component};
use crate::engine::cpu::pool::Pool;
use crate::formats::WeightFormat;
use crate::graph::{DType, GraphBuilder, WeightProvider};
use crate::models::build_decoder;
use crate::registry::ModelSpec;
use std::ops::Range;

struct Zeros;

impl WeightProvider for Zeros {
    fn read_rows(&self, _: &str, _: Range<usize>, out: &mut [f32]) -> Result<()> {
        out.fill(0.0);
        Ok(())
    }
}

fn plans(graphs: Vec<Graph>) -> Vec<Plan> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.safetensors");
    let header = plan_storage("c", graphs.clone(), WeightFormat::W4).unwrap();
    write_component(&path, &header, &Zeros, &Pool::new(1), &mut |_| Flow::Continue).unwrap();
    let weights = WeightTable::new(Component::open(&path).unwrap());
    graphs.iter().map(|graph| Plan::new(graph, &weights).unwrap()).collect()
}

fn decoder(layers: usize) -> Vec<Plan> {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": true,
    });
    let spec = ModelSpec::from_config(config.as_object().unwrap()).unwrap();
    plans(build_decoder(&spec.decoder, 64, 8).unwrap())
}

fn names(plan: &Plan) -> Vec<String> {
    let name = |step: &Step<Place>| match &step.action {
        Action::Linear { jobs, .. } if jobs[0].residual.is_some() => "linear+residual".to_string(),
        Action::Linear { jobs, .. } => format!("linear x{}", jobs.len()),
        Action::Embedding { .. } => "embedding".into(),
        Action::RmsNorm { .. } => "norm".into(),
        Action::Rope { .. } => "rope".into(),
        Action::Gated(_) => "gated".into(),
        Action::KvTranspose { .. } => "kv".into(),
        Action::Attention(_) => "attention".into(),
        Action::Generic { op, .. } => format!("generic {}", op.name()),
        other => format!("{other:?}"),
    };
    plan.steps.iter().map(name).collect()
}

#[test]
fn a_decoder_layer_becomes_a_dozen_steps() {
    let plans = decoder(2);
    let attention = ["rope", "rope", "kv", "kv", "attention", "linear+residual"];
    let mlp = ["norm", "linear x2", "gated", "linear+residual"];
    let mut expected = vec!["embedding", "norm", "linear x3"];
    expected.extend(attention);
    expected.extend(mlp);
    // In the last layer keys and values are needed of every row, queries only where logits are asked for.
    expected.extend(["norm", "linear x1", "linear x2"]);
    expected.extend(attention);
    expected.extend(mlp);
    expected.extend(["norm", "linear x1"]);
    let mut found = names(&plans[1]);
    // The order of independent steps follows the graph; only q's rope may stand before k's projection.
    let mut sorted = expected.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    found.sort();
    sorted.sort();
    assert_eq!(found, sorted);
    assert_eq!(plans[1].block_rows, Some(8));
}

#[test]
fn one_row_needs_no_transposes() {
    let plans = decoder(1);
    assert!(!names(&plans[0]).iter().any(|name| name == "kv"), "{:?}", names(&plans[0]));
    let written = plans[0].steps.iter().flat_map(|step| &step.writes);
    let outputs = written.filter(|place| matches!(place, Place::Output(_))).count();
    assert_eq!(outputs, 3, "logits, k and v are written where the caller wants them");
}

#[test]
fn what_only_leads_to_logits_is_computed_for_those_rows() {
    let plan = &decoder(2)[1];
    let attention = plan.steps.iter().filter(|step| matches!(step.action, Action::Attention(_)));
    assert_eq!(attention.map(|step| step.demand).collect::<Vec<_>>(), [Demand::Valid, Demand::Logits]);
    assert_eq!(plan.steps.last().unwrap().demand, Demand::Logits);
    let kv = plan.steps.iter().filter(|step| matches!(step.action, Action::KvTranspose { .. }));
    assert!(kv.into_iter().all(|step| step.demand == Demand::Valid));
}

#[test]
fn scratch_memory_does_not_grow_with_the_layers() {
    let size = |layers| decoder(layers)[1].buffers.iter().sum::<usize>();
    assert_eq!(size(2), size(6));
}

#[test]
fn a_step_never_writes_what_it_reads() {
    for plan in decoder(2) {
        for step in &plan.steps {
            let buffer = |place: &Place| if let Place::Scratch { buffer, .. } = place { Some(*buffer) } else { None };
            let read = step.reads.iter().filter_map(buffer).collect::<Vec<_>>();
            let written = step.writes.iter().filter_map(buffer).collect::<Vec<_>>();
            assert!(written.iter().all(|buffer| !read.contains(buffer)), "{:?}", step.action);
            let mut unique = written.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), written.len());
        }
    }
}

#[test]
fn a_step_that_mixes_rows_forbids_skipping_them() {
    let mut b = GraphBuilder::new("g");
    let x = b.input("x", DType::F32, &[1, 8, 4]).unwrap();
    let turned = b.node("turned", Op::Transpose { perm: vec![0, 2, 1] }, &[x]).unwrap();
    let mixed = b.node("mixed", Op::Softmax, &[turned]).unwrap();
    let back = b.node("back", Op::Transpose { perm: vec![0, 2, 1] }, &[mixed]).unwrap();
    b.output(back, "y").unwrap();
    assert_eq!(plans(vec![b.finish().unwrap()])[0].block_rows, None);
}

#[test]
fn dead_nodes_are_not_computed() {
    let mut b = GraphBuilder::new("g");
    let x = b.input("x", DType::F32, &[1, 2, 4]).unwrap();
    b.node("unused", Op::Silu, &[x]).unwrap();
    let y = b.node("y", Op::Scale { factor: 2.0 }, &[x]).unwrap();
    b.output(y, "y").unwrap();
    assert_eq!(plans(vec![b.finish().unwrap()])[0].steps.len(), 1);
}
