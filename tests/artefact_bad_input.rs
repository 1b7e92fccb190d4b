//! Promise: truncated, corrupt and hostile artefacts are refused with an error that names file and field; nothing
//! panics, whatever the bytes.

mod support;

use etgenai::artefact::{Artefact, Component};
use etgenai::engine::cpu::{CpuEngine, CpuOptions};
use etgenai::engine::{Engine, ExecuteOptions};
use etgenai::error::Error;
use etgenai::formats::WeightFormat;
use etgenai::graph::Tensor;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use support::compile;

/// One compiled tiny model: the directory, and its component and manifest as bytes.
struct Compiled {
    _directory: tempfile::TempDir,
    path: PathBuf,
    component: Vec<u8>,
    manifest: Vec<u8>,
}

static COMPILED: LazyLock<Compiled> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    compile("llama", &path, WeightFormat::W4, 64, 8);
    let component = fs::read(path.join("text_decoder.safetensors")).unwrap();
    let manifest = fs::read(path.join("manifest.json")).unwrap();
    Compiled { _directory: directory, path, component, manifest }
});

fn engine() -> CpuEngine {
    CpuEngine::new(CpuOptions { threads: Some(1), kernels: None })
}

/// Load a component from bytes and, if that works, run every graph on zeros.
fn load_and_run(bytes: &[u8]) -> etgenai::Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.safetensors");
    fs::write(&path, bytes).unwrap();
    let mut component = engine().load_file(&path)?;
    for graph in 0..component.graphs().len() {
        let signature = component.graphs()[graph].clone();
        let tensors = |infos: &[etgenai::graph::TensorInfo]| {
            infos.iter().map(|info| Tensor::zeros(info.clone())).collect::<etgenai::Result<Vec<_>>>()
        };
        let (inputs, mut outputs) = (tensors(&signature.inputs)?, tensors(&signature.outputs)?);
        let inputs = inputs.iter().map(Tensor::view).collect::<Vec<_>>();
        let mut outputs = outputs.iter_mut().map(Tensor::view_mut).collect::<Vec<_>>();
        component.execute(graph, &inputs, &mut outputs, &ExecuteOptions::default())?;
    }
    Ok(())
}

fn open_component(bytes: &[u8]) -> Error {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.safetensors");
    fs::write(&path, bytes).unwrap();
    Component::open(&path).expect_err("a broken component")
}

/// A copy of the artefact that a test may damage.
fn copy() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&COMPILED.path).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
    }
    directory
}

fn open_artefact(directory: &Path) -> Error {
    Artefact::open(directory).expect_err("a broken artefact")
}

#[test]
fn the_undamaged_file_loads() {
    load_and_run(&COMPILED.component).unwrap();
    Artefact::open(&COMPILED.path).unwrap().verify_hashes().unwrap();
}

#[test]
fn every_truncation_is_refused() {
    let bytes = &COMPILED.component;
    let step = (bytes.len() / 200).max(1);
    for length in (0..bytes.len()).step_by(step).chain([1, 7, 8, 9, bytes.len() - 1]) {
        let error = open_component(&bytes[..length]);
        assert!(matches!(error, Error::Format { .. }), "{length}: {error}");
        assert!(error.to_string().contains("c.safetensors"), "{error}");
    }
    let longer = [bytes.as_slice(), b"more"].concat();
    assert!(open_component(&longer).to_string().contains("follow"));
}

#[test]
fn a_header_that_claims_too_much_allocates_nothing() {
    for claim in [u64::MAX, u64::MAX / 2, 1 << 40] {
        let mut bytes = COMPILED.component.clone();
        bytes[..8].copy_from_slice(&claim.to_le_bytes());
        assert!(open_component(&bytes).to_string().contains("claims"), "{claim}");
    }
    // Tensors whose ends add up to more than an address can hold.
    let half = 1u64 << 60;
    let tensors = (0..16u64).map(|i| {
        let (start, end) = (i * (half - 1), (i + 1) * (half - 1));
        format!("\"t{i}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}", half - 1)
    });
    let header = format!("{{{}}}", tensors.collect::<Vec<_>>().join(","));
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    assert!(matches!(open_component(&bytes), Error::Format { .. }));
}

/// Replace text in the component's header, keeping its length.
fn with_header(from: &str, to: &str) -> Vec<u8> {
    let bytes = &COMPILED.component;
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
    assert!(header.contains(from), "{from} is not in the header");
    let mut header = header.replace(from, to).trim_end().to_string();
    header.push_str(&" ".repeat((64 - (8 + header.len()) % 64) % 64));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat()
}

#[test]
fn errors_name_the_field() {
    let cases = [
        (with_header("etgenai-component", "somebody-elses"), "format"),
        (with_header("\"version\":\"1\"", "\"version\":\"2\""), "version"),
        (with_header("\\\"op\\\":\\\"silu\\\"", "\\\"op\\\":\\\"magic\\\""), "graphs"),
        (with_header("\"norm.weight\"", "\"mean.weight\""), "mean.weight"),
        (with_header("\\\"w4\\\"", "\\\"w8\\\""), "takes"),
        (with_header("\\\"panels\\\"", "\\\"plain\\\""), "stored as"),
        (with_header("\\\"shape\\\":[1,1,64]", "\\\"shape\\\":[1,1,65]"), "graphs"),
    ];
    for (bytes, field) in cases {
        let error = open_component(&bytes);
        assert!(matches!(error, Error::Format { .. }), "{field}: {error}");
        assert!(error.to_string().contains(field), "{field} is missing in: {error}");
    }
}

#[test]
fn manifests_are_checked() {
    let text = String::from_utf8(COMPILED.manifest.clone()).unwrap();
    let cases = [
        ("\"schema_version\": 1", "\"schema_version\": 2", "schema_version"),
        ("\"schema_version\": 1", "\"schema_version\": \"one\"", "line"),
        ("etgenai-artefact", "something-else", "format"),
        ("\"file\": \"text_decoder.safetensors\"", "\"file\": \"../text_decoder.safetensors\"", "plain file name"),
        ("\"file\": \"text_decoder.safetensors\"", "\"file\": \"/etc/passwd\"", "plain file name"),
        ("\"tokenizer\": \"tokenizer.json\"", "\"tokenizer\": \"a\\\\b\"", "plain file name"),
        ("\"tokenizer\": \"tokenizer.json\"", "\"tokenizer\": \"\"", "plain file name"),
        ("\"prefill_ar\": 8", "\"prefill_ar\": 64", "prefill_ar"),
        ("\"prefill_ar\": 8", "\"prefill_ar\": -8", "line"),
        ("\"bytes\": ", "\"bytes\": 1", "bytes"),
    ];
    for (from, to, part) in cases {
        assert!(text.contains(from), "{from} is not in the manifest");
        let directory = copy();
        fs::write(directory.path().join("manifest.json"), text.replace(from, to)).unwrap();
        let error = open_artefact(directory.path()).to_string();
        assert!(error.contains("manifest.json") && error.contains(part), "{to}: {error}");
    }
    for length in [0, 1, text.len() / 2, text.len() - 3] {
        let directory = copy();
        fs::write(directory.path().join("manifest.json"), &text[..length]).unwrap();
        assert!(matches!(open_artefact(directory.path()), Error::Format { .. }));
    }
}

#[test]
fn missing_and_exchanged_files_are_noticed() {
    let directory = copy();
    fs::remove_file(directory.path().join("text_decoder.safetensors")).unwrap();
    assert!(matches!(open_artefact(directory.path()), Error::NotFound(_)));
    let directory = copy();
    fs::remove_file(directory.path().join("manifest.json")).unwrap();
    assert!(open_artefact(directory.path()).to_string().contains("not a compiled model"));
    assert!(matches!(open_artefact(Path::new("no/such/folder")), Error::NotFound(_)));

    let directory = copy();
    let path = directory.path().join("text_decoder.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let artefact = Artefact::open(directory.path()).unwrap();
    let error = artefact.verify_hashes().unwrap_err().to_string();
    assert!(error.contains("components.text_decoder.sha256"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..8)) {
        let mut bytes = COMPILED.component.clone();
        for (at, flip) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        // Weights may take any value; then the graphs still run.
        if let Err(error) = load_and_run(&bytes) {
            prop_assert!(!matches!(error, Error::Internal(_)), "{}", error);
        }
    }

    #[test]
    fn flipped_header_bytes_never_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"0123456789[]{},:\"\\ ae-.".to_vec())), 1..4)
    ) {
        let mut bytes = COMPILED.component.clone();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (at, byte) in flips {
            bytes[8 + at.index(length)] = byte;
        }
        if let Err(error) = load_and_run(&bytes) {
            prop_assert!(!matches!(error, Error::Internal(_)), "{}", error);
        }
    }

    #[test]
    fn flipped_manifest_bytes_never_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let mut bytes = COMPILED.manifest.clone();
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let directory = copy();
        fs::write(directory.path().join("manifest.json"), bytes).unwrap();
        if let Ok(artefact) = Artefact::open(directory.path()) {
            let _ = artefact.summary();
            let _ = artefact.verify_hashes();
        }
    }
}
