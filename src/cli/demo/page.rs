//! The demo as one HTML file that needs nothing else.

use super::{Played, describe};
use crate::cli::output::bytes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use etgenai::compile::CompileReport;
use etgenai::runner::Runner;

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; }
.turn { margin: 2rem 0; }
.pictures { display: flex; gap: 1rem; margin-bottom: .5rem; justify-content: flex-end; }
.pictures img { width: 9rem; image-rendering: pixelated; border-radius: .5rem; border: 1px solid #8885; }
.message { padding: .5rem 1rem; border-radius: 1rem; width: fit-content; max-width: 85%; }
.user { background: #3b82f6; color: #fff; margin-left: auto; }
.model { background: #8883; margin-top: .5rem; }
.times, footer { color: #888; font-size: .8rem; margin-top: .25rem; }
";

/// The page.
pub fn write(played: &[Played], report: &CompileReport, runner: &Runner) -> String {
    let turns: String = played.iter().map(turn).collect();
    let total = runner.stats();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>etgenai demo</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>A conversation about pictures</h1>\n{turns}\
         <footer>{} ({}), compiled in {:.1} s, opened in {:.0} ms; {} pictures encoded in {:.1} ms, {} tokens read and \
         {} written; {}; etgenai {}</footer>\n</body>\n</html>\n",
        escape(&report.model),
        bytes(report.bytes),
        report.seconds,
        total.load_ms,
        total.encoded_images,
        total.image_encode_ms,
        total.prefilled_tokens,
        total.generated_tokens,
        escape(&runner.decoder().component().description()),
        env!("CARGO_PKG_VERSION"),
    )
}

fn turn(turn: &Played) -> String {
    let pictures: String = turn
        .images
        .iter()
        .map(|(file, image)| {
            let (data, width, height) = (STANDARD.encode(file), image.width(), image.height());
            format!("<img alt=\"picture, {width} by {height} pixels\" src=\"data:image/png;base64,{data}\">")
        })
        .collect();
    format!(
        "<section class=\"turn\">\n<div class=\"pictures\">{pictures}</div>\n\
         <div class=\"message user\">{}</div>\n<div class=\"message model\">{}</div>\n\
         <div class=\"times\">{}</div>\n</section>\n",
        escape(&turn.text),
        escape(turn.result.text.trim()),
        escape(&describe(&turn.result.stats)),
    )
}

/// Text as HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
