//! What is made of a quantized model for others: encodings, suggestions.

use super::{Case, FAMILIES, blocks, open_component, quantize_with, quantized, wide};
use etgenai::graph::WeightProvider;
use etgenai::pipeline::{QuantizedModel, save_suggestion};
use etgenai::quantize::{AimetVersion, Encoding, QuantizeOptions, Recipe, qdq::StoredForm};
use serde_json::Value;

/// The encodings of a component, as they are written to a file.
fn encodings(model: &QuantizedModel, component: &str, version: AimetVersion) -> etgenai::Result<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.encodings");
    model.save_aimet_encodings(component, version, &path)?;
    Ok(serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
}

/// The entry of a tensor, brought into one form: a list with bits, scale and offset a channel.
fn entry(document: &Value, section: &str, name: &str) -> Vec<(u64, f32, i64)> {
    let triple = |bits: &Value, scale: &Value, offset: &Value| {
        (bits.as_u64().unwrap(), scale.as_f64().unwrap() as f32, offset.as_i64().unwrap())
    };
    match &document[section] {
        Value::Object(map) => {
            let list = map[name].as_array().unwrap();
            list.iter().map(|e| triple(&e["bitwidth"], &e["scale"], &e["offset"])).collect()
        }
        list => {
            let e = find(list, name);
            let (scales, offsets) = (e["scale"].as_array().unwrap(), e["offset"].as_array().unwrap());
            assert_eq!(scales.len(), offsets.len());
            scales.iter().zip(offsets).map(|(scale, offset)| triple(&e["bw"], scale, offset)).collect()
        }
    }
}

fn find<'v>(list: &'v Value, name: &str) -> &'v Value {
    list.as_array().unwrap().iter().find(|e| e["name"] == name).unwrap_or_else(|| panic!("no entry {name}"))
}

/// What a converter makes of a value: an unsigned integer, and what that means.
fn convert(value: f32, (bits, scale, offset): (u64, f32, i64)) -> f32 {
    // The largest integer of 32 bits is no f32: what it means was rounded up.
    let level = ((f64::from(value) / f64::from(scale)).round() as i64 - offset).min((1i64 << 32) - 1);
    assert!((0..1i64 << bits).contains(&level), "{value} is outside of the grid");
    ((level + offset) as f64 * f64::from(scale)) as f32
}

fn check_activations(model: &QuantizedModel, document: &Value, component: &str) {
    let (file, _) = open_component(model, component);
    let graphs = model.graphs().deployed(component).unwrap();
    for (name, encoding) in file.encodings.iter() {
        let exported = match name.split_once('#') {
            Some((node, operand)) => format!("{node}.operand{operand}.qdq"),
            None if graphs.iter().any(|g| g.values.iter().any(|v| v.info.name == name)) => name.to_owned(),
            None => panic!("{name} is the name of no tensor"),
        };
        let found = entry(document, "activation_encodings", &exported);
        assert_eq!(found.len(), 1);
        check_grid(found[0], encoding, name);
    }
    // Caches and their new columns are in the file too, on one grid.
    if component == "text_decoder" {
        let grid = |name| entry(document, "activation_encodings", name);
        assert_eq!(grid("k_cache_0"), grid("k_out_0"));
        assert_eq!(grid("v_cache_0"), grid("v_out_0"));
    }
}

/// Every integer of the grid means the same by the formula of the file.
fn check_grid((bits, scale, offset): (u64, f32, i64), encoding: Encoding, name: &str) {
    let signed = if encoding.qmin < 0 { 1i64 << (bits - 1) } else { 0 };
    for level in [encoding.qmin, encoding.zero_point, encoding.qmax] {
        let stored = i64::from(level) + signed;
        assert!((0..1i64 << bits).contains(&stored), "{name}: {level} in {bits} bits");
        assert_eq!((stored + offset) as f32 * scale, encoding.dequantize(level), "{name}: {level}");
    }
}

fn check_weights(model: &QuantizedModel, document: &Value, component: &str) {
    let (file, weights) = open_component(model, component);
    for (name, stored) in &file.weights {
        let (rows, cols) = stored.rows().unwrap();
        let mut values = vec![0.0; rows * cols];
        weights.read_rows(name, 0..rows, &mut values).unwrap();
        let scales = match stored.form {
            StoredForm::Blocks { size, .. } => block_scales(find(&document["param_encodings"], name), size, cols),
            StoredForm::Float => {
                assert_eq!(find(&document["param_encodings"], name)["dtype"], "FLOAT");
                continue;
            }
            _ => entry(document, "param_encodings", name),
        };
        // One for all, one a channel (an element of a bias), or one a block.
        assert_eq!(values.len() % scales.len(), 0, "{name}");
        let share = values.len() / scales.len();
        for (at, &value) in values.iter().enumerate() {
            let again = convert(value, scales[at / share]);
            assert!((again - value).abs() <= value.abs() * 1e-6, "{name} {at}: {value} became {again}");
        }
    }
}

/// Bits, scale and offset of every block, from the JSON alone.
fn block_scales(entry: &Value, size: usize, cols: usize) -> Vec<(u64, f32, i64)> {
    assert_eq!((&entry["enc_type"], &entry["is_sym"]), (&"LPBQ".into(), &true.into()));
    assert_eq!((entry["bw"].as_u64(), entry["compressed_bw"].as_u64()), (Some(8), Some(4)));
    assert_eq!(entry["block_size"], size);
    let multipliers = entry["per_block_int_scale"].as_array().unwrap();
    let scales = entry["scale"].as_array().unwrap();
    assert_eq!(multipliers.len(), scales.len() * (cols / size));
    assert!(entry["offset"].as_array().unwrap().iter().all(|offset| *offset == -128));
    let bits = entry["compressed_bw"].as_u64().unwrap();
    let scale = |(at, multiplier): (usize, &Value)| {
        let channel = scales[at / (cols / size)].as_f64().unwrap() as f32;
        (bits, channel * multiplier.as_u64().unwrap() as f32, -(1i64 << (bits - 1)))
    };
    multipliers.iter().enumerate().map(scale).collect()
}

#[test]
fn encodings_mean_what_the_file_of_integers_means() {
    for family in FAMILIES {
        for case in [wide(family), blocks(family), Case { kv8: true, ..wide(family) }] {
            let model = quantized(case);
            for component in model.graphs().components() {
                let document = encodings(&model, component, AimetVersion::V1_0_0).unwrap();
                assert_eq!(document["version"], "1.0.0");
                check_activations(&model, &document, component);
                check_weights(&model, &document, component);
            }
        }
    }
}

#[test]
fn the_older_version_says_the_same_as_far_as_it_can() {
    for family in ["smollm2", "qwen2"] {
        let model = quantized(wide(family));
        let document = encodings(&model, "text_decoder", AimetVersion::V0_6_1).unwrap();
        assert_eq!(document["version"], "0.6.1");
        check_activations(&model, &document, "text_decoder");
        check_weights(&model, &document, "text_decoder");
        let mask = &document["activation_encodings"]["attention_mask"][0];
        assert_eq!(
            (&mask["offset"], &mask["is_symmetric"], &mask["bitwidth"]),
            (&(-65535).into(), &"False".into(), &16.into())
        );
        assert!((mask["min"].as_f64().unwrap() + 255.0).abs() < 1e-4 && mask["max"].as_f64() == Some(0.0));
        let matrix = document["param_encodings"]["layers.0.attention.wq.weight"].as_array().unwrap();
        assert_eq!(
            (matrix.len(), &matrix[0]["offset"], &matrix[0]["is_symmetric"]),
            (64, &(-128).into(), &"True".into())
        );
        assert_eq!(matrix[0]["dtype"], "int");
    }
    let error = encodings(&quantized(blocks("smollm2")), "text_decoder", AimetVersion::V0_6_1).unwrap_err().to_string();
    assert!(error.contains("layers.0.") && error.contains("export version 1.0.0"), "{error}");
}

#[test]
fn biases_and_tables_have_encodings_of_their_own() {
    let document = encodings(&quantized(wide("qwen2")), "text_decoder", AimetVersion::V1_0_0).unwrap();
    let bias = find(&document["param_encodings"], "layers.0.attention.wq.bias");
    assert_eq!(
        (&bias["bw"], &bias["enc_type"], &bias["offset"][0]),
        (&32.into(), &"PER_CHANNEL".into(), &i32::MIN.into())
    );
    let table = find(&document["param_encodings"], "tok_embeddings.weight");
    assert_eq!((&table["bw"], &table["enc_type"], &table["is_sym"]), (&16.into(), &"PER_TENSOR".into(), &false.into()));
}

#[test]
fn a_component_that_stayed_float_has_nothing_to_export() {
    let out = tempfile::tempdir().unwrap();
    let options =
        QuantizeOptions { encoder: etgenai::quantize::EncoderPrecision::Float, ..super::options(wide("smolvlm")) };
    let model = quantize_with("smolvlm", &options, &out.path().join("model"));
    let error = encodings(&model, "vision_encoder", AimetVersion::V1_0_0).unwrap_err().to_string();
    assert!(error.contains("vision_encoder") && error.contains("not quantized"), "{error}");
    assert!(encodings(&model, "speech", AimetVersion::V1_0_0).unwrap_err().to_string().contains("text_decoder"));
}

#[test]
fn suggested_recipes_can_be_quantized_with() {
    let model = quantized(blocks("smollm2"));
    let suggestion = model.suggest("text_decoder").unwrap();
    // The inputs of all matrices are 64 or 160.
    assert_eq!(suggestion.recipes.iter().map(|r| r.block).collect::<Vec<_>>(), [16, 32]);
    // 3 layers in 5 parts: each by itself, with 7 matrices; and the head.
    assert_eq!(suggestion.groups.len(), 3 * 7 + 1);
    let dir = tempfile::tempdir().unwrap();
    let written = save_suggestion(&suggestion, &dir.path().join("new")).unwrap();
    assert_eq!(written.len(), 3);
    let csv = std::fs::read_to_string(&written[0]).unwrap();
    assert_eq!(csv.lines().count(), 3 * 7 + 2);
    let recipe = Recipe::from_json(&std::fs::read_to_string(&written[2]).unwrap(), "suggested").unwrap();
    assert!(recipe.kv8());
    let mut options = QuantizeOptions { report_samples: 0, ..QuantizeOptions::default() };
    options.recipes.insert("text_decoder".into(), recipe);
    let again = quantize_with("smollm2", &options, &dir.path().join("model"));
    assert!(again.report().warnings.is_empty(), "every rule decides about something: {:?}", again.report().warnings);
    let error = again.suggest("text_decoder").unwrap_err().to_string();
    assert!(error.contains("not compared"), "{error}");
}

/// The command, its exit code, and what it printed.
fn inspect(arguments: &[&std::ffi::OsStr]) -> (Option<i32>, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_etgenai")).arg("inspect").args(arguments).output();
    let output = output.expect("the command runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_command_compares_exports_and_suggests() {
    let folder = |case| super::json_path(&quantized(case), "text_decoder").parent().unwrap().to_path_buf();
    let (first, second) = (folder(wide("smollm2")), folder(blocks("smollm2")));
    let dir = tempfile::tempdir().unwrap();
    let (page, aimet, suggested) =
        (dir.path().join("page.html"), dir.path().join("x.json"), dir.path().join("recipes"));
    let text = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media");
    let some = |text: &'static str| std::ffi::OsStr::new(text);
    let (code, printed) = inspect(&[first.as_os_str(), second.as_os_str(), some("--html"), page.as_os_str()]);
    assert_eq!(code, Some(0), "{printed}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("Side by side") && html.contains("smollm2-16a8w-false"), "both stand on the page");
    assert!(html.contains("smollm2-16a4w_block-false") && printed.contains("page.html"));
    let arguments = [second.as_os_str(), some("--aimet"), aimet.as_os_str(), some("--suggest"), suggested.as_os_str()];
    let (code, printed) = inspect(&arguments);
    assert_eq!((code, aimet.exists(), std::fs::read_dir(&suggested).unwrap().count()), (Some(0), true, 3), "{printed}");
    let (code, printed) =
        inspect(&[first.as_os_str(), some("--aimet"), aimet.as_os_str(), some("--aimet-version"), some("3")]);
    assert!(code != Some(0) && printed.contains("0.6.1, 1.0.0"), "{printed}");
    let (code, printed) = inspect(&[first.as_os_str(), text.as_os_str(), some("--html"), page.as_os_str()]);
    assert!(code != Some(0) && printed.contains("media"), "{printed}");
}
