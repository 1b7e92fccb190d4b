//! Chat templates render as Hugging Face's Jinja does, and a bad template ends in an error that says where.

use std::fs;
use std::path::PathBuf;

use chrono::NaiveDate;
use etgenai::Error;
use etgenai::chat::{ChatTemplate, Message, Part, RenderOptions, Role, SpecialTokens};
use serde_json::{Value, json};

fn fixture(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat_templates").join(file);
    fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: it belongs to the repository", path.display()))
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_source(source, &SpecialTokens::default()).unwrap()
}

fn render(source: &str) -> Result<String, Error> {
    template(source).render(&[Message::user("Hello")], &RenderOptions::default())
}

fn failure(source: &str) -> String {
    let compiled = ChatTemplate::from_source(source, &SpecialTokens::default());
    let rendered = compiled.and_then(|template| template.render(&[Message::user("Hello")], &RenderOptions::default()));
    rendered.unwrap_err().to_string()
}

/// A message of a fixture as a typed one, if text is all it holds.
fn typed(message: &Value) -> Option<Message> {
    let role: Role = message["role"].as_str()?.parse().ok()?;
    let parts = match &message["content"] {
        Value::String(text) => vec![Part::Text(text.clone())],
        Value::Array(parts) => {
            parts.iter().map(|part| Some(Part::Text(part["text"].as_str()?.to_string()))).collect::<Option<_>>()?
        }
        _ => return None,
    };
    Some(Message { role, parts })
}

#[test]
fn certain_renderings_are_equal_strings() {
    let goldens: Value = serde_json::from_str(&fixture("rendered.json")).unwrap();
    let models =
        ["smollm2", "smolvlm", "smolvlm2", "internvl3", "qwen2_5_instruct", "qwen3", "phi4_mini", "granite_3_3"];
    let (mut cases, mut typed_cases) = (0, 0);
    for model in models {
        let golden = &goldens[model];
        assert!(golden["certainty"].as_str().unwrap().starts_with("certain"), "{model}");
        let text = |key: &str| golden[key].as_str().map(str::to_string);
        let special =
            SpecialTokens { bos_token: text("bos_token"), eos_token: text("eos_token"), ..SpecialTokens::default() };
        let template = ChatTemplate::from_source(&fixture(&format!("{model}.jinja")), &special).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let messages = case["messages"].as_array().unwrap();
            let options = RenderOptions {
                add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
                extra: case["kwargs"].as_object().unwrap().clone(),
                now: None,
            };
            let expected = case["rendered"].as_str().unwrap();
            assert_eq!(template.render_json(messages, &options).unwrap(), expected, "{model} {}", case["chat"]);
            cases += 1;
            if let Some(messages) = messages.iter().map(typed).collect::<Option<Vec<_>>>() {
                assert_eq!(template.render(&messages, &options).unwrap(), expected, "{model} {}", case["chat"]);
                typed_cases += 1;
            }
        }
    }
    assert_eq!(cases, 124);
    assert!(typed_cases >= 90, "{typed_cases}");
}

#[test]
fn granite_writes_the_date_of_the_given_clock() {
    let template = template(&fixture("granite_3_3.jinja"));
    let now = NaiveDate::from_ymd_opt(2025, 4, 9).unwrap().and_hms_opt(1, 2, 3);
    let text = template.render(&[Message::user("Hi")], &RenderOptions { now, ..RenderOptions::default() }).unwrap();
    assert!(text.contains("Today's Date: April 09, 2025. You are Granite"), "{text}");
}

#[test]
fn strftime_codes_and_their_errors() {
    let options = RenderOptions {
        now: NaiveDate::from_ymd_opt(2024, 7, 6).unwrap().and_hms_opt(15, 4, 5),
        ..RenderOptions::default()
    };
    let render = |format: &str| template(&format!("{{{{ strftime_now('{format}') }}}}")).render(&[], &options);
    assert_eq!(render("%d %b %Y").unwrap(), "06 Jul 2024");
    assert_eq!(render("%-d %B %y %A %j").unwrap(), "6 July 24 Saturday 188");
    assert_eq!(render("%Y-%m-%dT%H:%M:%S %I %p %%").unwrap(), "2024-07-06T15:04:05 03 PM %");
    for bad in ["%Q", "%", "%z"] {
        assert!(render(bad).unwrap_err().to_string().contains("bad format"), "{bad}");
    }
}

#[test]
fn blocks_are_trimmed_and_a_final_newline_dropped() {
    assert_eq!(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n").unwrap(), "a\nb\nc");
    assert_eq!(render("  {{- 'x' }}\n\n").unwrap(), "x\n");
}

#[test]
fn python_spellings_of_values_and_methods() {
    assert_eq!(render("{{ true }} {{ none }} {{ 1.0 }} {{ missing }}|").unwrap(), "True None 1.0 |");
    assert_eq!(render("{{ ' a b '.strip().split(' ')[-1].upper() }}").unwrap(), "B");
    assert_eq!(render("{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.items()|list|length }}").unwrap(), "21");
    assert_eq!(
        render("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}").unwrap(),
        "012"
    );
    assert_eq!(render("{{ 'x' in missing }}{{ messages[0].missing is defined }}").unwrap(), "FalseFalse");
    assert_eq!(render("{{ tools is none }}{{ messages[0]['role'].title() }}").unwrap(), "TrueUser");
    assert_eq!(render("{{ messages[::-1]|length }}{{ 'a' ~ 1 }}{{ '%s-%d'|format('a', 2) }}").unwrap(), "1a1a-2");
}

#[test]
fn generation_tags_change_nothing() {
    let source =
        "{% for message in messages %}{%- generation -%} {{ message.content }}{% endgeneration %}!{% endfor %}";
    assert_eq!(render(source).unwrap(), "Hello!");
}

#[test]
fn tools_reach_the_template_as_json() {
    let tool = json!({"type": "function", "function": {"name": "f<1>", "parameters": {"z": 1, "a": [true, null]}}});
    let options =
        RenderOptions { extra: json!({"tools": [tool]}).as_object().unwrap().clone(), ..RenderOptions::default() };
    let template = template(&fixture("qwen3.jinja"));
    let text = template.render(&[Message::user("Hi")], &options).unwrap();
    let expected = r#"{"type": "function", "function": {"name": "f<1>", "parameters": {"z": 1, "a": [true, null]}}}"#;
    assert!(text.contains(expected), "{text}");
}

#[test]
fn content_has_the_form_the_template_walks() {
    let parts = "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}|{% endif %}{% endfor %}{% endfor %}";
    let text = "{% for m in messages %}{{ m['content'] }}|{% endfor %}";
    let mut message = Message::user("a");
    message.parts.push(Part::Text("b".into()));
    let options = RenderOptions::default();
    assert_eq!(template(parts).render(&[message.clone()], &options).unwrap(), "a|b|");
    assert_eq!(template(text).render(&[message], &options).unwrap(), "ab|");
}

#[test]
fn errors_name_template_line_and_reason() {
    let refused = failure("line\n\n{{ raise_exception('System role not supported') }}");
    assert_eq!(refused, "chat_template.jinja: line 3: System role not supported");
    let syntax = failure("fine\n{% for x in %}");
    assert!(syntax.starts_with("chat_template.jinja: line 2: "), "{syntax}");
    let runtime = failure("\n{{ messages[0].content.explode() }}");
    assert!(runtime.starts_with("chat_template.jinja: line 2: ") && runtime.contains("explode"), "{runtime}");
    let missing = failure("{{ missing.field.deeper }}");
    assert!(missing.starts_with("chat_template.jinja: line 1: "), "{missing}");
    let include = failure("{% include 'other' %}");
    assert!(include.contains("other"), "{include}");
}

#[test]
fn a_hostile_template_ends_in_an_error() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(90) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% for a in range(90000) %}{{ 'x' * 4000 }}{% endfor %}",
        "{{ 'x' * 999999999999 }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ 'a,b'.replace(',', 'x' * 90000000) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'a'|indent(width=999999999999) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{{ range(99999999999)|list|length }}",
        "{{ [[[[[1]]]]]|tojson(indent=99999999999999999999) }}",
    ] {
        let error = failure(source);
        assert!(error.starts_with("chat_template.jinja: "), "{source}: {error}");
    }
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(failure(&nested).starts_with("chat_template.jinja: "));
}

#[test]
fn a_long_conversation_is_not_a_hostile_one() {
    let messages: Vec<Message> = (0..1000)
        .flat_map(|turn| {
            [Message::user(format!("question {turn} ").repeat(20)), Message::assistant("answer ".repeat(50))]
        })
        .collect();
    for file in ["qwen3.jinja", "smollm2.jinja", "granite_3_3.jinja"] {
        let text = template(&fixture(file)).render(&messages, &RenderOptions::default()).unwrap();
        assert!(text.contains("question 999 "), "{file}");
    }
}

#[test]
fn upstream_templates_go_by_name() {
    let template = ChatTemplate::compat("upstream:gemma2").unwrap();
    let text = template.render(&[Message::user("Hi")], &RenderOptions::default()).unwrap();
    assert_eq!(text, "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
    assert!(matches!(ChatTemplate::compat("nobody"), Err(Error::NotFound(message)) if message.contains("internvl3")));
}
