//! Promise: every kind of integers, observers and scales works on a whole model, from its checkpoint to a directory that is read
//! back; shards of the calibration data join to exactly what the whole gives.

mod support;

use etgenai::Error;
use etgenai::dataset::{CalibrationSet, DatasetOptions, RandomData, Shard};
use etgenai::pipeline::{
    ObservationsFile, PreparationOptions, PreparedModel, QuantizationInput, QuantizedModel, load_calibration, observe,
    quantize,
};
use etgenai::quantize::{
    ObserverKind, QuantDtype, QuantizeOptions, Recipe, ResidualChannels, Rounding, Rule, ScaleSearch,
    SearchGranularity, WeightGranularity, WeightOptions,
};
use etgenai::runner::EvalOptions;
use std::path::Path;

const DECODER: &str = "text_decoder";
const CONTEXT: usize = 48;

fn prepare(family: &str, options: PreparationOptions) -> PreparedModel {
    let options = PreparationOptions { max_context: CONTEXT, prefill_ar: 8, ..options };
    PreparedModel::new(support::checkpoint(family), &options).expect("prepares")
}

/// Some rows of tokens, the same ones every time; some short, some long.
fn data(directory: &Path, shard: Option<Shard>) -> DatasetOptions {
    let row = |seed: usize, length: usize| (0..length).map(|i| (i * (seed + 3) * 7 + seed) % 500).collect::<Vec<_>>();
    let rows = (0..7).map(|seed| row(seed, 5 + seed * 6)).collect::<Vec<_>>();
    let path = directory.join("rows.json");
    std::fs::write(&path, serde_json::to_vec(&rows).unwrap()).unwrap();
    DatasetOptions { token_rows: vec![path], max_context: CONTEXT, shard, ..DatasetOptions::default() }
}

fn with_recipe(recipe: Recipe) -> QuantizeOptions {
    let mut options = QuantizeOptions { report_samples: 2, ..QuantizeOptions::default() };
    options.recipes.insert(DECODER.into(), recipe);
    options
}

fn run(
    prepared: &PreparedModel,
    set: &CalibrationSet,
    options: &QuantizeOptions,
    observations: Option<ObservationsFile>,
    out: &Path,
) -> Result<QuantizedModel, Error> {
    let input = QuantizationInput {
        prepared,
        set,
        options,
        observations,
        threads: Some(2),
        unfinished: None,
        stages: Vec::new(),
    };
    quantize(input, out, &mut |_| Ok(()))
}

/// Mean SQNR of the logits, in decibels.
fn logits_db(model: &QuantizedModel) -> f64 {
    let layers = &model.report().components[DECODER].layers;
    let logits = layers.iter().find(|layer| layer.layer == "output logits").expect("logits are compared");
    logits.mean_db().expect("some noise")
}

#[test]
fn wider_integers_and_finer_scales_are_closer_to_the_float_model() {
    let directory = tempfile::tempdir().unwrap();
    let prepared = prepare("qwen2", PreparationOptions::default());
    let set = load_calibration(&prepared, &data(directory.path(), None)).unwrap();
    let db = |dtype: QuantDtype| {
        let options = with_recipe(Recipe::uniform(dtype, 16).unwrap());
        let model = run(&prepared, &set, &options, None, &directory.path().join(dtype.name())).unwrap();
        let widths = &model.report().components[DECODER].formats;
        let expected = format!("int{}", dtype.weight_bits());
        assert!(widths.contains_key(&expected), "{dtype}: {widths:?}");
        logits_db(&model)
    };
    let found = QuantDtype::ALL.map(|dtype| (dtype.name(), db(dtype)));
    let of = |name: &str| found.iter().find(|(known, _)| *known == name).expect("known").1;
    assert!(of("16a16w") > 50.0, "{found:?}");
    assert!(of("16a8w") > 30.0 && of("16a8w") < of("16a16w"), "{found:?}");
    assert!(of("16a4w_block") > of("16a4w") && of("16a4w") > 3.0, "{found:?}");
    assert!(of("8a8w") < of("16a8w") && of("8a4w") < of("16a4w") + 1.0, "{found:?}");
}

#[test]
fn scales_and_rounding_that_look_at_the_inputs_are_closer_still() {
    let directory = tempfile::tempdir().unwrap();
    let prepared = prepare("smollm2", PreparationOptions::default());
    let set = load_calibration(&prepared, &data(directory.path(), None)).unwrap();
    let mut options = with_recipe(Recipe::uniform(QuantDtype::A16W4Block, 16).unwrap());
    let first = run(&prepared, &set, &options, None, &directory.path().join("plain")).unwrap();
    let observations = ObservationsFile::open(&directory.path().join("plain/observations.json")).unwrap();
    let plain = logits_db(&first);
    let search = |granularity| ScaleSearch::SeqMse { candidates: 10, granularity };
    for (name, scales, rounding) in [
        ("layer", search(SearchGranularity::Layer), Rounding::Nearest),
        ("block", search(SearchGranularity::Block), Rounding::Nearest),
        ("gptq", ScaleSearch::MinMax, Rounding::GPTQ),
        ("both", search(SearchGranularity::Block), Rounding::GPTQ),
    ] {
        options.weights = WeightOptions { scales, rounding };
        let model = run(&prepared, &set, &options, Some(observations.clone()), &directory.path().join(name)).unwrap();
        let better = logits_db(&model) - plain;
        assert!(better > if rounding == Rounding::GPTQ { 1.0 } else { -0.2 }, "{name}: {better} dB");
    }
}

#[test]
fn every_observer_and_an_8_bit_cache_give_a_model() {
    let directory = tempfile::tempdir().unwrap();
    let prepared =
        prepare("gemma3", PreparationOptions { r3: Some(true), masked_softmax: Some(true), ..Default::default() });
    let set = load_calibration(&prepared, &data(directory.path(), None)).unwrap();
    for (name, kind) in [
        ("moving", ObserverKind::MovingAverage(0.2)),
        ("histogram", ObserverKind::Histogram),
        ("percentile", ObserverKind::Percentile(0.9999)),
    ] {
        let mut recipe = Recipe::uniform(QuantDtype::A16W8, 0).unwrap();
        recipe.set_observer(kind).unwrap();
        recipe.set_kv8(true);
        let model = run(&prepared, &set, &with_recipe(recipe), None, &directory.path().join(name)).unwrap();
        assert!(logits_db(&model) > 15.0, "{name}: {}", logits_db(&model));
    }
}

#[test]
fn shards_join_to_what_the_whole_gives_and_an_interrupted_run_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let prepared = prepare("smollm2", PreparationOptions::default());
    let mut recipe = Recipe::uniform(QuantDtype::A16W8, 0).unwrap();
    recipe
        .add(Rule {
            observer: ObserverKind::Histogram,
            ..Rule::for_name("w2", QuantDtype::A16W8, WeightGranularity::PerChannel)
        })
        .unwrap();
    let options = QuantizeOptions { tokens_at_once: 30, ..with_recipe(recipe) };
    let look = |shard: Option<Shard>, name: &str, stop_after: usize| {
        let set = load_calibration(&prepared, &data(directory.path(), shard)).unwrap();
        let mut calls = 0;
        observe(&prepared, &set, &options, Some(2), &directory.path().join(name), &mut |_| {
            calls += 1;
            if calls > stop_after { Err(Error::Cancelled) } else { Ok(()) }
        })
    };
    let whole = look(None, "whole.json", usize::MAX).unwrap();
    let parts = (1..=3).map(|i| look(Some(Shard::new(i, 3).unwrap()), &format!("part{i}.json"), usize::MAX).unwrap());
    let parts = parts.collect::<Vec<_>>();
    let joined = parts[2].clone().merge(&parts[0]).unwrap().merge(&parts[1]).unwrap();
    assert_eq!(joined.observed, whole.observed);
    assert_eq!(joined.calibration.samples, whole.calibration.samples);
    assert!(joined.clone().merge(&joined).unwrap_err().to_string().contains("same samples"));

    assert!(matches!(look(None, "again.json", 60), Err(Error::Cancelled)));
    let half = ObservationsFile::open(&directory.path().join("again.json")).unwrap();
    assert!(half.observed.samples > 0 && half.observed.samples < whole.observed.samples);
    assert_eq!(look(None, "again.json", usize::MAX).unwrap().observed, whole.observed);
    let error = look(Some(Shard::new(1, 2).unwrap()), "again.json", usize::MAX).unwrap_err().to_string();
    assert!(error.contains("other samples"), "{error}");
}

#[test]
fn what_was_asked_for_by_mistake_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let prepared = prepare("smollm2", PreparationOptions::default());
    let set = load_calibration(&prepared, &data(directory.path(), None)).unwrap();
    let out = directory.path().join("model");
    let refuse = |options: &QuantizeOptions| run(&prepared, &set, options, None, &out).unwrap_err().to_string();
    let error = refuse(&QuantizeOptions::default());
    assert!(error.contains("no recipe") && error.contains("KV cache"), "{error}");
    let error = refuse(&with_recipe(Recipe::uniform(QuantDtype::A16W4Block, 48).unwrap()));
    assert!(error.contains("blocks of 48") && error.contains("layers.0."), "{error}");
    assert!(!out.exists(), "nothing under the final name");

    let mut recipe = Recipe::uniform(QuantDtype::A16W8, 0).unwrap();
    recipe.add(Rule::for_name("layers.99", QuantDtype::A16W8, WeightGranularity::PerChannel)).unwrap();
    let model = run(&prepared, &set, &with_recipe(recipe), None, &out).unwrap();
    assert!(model.report().warnings.iter().any(|text| text.contains("layers.99")), "{:?}", model.report().warnings);
    let before = std::fs::read(out.join("manifest.json")).unwrap();
    let mut calls = 0;
    let options = with_recipe(Recipe::uniform(QuantDtype::A16W8, 0).unwrap());
    let input = QuantizationInput {
        prepared: &prepared,
        set: &set,
        options: &options,
        observations: None,
        threads: None,
        unfinished: None,
        stages: Vec::new(),
    };
    let cancelled = quantize(input, &out, &mut |_| {
        calls += 1;
        if calls > 40 { Err(Error::Cancelled) } else { Ok(()) }
    });
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    assert_eq!(std::fs::read(out.join("manifest.json")).unwrap(), before, "what was there is still there");
    let left = std::fs::read_dir(directory.path())
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(left.count(), 0, "nothing unfinished is left");
}

#[test]
fn random_data_says_what_it_is_and_padding_widens_what_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let prepared = prepare("smollm2", PreparationOptions::default());
    let random = RandomData { samples: 2, length: 20, seed: 1 };
    let options = DatasetOptions { random: Some(random), max_context: CONTEXT, ..DatasetOptions::default() };
    let set = load_calibration(&prepared, &options).unwrap();
    let mut options = with_recipe(Recipe::uniform(QuantDtype::A16W8, 0).unwrap());
    let model = run(&prepared, &set, &options, None, &directory.path().join("random")).unwrap();
    assert!(model.report().calibration.smoke_only);
    assert!(model.report().warnings.iter().any(|text| text.contains("smoke tests only")));
    options.observe_padding = true;
    let padded = run(&prepared, &set, &options, None, &directory.path().join("padded")).unwrap();
    let ranges = |model: &QuantizedModel| {
        let all = &model.report().components[DECODER].activations;
        all.iter().filter_map(|activation| activation.seen).collect::<Vec<_>>()
    };
    let (real, padded) = (ranges(&model), ranges(&padded));
    // Longer products are summed in another order, so the last digits differ.
    let slack = |value: f32| value.abs() * 1e-4 + 1e-6;
    assert!(real.iter().zip(&padded).all(|(a, b)| b.min <= a.min + slack(a.min) && b.max >= a.max - slack(a.max)));
    assert_ne!(real, padded, "padding rows see values of their own");
}

#[test]
fn perplexity_is_that_of_the_graphs_that_are_deployed() {
    let directory = tempfile::tempdir().unwrap();
    let prepared = prepare("smollm2", PreparationOptions::default());
    let set = load_calibration(&prepared, &data(directory.path(), None)).unwrap();
    let options = QuantizeOptions {
        residual: ResidualChannels::AsTheyAre,
        ..with_recipe(Recipe::uniform(QuantDtype::A16W8, 0).unwrap())
    };
    let out = directory.path().join("model");
    let model = run(&prepared, &set, &options, None, &out).unwrap();
    let tokens = (0..100u32).map(|i| i * 13 % 500).collect::<Vec<_>>();
    let options = EvalOptions { window: 20, full_windows_only: false };
    let whole = model.perplexity(&tokens, &options, Some(2), &mut |_, _, _| Ok(())).unwrap();
    let mut runner = etgenai::pipeline::open_runner(&out, &Default::default()).unwrap();
    let deployed = runner.evaluate(&tokens, &options, &mut |_| etgenai::runner::Flow::Continue).unwrap();
    assert_eq!(whole.scored_tokens, deployed.scored_tokens);
    assert!((whole.perplexity / deployed.perplexity - 1.0).abs() < 2e-3, "{whole:?} {deployed:?}");
}
