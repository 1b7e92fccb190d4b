//! Pictures in a terminal: two pixels a character, as upper half blocks with a foreground and a background colour.

use etgenai::media::Image;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};

/// Widest picture, in characters.
const COLUMNS: usize = 32;

/// Whether standard output is a terminal that shows 24-bit colours.
pub fn shows_pictures() -> bool {
    let colours = std::env::var("COLORTERM").is_ok_and(|value| value == "truecolor" || value == "24bit");
    colours && std::env::var_os("NO_COLOR").is_none() && io::stdout().is_terminal()
}

/// Lines that draw the picture, without a final line end; `None` for one without pixels (a ready tensor).
pub fn draw(image: &Image) -> Option<String> {
    let pixels = image.rgb()?;
    let (width, height) = (image.width(), image.height());
    let columns = COLUMNS.min(width);
    let rows = (height * columns / width).max(2).div_ceil(2) * 2;
    let colour = |row: usize, column: usize| {
        let (x, y) = (column * width / columns, row * height / rows);
        let at = (y.min(height - 1) * width + x) * 3;
        pixels.get(at..at + 3).map(|rgb| (rgb[0], rgb[1], rgb[2]))
    };
    let mut lines = Vec::new();
    for row in (0..rows).step_by(2) {
        let mut line = String::from("  ");
        for column in 0..columns {
            let ((r, g, b), (r2, g2, b2)) = (colour(row, column)?, colour(row + 1, column)?);
            // Writing to a string cannot fail.
            let _ = write!(line, "\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m\u{2580}");
        }
        line.push_str("\x1b[0m");
        lines.push(line);
    }
    Some(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etgenai::media::{DecodeOptions, PixelFormat, Pixels};

    fn picture(width: usize, height: usize) -> Image {
        let data = vec![200; width * height * 3];
        let pixels = Pixels { format: PixelFormat::Rgb8, width, height, row_stride: width * 3, data: &data };
        Image::from_pixels(&pixels, &DecodeOptions::default()).expect("a picture")
    }

    #[test]
    fn a_character_is_two_pixels_high_and_no_line_is_too_wide() {
        for (width, height, lines, columns) in [(64, 64, 16, 32), (1, 1, 1, 1), (3, 400, 200, 3), (400, 3, 1, 32)] {
            let drawn = draw(&picture(width, height)).expect("it has pixels");
            assert_eq!(drawn.lines().count(), lines, "{width} x {height}");
            assert!(drawn.lines().all(|line| line.matches('\u{2580}').count() == columns), "{width} x {height}");
        }
    }
}
