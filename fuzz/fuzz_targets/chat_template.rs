//! A hostile chat template: a rendering or an error, within bounded work.
#![no_main]

use etgenai::chat::{ChatTemplate, Message, RenderOptions, SpecialTokens};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (String, Vec<String>)| {
    let (source, contents) = input;
    let special = SpecialTokens { bos_token: Some("<s>".into()), ..SpecialTokens::default() };
    let Ok(template) = ChatTemplate::from_source(&source, &special) else { return };
    let messages: Vec<Message> = contents
        .iter()
        .enumerate()
        .map(|(turn, text)| if turn % 2 == 0 { Message::user(text) } else { Message::assistant(text) })
        .collect();
    let _ = template.render(&messages, &RenderOptions::default());
});
