use super::*;
use crate::artefact::FormatSummary;
use crate::models::DecoderForm;
use crate::pipeline::report::StageCost;
use crate::quantize::qdq::{StoredWeight, WeightSummary};
use crate::quantize::{Encoding, ModelGraphs, ModelMode, QuantizeOptions};
use crate::registry::ModelSpec;
use serde_json::json;
use std::collections::BTreeMap;

fn graphs() -> ModelGraphs {
    let config = json!({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "vocab_size": 32, "max_position_embeddings": 64});
    ModelGraphs {
        model: ModelSpec::from_config(config.as_object().unwrap()).unwrap(),
        form: DecoderForm::default(),
        context_capacity: 16,
        prefill_ar: 4,
        decode_ar: 1,
        mode: ModelMode::Hybrid,
    }
}

fn layer(name: &str, sqnr_db: &[Option<f64>]) -> LayerError {
    LayerError { layer: name.into(), sqnr_db: sqnr_db.to_vec() }
}

fn report(nasty: &str) -> QuantizationReport {
    let mut format = FormatSummary::default();
    format.add(1000, 500);
    let stored = StoredWeight {
        shape: vec![10, 100],
        dtype: crate::graph::DType::I8,
        form: StoredForm::Blocks { size: 20, qmin: -7, qmax: 7 },
    };
    let weight = WeightSummary {
        name: format!("{nasty}.weight"),
        stored,
        bits: 4,
        levels: Some((-7, 6)),
        saturated: 0.125,
        device_bytes: 500,
    };
    let activation = ActivationReport {
        name: format!("{nasty}.x"),
        encoding: Encoding { scale: 0.5, zero_point: 2, qmin: 0, qmax: 65535 },
        seen: Some(ValueRange::new(-1.0, 32000.0)),
        clipped: 0.25,
        observer: Some(ObserverKind::Percentile(0.999)),
    };
    let component = ComponentReport {
        precision: "16a4w_block".into(),
        bytes: 2_000_000,
        device_bytes: 500,
        formats: BTreeMap::from([("int4".to_owned(), format)]),
        weights: vec![weight],
        activations: vec![activation],
        layers: vec![
            layer("good", &[Some(40.0), Some(50.0)]),
            layer("exact", &[None]),
            layer(nasty, &[Some(7.0), Some(3.0)]),
        ],
        seconds: BTreeMap::from([("ranges".to_owned(), 1.5)]),
    };
    QuantizationReport {
        model: "tiny".into(),
        generator: "etgenai test".into(),
        graphs: graphs(),
        options: QuantizeOptions::default(),
        calibration: CalibrationSummary { samples: 2, tokens: 77, fingerprint: "ab<c".into(), ..Default::default() },
        components: BTreeMap::from([("text_decoder".to_owned(), component)]),
        warnings: vec![format!("a rule matches nothing: {nasty}")],
        stages: vec![StageCost { stage: "quantization".into(), seconds: 2.5, peak_memory_bytes: Some(1_230_000_000) }],
    }
}

const NASTY: &str = "</td><script>alert(\"&'\")</script>";

#[test]
fn a_page_needs_nothing_from_outside_and_obeys_nothing_from_a_report() {
    let html = page(&[(NASTY, &report(NASTY), Some(23.5))]);
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    assert!(!html.contains("<script") && !html.contains("http") && !html.contains("<link") && !html.contains("src="));
    // The name stands in the title, headings, tables and plots, escaped.
    assert!(html.matches("&lt;/td&gt;&lt;script&gt;alert(&quot;&amp;&#39;&quot;)").count() >= 6, "{html}");
    assert!(html.contains("ab&lt;c"));
    let mut depth = 0i32;
    for tag in ["table", "tr", "td", "th", "svg", "figure", "details", "pre", "h3"] {
        let (opened, closed) = (html.matches(&format!("<{tag}>")).count(), html.matches(&format!("</{tag}>")).count());
        let with_attributes = html.matches(&format!("<{tag} ")).count();
        assert_eq!(opened + with_attributes, closed, "{tag}");
        depth += i32::from(closed > 0);
    }
    assert_eq!(depth, 9, "every kind of element was looked at");
}

#[test]
fn everything_of_the_report_is_on_it() {
    let html = page(&[("plain", &report("layers.0.wq"), Some(23.456_78))]);
    for text in [
        "23.457",
        "16a4w_block",
        "2.00 MB",
        "1.23 GB",
        "int4",
        "one a block of 20",
        "-7 to 6",
        "12.500 %",
        "25.0000 %",
        "percentile 0.999",
        "77 tokens",
        "a rule matches nothing",
        "tokens_at_once",
        "context_capacity",
        "Not compared",
    ] {
        let expected = text != "Not compared";
        assert_eq!(html.contains(text), expected, "{text}");
    }
    assert!(!html.contains("banner\">"));
    let place = |text: &str| html.find(&format!("<td>{text}</td>")).expect(text);
    assert!(place("layers.0.wq") < place("good") && place("good") < place("exact"), "the worst layer comes first");
    // Mean and worst sample of the worst layer.
    assert!(html.contains("<td>layers.0.wq</td><td class=\"n\">5.0</td><td class=\"n\">3.0</td>"));
}

#[test]
fn random_data_is_announced_in_big_letters() {
    let mut smoke = report("x");
    smoke.calibration.smoke_only = true;
    let html = page(&[("good", &report("x"), None), ("random", &smoke, None)]);
    assert_eq!(html.matches("class=\"banner\">Smoke only: random was").count(), 1);
}

#[test]
fn reports_stand_side_by_side() {
    let (a, mut b) = (report("x"), report("x"));
    b.components.get_mut("text_decoder").unwrap().layers[0].sqnr_db = vec![Some(20.0)];
    b.components.get_mut("text_decoder").unwrap().layers.truncate(1);
    let html = page(&[("first", &a, Some(30.0)), ("second", &b, None)]);
    assert!(
        html.contains("Side by side")
            && html.contains("<td>good</td><td class=\"n\">45.0</td><td class=\"n\">20.0</td>")
    );
    assert!(html.contains("<td>x</td><td class=\"n\">5.0</td><td class=\"n\">–</td>"), "a layer that one model lacks");
    assert!(html.contains("30.000") && html.contains("not measured"));
    assert!(!page(&[("first", &a, None)]).contains("Side by side"));
}
